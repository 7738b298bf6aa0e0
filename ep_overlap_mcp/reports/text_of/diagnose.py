"""A diagnosis: causes, what was ruled out, what changed and how to tell the changes apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.reports.lines import Line, shown
from ep_overlap_mcp.surface import everything, given

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.diagnose import DiagnoseResult, EvidenceLine

_STYLES = {"confirmed": "bold red", "likely": "yellow", "possible": ""}


def lines(result: DiagnoseResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, "bold")
    for number, cause in enumerate(result.causes, 1):
        yield Line(f"  {number}. {cause.confidence} {cause.cause}: {cause.title}", _STYLES[cause.confidence])
        yield from (Line(f"      {_place(e)}  {e.text}", "dim") for e in cause.evidence[:3])
        yield Line(f"      test: {cause.test}")
        yield Line(f"      fix: {cause.fix}")
    for choice in result.symptoms:
        yield Line(f"  {given('symptom', choice.symptom)}: looks at {choice.evidence}", "dim")
    if result.ruled_out:
        yield Line("  ruled out: " + "; ".join(f"{r.cause} ({r.why})" for r in result.ruled_out[:6]), "dim")
    for change in result.changed[:20]:
        yield Line(f"  changed: {change.path} {shown(change.before)} -> {shown(change.after)}")
    if len(result.changed) > 20:
        yield Line(f"  and {len(result.changed) - 20} more changes; {everything()} has them all", "dim")
    yield from _triage(result)
    if result.step_time:
        time = result.step_time
        since = f" since {time.since}" if time.since else ""
        yield Line(f"  step time: {time.ratio:.3f}x (95 % {time.low:.3f} to {time.high:.3f}), {time.verdict}{since}")


def _triage(result: DiagnoseResult) -> Iterator[Line]:
    """The intended change, its confounders, and the A/Bs in order."""
    if result.intended:
        yield Line(f"  intended: {_settings(result.intended.settings)} ({result.intended.why})")
    for group in result.confounders[:10]:
        yield Line(f"  confounder: {_settings(group.settings)} ({group.why})", "yellow")
    for number, experiment in enumerate(result.experiments[:10], 1):
        yield Line(f"  A/B {number}: {experiment.base} with {_settings(experiment.settings)}; {experiment.compares}")


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{path}={shown(value)}" for path, value in settings.items())


def _place(evidence: EvidenceLine) -> str:
    return evidence.file if evidence.line is None else f"{evidence.file}:{evidence.line}"
