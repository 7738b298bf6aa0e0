"""Answers for people: short, the worst first, in colour where the caller asks for it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING

from ep_overlap_mcp.results.check import CheckResult
from ep_overlap_mcp.results.conflicts import ConflictsResult
from ep_overlap_mcp.results.explain import ExplainResult, RuleList
from ep_overlap_mcp.results.propose import ProposeResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ep_overlap_mcp.results.base import Result
    from ep_overlap_mcp.results.check import Finding, Place, Undecided

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_VERDICTS = {"valid": "bold green", "invalid": "bold red", "undetermined": "bold yellow"}


@dataclass(frozen=True)
class Line:
    """One line of output and how it looks on a terminal (a rich style)."""

    text: str
    style: str = ""


def as_text(results: Sequence[Result], *, color: bool = False, width: int = 110) -> str:
    """All answers as text, a blank line between two."""
    blocks = [list(lines(result)) for result in results]
    spaced = [line for block in blocks for line in (*block, Line(""))][:-1]
    if not color:
        return "\n".join(line.text for line in spaced) + "\n"
    return _colored(spaced, width)


@singledispatch
def lines(result: Result) -> Iterable[Line]:
    """The lines of one answer; a kind of answer registers its own."""
    return [Line(result.summary)]


@lines.register(CheckResult)
def _check_lines(result: CheckResult) -> Iterator[Line]:
    name = f"{result.configuration}: " if result.configuration else ""
    yield Line(name + result.summary, _VERDICTS[result.verdict])
    for finding in result.findings:
        yield from _finding_lines(finding)
    for undecided in result.undecided:
        if undecided.severity != "info":
            yield from _undecided_lines(undecided)
    noted = [u.name for u in result.undecided if u.severity == "info"]
    if noted:
        yield Line(f"  noted, not decided: {', '.join(noted)}", "dim")
    yield Line(_overlap_text(result))
    if result.megatron is not None:
        yield Line(_megatron_text(result), "" if result.megatron.agrees in (True, None) else "bold red")
    yield Line(f"{result.rules_checked} rules checked; `ep-overlap-mcp explain NAME` tells more about one", "dim")


@lines.register(ProposeResult)
def _propose_lines(result: ProposeResult) -> Iterator[Line]:
    yield Line(result.summary, _VERDICTS[result.verdict_after])
    for change in result.changes:
        yield Line(f"  {change.path}: {_shown(change.before)} -> {_shown(change.to)}  ({', '.join(change.rules)})")
        if change.gives_up:
            yield Line(f"      gives up {change.gives_up}", "yellow")
    for number, other in enumerate(result.alternatives, 1):
        changes = ", ".join(f"{c.path}={_shown(c.to)}" for c in other)
        yield Line(f"  alternative {number}: {changes}", "dim")
    if result.patch is not None:
        state = "verified: read again after the edit" if result.patch.verified else "to add; the file was not edited"
        yield Line(f"  patch ({result.patch.format}, {state}):")
        yield from (Line(text, _diff_style(text)) for text in result.patch.text.splitlines())
    for candidate in result.dispatchers:
        name = candidate.backend or candidate.dispatcher
        yield Line(f"  dispatcher {name}: supported {candidate.supported}; {candidate.why}")
    yield Line(f"  next: {result.next}")


def _diff_style(text: str) -> str:
    return {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "")


@lines.register(ConflictsResult)
def _conflicts_lines(result: ConflictsResult) -> Iterator[Line]:
    yield Line(result.summary, _VERDICTS[result.verdict])
    for finding in result.findings:
        yield from _finding_lines(finding)
    for undecided in result.undecided:
        yield from _undecided_lines(undecided)
    versions = list(dict.fromkeys(cell.transformer_engine for cell in result.matrix))
    yield Line("  Transformer Engine".ljust(48) + "".join(version.rjust(9) for version in versions), "dim")
    rows: dict[str, list[str]] = {}
    for cell in result.matrix:
        scope = " ".join(cell.scope) or ("" if cell.cuda_graph_impl == "none" else "(whole)")
        rows.setdefault(f"  {cell.cuda_graph_impl} {scope}".rstrip(), []).append(cell.allowed)
    yield from (Line(name.ljust(48) + "".join(word.rjust(9) for word in words)) for name, words in rows.items())
    for way in result.way_out:
        changes = ", ".join(f"{path}={_shown(value)}" for path, value in way.changes.items())
        lost = f"; gives up {', '.join(way.gives_up)}" if way.gives_up else ""
        yield Line(f"  way out: {changes} (keeps {', '.join(way.keeps)}{lost})")


@lines.register(ExplainResult)
def _explain_lines(result: ExplainResult) -> Iterator[Line]:
    yield Line(f"{result.rule} {result.name} ({result.severity})", _STYLES[result.severity])
    yield Line("")
    yield from (Line(text) for text in result.page.splitlines())
    yield Line("")
    yield Line(f"Enforced by: {'; '.join(result.enforced_by)}")
    yield Line(f"When unknown: {result.when_unknown}")
    yield from (Line(f"Source: {source}", "dim") for source in result.sources)


@lines.register(RuleList)
def _rule_list_lines(result: RuleList) -> Iterator[Line]:
    yield from (Line(f"{r.rule}  {r.severity:7}  {r.name}", _STYLES[r.severity]) for r in result.rules)
    yield Line(result.summary, "dim")


def _finding_lines(finding: Finding) -> Iterator[Line]:
    yield Line(f"  {finding.severity}  {finding.rule} {finding.name}: {finding.message}", _STYLES[finding.severity])
    places = list(dict.fromkeys(_place(s.origin) for s in finding.settings if s.origin.file))
    if places:
        yield Line(f"      at {', '.join(places[:4])}", "dim")
    for option in finding.fix[:2]:
        changes = ", ".join(f"{path}={_shown(value)}" for path, value in option.set.items())
        yield Line(f"      fix: {changes}" + (f" (gives up {option.gives_up})" if option.gives_up else ""))


def _undecided_lines(undecided: Undecided) -> Iterator[Line]:
    style = _STYLES["warning"] if undecided.severity == "error" else "dim"
    yield Line(f"  undecided {undecided.severity}  {undecided.rule} {undecided.name}: {undecided.why}", style)


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


def _megatron_text(result: CheckResult) -> str:
    word = result.megatron
    if word is None or not word.judged:
        return f"  installed Megatron: not judged ({word.why if word else 'not asked'})"
    verdict = "accepts" if word.accepted else f"rejects: {word.exception} at {word.at}"
    return f"  installed Megatron: {verdict}; {'agrees' if word.agrees else 'DISAGREES with the rules'}"


def _place(origin: Place) -> str:
    return f"{origin.file}:{origin.line}" if origin.line else str(origin.file)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _colored(spaced: Sequence[Line], width: int) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    with console.capture() as capture:
        for line in spaced:
            console.print(Text(line.text, style=line.style), soft_wrap=True)
    return capture.get()
