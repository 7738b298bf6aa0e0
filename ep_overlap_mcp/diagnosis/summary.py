"""What follows from a diagnosis, in a few sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ep_overlap_mcp.surface import argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.diagnosis.evidence import Evidence
    from ep_overlap_mcp.results.diagnose import Cause, DiagnoseResult, FirstFailure


def summary(result: DiagnoseResult, evidence: Evidence, *, compared: bool) -> str:
    """First cause with its test, the rank that failed first, the triage of two configurations, what steps say."""
    parts = [_first_cause(result.causes)]
    if result.symptoms:
        parts.append(_symptoms([row.symptom for row in result.symptoms], evidence.symptom))
    if result.first_failure:
        parts.append(_failed_first(result.first_failure))
    if compared:
        parts += _changes(result)
    return " ".join([*parts, *_steps(result, evidence)])


def _first_cause(causes: list[Cause]) -> str:
    top, others = causes[0], len(causes) - 1
    more = f" {others} other candidate{'s' if others > 1 else ''} below." if others else ""
    if top.cause == "unknown":
        said = top.evidence[0].text[:120] if top.evidence else ""
        kind = "exception" if re.match(r"[\w.]{0,120}(?:Error|Exception)\b", said) else "failure"
        seen = f" First {kind}: {said}." if said else ""
        return f"No known signature.{seen} To find out, {top.test}.{more}"
    return f"{top.confidence.capitalize()}: {top.title} ({top.cause}{_which(top)}). Test: {top.test}.{more}"


def _which(top: Cause) -> str:
    """The rules that are broken, else the stack's own words for it."""
    if top.cause != "config-rule-violated":
        return ""
    words = ", ".join(top.rules[:3]) or "".join(line.text[:120] for line in top.evidence[:1])
    return f": {words}" if words else ""


def _symptoms(names: list[str], given: str) -> str:
    said = f"`{given[:40]}` names no symptom that is known." if given else "What is wrong was not said."
    return f"{said} Candidates come with {argument('symptom')}, likeliest first: {', '.join(names)}."


def _failed_first(first: FirstFailure) -> str:
    who = "a rank the log does not name" if first.rank is None else f"rank {first.rank}"
    return f"First to fail: {who}, {first.file}:{first.line}."


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
