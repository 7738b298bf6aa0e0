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
    for undecided in result.undecided:
        yield from undecided_lines(undecided)
    versions = list(dict.fromkeys(cell.transformer_engine for cell in result.matrix))
    yield Line("  Transformer Engine".ljust(48) + "".join(version.rjust(9) for version in versions), "dim")
    rows: dict[str, list[str]] = {}
    for cell in result.matrix:
        scope = " ".join(cell.scope) or ("" if cell.cuda_graph_impl == "none" else "(whole)")
        rows.setdefault(f"  {cell.cuda_graph_impl} {scope}".rstrip(), []).append(cell.allowed)
    yield from (Line(name.ljust(48) + "".join(word.rjust(9) for word in words)) for name, words in rows.items())
    for way in result.way_out:
        changes = ", ".join(f"{path}={shown(value)}" for path, value in way.changes.items())
        lost = f"; gives up {', '.join(way.gives_up)}" if way.gives_up else ""
        yield Line(f"  way out: {changes} (keeps {', '.join(way.keeps)}{lost})")
