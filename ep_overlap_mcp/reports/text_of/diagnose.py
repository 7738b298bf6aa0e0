"""A diagnosis: causes, what was ruled out, what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import Line, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.diagnose import DiagnoseResult

_STYLES = {"confirmed": "bold red", "likely": "yellow", "possible": ""}


def lines(result: DiagnoseResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, "bold")
    for number, cause in enumerate(result.causes, 1):
        yield Line(f"  {number}. {cause.confidence} {cause.cause}: {cause.title}", _STYLES[cause.confidence])
        yield from (Line(f"      {e.file}:{e.line}  {e.text}", "dim") for e in cause.evidence[:3])
        yield Line(f"      test: {cause.test}")
        yield Line(f"      fix: {cause.fix}")
    if result.ruled_out:
        yield Line("  ruled out: " + "; ".join(f"{r.cause} ({r.why})" for r in result.ruled_out[:6]), "dim")
    for change in result.changed[:20]:
        yield Line(f"  changed: {change.path} {shown(change.before)} -> {shown(change.after)}")
    if len(result.changed) > 20:
        yield Line(f"  and {len(result.changed) - 20} more changes; --format json has them all", "dim")
