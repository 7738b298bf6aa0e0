"""A log that holds several attempts of a job: what counts is how the last one ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ep_overlap_mcp.diagnosis.evidence import Evidence, Line

# what a launcher prints when an attempt is over; steps after it are another attempt's
OVER = ("ChildFailedError", "will restart worker group", "failed (exitcode", "srun: error:", "SignalException")


def last_attempt(evidence: Evidence) -> Evidence:
    """Without the failures of attempts after which the job trained and failed again; the same where there is one.

    Only within a file: the files of one job are its ranks.
    """
    starts = {file: _start(evidence, file) for file in {failure.line.file for failure in evidence.failures}}

    def is_of_the_last(line: Line) -> bool:
        return line.order > starts.get(line.file, 0)

    failures = tuple(failure for failure in evidence.failures if is_of_the_last(failure.line))
    if not any(starts.values()) or all(failure.follows for failure in failures):
        return evidence
    hits = tuple(hit for hit in evidence.hits if not hit.signature.stops or is_of_the_last(hit.line))
    return replace(evidence, failures=failures, hits=hits)


def _start(evidence: Evidence, file: str) -> int:
    """Where the last attempt of a file begins: after the last end of one that steps follow; 0 where none does."""
    last_step = max((step.line.order for step in evidence.iterations if step.line.file == file), default=0)
    over = (hit.line for hit in evidence.hits if hit.signature.literal in OVER and hit.line.file == file)
    return max((line.order for line in over if line.order < last_step), default=0)
