"""A run's answer, from the store and the files it left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ep_overlap_mcp.results.smoke import (
    Plan,
    SmokeReport,
    SmokeResult,
    VariantAnswers,
)
from ep_overlap_mcp.smoke import slurm
from ep_overlap_mcp.smoke.asked import Asked, part, rows
from ep_overlap_mcp.smoke.failure import failure_of
from ep_overlap_mcp.smoke.nodes import hidden, overlap_ran
from ep_overlap_mcp.smoke.numerics import numerics
from ep_overlap_mcp.smoke.rounding import with_rounding, within_rounding
from ep_overlap_mcp.smoke.run_folder import read_json, tail
from ep_overlap_mcp.smoke.speed import ratios, speed
from ep_overlap_mcp.surface import call, tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_overlap_mcp.results.smoke import Failure
    from ep_overlap_mcp.smoke.asked import Evidence
    from ep_overlap_mcp.smoke.run_folder import RunFolder
    from ep_overlap_mcp.smoke.store import Run

# How much of a run each phase takes, for the time to go: measured on two CPU ranks
SHARES = {"import": 0.4, "build": 0.05, "parity": 0.2, "timing": 0.3, "profile": 0.03, "gather": 0.02, "done": 0.0}
_GROWS = ("emulated", "not_tested")  # lists of a plan that the run itself adds to
_WORST_OVERLAP = ("no", "unknown", "yes")
_WORST_NUMERICS = ("changed", "unknown", "unchanged")


def smoke_result(run: Run, folder: RunFolder) -> SmokeResult:
    """Where the run stands. Only a run whose supervisor saw it end well is judged by its evidence."""
    evidence = _evidence(run, folder)
    asked = Asked.of_plan(run.plan)
    plan = _plan(run, evidence)
    answers = {variant: _answers(evidence, asked, variant, plan) for variant in asked.variants}
    worst = _worst(answers.values())
    failure = failure_of(run, folder)
    if failure is not None or worst.numerics.verdict == "changed":
        failure, worst = _with_findings(run, failure, worst)
    return SmokeResult(
        summary=_summary(run, worst, failure) + _other_release(run, evidence),
        id=run.id,
        status=run.status,  # type: ignore[arg-type]  # checked by the model
        elapsed_s=round(run.elapsed_s, 1),
        pending_s=round(run.pending_s, 1) if slurm.is_job(run) else None,
        eta_s=_eta(run, folder),
        progress=_progress(run, folder),
        plan=plan,
        engine=run.plan["engine"],
        device=str(part(evidence, "device") or run.plan["device"]),
        world_size=run.plan["world_size"],
        stack=_stack(run, evidence),
        emulated=plan.emulated,
        overlap_ran=worst.overlap_ran,
        numerics=worst.numerics,
        speed=worst.speed,
        variants=answers if len(answers) > 1 else {},
        hidden=hidden(evidence, asked, asked.variants[-1]),
        failure=failure,
        logs=str(folder.path),
        next=_next(run, worst, evidence),
    )


def beyond_plan(result: SmokeResult, told: Plan) -> SmokeResult:
    """The result with what its plan holds beyond the one that has been told already."""
    new = {name: [t for t in getattr(result.plan, name) if t not in getattr(told, name)] for name in _GROWS}
    plan = result.plan.model_copy(update={"kept": {}, "reduced": [], **new})
    return result.model_copy(update={"plan": plan, "emulated": new["emulated"]})


def smoke_report(run: Run, folder: RunFolder) -> SmokeReport:
    """Everything the run left, for reading."""
    result = smoke_result(run, folder)
    evidence, asked = _evidence(run, folder), Asked.of_plan(run.plan)
    files = sorted((p for p in folder.path.iterdir() if p.is_file()), key=lambda p: p.name)
    return SmokeReport(
        summary=result.summary,
        run=result,
        schedule=[
            f"{variant}: {part(evidence, 'schedule', variant, 'formula')}"
            for variant in asked.variants
            if part(evidence, "schedule", variant)
        ],
        steps=[_step_line(row) for row in rows(evidence, "steps") or []],
        pairs={v: [round(r, 4) for r in ratios(evidence, asked, v) or []] for v in asked.variants},
        files={path.name: path.stat().st_size for path in files},
        log_tail=tail(folder.log)[-40:],
    )


def _evidence(run: Run, folder: RunFolder) -> Evidence | None:
    """result.json; of a run that did not end well it is never taken as completed."""
    found = read_json(folder.result)
    if not isinstance(found, dict) or run.open:
        return None
    return found if run.status == "done" else {**found, "status": "failed"}


def _answers(evidence: Evidence | None, asked: Asked, variant: str, plan: Plan) -> VariantAnswers:
    return VariantAnswers(
        overlap_ran=overlap_ran(evidence, asked, variant),
        numerics=with_rounding(numerics(evidence, asked, variant), evidence, variant, plan),
        speed=speed(evidence, asked, variant),
    )


def _worst(answers: Iterable[VariantAnswers]) -> VariantAnswers:
    """Overlap and numerics of the variant that did worst; speed of the last, the one asked for most."""
    every = list(answers)
    return VariantAnswers(
        overlap_ran=min((a.overlap_ran for a in every), key=lambda o: _WORST_OVERLAP.index(o.verdict)),
        numerics=min((a.numerics for a in every), key=lambda n: _WORST_NUMERICS.index(n.verdict)),
        speed=every[-1].speed,
    )


def _with_findings(run: Run, failure: Failure | None, worst: VariantAnswers) -> tuple[Failure | None, VariantAnswers]:
    """What the rules had said of this configuration stands with what went wrong."""
    said = [f"the check had said: {finding}" for finding in run.plan.get("findings", [])]
    if failure is not None:
        return failure.model_copy(update={"evidence": [*failure.evidence, *said]}), worst
    changed = worst.numerics.model_copy(update={"evidence": [*worst.numerics.evidence, *said]})
    return None, worst.model_copy(update={"numerics": changed})


def _plan(run: Run, evidence: Evidence | None) -> Plan:
    """The plan, with what the run itself said it emulated and did not test."""
    plan = Plan.model_validate(run.plan["plan"])
    merged = {
        name: list(dict.fromkeys([*getattr(plan, name), *map(str, part(evidence, name) or [])])) for name in _GROWS
    }
    return plan.model_copy(update=merged)


def _stack(run: Run, evidence: Evidence | None) -> dict[str, str | None]:
    versions = part(evidence, "versions")
    if not isinstance(versions, dict):
        return dict(run.plan["stack"])
    return {name: version for name, version in versions.items() if version is not None}


def _other_release(run: Run, evidence: Evidence | None) -> str:
    """Say so where the ranks imported another Megatron-Core than the plan was made for."""
    planned, ran = run.plan["stack"].get("megatron-core"), part(evidence, "versions", "megatron_core")
    if not planned or not ran or Version(str(ran)).release == Version(planned).release:
        return ""
    where = part(evidence, "versions", "megatron_core_path")
    return (
        f" ATTENTION: planned for megatron-core {planned}, but the ranks imported {ran} ({where}): this says nothing"
        f" about {planned}. Check PYTHONPATH and what the named Python starts."
    )


def _progress(run: Run, folder: RunFolder) -> str:
    if not run.open:
        return run.status
    last = folder.last_progress()
    if run.status == "queued" or last is None:
        return _in_queue(folder) or "starting"
    share = _done_share(last)
    percent = f" ({100 * share:.0f} %)" if share is not None else ""
    return f"{last.get('phase')} {last.get('done')} of {last.get('total')}{percent}"


def _in_queue(folder: RunFolder) -> str | None:
    """What a scheduler says of a run that it has."""
    job = read_json(folder.slurm)
    return f"Slurm job {job['job']}: {job['said']}" if isinstance(job, dict) else None


def _eta(run: Run, folder: RunFolder) -> float | None:
    """Seconds to go, from the part of the work that is done; None while that says nothing."""
    if not run.open:
        return 0.0
    share = _done_share(folder.last_progress())
    return round((run.elapsed_s - run.pending_s) * (1 - share) / share, 1) if share else None


def _done_share(last: dict[str, Any] | None) -> float | None:
    """The part of a run that is done, by its newest line of progress."""
    phase, done, total = (part(last, name) for name in ("phase", "done", "total"))
    if phase not in SHARES or not total or done is None:
        return None
    phases = list(SHARES)
    return sum(SHARES[name] for name in phases[: phases.index(phase)]) + SHARES[phase] * float(done) / float(total)


def _summary(run: Run, worst: VariantAnswers, failure: Failure | None) -> str:
    where = f"{run.plan['world_size']} ranks, {run.plan['engine']}"
    if run.open:
        stall = f" STALLED: {failure.cause}." if failure else ""
        return f"Smoke run {run.status} for {run.elapsed_s:.0f} s ({where}).{stall}"
    if run.status != "done":
        cause = failure.cause if failure else str(run.ending.get("cause", ""))
        return f"Smoke run {run.status.upper()} after {run.elapsed_s:.0f} s ({where}): {cause}. It proves nothing."
    speed_text = worst.speed.verdict.replace("_", " ")
    if worst.speed.ratio is not None and worst.speed.ci95 is not None:
        low, high = worst.speed.ci95
        speed_text += f" ({worst.speed.ratio:.3f}, 95 % {low:.3f} to {high:.3f}; {worst.speed.applies_to})"
    return (
        f"Overlap ran: {worst.overlap_ran.verdict}. Numerics: {worst.numerics.verdict}. Speed: {speed_text}."
        f" {where}, {run.elapsed_s:.0f} s."
    )


def _next(run: Run, worst: VariantAnswers, evidence: Evidence | None) -> str:
    if run.open:
        return f"call {call('get_smoke_run', id=run.id, wait_s=25)} until it has ended"
    if run.status == "cancelled":
        return "start it again when it is wanted"
    if run.status in ("failed", "lost"):
        causes = call("diagnose_run", smoke_runs=[run.id])
        return f"read failure, then the log and the stacks in logs; {causes} ranks causes"
    if worst.overlap_ran.verdict != "yes":
        return "overlap did not show: do not enable it on this evidence; read overlap_ran.evidence"
    if worst.numerics.verdict == "changed" and within_rounding(evidence):
        return (
            "do not enable overlap on this evidence: the numbers differ within rounding, and numerics.evidence says"
            " what decides"
        )
    if worst.numerics.verdict != "unchanged":
        return f"do not enable overlap: read numerics.evidence, and {tool('check_overlap_config')} for a known defect"
    return "correctness holds for this reduced model; now the matched A/B on the real job decides whether it pays"


def _step_line(row: dict[str, Any]) -> str:
    word = "equal" if row.get("equal") else "within rounding" if row.get("within_rounding") else "DIFFERENT"
    return (
        f"{row.get('variant')} rank {row.get('rank')} step {row.get('step')}: {word};"
        f" {part(row, 'grads', 'tensors')} gradients, largest difference {part(row, 'grads', 'max_abs_diff')};"
        f" loss {part(row, 'loss', 'variant')}"
    )
