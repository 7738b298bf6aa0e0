"""Facts, whatever the cause: how a run ended, what it went on after, what smoke runs tell of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.evidence import not_finite
from ep_overlap_mcp.diagnosis.measured import told
from ep_overlap_mcp.diagnosis.ranking import first_failure_line, rank, shown
from ep_overlap_mcp.diagnosis.signatures.consequences import OVER
from ep_overlap_mcp.diagnosis.unexplained import COMPLETED, EMPTY, MEASURED, QUIET, WENT_ON
from ep_overlap_mcp.results.diagnose import EvidenceLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ep_overlap_mcp.diagnosis.ending import Ending
    from ep_overlap_mcp.diagnosis.evidence import Evidence, Line
    from ep_overlap_mcp.results.diagnose import Cause
    from ep_overlap_mcp.results.smoke import SmokeResult


def facts(ending: Ending, smoke_runs: Sequence[SmokeResult]) -> Iterator[EvidenceLine]:
    """What the run went on after, the line that says that it completed, empty logs, and what smoke runs tell."""
    if ending.past and (failed := first_failure_line(ending.past)):
        text = f"{_went_on(ending, ending.past, failed)}: {failed.text[:160]}"
        yield EvidenceLine(file=failed.file, line=failed.number, text=text)
    if ending.how == "completed" and ending.line:
        yield shown(ending.line)
    yield from (EvidenceLine(file=file, line=None, text="the log is empty") for file in ending.evidence.empty)
    yield from told(smoke_runs)


def said_of_quiet(causes: list[Cause], ending: Ending, smoke_runs: Sequence[SmokeResult]) -> list[Cause]:
    """Where nothing failed and no cause is known: that the run completed or went on, or that there was no log."""
    evidence, top = ending.evidence, causes[0]
    if top.cause != "unknown" or evidence.failures or any(map(not_finite, evidence.iterations)):
        return causes
    quiet = {"completed": COMPLETED, "went on": WENT_ON}.get(ending.how)
    if quiet is None and evidence.opened:
        quiet = EMPTY if len(evidence.empty) == evidence.opened else QUIET if evidence.iterations else None
    elif quiet is None and smoke_runs:
        quiet = MEASURED
    return [quiet.given(top), *causes[1:]] if quiet else causes


def causes_with_past(causes: list[Cause], ending: Ending) -> list[Cause]:
    """With the causes of what the run went on after, possible at most; not beside a failure that it did not survive."""
    if ending.past is None or any(not failure.follows for failure in ending.evidence.failures):
        return causes
    known = {cause.cause for cause in causes}
    past = [cause for cause in rank(ending.past)[0] if cause.cause not in {*known, "unknown"}]
    capped = [cause.model_copy(update={"confidence": "possible"}) for cause in past]
    if capped and not ending.evidence.failures:
        causes = [cause for cause in causes if cause.cause != "unknown"]
    return [*causes, *capped]


def _went_on(ending: Ending, past: Evidence, failed: Line) -> str:
    steps = _steps_after(ending.evidence, failed)
    others = sum(not failure.follows for failure in past.failures) - 1
    more = f" and {others} more such line{'s' if others > 1 else ''}" if others > 0 else ""
    restarted = any(hit.signature in OVER for hit in past.hits)
    how = "an attempt ended with this{}, and a later one went on" if restarted else "the run went on after this{}"
    return how.format(more) + (f": {steps} steps are logged below it" if steps else "")


def _steps_after(evidence: Evidence, failed: Line) -> int:
    lines = (step.line for step in evidence.iterations if step.line.file == failed.file)
    return sum((line.number or 0) > (failed.number or 0) for line in lines)
