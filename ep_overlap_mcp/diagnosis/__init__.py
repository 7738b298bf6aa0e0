"""From a failed, hung, wrong or slower run to causes, each with the test that confirms it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.causes import CAUSES
from ep_overlap_mcp.diagnosis.errors import NothingToDiagnose, UnreadableLog
from ep_overlap_mcp.diagnosis.prefixes import rank_of_file
from ep_overlap_mcp.diagnosis.ranking import first_failure, rank
from ep_overlap_mcp.diagnosis.reading import read_logs
from ep_overlap_mcp.diagnosis.regression import Triage, supports, triage
from ep_overlap_mcp.diagnosis.step_time import change_point, compare_step_times
from ep_overlap_mcp.diagnosis.symptoms import candidates
from ep_overlap_mcp.results.diagnose import ChangedSetting, DiagnoseResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ep_overlap_mcp.diagnosis.evidence import Evidence
    from ep_overlap_mcp.results.diagnose import Cause, FirstFailure

__all__ = ["CAUSES", "NothingToDiagnose", "UnreadableLog", "diagnose", "triage"]


def diagnose(
    logs: Sequence[Path] = (),
    *,
    text: str | None = None,
    symptom: str | None = None,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    stack: Mapping[str, str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> DiagnoseResult:
    """Causes of what went wrong, ranked, from any of logs, an error text, words and two configurations.

    `before` and `after` are effective settings, `{canonical path: value}`; `stack` holds component versions
    (and `gpu`) that the logs do not print. `on_progress(bytes read, bytes in all)` is called as logs are read.
    Raises `UnreadableLog` for a file that cannot be read as text, `NothingToDiagnose` without any input.
    """
    changed = before is not None and after is not None
    if not (logs or text or symptom or changed):
        raise NothingToDiagnose
    evidence = read_logs(logs, text, stack, on_progress)
    found = _triage(evidence, before, after, symptom)
    extra = [*candidates(symptom or ""), *(supports(found) if found else ())]
    causes, ruled_out = rank(evidence, extra)
    first = first_failure(evidence)
    return DiagnoseResult(
        summary=_summary(causes, first, found, evidence),
        causes=causes,
        ruled_out=ruled_out,
        changed=[ChangedSetting(path=c.path, before=c.before, after=c.after) for c in (found.changes if found else ())],
        first_failure=first,
    )


def _triage(
    evidence: Evidence,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    symptom: str | None,
) -> Triage | None:
    """Triage of the given configurations, else of what two timed logs print."""
    if before is not None and after is not None:
        return triage(before, after, intent=symptom)
    files = _two_runs(evidence)
    if not files:
        return None
    asked_first, asked = (evidence.settings_of(file, "override", "flag") for file in files)
    first, second = (evidence.settings_of(file, "table", "yaml") for file in files)
    if not (first or asked_first) or not (second or asked):
        return None
    return triage(
        first or asked_first, second or asked, requested_before=asked_first, requested_after=asked, intent=symptom
    )


def _summary(causes: list[Cause], first: FirstFailure | None, found: Triage | None, evidence: Evidence) -> str:
    parts = [_first_cause(causes)]
    if first:
        who = "a rank the log does not name" if first.rank is None else f"rank {first.rank}"
        parts.append(f"First to fail: {who}, {first.file}:{first.line}.")
    if found:
        parts += _changes(found)
    return " ".join([*parts, *_steps(evidence)])


def _first_cause(causes: list[Cause]) -> str:
    top, others = causes[0], len(causes) - 1
    if top.cause == "unknown":
        seen = f" First exception: {top.evidence[0].text[:120]}." if top.evidence else ""
        return f"No known signature.{seen} To find out, {top.test}."
    more = f" {others} other candidate{'s' if others > 1 else ''} below." if others else ""
    return f"{top.confidence.capitalize()}: {top.title} ({top.cause}). Test: {top.test}.{more}"


def _changes(found: Triage) -> list[str]:
    if not found.changes:
        return ["No setting differs."]
    intended = f"intended {found.intended}" if found.intended else "the intended change is not clear"
    parts = [f"{len(found.changes)} settings differ: {intended}."]
    if found.confounders:
        told = "; ".join(f"{group} ({group.why})" for group in found.confounders[:4])
        parts.append(f"Confounders: {told}.")
    if found.experiments:
        first = found.experiments[0]
        settings = ", ".join(f"{path}={value}" for path, value in first.settings.items())
        parts.append(f"{len(found.experiments)} A/B(s) isolate it; first run `{first.base}` with {settings}.")
    return parts


def _steps(evidence: Evidence) -> Iterator[str]:
    """What the logged steps say: two runs compared, one run that became slower, steps without a gradient."""
    skipped, nans = (sum(getattr(i, kind) for i in evidence.iterations) for kind in ("skipped", "nan"))
    if skipped or nans:
        yield f"{skipped} steps were skipped, {nans} had NaN."
    runs = {file: [i for i in evidence.iterations if i.ms and i.line.file == file] for file in evidence.files()}
    if two := _two_runs(evidence):
        before, after = ([i.ms or 0.0 for i in runs[file]] for file in two)
        if change := compare_step_times(before, after):
            yield f"{two[1]} takes {change}."
    elif len(runs) == 1:
        steps = next(iter(runs.values()))
        found = change_point([i.ms or 0.0 for i in steps])
        if found and found[1].verdict == "slower":
            place, change = found
            yield f"From {steps[place].line.file}:{steps[place].line.number} on a step takes {change}."


def _two_runs(evidence: Evidence) -> list[str]:
    """The two timed logs of two runs; empty for one run, or for the ranks of one."""
    files = evidence.files()
    return files if len(files) == 2 and all(rank_of_file(file) is None for file in files) else []
