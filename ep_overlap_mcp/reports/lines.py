"""What text writers share: a line and its look, places and values as they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import Place

SEVERITY_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}
VERDICT_STYLES: Final = {"valid": "bold green", "invalid": "bold red", "undetermined": "bold yellow"}


@dataclass(frozen=True)
class Line:
    """One line of output and how it looks on a terminal (a rich style)."""

    text: str
    style: str = ""


def place(origin: Place) -> str:
    """`file:line`, or the file alone."""
    return f"{origin.file}:{origin.line}" if origin.line else str(origin.file)


def shown(value: Any) -> str:
    """A setting's value as configurations write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
