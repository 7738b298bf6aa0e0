"""A client's set-up: what was written, as diffs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.setup import SetupResult

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def lines(result: SetupResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, "bold")
    for change in result.files:
        backup = f"; what was there is kept as {change.backup}" if change.backup else ""
        yield Line(f"  {change.what}: {change.path}: {change.action}{backup}")
        # a new skill is the whole page; its file name says enough
        if not (change.what == "skill" and change.action in ("created", "removed")):
            yield from (Line(line, _STYLES.get(line[:1], "")) for line in change.diff.splitlines())
    if result.command:
        yield Line(f"  starts: {' '.join(result.command)}")
    yield Line(f"  next: {result.next}")
