"""What clients offer while someone types an argument of a prompt or of a resource's address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_types import Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mcp.server.mcpserver import MCPServer

MOST = 100  # values in one answer, by the protocol
_FILES = ("configuration", "before", "after", "log", "profile")


def add_completion(server: MCPServer[Any], roots: Callable[[], Sequence[Path]]) -> None:
    """Complete rules, setting paths, smoke runs, GPUs, versions, and files under the allowed roots."""

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
    async def complete(_reference: object, argument: Any, _context: object) -> Completion:
        values = list(completions(argument.name, argument.value, roots()))
        return Completion(values=values[:MOST], total=len(values), has_more=len(values) > MOST)


def completions(name: str, typed: str, roots: Sequence[Path]) -> Iterable[str]:
    """The values of an argument that continue what was typed; none for an argument of free text."""
    if name in _FILES:
        return _files(typed, roots)
    if name == "stack":
        done, comma, last = typed.rpartition(",")
        return [f"{done}{comma}{value}" for value in _continuing(last, _stack_parts())]
    values: dict[str, Callable[[], Iterable[str]]] = {
        "code": _rules,
        "path": _fields,
        "id": _runs,
        "gpu": _gpus,
        "gpus_per_node": lambda: ("8", "4", "72"),
        "change": lambda: ("delay_wgrad_compute", "overlap_moe_expert_parallel_comm", "dispatcher", "CUDA graphs"),
    }
    return _continuing(typed, values[name]()) if name in values else []


def _continuing(typed: str, values: Iterable[str]) -> list[str]:
    return [value for value in values if value.lower().startswith(typed.lower())]


def _rules() -> Iterable[str]:
    from ep_overlap_mcp.rules.explain import list_rules

    rules = list_rules().rules
    return [*(rule.rule for rule in rules), *(rule.name for rule in rules)]


def _fields() -> Iterable[str]:
    from ep_overlap_mcp.settings.fields import field_table

    return field_table().by_path


def _runs() -> Iterable[str]:
    from ep_overlap_mcp import smoke

    return [run.id for run in smoke.list_runs().runs]


def _gpus() -> Iterable[str]:
    from ep_overlap_mcp.hardware import known_gpus

    return known_gpus().split(", ")


def _stack_parts() -> Iterable[str]:
    from ep_overlap_mcp.stack import COMPONENTS

    return [f"{component}==" for component in COMPONENTS]


def _files(typed: str, roots: Sequence[Path]) -> list[str]:
    """Names in the folder that was typed, folders with a slash, when it lies under one of the roots."""
    from ep_overlap_mcp.sources.files import allowed
    from ep_overlap_mcp.sources.reading import UnreadableError

    folder, slash, start = typed.rpartition("/")
    try:
        place = allowed(Path(folder or slash or "."), roots)
        found = sorted(place.iterdir())
    except (OSError, UnreadableError):
        return []
    names = [f"{path.name}/" if path.is_dir() else path.name for path in found]
    shown = [name for name in names if name.startswith(start) and (start or not name.startswith("."))]
    return [f"{folder}{slash}{name}" for name in shown]
