"""Conflicts of delayed weight gradients: findings, the matrix and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import VERDICT_STYLES, Line, shown
from ep_overlap_mcp.reports.text_of.check import finding_lines, undecided_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.conflicts import ConflictsResult


def lines(result: ConflictsResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, VERDICT_STYLES[result.verdict])
    for finding in result.findings:
        yield from finding_lines(finding)
    yield from undecided_lines(result.undecided)
    for row in result.rows:
        floor = f"from Transformer Engine {row.allowed_from}" if row.allowed_from else row.verdict
        rules = f"  ({', '.join(row.rules[:4])})" if row.rules and row.verdict != "yes" else ""
        scope = " ".join(row.scope) or ("" if row.cuda_graph_impl == "none" else "(whole)")
        name = f"  {row.cuda_graph_impl} {scope}".rstrip()
        yield Line(f"{name.ljust(52)}{'yes' if row.verdict == 'yes' else floor}{rules}")
    for way in result.way_out:
        changes = ", ".join(f"{path}={shown(value)}" for path, value in way.changes.items())
        lost = f"; gives up {', '.join(way.gives_up)}" if way.gives_up else ""
        yield Line(f"  way out: {changes} (keeps {', '.join(way.keeps)}{lost})")
