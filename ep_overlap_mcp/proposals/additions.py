"""What to add, and what to take out, where no file can be edited: in the words of the dialect at hand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.proposals.rendering import flag_to_add, override, rendered
from ep_overlap_mcp.proposals.statements import NoPlaceError
from ep_overlap_mcp.settings.fields import field_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ep_overlap_mcp.results.propose import Mended
    from ep_overlap_mcp.settings.request import Request

Format = Literal["overrides", "flags", "python", "yaml"]

LF_COMMAND = r"sed -i 's/\r$//'"
_VERL = "actor_rollout_ref.actor.megatron.override_transformer_config."
_NEMO_RL = "policy.megatron_cfg."


def to_add(request: Request, changes: Mapping[str, Any]) -> tuple[Format, str]:
    """Python lines for a recipe, flags for Megatron-LM, overrides for Bridge, verl and NeMo-RL, else YAML keys."""
    dialect = request.readings[0].dialect if request.readings else ""
    if dialect == "Python recipe":
        root = _root(request)
        return "python", _lines(request, changes, lambda path, value: _python(root, request, path, value))
    if request.framework == "bridge":
        return "overrides", _lines(request, changes, override)
    if request.framework == "megatron-lm":
        return "flags", _lines(request, changes, flag_to_add)
    prefix = _prefix(request)
    if prefix:
        return "overrides", _lines(request, changes, lambda path, value: _prefixed(prefix, path, value))
    if dialect == "shell":
        return "flags", _lines(request, changes, _underscored)
    return "yaml", _lines(request, changes, lambda p, v: f"{field_table()[p].name}: {rendered('yaml', v)}")


def mend_by_hand(mend: Mended) -> str:
    """What to do about an edit of the text itself."""
    if mend.line is None:
        return f"first `{LF_COMMAND} {mend.file}`"
    edit = f"change `{mend.before}` to `{mend.to}`" if mend.to else f"remove `{mend.before}`"
    return f"{edit} ({mend.file}:{mend.line})"


def _lines(request: Request, changes: Mapping[str, Any], written: Any) -> str:
    """A line for each change; what has no spelling is said, with the place of what must go."""
    lines = []
    for path, value in changes.items():
        if path.startswith("env."):
            lines.append(f"export {path[4:]}={value}" if value is not None else f"unset {path[4:]}")
            continue
        try:
            line = written(path, value)
        except NoPlaceError:
            line = ""
        lines.append(line or _to_remove(request, path, value))
    return "\n".join(lines)


def _to_remove(request: Request, path: str, value: Any) -> str:
    setting = request.as_written.get(path)
    if setting is None:
        return f"# set {path} to {value}"
    statement = (setting.origin.text or path).strip()
    place = f" ({setting.origin})" if setting.origin.file else ""
    if value in (None, False, []):
        return f"# remove `{statement}`{place}"
    return f"# change `{statement}`{place} to {value}"


def _root(request: Request) -> str:
    """What the recipe calls its configuration: the first name of most of its assignments."""
    names = [m[1] for s in request.as_written.values() if (m := re.match(r"\s*(\w+)\.[\w.]+ = ", s.origin.text or ""))]
    return max(names, key=names.count, default="cfg")


def _python(root: str, request: Request, path: str, value: Any) -> str:
    line = f"{root}.{path} = {value!r}"
    if path.startswith("comm_overlap.") and not any(p.startswith("comm_overlap.") for p in request.as_written):
        first = f"{root}.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)"
        line = f"# where the base recipe leaves it None: {first}\n{line}"
    return line


def _underscored(path: str, value: Any) -> str:
    """ms-swift's flags: core's own names, a value for every switch."""
    if value is None and path != "model.recompute_granularity":
        raise NoPlaceError(f"{path} is unset by leaving it out")
    return f"--{field_table()[path].name} {rendered('flags', value)}"


def _prefix(request: Request) -> str | None:
    """Where the program that the overrides are for keeps Megatron's fields."""
    texts = " ".join(s.origin.text or "" for s in request.as_written.values())
    partial = " ".join(request.partial)
    if "actor_rollout_ref" in texts or "verl" in partial:
        return _VERL
    return _NEMO_RL if "policy." in texts or "NeMo-RL" in partial else None


def _prefixed(prefix: str, path: str, value: Any) -> str:
    if path == "verl.use_fused_kernels":
        return f"actor_rollout_ref.model.use_fused_kernels={rendered('overrides', value)}"
    return f"++{prefix}{field_table()[path].name}={rendered('overrides', value)}"
