"""Prompts: Markdown files with front matter, as MCP prompts.

A file `prompts/name.md` starts with a YAML block: `title`, `description` and `arguments`, a list of `name`,
`description` and `required`. In its body `{name}` stands for an argument.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp.server.mcpserver.prompts.base import Prompt, PromptArgument
from mcp_types import INVALID_PARAMS

from ep_overlap_mcp.bundled import bundled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcp.server.mcpserver import Context

_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def load_prompts() -> list[Prompt]:
    """One prompt a file, in the order of the names."""
    return [_prompt(path) for path in sorted(bundled("prompts").glob("*.md"))]


class _FilePrompt(Prompt):
    """A prompt that names a missing argument in both protocol eras; the SDK's own check ends as an internal error."""

    async def render(self, arguments: dict[str, Any] | None, context: Context[Any, Any]) -> Any:
        missing = [a.name for a in self.arguments or [] if a.required and not (arguments or {}).get(a.name)]
        if missing:
            raise MCPError(INVALID_PARAMS, f"prompt {self.name} needs the argument {', '.join(missing)}")
        return await super().render(arguments, context)


def _prompt(path: Path) -> Prompt:
    import yaml

    text = path.read_text(encoding="utf-8")
    front = _FRONT.match(text)
    if front is None:
        raise ValueError(f"{path.name} has no front matter between `---` lines")
    meta = yaml.load(front[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    arguments = [PromptArgument(**argument) for argument in meta.get("arguments", [])]
    return _FilePrompt(
        name=path.stem,
        title=meta["title"],
        description=meta["description"],
        arguments=arguments,
        fn=_filled(text[front.end() :].strip(), arguments),
        context_kwarg=None,
    )


def _filled(body: str, arguments: list[PromptArgument]) -> Callable[..., str]:
    def fill(**given: Any) -> str:
        values = {a.name: str(given.get(a.name) or "not given") for a in arguments}
        return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), body)

    return fill
