"""From a configuration to a run that can be started: shrunk to the machine, bounded, and said in full beforehand."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.smoke import Plan, SmokePlanResult
from ep_overlap_mcp.rules.checking import check
from ep_overlap_mcp.settings.effective import Effective
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.request import MODEL_DELAY, MODEL_SWITCH
from ep_overlap_mcp.smoke.before_shrinking import rejected_by_megatron
from ep_overlap_mcp.smoke.draft import Draft
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.features import pass_on
from ep_overlap_mcp.smoke.machine import look_around, on_installed_core
from ep_overlap_mcp.smoke.memory import estimate_gib, refuse_if_too_big
from ep_overlap_mcp.smoke.shapes import shrink
from ep_overlap_mcp.surface import PROGRAM, argument, given, tool

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.smoke.machine import Machine
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.smoke.relay import Far
    from ep_overlap_mcp.training_env import Cluster, TrainingEnvironment

SPARE_S = 10.0  # by which the program ends itself before its supervisor ends it, with an explanation
SHOWN_FINDINGS = 6
SHOWN_NAMES = 4
DOMAIN = "env.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"  # a size: it follows the ranks
STREAMS = {
    "threads": "CUDA streams and events: comm-stream nodes run on a thread of their own",
    "inline": "CUDA streams and events: all nodes run in program order",
}


@dataclass(frozen=True)
class SmokePlan:
    """A run, ready to start: `request` is what smoke_train.py reads, `shown` what the caller is told."""

    python: str
    request: dict[str, Any]
    device_set: str
    stall_s: float
    shown: SmokePlanResult
    variables: dict[str, str] = field(default_factory=dict)
    far: Far | None = None  # where it runs when that is behind a prefix
    cluster: Cluster | None = None  # whose job it is when it is one


def plan_run(request: Request, environment: TrainingEnvironment, options: SmokeOptions) -> SmokePlan:
    """Plan without starting anything. SmokeError when it cannot run here, or the rules say that it must not."""
    machine = look_around(environment, options)
    installed = on_installed_core(request, machine)
    variants = ("baseline", *_variants(installed, options))
    findings = _held_against(installed, environment)
    if findings and not options.force:
        raise SmokeError(_refusal([*findings.values()], machine))
    draft = Draft(Effective(installed, installed.releases()[0]), machine, options)
    ranks = _drafted(draft)
    broken = {
        rule: line for rule, line in _errors(check(_shrunk(draft, installed, ranks))).items() if rule not in findings
    }
    if broken and not options.force:
        raise SmokeError(_cannot_shrink([*broken.values()], machine, ranks))
    _say_what_stands_in(draft, request, variants)
    variables = _variables(environment, draft)
    memory = estimate_gib(draft.model, draft.train, len(variants), machine.engine)
    shown = _shown(
        draft, variants, ranks, refuse_if_too_big(memory, ranks, machine), [*findings.values(), *broken.values()]
    )
    return SmokePlan(
        python=machine.python,
        request=_training_request(draft, variants),
        device_set=machine.device_set,
        stall_s=options.stall_s,
        shown=shown,
        variables=variables,
        far=_far(environment, variables, ranks, options),
        cluster=environment.cluster,
    )


def _far(environment: TrainingEnvironment, variables: dict[str, str], ranks: int, options: SmokeOptions) -> Far | None:
    """The other side of the environment's prefix, where it has one."""
    from ep_overlap_mcp.smoke.batch_script import shape_of
    from ep_overlap_mcp.smoke.relay import Far

    if environment.cluster is not None:
        shape_of(ranks, environment.cluster)  # refuses what its nodes do not hold
        return None
    return Far.of(environment, variables, ranks, options.limit_s) if environment.prefix else None


def _variables(environment: TrainingEnvironment, draft: Draft) -> dict[str, str]:
    """For the job's environment: the training environment's own, absolute search paths, known ones of the text.

    Others that the text sets are not taken: some load libraries.
    """
    variables = dict(environment.variables)
    here = None if environment.prefix or environment.cluster else os.environ.get("PYTHONPATH")
    if search := variables.get("PYTHONPATH", here):
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, search.split(os.pathsep)))
    if not draft.machine.on_gpu:
        return {**variables, "CUDA_VISIBLE_DEVICES": ""}
    for path in field_table().by_path:
        if path.startswith("env.") and (value := draft.value(path)) is not None:
            given = draft.model["expert_model_parallel_size"] if path == DOMAIN else value
            variables[path.removeprefix("env.")] = str(given)
            draft.note(path, given)
    return variables


def _variants(request: Request, options: SmokeOptions) -> tuple[str, ...]:
    """As chosen; else the one that the request asks for."""
    if options.variants:
        return tuple(dict.fromkeys(options.variants))
    effective = Effective(request, request.releases()[0])
    if request.assume == "overlap_delay_wgrad" or effective.value(MODEL_DELAY) is True:
        return ("overlap_delay_wgrad",)
    if request.assume == "as_written" and not request.overlap_written:
        raise SmokeError(
            "the configuration does not ask for EP overlap and is taken as written: take"
            f" {given('assume', 'overlap')} or {given('assume', 'overlap_delay_wgrad')} to test it with overlap on"
        )
    return ("overlap",)


def _drafted(draft: Draft) -> int:
    """Shrink and pass on; the number of ranks. What this does not foresee is a refusal too, not a crash."""
    try:
        ranks = shrink(draft)
        pass_on(draft)
    except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
        raise SmokeError(
            f"the configuration cannot be shrunk to run here ({type(problem).__name__}: {problem}); this is a defect of"
            f" {PROGRAM} that is worth a report with the configuration. {tool('check_overlap_config')} judges it all"
            " the same"
        ) from problem
    return ranks


def _held_against(request: Request, environment: TrainingEnvironment) -> dict[str, str]:
    """What speaks against the configuration before it is shrunk: the rules, else the installed Megatron."""
    result = check(request)
    return _errors(result) or rejected_by_megatron(request, result, environment)


def _errors(result: CheckResult) -> dict[str, str]:
    """Errors by rule, as a line each; a field that the installed core does not know is left out, not refused."""
    errors = [f for f in result.findings if f.severity == "error" and f.name != "setting-unknown-to-version"]
    return {f.rule: f"{f.rule} {f.name}: {f.message}" for f in errors}


def _cannot_shrink(broken: list[str], machine: Machine, ranks: int) -> str:
    """What is legal must stay legal when it is smaller: else the run would fail for a reason that is ours."""
    return (
        f"the configuration cannot be shrunk to {ranks} ranks of {machine.engine}: there it would break"
        f" {'; '.join(broken[:SHOWN_FINDINGS])}. Take more ranks or another engine"
    )


def _shrunk(draft: Draft, request: Request, ranks: int) -> Request:
    """The configuration as it will run, for the rules."""
    switches = (MODEL_SWITCH, MODEL_DELAY)
    kept = {p: s for p, s in request.settings.items() if not p.startswith("model.") or p in switches}
    batch = draft.train["micro_batch_size"] * draft.train["num_microbatches"]
    changes = {f"model.{name}": value for name, value in draft.model.items()}
    changes |= {
        "model.seq_length": draft.train["seq_length"],
        "model.position_embedding_type": draft.train["position_embedding_type"],
        "train.micro_batch_size": draft.train["micro_batch_size"],
        "train.global_batch_size": batch * draft.model["expert_model_parallel_size"],
        "hardware.world_size": ranks,
        **({DOMAIN: draft.model["expert_model_parallel_size"]} if DOMAIN in request.settings else {}),
    }
    return replace(request, settings=kept).with_settings(changes, "smoke plan")


def _refusal(findings: list[str], machine: Machine) -> str:
    shown = "; ".join(findings[:SHOWN_FINDINGS])
    more = f"; and {len(findings) - SHOWN_FINDINGS} more" if len(findings) > SHOWN_FINDINGS else ""
    return (
        f"nothing was started: the configuration is invalid for megatron-core {machine.core.label}: {shown}{more}."
        f" {tool('propose_overlap_config')} gives the smallest change; {given('force')} runs it all the same, to"
        " see Megatron fail"
    )


def _say_what_stands_in(draft: Draft, request: Request, variants: tuple[str, ...]) -> None:
    machine = draft.machine
    if machine.engine != "nccl-gpu":
        draft.emulated.append("collectives: gloo instead of NCCL")
    if not machine.on_gpu:
        draft.emulated.append(STREAMS[draft.options.mode])
        if "overlap_delay_wgrad" in variants:
            draft.emulated.append("delayed weight gradients: a stand-in for Transformer Engine's")
    asked = request.stack.version("megatron-core")
    if asked not in (None, machine.core.label):
        draft.not_tested.append(f"megatron-core {asked}: {machine.core.label} is installed there and runs")
    if request.partial:  # what EPO808 says of the text
        why = "; ".join(dict.fromkeys(request.partial))
        draft.not_tested.append(f"what the text does not show (MLA, shared experts, routing, activation, …): {why}")
    if names := [omission.text.strip(" ,") for omission in request.omissions if omission.kind == "unknown name"]:
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        draft.not_tested.append(f"names that are no known setting: {', '.join(names[:SHOWN_NAMES])}{more}")
    if draft.effective.value(MODEL_SWITCH) is False:
        draft.not_tested.append("the stack as configured: it would leave overlap off, the run turns it on")


def _training_request(draft: Draft, variants: tuple[str, ...]) -> dict[str, Any]:
    options = draft.options
    request = {
        "engine": draft.machine.engine,
        "seed": options.seed,
        "model": draft.model,
        "ddp": draft.ddp,
        "optimizer": draft.optimizer,
        "train": draft.train,
        "variants": list(variants),
        "parity_steps": options.steps,
        "pairs": options.pairs,
        "warmup": options.warmup,
        "profile": options.profile,
        "fault": dict(options.fault) if options.fault else None,
        "wall_limit_s": max(options.limit_s - SPARE_S, options.limit_s / 2),
        "collective_timeout_s": max(60.0, 2 * options.stall_s),
    }
    return request if draft.machine.on_gpu else {**request, "mode": options.mode}


def _shown(
    draft: Draft, variants: tuple[str, ...], ranks: int, memory_gib: float, findings: list[str]
) -> SmokePlanResult:
    options, machine = draft.options, draft.machine
    plan = Plan(
        kept=draft.kept,
        reduced=draft.reduced,
        not_tested=draft.not_tested,
        emulated=draft.emulated,
        variants=list(variants),
        steps=options.steps,
        pairs=options.pairs,
        microbatches=draft.train["num_microbatches"],
    )
    forced = f" FORCED against {len(findings)} findings of the check." if findings else ""
    return SmokePlanResult(
        summary=(
            f"A smoke run of {', '.join(variants)} on {ranks} ranks ({machine.engine}, megatron-core"
            f" {machine.core.label}): {options.steps} compared steps, {options.pairs} timed pairs, at most"
            f" {options.limit_s:g} s, about {memory_gib:.1f} GiB.{forced}"
        ),
        plan=plan,
        engine=machine.engine,
        device=machine.device,
        world_size=ranks,
        stack=machine.stack,
        memory_gib=round(memory_gib, 2),
        limit_s=options.limit_s,
        findings=findings,
        next=f"start it: the same call without {argument('dry_run')}",
    )
