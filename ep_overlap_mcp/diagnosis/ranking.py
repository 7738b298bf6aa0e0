"""Weighs what the detectors found: causes in order, what is ruled out, which rank failed first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.causes import CAUSES
from ep_overlap_mcp.diagnosis.detectors import FAILED_RUN
from ep_overlap_mcp.diagnosis.evidence import earliest
from ep_overlap_mcp.diagnosis.findings import BROKEN, CONFIRMS, LIKELY, POSSIBLE, STRONG, Against, Support
from ep_overlap_mcp.diagnosis.silent import QUIET_RUN
from ep_overlap_mcp.diagnosis.symptoms import fitting
from ep_overlap_mcp.diagnosis.unexplained import FOREIGN, advice
from ep_overlap_mcp.results.diagnose import Cause, EvidenceLine, FirstFailure, RuledOut
from ep_overlap_mcp.surface import filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ep_overlap_mcp.diagnosis.causes import CauseRow
    from ep_overlap_mcp.diagnosis.evidence import Evidence, Line
    from ep_overlap_mcp.results.diagnose import Confidence
    from ep_overlap_mcp.stack import Framework

MOST_CAUSES = 8
SHOWN_LINES = 5  # of the first cause
SHORT = 2  # of the others
SHOWN_TEXT = 240
_NOT_A_NUMBER = re.compile(r"\b(?:NaN|Inf|nan|inf)\b")  # a failure that wrong numbers bring about
_KILLED = re.compile(r"exitcode {0,8}: {0,4}-(?:7|9|11)\b")  # by the system, not by a watchdog that waited
_BY_ITSELF = re.compile(r"exitcode {0,8}: {0,4}(?!-15\b)-?[1-9]")  # not ended by the launcher
_BEFORE_CANDIDATES = 1.9
LONGEST_WAIT = 3600.0  # seconds: DeepEP gives up after 100, process groups after 600 to 3600


def rank(
    evidence: Evidence, extra: Iterable[Support | Against] = (), framework: Framework | None = None
) -> tuple[list[Cause], list[RuledOut]]:
    """Causes, the one with the strongest line first, and the causes that were considered but do not hold.

    `extra` is what speaks for or against causes outside the logs: it cannot rule out what a log shows, and where a
    log shows a failure of its own, it makes other causes possible at most.
    """
    found = [finding for detector in FAILED_RUN for finding in detector(evidence)]
    failed = _shown_causes(found)
    strange = [f.line for f in evidence.failures if not f.recognised and not f.follows]
    if not failed:
        quiet = [finding for detector in QUIET_RUN for finding in detector(evidence)]
        found += (
            map(_beside_a_failure, quiet) if any(not _NOT_A_NUMBER.search(line.text) for line in strange) else quiet
        )
    found += dead_peer(evidence)
    own = {item.cause for item in found if isinstance(item, Against)}
    found += _beside(extra, _shown_causes(found), framework, _bar(strange, explained=bool(failed)))
    if strange and not _shown_causes(found):
        found.append(Support("unknown", _BEFORE_CANDIDATES, tuple(_unexplained(evidence))))
    against = {item.cause: item.why for item in found if isinstance(item, Against)}
    supports: dict[str, list[Support]] = {}
    for item in found:
        if isinstance(item, Support) and item.cause not in against:
            supports.setdefault(item.cause, []).append(item)
    if not supports:
        supports["unknown"] = [Support("unknown", POSSIBLE, tuple(_unexplained(evidence)))]
    ordered = sorted(supports.values(), key=_place)[:MOST_CAUSES]
    concerned = {item.cause for item in found if isinstance(item, Support)}
    look_alikes = _LOOK_ALIKES - ({*against} - own if evidence.printed else set())
    ruled_out = [RuledOut(cause=c, why=why) for c, why in against.items() if c in concerned or c in look_alikes]
    causes = [_cause(group, SHORT if place else SHOWN_LINES) for place, group in enumerate(ordered)]
    return [_advised(cause, evidence) for cause in causes], ruled_out


def _shown_causes(found: Iterable[Support | Against]) -> set[str]:
    return {item.cause for item in found if isinstance(item, Support) and item.strength >= LIKELY}


def _beside(
    extra: Iterable[Support | Against], shown: set[str], framework: Framework | None, bar: float
) -> Iterator[Support | Against]:
    """What the logs leave of the rest; without the causes that only another framework's code brings about.

    Support below the bar is possible at most, unless the log shows the cause; so is wrong numbers' beside a failure.
    """
    for item in extra:
        if isinstance(item, Against):
            if item.cause not in shown:
                yield item
        elif _told_by(item, shown):
            continue
        elif item.cause in shown or CAUSES[item.cause].framework in (None, framework or CAUSES[item.cause].framework):
            silent = bar > 0 and _changes_numbers(item)
            capped = item.cause not in shown and (item.strength < bar or silent)
            yield _beside_a_failure(item) if capped else item


def _beside_a_failure(item: Support | Against) -> Support | Against:
    """Support for what does not explain a failure: possible at most."""
    return replace(item, strength=min(item.strength, POSSIBLE)) if isinstance(item, Support) else item


def _bar(strange: list[Line], *, explained: bool) -> float:
    """How strong support must be to stay likely beside the failure of a log; 0 when nothing failed."""
    if explained or (strange and all(FOREIGN.match(line.text) for line in strange)):
        return CONFIRMS
    return BROKEN if strange else 0.0


def _changes_numbers(item: Support) -> bool:
    """Whether a cause, or what a broken rule is about, changes numbers without an error."""
    causes = fitting("wrong numbers")
    return item.cause in causes or any(set(item.rules) & set(CAUSES[cause].rules) for cause in causes)


def _told_by(item: Support, shown: set[str]) -> bool:
    """A broken rule that a cause shown by the log is about."""
    generic = "config-rule-violated"
    return item.cause == generic and any(set(item.rules) <= set(CAUSES[cause].rules) for cause in shown - {generic})


def dead_peer(evidence: Evidence) -> Iterator[Support]:
    """An exception nobody explains, before every time-out on other ranks: its rank is what the others miss.

    A rank that spoke again, or an exception longer ago than any time-out lasts, does not count.
    """
    waits = [hit.line for hit in evidence.hits if hit.signature.waits]
    first, waited = first_failure_line(evidence), earliest(waits)
    strange = next((f for f in evidence.failures if f.line is first), None)
    if not (first and waited and strange) or strange.recognised or strange.follows or first.rank is None:
        return
    later = [
        *waits,
        *(step.line for step in evidence.iterations),
        *(f.line for f in evidence.failures if not f.follows),
    ]
    alive = any(line.rank == first.rank and line.order > first.order for line in later)
    if alive or earliest([first, waited]) is not first or _apart(first, waited) > LONGEST_WAIT:
        return
    yield Support("unknown", STRONG, (first, waited))


def first_failure(evidence: Evidence) -> FirstFailure | None:
    """The failure the others followed; None when nothing failed.

    Where the log names no rank and every rank that failed said the same, it is the launcher's first one.
    """
    line = first_failure_line(evidence)
    if line is None:
        return None
    said = {failure.line.text for failure in evidence.failures if not failure.follows}
    rank = evidence.root_rank if line.rank is None and len(said) == 1 else line.rank
    return FirstFailure(rank=rank, file=line.file, line=line.number)


def first_failure_line(evidence: Evidence) -> Line | None:
    """Consequences, waiting for a peer and lines without a rank come after; then time, then reading order.

    Without times the launcher's own word on the first failed rank counts before the order of a shared file.
    """
    for lines in _preferences(evidence):
        if lines:
            timed = all(line.time is not None for line in lines)
            named = [line for line in lines if line.rank == evidence.root_rank is not None]
            return earliest(lines if timed or not named else named)
    return None


def _apart(first: Line, second: Line) -> float:
    """Seconds between two lines; 0 when one has no time."""
    return 0.0 if first.time is None or second.time is None else second.time - first.time


def _preferences(evidence: Evidence) -> Iterator[list[Line]]:
    """What broke by itself, then a process that ended without a word of its own, then those that waited."""
    own = [f for f in evidence.failures if not f.follows]
    waited = earliest(f.line for f in own if f.waits)
    broke = [f for f in own if not f.waits and (f.recognised or not waited or earliest([f.line, waited]) is f.line)]
    yield [f.line for f in broke if f.line.rank is not None]
    tells = _KILLED if any(f.waits for f in evidence.failures) else _BY_ITSELF
    if not broke and evidence.root_exit and tells.search(evidence.root_exit.text):
        yield [evidence.root_exit]
    yield [f.line for f in own if f.line.rank is not None]
    yield [f.line for f in own]
    yield [f.line for f in evidence.failures]


def _place(group: list[Support]) -> tuple[float, int, int]:
    lines = [line.order for support in group for line in support.lines]
    strength = max(support.strength for support in group)
    # ties: of confirming lines those of a cause that can be confirmed, then the earlier line
    capped = strength >= CONFIRMS and CAUSES[group[0].cause].ceiling != "confirmed"
    return (-strength, capped, min(lines, default=0))


def _cause(group: list[Support], shown: int) -> Cause:
    row = CAUSES[group[0].cause]
    group = sorted(group, key=lambda support: -support.strength)
    lines = list(dict.fromkeys(line for support in group for line in support.lines))
    rules = dict.fromkeys(rule for support in group for rule in support.rules)
    return Cause(
        cause=row.name,
        title=row.title,
        confidence=_confidence(group[0].strength, row),
        evidence=[_shown(line) for line in lines[:shown]],
        test=filled(row.test),
        fix=_fix(row, list(dict.fromkeys(support.fix for support in group if support.fix))),
        rules=list(rules or row.rules),
    )


def _advised(cause: Cause, evidence: Evidence) -> Cause:
    """An unknown cause with the advice that fits the kind of failure."""
    if cause.cause != "unknown":
        return cause
    found = advice(evidence, first_failure_line(evidence))
    return cause.model_copy(update={"test": filled(found.test), "fix": filled(found.fix)}) if found else cause


def _fix(row: CauseRow, fixes: list[str]) -> str:
    """The changes that mend this case, then the general remedy where it says more."""
    own, said = [fix for fix in fixes if fix not in row.fix][:3], filled(row.fix)
    return f"{'; '.join(own)} ({said})" if own else said


def _confidence(strength: float, row: CauseRow) -> Confidence:
    if row.name == "unknown":
        return "possible"
    if strength >= CONFIRMS:
        return row.ceiling
    return "likely" if strength >= LIKELY else "possible"


def _shown(line: Line) -> EvidenceLine:
    return EvidenceLine(file=line.file, line=line.number, text=line.text[:SHOWN_TEXT])


def _unexplained(evidence: Evidence) -> list[Line]:
    first = first_failure_line(evidence)
    return [first] if first else []


# worth naming when they are ruled out, though no line points to them; not for what a log merely prints
_LOOK_ALIKES = {
    "gpu-memory-exhausted-looks-like-hang",
    "deepep-nvshmem-mismatch",
    "illegal-access-expandable-segments",
    "attention-graph-nan",
    "one-cuda-connection-serialises",
    "too-few-microbatches",
}
