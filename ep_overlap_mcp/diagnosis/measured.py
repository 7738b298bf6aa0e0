"""Smoke runs and profiles as evidence: what was measured speaks for or against causes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.evidence import Failure, Line
from ep_overlap_mcp.diagnosis.findings import LIKELY, POSSIBLE, STRONG, Against, Support
from ep_overlap_mcp.diagnosis.judged import AFTER_ANY_LOG
from ep_overlap_mcp.results.diagnose import EvidenceLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ep_overlap_mcp.diagnosis.evidence import Evidence
    from ep_overlap_mcp.results.profile import DeviceProfile, ProfileResult
    from ep_overlap_mcp.results.smoke import SmokeResult

    Findings = Iterator[Support | Against]

NOTHING_HIDDEN = 5.0  # per cent of communication: no more than kernels that touch by chance
MUCH_HIDDEN = 50.0
MOST_LINES = 4  # of what a failed run left
_WITHOUT_EFFECT = ("bridge-reset-the-flag", "too-few-microbatches", "one-cuda-connection-serialises")
_OTHER_NUMBERS = ("last-layer-dense-drops-final-norm", "delayed-wgrad-tied-weights", "hybridep-unequal-token-counts")
_SMOKE_RULES = {
    "last-layer-must-be-moe": "last-layer-dense-drops-final-norm",
    "delayed-wgrad-drops-unfused-grads": "delayed-wgrad-tied-weights",
    "alltoall-needs-two-local-experts": "expert-input-freed-early",
}


def of_smoke_runs(runs: Sequence[SmokeResult]) -> Findings:
    """What ended smoke runs showed; a run that has not ended shows nothing yet."""
    for run in runs:
        if run.failure is not None:
            yield Support("unknown", POSSIBLE, tuple(_line(run, text) for text in run.failure.evidence[:MOST_LINES]))
        if run.status in ("queued", "running"):
            continue
        if run.overlap_ran.verdict == "no":
            lines = _lines(run, "overlap did not run", run.overlap_ran.evidence)
            nodes = any("overlap was off" in text for text in run.overlap_ran.evidence)
            for cause in _WITHOUT_EFFECT if not nodes else _WITHOUT_EFFECT[:1]:
                yield Support(cause, POSSIBLE, lines)
        if run.numerics.verdict == "changed":
            yield from _changed(run)
        elif run.numerics.verdict == "unchanged" and run.overlap_ran.verdict == "yes":
            yield from _unchanged(run)


def of_profiles(profiles: Sequence[ProfileResult]) -> Findings:
    """What profiles showed: the device with the least communication hidden speaks for all."""
    for profile in profiles:
        shares = [(d.hidden_pct, d) for d in profile.devices if d.hidden_pct is not None]
        if not shares:
            continue
        share, device = min(shares, key=lambda item: item[0])
        text = f"{share:.1f} % of {device.comm_ms:.3f} ms communication is hidden ({device.device})"
        marked = profile.schedule_evidence.combined_1f1b == "yes"
        if share < NOTHING_HIDDEN:
            yield from _nothing_hidden(Line(device.file, None, text, device.rank, order=AFTER_ANY_LOG), marked=marked)
        elif share >= MUCH_HIDDEN:
            yield from (Against(cause, f"profile: {text}") for cause in _WITHOUT_EFFECT)
        yield from _late_peer(device)


def texts_of_failures(runs: Sequence[SmokeResult]) -> dict[str, str]:
    """What failed smoke runs left, to be read like a log, by the name evidence is shown with."""
    return {
        _name(run): "\n".join([run.failure.cause, *run.failure.evidence]) for run in runs if run.failure is not None
    }


def with_failures(evidence: Evidence, runs: Sequence[SmokeResult]) -> Evidence:
    """Evidence with the failures of smoke runs, as each run itself tells its own, after those of logs."""
    explained = {hit.line.file for hit in evidence.hits if hit.signature.confirms or hit.signature.points_to}
    failures = (
        Failure(_line(run, run.failure.cause, run.failure.rank), recognised=_name(run) in explained, follows=False)
        for run in runs
        if run.failure is not None
    )
    return replace(evidence, failures=(*evidence.failures, *failures))


def told(runs: Sequence[SmokeResult]) -> Iterator[EvidenceLine]:
    """What each smoke run says of itself, and what to do next where it did not fail."""
    for run in runs:
        text = run.summary if run.failure is not None else f"{run.summary} Next: {run.next}"
        yield EvidenceLine(file=_name(run), line=None, text=text)


def _changed(run: SmokeResult) -> Iterator[Support]:
    """A finding that the check had made before the run, about a cause of other numbers, completes it."""
    lines = _lines(run, "numerics changed", run.numerics.evidence)
    said = [cause for rule, cause in _SMOKE_RULES.items() if any(rule in text for text in run.numerics.evidence)]
    yield from (Support(cause, STRONG, lines) for cause in said)
    yield from (Support(cause, POSSIBLE, lines) for cause in _OTHER_NUMBERS if cause not in said)


def _unchanged(run: SmokeResult) -> Iterator[Against]:
    """Only what the run kept of the configuration is cleared, and it was a smaller model."""
    reduced = {reduction.setting for reduction in run.plan.reduced}
    if "model.moe_layer_freq" in run.plan.kept and "model.moe_layer_freq" not in reduced:
        yield Against("last-layer-dense-drops-final-norm", f"smoke run {run.id}: numerics unchanged with overlap")
    if any(variant == "overlap_delay_wgrad" for variant in run.plan.variants):
        yield Against("delayed-wgrad-tied-weights", f"smoke run {run.id}: gradients unchanged with delayed wgrad")


def _nothing_hidden(line: Line, *, marked: bool) -> Findings:
    """With the schedule's marks overlap was on, and streams waited for each other; without them it may be off."""
    if marked:
        yield Support("one-cuda-connection-serialises", LIKELY, (line,))
        yield Support("too-few-microbatches", POSSIBLE, (line,))
        yield Against("bridge-reset-the-flag", "the profile holds the combined schedule's marks: overlap was on")
        return
    yield from (Support(cause, POSSIBLE, (line,)) for cause in _WITHOUT_EFFECT)


def _late_peer(device: DeviceProfile) -> Iterator[Support]:
    """Most of the communication is notify and barrier kernels, which wait for a peer."""
    if device.comm_ms > 0 and device.control_ms > device.comm_ms / 2:
        text = f"{device.control_ms:.3f} of {device.comm_ms:.3f} ms communication are kernels that wait for peers"
        line = Line(device.file, None, text, device.rank, order=AFTER_ANY_LOG)
        yield Support("deepep-barrier-late-rank", POSSIBLE, (line,))
        yield Support("hybridep-peer-late", POSSIBLE, (line,))


def _lines(run: SmokeResult, what: str, told: Sequence[str]) -> tuple[Line, ...]:
    return tuple(_line(run, text) for text in (f"{what}: {told[0]}" if told else what, *told[1:3]))


def _line(run: SmokeResult, text: str, rank: int | None = None) -> Line:
    return Line(_name(run), None, text, rank, order=AFTER_ANY_LOG)


def _name(run: SmokeResult) -> str:
    return f"smoke run {run.id}"
