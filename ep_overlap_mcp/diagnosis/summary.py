"""What follows from a diagnosis, in a few sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.symptoms import fitting
from ep_overlap_mcp.diagnosis.unexplained import NOT_FINITE, SHOWN_BY
from ep_overlap_mcp.surface import argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.diagnosis.evidence import Evidence
    from ep_overlap_mcp.results.diagnose import Cause, DiagnoseResult, EvidenceLine, FirstFailure


def summary(result: DiagnoseResult, evidence: Evidence, *, compared: bool) -> str:
    """First cause with its test, the rank that failed first, the triage of two configurations, what steps say."""
    parts = [*_ended(result), _recovered(result) or _first_cause(result.causes)]
    if result.symptoms:
        parts.append(_symptoms(result, evidence.symptom))
    if result.first_failure:
        parts.append(_failed_first(result.first_failure))
    if compared:
        parts += _changes(result)
    return " ".join([*parts, *_steps(result, evidence)])


def _ended(result: DiagnoseResult) -> Iterator[str]:
    """How the run ended, and what it went on after."""
    if result.ended == "completed":
        yield "The run completed: this log shows no failure that ended it."
    elif result.ended == "went on":
        yield "No failure ended this run, as far as the log goes."
    yield from (f"{_place(fact)}: {fact.text.rstrip('.')}." for fact in result.seen)


def _recovered(result: DiagnoseResult) -> str:
    """The first cause where it is of what the run went on after; else empty."""
    top, facts = result.causes[0], {(fact.file, fact.line) for fact in result.seen}
    if result.ended == "failed" or top.cause == "unknown" or not facts & {(e.file, e.line) for e in top.evidence}:
        return ""
    return f"It recovered from {_words(top)}. Where this must not come again: {top.test}."


def _words(cause: Cause) -> str:
    return f"{cause.cause} ({cause.title}{_which(cause)})"


def _place(line: EvidenceLine | FirstFailure) -> str:
    return line.file if line.line is None else f"{line.file}:{line.line}"


def _first_cause(causes: list[Cause]) -> str:
    top, others = causes[0], len(causes) - 1
    more = f" {others} other candidate{'s' if others > 1 else ''} below." if others else ""
    if top.cause == "unknown":
        said = top.evidence[0].text[:120] if top.evidence else ""
        kind = "exception" if re.match(r"[\w.]{0,120}(?:Error|Exception)\b", said) else "failure"
        kind = "such step" if top.title == NOT_FINITE.title else kind
        seen = f" First {kind}: {said.rstrip('.')}." if said else ""
        return f"{top.title[0].upper()}{top.title[1:]}.{seen} To find out, {top.test}.{more}"
    return f"{top.confidence.capitalize()}: {top.title} ({top.cause}{_which(top)}). Test: {top.test}.{more}"


def _which(top: Cause) -> str:
    """The rules that are broken, else the stack's own words for it."""
    if top.cause != "config-rule-violated":
        return ""
    words = ", ".join(top.rules[:3]) or "".join(line.text[:120] for line in top.evidence[:1])
    return f": {words}" if words else ""


def _symptoms(result: DiagnoseResult, given: str) -> str:
    """What the log shows is wrong, with the causes that fit, else that nobody said; and what can be said."""
    shown = SHOWN_BY.get(result.causes[0].title)
    said = ""
    if given:
        said = f"`{given[:40]}` names no symptom that is known. "
    elif shown:
        out = {row.cause for row in result.ruled_out}
        fit = [cause for cause in fitting(shown) if cause not in out]
        said = f"That is `{shown}`; causes that fit it, none of them shown: {', '.join(fit[:5])}. "
    elif result.ended == "not said":
        said = "What is wrong was not said. "
    names = ", ".join(row.symptom for row in result.symptoms)
    return f"{said}Candidates come with {argument('symptom')}, likeliest first: {names}."


def _failed_first(first: FirstFailure) -> str:
    who = "a rank the log does not name" if first.rank is None else f"rank {first.rank}"
    return f"First to fail: {who}, {_place(first)}."


def _changes(result: DiagnoseResult) -> Iterator[str]:
    if not result.changed:
        kept = f"; {_told(result.intended.settings)} was {result.intended.why}" if result.intended else ""
        yield f"No setting differs{kept}."
        return
    count = len(result.changed)
    intended = f"intended {_told(result.intended.settings)}" if result.intended else "the intended change is not clear"
    yield f"{count} setting{'' if count == 1 else 's'} differ{'s' if count == 1 else ''}: {intended}."
    if result.confounders:
        yield f"Confounders: {'; '.join(_told(group.settings) for group in result.confounders[:6])}."
    if result.experiments:
        first = result.experiments[0]
        yield f"{len(result.experiments)} A/B(s) isolate it; first run `{first.base}` with {_told(first.settings)}."


def _told(settings: dict[str, object]) -> str:
    return " + ".join(f"{path}={'not set' if value is None else value}" for path, value in settings.items())


def _steps(result: DiagnoseResult, evidence: Evidence) -> Iterator[str]:
    """Steps without a gradient; two runs compared, or one run that became slower."""
    skipped, nans = (sum(getattr(i, kind) for i in evidence.iterations) for kind in ("skipped", "nan"))
    if skipped or nans:
        yield f"{skipped} steps were skipped, {nans} had NaN."
    if time := result.step_time:
        which = f"From {time.since} on a step" if time.since else "The second run"
        yield f"{which} takes {time.ratio:.3f}x the step time (95 % {time.low:.3f} to {time.high:.3f}): {time.verdict}."
