"""A proposal: changes, alternatives, patch, dispatchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import VERDICT_STYLES, Line, shown
from ep_overlap_mcp.reports.text_of.check import megatron_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.propose import ProposeResult


def lines(result: ProposeResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, VERDICT_STYLES[result.verdict_after])
    for change in result.changes:
        yield Line(f"  {change.path}: {shown(change.before)} -> {shown(change.to)}  ({', '.join(change.rules)})")
        if change.gives_up:
            yield Line(f"      gives up {change.gives_up}", "yellow")
    for mend in result.mends:
        place = f"{mend.file}:{mend.line}" if mend.line else mend.file
        yield Line(f"  {place}: {mend.before} -> {mend.to or '(removed)'}  ({mend.rule})")
    for number, other in enumerate(result.alternatives, 1):
        changes = ", ".join(f"{c.path}={shown(c.to)}" for c in other)
        yield Line(f"  alternative {number}: {changes}", "dim")
    if result.patch is not None:
        state = "verified: read again after the edit" if result.patch.verified else "to add; the file was not edited"
        yield Line(f"  patch ({result.patch.format}, {state}):")
        yield from (Line(text, _diff_style(text)) for text in result.patch.text.rstrip("\n").split("\n"))
    for advice in result.advice:
        cure = f"; set {advice.path}={shown(advice.value)}" if advice.path else ""
        yield Line(f"  advice: {advice.why}{cure}  ({advice.rule})", "yellow")
    for candidate in result.dispatchers:
        name = candidate.backend or candidate.dispatcher
        yield Line(f"  dispatcher {name}: supported {candidate.supported}; {candidate.why}")
    if result.megatron is not None:
        yield Line(megatron_text(result.megatron, result.verdict_after))
    yield Line(f"  next: {result.next}")


def _diff_style(text: str) -> str:
    return {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "")
