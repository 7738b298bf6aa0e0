"""From a failed, hung, wrong or slower run to causes, each with the test that confirms it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.causes import CAUSES
from ep_overlap_mcp.diagnosis.configuration import Configuration, as_printed, of_request
from ep_overlap_mcp.diagnosis.errors import NothingToDiagnose, UnreadableLog
from ep_overlap_mcp.diagnosis.judged import judged
from ep_overlap_mcp.diagnosis.measured import of_profiles, of_smoke_runs, texts_of_failures
from ep_overlap_mcp.diagnosis.ranking import first_failure, rank
from ep_overlap_mcp.diagnosis.reading import read_logs
from ep_overlap_mcp.diagnosis.regression import Triage, supports, triage
from ep_overlap_mcp.diagnosis.runs import two_runs
from ep_overlap_mcp.diagnosis.step_time import change_point, compare_step_times
from ep_overlap_mcp.diagnosis.summary import summary
from ep_overlap_mcp.diagnosis.symptoms import candidates, named, to_choose_from
from ep_overlap_mcp.results.diagnose import (
    ChangedSetting,
    ChangedTogether,
    DiagnoseResult,
    Experiment,
    StepTime,
    SymptomChoice,
)
from ep_overlap_mcp.surface import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ep_overlap_mcp.diagnosis.evidence import Evidence
    from ep_overlap_mcp.diagnosis.findings import Against, Support
    from ep_overlap_mcp.diagnosis.regression import Change
    from ep_overlap_mcp.results.profile import ProfileResult
    from ep_overlap_mcp.results.smoke import SmokeResult

__all__ = ["CAUSES", "Configuration", "NothingToDiagnose", "UnreadableLog", "diagnose", "of_request", "triage"]


def diagnose(
    logs: Sequence[Path] = (),
    *,
    text: str | None = None,
    symptom: str | None = None,
    before: Configuration | None = None,
    after: Configuration | None = None,
    stack: Mapping[str, str] | None = None,
    smoke_runs: Sequence[SmokeResult] = (),
    profiles: Sequence[ProfileResult] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> DiagnoseResult:
    """Causes of what went wrong, ranked, from any of logs, an error text, words, configurations and measurements.

    `after` is the configuration that is not fine, `before` one that was; without them, what the logs print of their
    settings counts. `stack` holds component versions (and `gpu`) that the logs do not print.
    `on_progress(bytes read, bytes in all)` is called as logs are read.
    Raises `UnreadableLog` for a file that cannot be read as text, `NothingToDiagnose` without any input.
    """
    if not (logs or text or symptom or after or smoke_runs or profiles):
        raise NothingToDiagnose
    texts = {**({"text": text} if text else {}), **texts_of_failures(smoke_runs)}
    evidence = read_logs(logs, texts, on_progress, stack=stack, symptom=symptom or "")
    before, after = _configurations(evidence, before, after)
    found = _triage(before, after, symptom) if before and after else None
    causes, ruled_out = rank(
        evidence,
        _beside_the_logs(evidence, before, after, found, [*of_smoke_runs(smoke_runs), *of_profiles(profiles)]),
        after.framework if after else None,
    )
    result = DiagnoseResult(
        summary="",
        causes=causes,
        ruled_out=ruled_out,
        changed=[ChangedSetting(path=c.path, before=c.before, after=c.after) for c in (found.changes if found else ())],
        intended=_intended(found) if found else None,
        confounders=list(_confounders(found)) if found else [],
        experiments=_experiments(found) if found else [],
        step_time=_step_time(evidence),
        first_failure=first_failure(evidence),
        symptoms=_symptoms(evidence) if causes[0].cause == "unknown" else [],
    )
    return result.model_copy(update={"summary": summary(result, evidence, compared=found is not None)})


def _symptoms(evidence: Evidence) -> list[SymptomChoice]:
    """What the caller can say is wrong, where he has said nothing that names a symptom."""
    if named(evidence.symptom):
        return []
    rows = to_choose_from(evidence)
    return [SymptomChoice(symptom=row.name, evidence=filled(row.evidence), causes=list(row.causes[:3])) for row in rows]


def _configurations(
    evidence: Evidence, before: Configuration | None, after: Configuration | None
) -> tuple[Configuration | None, Configuration | None]:
    """The given ones, else what two runs print of theirs, else what one run prints."""
    if after is not None:
        return before, after
    runs = two_runs(evidence)
    if runs:
        first, second = (as_printed(evidence, file) for file in runs)
        return (first, second) if first and second else (before, second)
    return before, as_printed(evidence)


def _triage(before: Configuration, after: Configuration, symptom: str | None) -> Triage:
    paths = (before.stated or {*before.effective}) | (after.stated or {*after.effective})
    left, right = ({p: c.effective[p] for p in paths if p in c.effective} for c in (before, after))
    return triage(left, right, requested_before=before.requested, requested_after=after.requested, intent=symptom)


def _beside_the_logs(
    evidence: Evidence,
    before: Configuration | None,
    after: Configuration | None,
    found: Triage | None,
    measured: list[Support | Against],
) -> Iterator[Support | Against]:
    """What the configurations, their differences, measurements and the symptom say."""
    if after is not None:
        yield from judged(after, before, evidence.symptom)
    if found is not None:
        yield from supports(found)
    yield from measured
    yield from candidates(evidence.symptom)


def _intended(found: Triage) -> ChangedTogether | None:
    """The change the comparison is about, be it one that was asked for without effect."""
    if found.intended:
        return _together(found.intended.changes, "what the comparison is about")
    return _without_effect(found.overwritten) if found.overwritten and not found.changes else None


def _confounders(found: Triage) -> Iterator[ChangedTogether]:
    """What changed beside the intended change, and what was asked for without effect."""
    for group in found.confounders:
        yield _together(group.changes, group.why)
    if found.overwritten and found.changes:
        yield _without_effect(found.overwritten)


def _without_effect(changes: tuple[Change, ...]) -> ChangedTogether:
    return _together(changes, f"asked for without effect: both run with {', '.join(str(c.before) for c in changes)}")


def _together(changes: tuple[Change, ...], why: str) -> ChangedTogether:
    return ChangedTogether(settings={c.path: c.after for c in changes}, why=why)


def _experiments(found: Triage) -> list[Experiment]:
    return [Experiment(base=e.base, settings=e.settings, compares=str(e)) for e in found.experiments]


def _step_time(evidence: Evidence) -> StepTime | None:
    """Two runs compared; of one run where it became slower, if it did."""
    runs = {file: [i for i in evidence.iterations if i.ms and i.line.file == file] for file in evidence.files()}
    if two := two_runs(evidence):
        before, after = ([i.ms or 0.0 for i in runs[file]] for file in two)
        change = compare_step_times(before, after)
        return StepTime(**change.numbers()) if change else None
    if len(runs) != 1:
        return None
    steps = next(iter(runs.values()))
    found = change_point([i.ms or 0.0 for i in steps])
    if not found or found[1].verdict != "slower":
        return None
    line = steps[found[0]].line
    return StepTime(**found[1].numbers(), since=f"{line.file}:{line.number}")
