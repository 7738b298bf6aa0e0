"""A ceiling and a band for the gain of EP overlap, and whether an A/B is worth its GPU hours."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Literal

from ep_overlap_mcp.profiles.bandwidths import published_bandwidth
from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.gain_model import Bound, Dispatcher, Layout
from ep_overlap_mcp.profiles.published_gains import error_table
from ep_overlap_mcp.results.estimate import Assumption, EstimateResult

Verdict = Literal["worth_an_ab", "not_worth_it", "unknown"]

_WORTH = 1.05  # a smaller ceiling drowns in the spread between runs
_LARGEST = 1e15  # nothing here is near it: milliseconds, tokens, GB/s
_UNDERESTIMATED = 1 / (1 - 0.48)  # the largest gap seen between modelled and measured communication
_FLAT_EP = 4  # alltoall within a node up to this EP is "flat or slower": Bridge docs, communication-overlap


def estimate(
    *,
    tokens_per_rank: int,
    hidden_size: int,
    topk: int,
    expert_parallel: int,
    moe_layers: float,
    microbatches: int,
    dispatcher: Dispatcher = "alltoall",
    gpus_per_node: int | None = None,
    node_groups: int | None = None,
    bytes_per_value: float = 2.0,
    full_recompute: bool = False,
    pipeline_parallel: int = 1,
    virtual_pipeline: int | None = None,
    gpu: str | None = None,
    bandwidth_gb_s: float | None = None,
    step_ms: float | None = None,
    exposed_ms: float | None = None,
) -> EstimateResult:
    """A ceiling and a band for switching EP overlap on, from the overlap-off step.

    `tokens_per_rank` are of one microbatch (seq x mbs / (TP x CP)), `moe_layers` those of one rank, `step_ms` the
    unprofiled step with overlap off, `exposed_ms` its exposed communication a step from a profile, which replaces
    the model of communication. `gpus_per_node` are those an NVLink domain joins. `bandwidth_gb_s` is what the
    dispatcher reaches; without it the published value for `gpu` is taken, if there is one.

    Errors: `ProfileError` for values no run can have.
    """
    node_size, node_size_origin = _node_size(gpus_per_node, gpu)
    layout = Layout(
        tokens_per_rank=tokens_per_rank,
        hidden_size=hidden_size,
        topk=topk,
        expert_parallel=expert_parallel,
        moe_layers=moe_layers,
        microbatches=microbatches,
        dispatcher=dispatcher,
        gpus_per_node=node_size,
        node_groups=node_groups,
        bytes_per_value=bytes_per_value,
        full_recompute=full_recompute,
        pipeline_parallel=pipeline_parallel,
        virtual_pipeline=virtual_pipeline,
    )
    _refuse_impossible(layout, bandwidth_gb_s, step_ms, exposed_ms)
    assumptions = _stated(layout, step_ms, node_size_origin)
    comm_ms, how = _communication(layout, gpu, bandwidth_gb_s, exposed_ms)
    assumptions += how
    bound = Bound(step_ms, comm_ms, layout.pairable()) if step_ms and comm_ms is not None else None
    if bound and bound.comm_ms >= bound.step_ms:
        bound = None  # the inputs contradict each other
    verdict, why = _verdict(layout, bound, comm_ms, step_ms, measured=exposed_ms is not None)
    return EstimateResult(
        summary=_summary(verdict, why, bound),
        verdict=verdict,
        ceiling=round(bound.ceiling, 3) if bound else None,
        band=bound.band if bound else None,
        comm_ms=None if comm_ms is None else round(comm_ms, 3),
        overlappable_ms=round(bound.overlappable_ms, 3) if bound else None,
        assumptions=assumptions,
        error_table=error_table(),
    )


def _refuse_impossible(
    layout: Layout, bandwidth: float | None, step_ms: float | None, exposed_ms: float | None
) -> None:
    for name, value in (
        ("tokens_per_rank", layout.tokens_per_rank),
        ("hidden_size", layout.hidden_size),
        ("topk", layout.topk),
        ("expert_parallel", layout.expert_parallel),
        ("moe_layers", layout.moe_layers),
        ("microbatches", layout.microbatches),
        ("gpus_per_node", layout.gpus_per_node),
        ("pipeline_parallel", layout.pipeline_parallel),
        ("bytes_per_value", layout.bytes_per_value),
        ("virtual_pipeline", layout.virtual_pipeline),
        ("node_groups", layout.node_groups),
        ("bandwidth_gb_s", bandwidth),
        ("step_ms", step_ms),
    ):
        if value is not None and not 0 < value <= _LARGEST:  # NaN is in no range
            raise ProfileError(
                f"`{name}` is {value!s:.40}; give a number above 0, at most {_LARGEST:g}, or leave it out if it is"
                " unknown"
            )
    most = _LARGEST if step_ms is None else step_ms
    if exposed_ms is not None and not 0 <= exposed_ms <= most:
        raise ProfileError(
            f"`exposed_ms` is {exposed_ms} and `step_ms` {step_ms}; exposed communication is part of the step, so"
            " give both for one step"
        )


def _stated(layout: Layout, step_ms: float | None, node_size_origin: str) -> list[Assumption]:
    """The caller's values, and which of them are defaults."""
    defaults = {each.name: each.default for each in fields(layout) if each.default is not MISSING}
    unknown_stages = layout.pipeline_parallel > 1 and layout.virtual_pipeline is None
    return [
        *(
            Assumption(
                name=each.name,
                value=getattr(layout, each.name),
                origin=node_size_origin
                if each.name == "gpus_per_node"
                else "default"
                if each.name in defaults and getattr(layout, each.name) == defaults[each.name]
                else "given",
            )
            for each in fields(layout)
        ),
        Assumption(name="step_ms", value=step_ms, origin="unknown" if step_ms is None else "given"),
        Assumption(name="nodes", value=layout.nodes, origin="derived: expert_parallel / gpus_per_node"),
        Assumption(
            name="pairable share",
            value=round(layout.pairable(), 3),
            origin="assumed: virtual_pipeline is not given, so nothing is taken off"
            if unknown_stages
            else "derived: microbatches that run forward beside another's backward",
        ),
        Assumption(name="routing", value="balanced", origin="assumed: imbalance makes communication longer"),
    ]


def _node_size(gpus_per_node: int | None, gpu: str | None) -> tuple[int, str]:
    """GPUs that reach each other over NVLink, and where that number comes from; raises UnknownGpuError."""
    from ep_overlap_mcp.hardware import named_gpu

    known = named_gpu(gpu) if gpu is not None else None
    if gpus_per_node is not None:
        return gpus_per_node, "given"
    return (known.nvlink_domain, f"derived: NVLink domain of {known.name}") if known else (8, "default")


def _communication(
    layout: Layout, gpu: str | None, bandwidth: float | None, exposed_ms: float | None
) -> tuple[float | None, list[Assumption]]:
    """Milliseconds of a step, and what they rest on; None without a bandwidth."""
    if exposed_ms is not None:
        return exposed_ms, [Assumption(name="exposed_ms", value=exposed_ms, origin="measured: replaces the model")]
    origin = "given"
    if bandwidth is None:
        found = published_bandwidth(layout.dispatcher, gpu, layout.expert_parallel, layout.gpus_per_node)
        if found is None:
            why = f"unknown: nothing published for {layout.dispatcher} at EP {layout.expert_parallel} on {gpu}"
            return None, [Assumption(name="bandwidth_gb_s", value=None, origin=why)]
        bandwidth, origin = found.gb_s, found.source
    one = layout.transfer_bytes() / (bandwidth * 1e6)
    return one * layout.transfers(), [
        Assumption(name="bandwidth_gb_s", value=bandwidth, origin=f"{origin}; +-30 %"),
        Assumption(name="transfer_mb", value=round(layout.transfer_bytes() / 1e6, 2), origin="derived: model"),
        Assumption(name="transfers", value=layout.transfers(), origin="derived: per step and rank"),
        Assumption(
            name="model error",
            value="20 to 48 % less communication than measured",
            origin="published: two profiles",
        ),
    ]


def _verdict(
    layout: Layout, bound: Bound | None, comm_ms: float | None, step_ms: float | None, *, measured: bool
) -> tuple[Verdict, str]:
    if layout.expert_parallel == 1:
        return "not_worth_it", "EP is 1: nothing is dispatched to another rank"
    if layout.pairable() == 0:
        return "not_worth_it", "too few microbatches: no forward runs beside another's backward"
    if not measured and layout.dispatcher == "alltoall" and layout.nodes == 1 and layout.expert_parallel <= _FLAT_EP:
        return "not_worth_it", f"alltoall within a node at EP <= {_FLAT_EP} is published as flat or slower"
    if comm_ms is None:
        return "unknown", "no bandwidth is known for this dispatcher and GPU; give bandwidth_gb_s or exposed_ms"
    if step_ms is None:
        return "unknown", "give step_ms, the unprofiled step with overlap off; a share of it is needed"
    if bound is None and measured:
        return "unknown", "exposed_ms is the whole step, which leaves no computation: check that both are of one step"
    if bound is None:
        return "unknown", "the communication would be longer than the step: check bandwidth, layers, microbatches"
    if bound.ceiling >= _WORTH:
        return "worth_an_ab", "only a matched A/B of unprofiled steps tells the gain"
    if bound.lacks_computation:
        left = f"{bound.step_ms - bound.comm_ms:.1f} ms of the step for computation"
        if measured:
            return "not_worth_it", f"communication leaves {left}, too little to hide it under"
        return "unknown", f"the modelled communication leaves {left}: check bandwidth, layers, microbatches"
    longer = Bound(bound.step_ms, min(bound.comm_ms * _UNDERESTIMATED, bound.step_ms * 0.99), bound.pairable)
    if measured or longer.ceiling < _WORTH:
        return "not_worth_it", f"even hiding all that the schedule can pair would gain less than {_WORTH - 1:.0%}"
    return "unknown", f"the ceiling is below {_WORTH}, but not if communication is as underestimated as it can be"


def _summary(verdict: Verdict, why: str, bound: Bound | None) -> str:
    if bound is None:
        return f"{verdict}: {why}."
    return (
        f"{verdict}: at most {bound.ceiling:.2f}x, planning band {bound.band[0]:.2f}x to {bound.band[1]:.2f}x, from"
        f" {bound.comm_ms:.1f} ms communication in a step of {bound.step_ms:.1f} ms; {why}. The band was read off"
        " four published A/Bs on H100, all positive."
    )
