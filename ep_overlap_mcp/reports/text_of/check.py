"""A check: the verdict, the worst findings first, what is undecided and what will run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import SEVERITY_STYLES, VERDICT_STYLES, Line, place, shown
from ep_overlap_mcp.surface import call, everything

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ep_overlap_mcp.results.check import CheckResult, Finding, MegatronJudgement, Undecided

_MOST_GROUPS = 12
_MOST_NOTED = 8


def lines(result: CheckResult) -> Iterator[Line]:
    """The lines of one answer."""
    name = f"{result.configuration}: " if result.configuration else ""
    yield Line(name + result.summary, VERDICT_STYLES[result.verdict])
    for finding in result.findings:
        yield from finding_lines(finding)
    yield from undecided_lines([u for u in result.undecided if u.severity != "info"])
    noted = [u.name for u in result.undecided if u.severity == "info"]
    if noted:
        more = f" and {len(noted) - _MOST_NOTED} more" if len(noted) > _MOST_NOTED else ""
        yield Line(f"  noted, not decided: {', '.join(noted[:_MOST_NOTED])}{more}", "dim")
    yield Line(_overlap_text(result))
    if result.megatron is not None:
        yield Line(
            megatron_text(result.megatron, result.verdict), "" if result.megatron.agrees in (True, None) else "bold red"
        )
    yield Line(f"{result.rules_checked} rules checked; {call('explain_rule', rule='NAME')} tells more about one", "dim")


def finding_lines(finding: Finding) -> Iterator[Line]:
    """A finding, its places and its fixes."""
    yield Line(
        f"  {finding.severity}  {finding.rule} {finding.name}: {finding.message}", SEVERITY_STYLES[finding.severity]
    )
    places = list(dict.fromkeys(place(s.origin) for s in finding.settings if s.origin.file))
    if places:
        yield Line(f"      at {', '.join(places[:4])}", "dim")
    for option in finding.fix[:2]:
        changes = ", ".join(f"{path}={shown(value)}" for path, value in option.set.items())
        yield Line(f"      fix: {changes}" + (f" (gives up {option.gives_up})" if option.gives_up else ""))


def undecided_lines(undecided: Sequence[Undecided]) -> Iterator[Line]:
    """Rules that could not be decided, those for want of the same settings in one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for rule in undecided:
        groups.setdefault((rule.severity, rule.why), []).append(f"{rule.rule} {rule.name}")
    for (severity, why), names in list(groups.items())[:_MOST_GROUPS]:
        style = SEVERITY_STYLES["warning"] if severity == "error" else "dim"
        yield Line(f"  undecided {severity}  {', '.join(names)}: {why}", style)
    if len(groups) > _MOST_GROUPS:
        yield Line(
            f"  and more undecided for {len(groups) - _MOST_GROUPS} other reasons; {everything()} has all", "dim"
        )


def _overlap_text(result: CheckResult) -> str:
    state = result.overlap
    switch = "on" if state.effective else "OFF, though asked for" if state.requested else "off"
    delay = "on" if state.delay_wgrad_effective else "off"
    dispatcher = state.dispatcher_effective or "unknown"
    if state.dispatcher_requested not in (state.dispatcher_effective, None):
        dispatcher += f" (asked for {state.dispatcher_requested})"
    if state.flex_backend:
        dispatcher += f" with {state.flex_backend}"
    return f"  runs with: overlap {switch}, delayed wgrad {delay}, dispatcher {dispatcher}"


def megatron_text(word: MegatronJudgement | None, verdict: str) -> str:
    """The installed Megatron's word beside the verdict of the rules."""
    if word is None or not word.judged:
        return f"  installed Megatron: not judged ({word.why if word else 'not asked'})"
    verdict = "accepts" if word.accepted else f"rejects: {word.exception} at {word.at}"
    if word.accepted and word.agrees and verdict == "invalid":
        return "  installed Megatron: accepts when its configuration is built; the errors above come elsewhere or later"
    stand_ins = f" (with a stand-in for {', '.join(word.stand_ins)})" if word.stand_ins else ""
    return f"  installed Megatron{stand_ins}: {verdict}; {'agrees' if word.agrees else 'DISAGREES with the rules'}"
