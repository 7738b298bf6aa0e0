"""A rule's page, and the list of all rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import SEVERITY_STYLES, Line
from ep_overlap_mcp.results.explain import ExplainResult, RuleList

if TYPE_CHECKING:
    from collections.abc import Iterator


def lines(result: ExplainResult | RuleList) -> Iterator[Line]:
    """The lines of one answer."""
    yield from _list(result) if isinstance(result, RuleList) else _page(result)


def _page(result: ExplainResult) -> Iterator[Line]:
    yield Line(f"{result.rule} {result.name} ({result.severity})", SEVERITY_STYLES[result.severity])
    yield Line("")
    yield from (Line(text) for text in result.page.splitlines())
    yield Line("")
    yield Line(f"Enforced by: {'; '.join(result.enforced_by)}")
    yield Line(f"When unknown: {result.when_unknown}")
    yield from (Line(f"Source: {source}", "dim") for source in result.sources)


def _list(result: RuleList) -> Iterator[Line]:
    yield from (Line(f"{r.rule}  {r.severity:7}  {r.name}", SEVERITY_STYLES[r.severity]) for r in result.rules)
    yield Line(result.summary, "dim")
