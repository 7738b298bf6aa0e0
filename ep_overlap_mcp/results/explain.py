"""The answer of `explain_rule`."""

from __future__ import annotations

from ep_overlap_mcp.results.base import Record, Result
from ep_overlap_mcp.results.check import Severity


class ExplainResult(Result):
    """One rule's page and where its constraint comes from."""

    rule: str
    name: str
    severity: Severity
    enforced_by: list[str]
    when_unknown: str
    page: str
    sources: list[str]


class RuleLine(Record):
    """A rule in the list of all."""

    rule: str
    name: str
    severity: Severity


class RuleList(Result):
    """All rules."""

    rules: list[RuleLine]
