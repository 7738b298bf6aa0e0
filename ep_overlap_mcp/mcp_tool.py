"""A function of ours as a tool of the Model Context Protocol: strict arguments, a compact schema, text and data."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.reports.brief import brief, without_empty
from ep_overlap_mcp.surface import speaking_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ep_overlap_mcp.results.base import Result

Kind = Literal["read_only", "starts_jobs"]


def as_tool(function: Callable[..., Sequence[Result]], kind: Kind) -> Tool:
    """A tool that refuses unknown arguments by name and whose schema carries no titles."""
    made = _StrictTool.from_function(
        _answering(function),
        annotations=_annotations(kind),
        description=inspect.cleandoc(function.__doc__ or ""),
    )
    model = made.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    made.parameters = _compact({**made.parameters, "additionalProperties": False})
    return made


def _annotations(kind: Kind) -> ToolAnnotations:
    return ToolAnnotations(
        read_only_hint=kind == "read_only",
        destructive_hint=False,
        idempotent_hint=kind == "read_only",
        open_world_hint=False,
    )


class _StrictTool(Tool):
    """Says what is wrong with its arguments in its own words, not in those of the library that finds it."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:  # noqa: FBT001, FBT002 - the SDK's
        from ep_overlap_mcp.arguments import told, truths_for_numbers

        if wrong := truths_for_numbers(arguments, self.parameters):
            raise ToolError(f"{self.name}: {wrong}")
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as problem:
            raise ToolError(f"{self.name}: {told(problem, self.parameters)}") from problem
        return await super().run(arguments, context, convert_result)


def _answering(function: Callable[..., Sequence[Result]]) -> Callable[..., CallToolResult]:
    """The function as the SDK calls it: results become text and structured content, refusals error results."""
    signature = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def call(**arguments: Any) -> CallToolResult:
        with speaking_to("agents"):
            try:
                results = function(**arguments)
            except Refusal as problem:
                raise ToolError(str(problem)) from problem
            return _answer(results, full=arguments.get("detail") == "full")

    # Evaluated once: the SDK would evaluate the strings again for every look at them.
    call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    call.__signature__ = signature.replace(return_annotation=CallToolResult)  # type: ignore[attr-defined]
    return call


def _answer(results: Sequence[Result], *, full: bool) -> CallToolResult:
    """Text and structured content say the same; several answers stand in a list under one summary."""
    from ep_overlap_mcp.reports.text import as_text

    objects = [without_empty(r.model_dump(mode="json")) if full else brief(r) for r in results]
    structured = objects[0] if len(objects) == 1 else _several(results, objects)
    text = as_text(results)
    if not full and len(text) > 3500:
        text = text[:3500].rsplit("\n", 1)[0] + '\n… cut; ask again with detail="full"'
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


def _several(results: Sequence[Result], objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"summary": f"{len(results)} configurations. " + " ".join(r.summary for r in results), "results": objects}


# What a schema means without these words
_UNSAID = (("additionalProperties", True), ("default", ""))


def _compact(schema: Any, *, names: bool = False) -> Any:
    """The schema without pydantic's titles, without what goes without saying, and without the null arm and default.

    `names` marks a mapping of property names, where `title` would be a property of ours.
    """
    if isinstance(schema, list):
        return [_compact(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if not names:
        said = {k: v for k, v in schema.items() if (k, v) not in _UNSAID and (k != "title" or not isinstance(v, str))}
        schema = _without_null(said)
    return {k: _compact(v, names=k in ("properties", "$defs") and not names) for k, v in schema.items()}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    arms = schema.get("anyOf", [])
    if {"type": "null"} not in arms or schema.get("default", 0) is not None:
        return schema
    rest = [arm for arm in arms if arm != {"type": "null"}]
    kept = {k: v for k, v in schema.items() if k not in ("anyOf", "default")}
    return {**rest[0], **kept} if len(rest) == 1 else {"anyOf": rest, **kept}
