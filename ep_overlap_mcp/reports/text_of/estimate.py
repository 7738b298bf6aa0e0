"""An estimate: ceiling, band, what it rests on and how far off it was on published runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import Line, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.estimate import EstimateResult


def lines(result: EstimateResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, "bold")
    yield from (Line(f"  assumes {a.name} = {shown(a.value)} ({a.origin})") for a in result.assumptions)
    for row in result.error_table:
        low, high = row.band
        yield Line(f"  published: {row.case}: {row.actual}x; this model: up to {row.ceiling}x, {low} to {high}x", "dim")
