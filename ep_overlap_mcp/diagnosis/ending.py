"""How the run of a log ended: a failure that it went on after is told, but is not what ended it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.evidence import earliest
from ep_overlap_mcp.diagnosis.signatures.consequences import COMPLETED, OVER, RESTARTED, SAVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ep_overlap_mcp.diagnosis.evidence import Evidence, Failure, Line
    from ep_overlap_mcp.diagnosis.signatures import Signature
    from ep_overlap_mcp.results.diagnose import Ended

NEW_STEPS = 3  # after a launcher's word on the end of an attempt
MORE_STEPS = 5  # that no job makes without one of its ranks; fewer may be lines that another rank had buffered


@dataclass(frozen=True)
class Ending:
    """How a run ended, and the line that shows it; `past` is what it went on after, `evidence` all the rest."""

    how: Ended
    line: Line | None
    evidence: Evidence
    past: Evidence | None


def ending_of(evidence: Evidence) -> Ending:
    """Parts what a run went on after from the rest, within a file: the files of one job are its ranks."""
    survived = {file: _survived(evidence, file) for file in {failure.line.file for failure in evidence.failures}}
    rest = _part(evidence, survived, past=False)
    past = _part(evidence, survived, past=True) if any(survived.values()) else None
    completed = next((hit.line for hit in reversed(evidence.hits) if hit.signature in COMPLETED), None)
    if rest.failures:
        return Ending("failed", earliest(f.line for f in rest.failures), rest, past)
    if completed:
        return Ending("completed", completed, rest, past)
    if past:
        steps = (step.line for step in evidence.iterations if survived.get(step.line.file))
        return Ending("went on", max(steps, key=lambda line: line.number or 0, default=None), rest, past)
    return Ending("not said", None, rest, None)


def _part(evidence: Evidence, survived: dict[str, int], *, past: bool) -> Evidence:
    """The failures, with the signatures that tell of one, on one side of where each file went on."""

    def is_of_it(line: Line) -> bool:
        return (0 < (line.number or 0) <= survived.get(line.file, 0)) is past

    failures = tuple(failure for failure in evidence.failures if is_of_it(failure.line))
    others = {failure.line for failure in evidence.failures if not is_of_it(failure.line)}
    own_exit = evidence.root_exit and (is_of_it(evidence.root_exit) if past else failures)
    return replace(
        evidence,
        failures=failures,
        memory=tuple(use for use in evidence.memory if use.line not in others),
        hits=tuple(hit for hit in evidence.hits if is_of_it(hit.line) or (not hit.signature.stops and not past)),
        root_exit=evidence.root_exit if own_exit else None,
    )


def _survived(evidence: Evidence, file: str) -> int:
    """The number of the last line of a file that tells of a failure which the run went on after; 0 for none."""
    steps = sorted((s.line for s in evidence.iterations if s.line.file == file), key=lambda line: line.number or 0)
    numbers = [step.number or 0 for step in steps]
    completed, saved, over, restarted = (_where(evidence, rows, file) for rows in (COMPLETED, SAVED, OVER, RESTARTED))

    def steps_after(failure: Failure, lines: Sequence[int]) -> int:
        """Steps below a failure and the first of some lines that belongs to it; 0 where there is none."""
        number = failure.line.number or 0
        first = 0 if failure.follows else bisect_left(lines, number)
        return len(numbers) - bisect_right(numbers, max(lines[first], number)) if first < len(lines) else 0

    def went_on_after(failure: Failure) -> bool:
        number = failure.line.number or 0
        if completed and completed[-1] > number:
            return True
        if steps_after(failure, restarted) or steps_after(failure, over) >= NEW_STEPS:
            return True
        more = len(numbers) - bisect_right(numbers, number)
        checkpoint = bool(saved) and saved[-1] > number
        return more >= (1 if checkpoint else MORE_STEPS) and not _before(steps[-1], failure.line)

    failures = (f for f in evidence.failures if f.line.file == file)
    return max((f.line.number or 0 for f in failures if went_on_after(f)), default=0)


def _before(step: Line, failed: Line) -> bool:
    """Whether a step was made before a failure that stands above it."""
    return step.time is not None and failed.time is not None and step.time < failed.time


def _where(evidence: Evidence, rows: Iterable[Signature], file: str) -> list[int]:
    """The numbers of the lines of a file that hold one of some signatures."""
    wanted = {row.literal for row in rows}
    found = (hit.line for hit in evidence.hits if hit.signature.literal in wanted)
    return sorted(line.number or 0 for line in found if line.file == file)
