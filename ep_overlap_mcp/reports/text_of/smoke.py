"""Smoke runs: the plan, where a run stands, its three answers with their evidence."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.reports.lines import Line, shown
from ep_overlap_mcp.results.smoke import (
    SmokeList,
    SmokePlanResult,
    SmokeReport,
    SmokeResult,
    SweepPoint,
    SweepResult,
    VariantAnswers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ep_overlap_mcp.results.base import Result
    from ep_overlap_mcp.results.smoke import Numerics, OverlapRan, Plan, Reduction, Speed

_GOOD, _BAD, _OPEN = "bold green", "bold red", "bold yellow"
_STYLES = {
    "yes": _GOOD, "unchanged": _GOOD, "faster": _GOOD, "done": _GOOD,
    "no": _BAD, "changed": _BAD, "slower": _BAD, "failed": _BAD, "lost": _BAD, "refused": _BAD,
}  # fmt: skip


@singledispatch
def lines(result: Result) -> Iterable[Line]:
    """The lines of one answer."""
    return [Line(result.summary)]


@lines.register(SmokeResult)
def _result_lines(result: SmokeResult) -> Iterator[Line]:
    yield Line(f"{result.id} {result.status}: {result.summary}", _STYLES.get(result.status, _OPEN))
    if result.status in ("queued", "running"):
        eta = f", about {result.eta_s:.0f} s to go" if result.eta_s else ""
        yield Line(f"  {result.progress}{eta}")
    if result.pending_s:
        yield Line(f"  in the queue: {result.pending_s:g} s of {result.elapsed_s:g} s", "dim")
    if result.failure is not None:
        yield Line(f"  failure: {result.failure.cause}", _BAD)
        yield from (Line(f"      {text}", "dim") for text in result.failure.evidence)
    if result.status == "done":
        yield from _answer_lines(result)
    yield from _plan_lines(result.plan)
    if result.emulated:
        yield Line(f"  emulated: {'; '.join(result.emulated)}", "yellow")
    yield Line(
        f"  ran on: {result.device}, {result.world_size} ranks, {result.engine}; {_versions(result.stack)}", "dim"
    )
    yield Line(f"  logs: {result.logs}", "dim")
    yield Line(f"  next: {result.next}")


@lines.register(SmokePlanResult)
def _planned_lines(result: SmokePlanResult) -> Iterator[Line]:
    yield Line(result.summary, _OPEN if result.findings else "")
    yield from (Line(f"  the check says: {finding}", _BAD) for finding in result.findings)
    yield from _plan_lines(result.plan)
    if result.plan.emulated:
        yield Line(f"  emulated: {'; '.join(result.plan.emulated)}", "yellow")
    yield Line(f"  would run on: {result.device}; {_versions(result.stack)}", "dim")
    yield Line(f"  next: {result.next}")


@lines.register(SmokeReport)
def _report_lines(report: SmokeReport) -> Iterator[Line]:
    yield from _result_lines(report.run)
    yield from (Line(f"  nodes, {text}", "dim") for text in report.schedule)
    yield from (Line(f"  {text}") for text in report.steps)
    for variant, ratios in report.pairs.items():
        if ratios:
            yield Line(f"  pairs, baseline by {variant}: {' '.join(f'{ratio:.3f}' for ratio in ratios)}")
    yield Line(f"  files: {', '.join(f'{name} ({size})' for name, size in report.files.items())}", "dim")
    yield from (Line(f"  log: {text}", "dim") for text in report.log_tail)


@lines.register(SmokeList)
def _list_lines(result: SmokeList) -> Iterator[Line]:
    yield from (
        Line(f"{run.started}  {run.id}  {run.status:9}  {run.summary}", _STYLES.get(run.status, _OPEN))
        for run in result.runs
    )
    yield Line(result.summary, "dim")


@lines.register(SweepResult)
def _sweep_lines(result: SweepResult) -> Iterator[Line]:
    yield Line(result.summary)
    names = list(dict.fromkeys(name for point in result.points for name in point.settings))
    heads = [*(name.rpartition(".")[2] for name in names), "status", "overlap", "numerics", "speed", "hidden", "run"]
    rows = [[*(point.settings.get(name, "") for name in names), *_cells(point)] for point in result.points]
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    yield Line("  " + "  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)), "bold")
    for point, row in zip(result.points, rows, strict=True):
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield Line(f"  {text}", _STYLES.get(point.status, _OPEN))
        if point.note:
            yield Line(f"      {point.note}", "dim")
    if result.applies_to:
        yield Line(f"  speeds hold for {result.applies_to}", "yellow")
    yield Line(f"  next: {result.next}")


def _cells(point: SweepPoint) -> list[str]:
    """Status, the three answers, the hidden share and the run, as a table shows them."""
    ratio = f" {point.ratio:.3f}" if point.ratio is not None else ""
    hidden = f"{point.hidden_pct:g} %" if point.hidden_pct is not None else ""
    speed = point.speed.replace("_", " ") + ratio
    return [point.status, point.overlap_ran, point.numerics, speed, hidden, point.run or ""]


def _answer_lines(result: SmokeResult) -> Iterator[Line]:
    only = VariantAnswers(overlap_ran=result.overlap_ran, numerics=result.numerics, speed=result.speed)
    for name, answers in (result.variants or {"": only}).items():
        of = f" ({name})" if name else ""
        yield from _one_answer(f"overlap ran{of}", answers.overlap_ran)
        yield from _one_answer(f"numerics{of}", answers.numerics)
        yield from _one_answer(f"speed{of}", answers.speed)
    if result.hidden is not None and result.hidden.hidden_pct is not None:
        hidden = result.hidden
        yield Line(
            f"  hidden: {hidden.hidden_pct:g} % of {hidden.comm_ms:g} ms of communication a step"
            f" (rank {hidden.rank}, the least); beside the speed, never instead of it"
        )


def _one_answer(question: str, answer: OverlapRan | Numerics | Speed) -> Iterator[Line]:
    yield Line(f"  {question}: {answer.verdict.replace('_', ' ')}{_ratio(answer)}", _STYLES.get(answer.verdict, _OPEN))
    yield from (Line(f"      {text}", "dim") for text in answer.evidence)


def _ratio(answer: Any) -> str:
    if getattr(answer, "ratio", None) is None or answer.ci95 is None:
        return ""
    low, high = answer.ci95
    ratio = f" {answer.ratio:.3f}, 95 % interval {low:.3f} to {high:.3f} over {answer.pairs} pairs"
    return f"{ratio}; holds for {answer.applies_to}"


def _plan_lines(plan: Plan) -> Iterator[Line]:
    if plan.kept:
        yield Line(f"  kept: {', '.join(f'{_bare(path)}={shown(value)}' for path, value in plan.kept.items())}")
    smaller = [r for r in plan.reduced if _is_smaller(r)]
    if plan.kept or plan.reduced:
        yield Line(f"  reduced: {_changes(smaller) or 'nothing'}")
    if others := [r for r in plan.reduced if r not in smaller]:
        yield Line(f"  changed: {_changes(others)}")
    yield from (Line(f"  not tested: {text}", "yellow") for text in plan.not_tested)


def _changes(reduced: Iterable[Reduction]) -> str:
    return ", ".join(f"{_bare(r.setting)} {shown(r.before)} -> {shown(r.to)}" for r in reduced)


def _is_smaller(change: Reduction) -> bool:
    """Less of the same; anything else stands in for what the configuration asks for."""
    before, to = change.before, change.to
    if isinstance(before, list) and isinstance(to, list):
        return len(to) < len(before)
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (before, to))
    return bool(numbers and to < before)


def _bare(path: str) -> str:
    return path.removeprefix("model.")


def _versions(stack: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in stack.items() if not name.endswith("_path"))
