"""A rule's page, from the rule itself: what `explain`, `epo://rules/…` and `docs/rules/` show."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.results.explain import ExplainResult, RuleLine, RuleList
from ep_overlap_mcp.rules import all_rules, find_rule
from ep_overlap_mcp.surface import rule_list

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Clause, Rule

_WHEN_UNKNOWN = {
    "undecided": "an unknown setting leaves the rule undecided; an undecided error makes the verdict undetermined",
    "noted": "an unknown setting is noted and never changes the verdict",
    "met": "an unknown version counts as met, and the answer says so",
}


class UnknownRuleError(Refusal):
    """No rule has that code or name; the text names near ones. Exit code 2."""


def explain_rule(code_or_name: str) -> ExplainResult:
    """The page of a rule named by code or name; raises UnknownRuleError."""
    rule = find_rule(code_or_name)
    if rule is None:
        raise UnknownRuleError(_no_such_rule(code_or_name))
    return ExplainResult(
        summary=f"{rule.code} {rule.name} ({rule.severity}): {_first_sentence(rule)}",
        rule=rule.code,
        name=rule.name,
        severity=rule.severity,
        enforced_by=list(dict.fromkeys(enforcement(clause) for clause in rule.clauses)),
        when_unknown=_when_unknown(rule),
        page=rule.doc,
        sources=list(rule.sources),
    )


def rule_markdown(code_or_name: str) -> str:
    """The page of a rule as Markdown, for `epo://rules/…` and `docs/rules/`; raises UnknownRuleError."""
    page = explain_rule(code_or_name)
    parts = [
        f"# {page.rule} {page.name}",
        f"Severity: {page.severity}. Enforced by: {'; '.join(page.enforced_by)}. When unknown: {page.when_unknown}.",
        page.page,
        "Sources:\n\n" + "\n".join(f"- {source}" for source in page.sources),
    ]
    return "\n\n".join(parts) + "\n"


def list_rules() -> RuleList:
    """Every rule with its code, name and severity."""
    rules = [RuleLine(rule=r.code, name=r.name, severity=r.severity) for r in all_rules().values()]
    return RuleList(summary=f"{len(rules)} rules", rules=rules)


def enforcement(clause: Clause) -> str:
    """Who enforces a rule, in which versions: `megatron-core >=0.16`, `bridge >=0.4`, `run time`."""
    versions = [
        f"megatron-core {clause.core}" if clause.core else "",
        f"bridge {clause.bridge}" if clause.bridge else "",
    ]
    said = " and ".join(filter(None, versions))
    if clause.layer in ("megatron-core", "bridge") and said:
        return said
    return f"{clause.layer}{f' ({said})' if said else ''}"


def _when_unknown(rule: Rule) -> str:
    named = " or ".join(f"`{path}`" for path in rule.about)
    return _WHEN_UNKNOWN[rule.unknown] + (f"; a text without {named} meets the rule" if named else "")


def _first_sentence(rule: Rule) -> str:
    first = " ".join(rule.doc.split("\n\n")[0].split())
    return first.partition("What it checks: ")[2] or first


def _no_such_rule(wanted: str) -> str:
    names = [*all_rules(), *(r.name for r in all_rules().values())]
    near = difflib.get_close_matches(wanted.lower(), names, n=3, cutoff=0.5)
    hint = f"; did you mean {', '.join(near)}?" if near else f"; {rule_list()} lists them all"
    return f"no rule is called `{wanted}`{hint}"
