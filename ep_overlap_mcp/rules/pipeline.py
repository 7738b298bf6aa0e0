"""EPO501, 502, 505-507, 512, 516, 523, 524, 528, 529, 532: the pipeline schedule, its microbatches and overlap.

How layers fall into stages stands in `stages`, how ranks divide in `parallelism`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    WARNING,
    Fix,
    core,
    evidence,
    megatron_lm,
    put,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sources import arguments, megatron
from ep_overlap_mcp.rules.truth import derived
from ep_overlap_mcp.rules.virtual_stages import virtual_stage_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

PP = "model.pipeline_model_parallel_size"
VPP = "model.virtual_pipeline_model_parallel_size"
GROUP = "model.microbatch_group_size_per_vp_stage"
DIVIDING_STAGES = Fix(lambda view: [{VPP: stages} for stages in virtual_stage_options(view)])


def overlapped_pairs(microbatches: int, pp: int, vpp: int, group: int) -> tuple[int, ...]:
    """How many forward and backward passes each pipeline rank runs side by side in one step, first rank first.

    Without a pipeline every forward but the first pairs with a backward. With one, a rank first runs its warm-up
    forwards, one more than without overlap, and pairs the rest. Source: `get_pp_rank_microbatches`,
    NVIDIA/Megatron-LM@core_v0.16.1 megatron/core/pipeline_parallel/schedules.py:738-795, and
    combined_1f1b.py:60-110.
    """
    if pp <= 1:
        return (max(0, microbatches - 1),)
    warmups = (2 * (pp - 1 - rank) + (vpp - 1) * group + 1 for rank in range(pp))
    return tuple(max(0, microbatches * vpp - warmup) for warmup in warmups)


@rule(
    "EPO501",
    "virtual-stages-need-pipeline",
    ERROR,
    enforced=[run_time()],
    source=[megatron("0.16.1", "core/parallel_state.py", "745-749"), arguments("0.16.1", "574-577")],
    fixes=[put(virtual_pipeline_model_parallel_size=None)],
)
def virtual_stages_need_pipeline(view: View) -> Check:
    """What it checks: virtual pipeline stages are set and there is one pipeline stage.

    Why: the interleaved schedule needs ranks to interleave over. The configuration is accepted, then initialising the
    process groups raises RuntimeError.

    Example: `pipeline_model_parallel_size=1 virtual_pipeline_model_parallel_size=2`

    Fix: leave `virtual_pipeline_model_parallel_size` unset.
    """
    vpp = view[VPP]
    return violated(
        vpp.is_set & (view[PP] <= 1),
        f"`virtual_pipeline_model_parallel_size` is {vpp} with one pipeline stage",
        expected="virtual_pipeline_model_parallel_size unset",
    )


@rule(
    "EPO502",
    "single-virtual-stage",
    WARNING,
    enforced=[evidence(">=0.14", on=("megatron-core", "bridge"))],
    source=megatron("0.16.1", "core/pipeline_parallel/schedules.py", "1322"),
    fixes=[DIVIDING_STAGES],
)
def single_virtual_stage(view: View) -> Check:
    """What it checks: EP overlap with a pipeline of one virtual stage a rank.

    Why: only "unset" is refused, so 1 passes; the interleaved schedule then runs with a single chunk, and its
    overlapping of stage-to-stage communication is lost. Megatron-LM turns 1 into unset, which EP overlap refuses.

    Example: `pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=1`

    Fix: two virtual stages or more.
    """
    return violated(
        view.overlap & (view[PP] > 1) & (view[VPP] == 1),
        "`virtual_pipeline_model_parallel_size` is 1; one chunk a rank has nothing to interleave",
        expected="virtual_pipeline_model_parallel_size >= 2",
    )


@rule(
    "EPO505",
    "microbatches-cover-pipeline",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/pipeline_parallel/schedules.py", "995-1015"),
    unknown=NOTED,
    fixes=[Fix(lambda view: _larger_batch(view, _pipeline_size(view)), safe=False, gives_up="the global batch size")],
)
def microbatches_cover_pipeline(view: View) -> Check:
    """What it checks: the interleaved schedule has fewer microbatches than stages, or groups that do not fit them.

    Why: microbatches run in groups (`microbatch_group_size_per_vp_stage`, by default as many as stages). A group must
    hold at least one microbatch a stage and not exceed their number, and so must a last, smaller one; else the
    schedule raises at the first step.

    Example: 4 microbatches on 8 stages

    Fix: a larger global batch, a smaller micro batch, or fewer stages.
    """
    pp, count = view[PP], view.microbatches
    group = view[GROUP].otherwise(pp.raw) if pp.known else view[GROUP]
    rest = count % group
    return violated_by(
        [
            (group < pp, f"`microbatch_group_size_per_vp_stage` is {group}, below the {pp} pipeline stages"),
            (group > count, f"there are {count} microbatches for groups of {group}"),
            ((rest > 0) & (rest < pp), f"the last group of {count} microbatches has {rest}, below the {pp} stages"),
        ],
        when=view[VPP].is_set & (pp > 1),
        expected="PP <= microbatch_group_size_per_vp_stage <= microbatches, with no small rest",
    )


@rule(
    "EPO506",
    "p2p-modes-exclusive",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/pipeline_parallel/schedules.py", "921-922"),
    fixes=[put(batch_p2p_comm=False)],
)
def p2p_modes_exclusive(view: View) -> Check:
    """What it checks: stage-to-stage communication is both overlapped and batched in the interleaved schedule.

    Why: the two are different ways to send the same tensors; the schedule raises ValueError. `batch_p2p_comm` is on by
    default in Megatron-Core; Megatron-LM and Bridge set the two apart themselves.

    Example: `overlap_p2p_comm=true` alone, in a Megatron-Core configuration

    Fix: `batch_p2p_comm=false`.
    """
    return violated(
        view[VPP].is_set & (view[PP] > 1) & view["model.overlap_p2p_comm"].on & view["model.batch_p2p_comm"].on,
        "`overlap_p2p_comm` and `batch_p2p_comm` are both on; the interleaved schedule takes one",
        expected="batch_p2p_comm = false",
    )


@rule(
    "EPO507",
    "too-few-microbatches-to-overlap",
    WARNING,
    enforced=[evidence(">=0.14")],
    source=[
        megatron("0.16.1", "core/pipeline_parallel/schedules.py", "738-795"),
        megatron("0.16.1", "core/pipeline_parallel/combined_1f1b.py", "34-107"),
    ],
    unknown=NOTED,
    fixes=[Fix(lambda view: _larger_batch(view, _useful_count(view)), safe=False, gives_up="the global batch size")],
)
def too_few_microbatches_to_overlap(view: View) -> Check:
    """What it checks: EP overlap with so few microbatches that some rank pairs none.

    Why: the schedule hides the communication of one microbatch under the computation of another, so a rank needs a
    forward and a backward of two microbatches at the same time. Without a pipeline that takes two microbatches; with
    one, warm-up forwards run alone, and with as many microbatches as stages the first half of the ranks pairs nothing.

    Example: global batch 16, micro batch 1, 16 data-parallel ranks: one microbatch, no overlap

    Fix: more microbatches a step.
    """
    pp, count = view[PP], view.microbatches
    vpp = view[VPP].otherwise(1)
    group = view[GROUP].otherwise(pp.raw) if pp.known else view[GROUP]
    pairs = derived(lambda m, p, v, g: list(overlapped_pairs(m, p, v, g)), count, pp, vpp, group)
    return violated(
        view.overlap & pairs.test(lambda each: each is not None and 0 in each),
        f"{count} microbatches a step on {pp} pipeline stages; overlapped pairs by rank: {pairs}",
        expected="at least one overlapped pair on every rank",
    )


@rule(
    "EPO512",
    "alltoall-needs-two-local-experts",
    ERROR,
    enforced=[run_time(">=0.14,<=0.16.1")],
    source=[
        megatron("0.16.1", "core/models/gpt/fine_grained_callables.py", "46-85"),
        megatron("0.17.0", "core/models/gpt/fine_grained_callables.py", "79-87"),
        "https://github.com/NVIDIA/Megatron-LM/issues/1862",
    ],
    fixes=[Fix(lambda view: _half_the_ranks(view), safe=False, gives_up="half of the expert parallel ranks")],  # noqa: PLW0108
)
def alltoall_needs_two_local_experts(view: View) -> Check:
    """What it checks: EP overlap by `alltoall` with one expert a rank, up to 0.16.1.

    Why: the schedule frees the input of the experts after their forward; with one local expert that is the very
    tensor the backward needs, so the backward reads freed memory. 0.17 keeps it.

    Example: `--num-experts 8 --expert-model-parallel-size 8` on 0.15

    Fix: Megatron-Core 0.17, or two experts a rank.
    """
    experts, ep = view["model.num_moe_experts"], view["model.expert_model_parallel_size"]
    return violated(
        view.overlap & view.dispatches_by("alltoall") & experts.is_set & (experts == ep),
        f"{experts} experts on {ep} ranks leave one a rank; its input is freed before the backward needs it",
        expected="num_moe_experts >= 2 * expert_model_parallel_size, or megatron-core >= 0.17",
    )


@rule(
    "EPO516",
    "variable-length-with-batched-p2p",
    WARNING,
    enforced=[evidence()],
    source=megatron("0.16.1", "core/pipeline_parallel/p2p_communication.py", "301-363"),
    fixes=[put(batch_p2p_comm=False)],
)
def variable_length_with_batched_p2p(view: View) -> Check:
    """What it checks: variable sequence lengths with batched stage-to-stage communication on four stages or more.

    Why: the stages then exchange shapes before tensors; a hang in that exchange at the first step has been reported
    for MoE models.

    Example: `variable_seq_lengths: true` with PP 4 and the default `batch_p2p_comm`

    Fix: fixed lengths, or `batch_p2p_comm=false`.
    """
    return violated(
        view["model.variable_seq_lengths"].on
        & (view[PP] >= 4)
        & view["model.batch_p2p_comm"].on
        & view["model.num_moe_experts"].is_set,
        f"`variable_seq_lengths` with `batch_p2p_comm` on {view[PP]} stages; hangs in the shape exchange are reported",
        expected="batch_p2p_comm = false",
    )


@rule(
    "EPO523",
    "one-way-to-virtual-stages",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "503-513"),
    unknown=NOTED,
    fixes=[
        put(num_layers_per_virtual_pipeline_stage=None, num_virtual_stages_per_pipeline_rank=None),
        put(pipeline_model_parallel_layout=None, num_layers_per_virtual_pipeline_stage=None),
    ],
)
def one_way_to_virtual_stages(view: View) -> Check:
    """What it checks: more than one of the three Megatron-LM arguments that decide the virtual stages is given.

    Why: the argument check asserts that at most one is.

    Example: `--num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-layout "Et|t|t|tL"`

    Fix: keep one.
    """
    names = (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout",
    )
    a, b, c = (view[f"model.{name}"].is_set for name in names)
    return violated(
        (a & b) | (a & c) | (b & c),
        "more than one of --num-layers-per-virtual-pipeline-stage, --num-virtual-stages-per-pipeline-rank and "
        "--pipeline-model-parallel-layout is given",
        expected="one of the three",
    )


@rule(
    "EPO524",
    "interleaving-without-p2p-overlap-needs-three-stages",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "574-583"),
    unknown=NOTED,
    fixes=[put(overlap_p2p_comm=True)],
)
def interleaving_without_p2p_overlap_needs_three_stages(view: View) -> Check:
    """What it checks: virtual stages on two pipeline stages with the overlap of stage-to-stage communication off.

    Why: two ranks would then send several tensors to each other in one batch; Megatron-LM asserts three stages.

    Example: `--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication`

    Fix: leave the overlap of stage-to-stage communication on.
    """
    pp = view[PP]
    return violated(
        view[VPP].is_set & view["model.overlap_p2p_comm"].off & (pp > 1) & (pp <= 2),
        f"virtual stages on {pp} pipeline stages with `overlap_p2p_comm` off; Megatron-LM asks for 3",
        expected="overlap_p2p_comm = true, or PP > 2",
    )


@rule(
    "EPO528",
    "p2p-warmup-overlap-needs-overlapped-p2p",
    ERROR,
    enforced=[core()],
    source=megatron("0.16.1", "core/model_parallel_config.py", "450-455"),
    unknown=NOTED,
    fixes=[put(overlap_p2p_comm_warmup_flush=False)],
)
def p2p_warmup_overlap_needs_overlapped_p2p(view: View) -> Check:
    """What it checks: `overlap_p2p_comm_warmup_flush` without overlapped, unbatched stage-to-stage communication.

    Why: it extends that overlap to the first and last microbatches; Megatron-Core raises ValueError without it.

    Example: `overlap_p2p_comm_warmup_flush: true` with the default `batch_p2p_comm`

    Fix: `overlap_p2p_comm=true` with `batch_p2p_comm=false`, or leave it off.
    """
    return violated(
        view["model.overlap_p2p_comm_warmup_flush"].on
        & (view["model.overlap_p2p_comm"].off | view["model.batch_p2p_comm"].on),
        "`overlap_p2p_comm_warmup_flush` needs `overlap_p2p_comm` on and `batch_p2p_comm` off",
        expected="overlap_p2p_comm = true, batch_p2p_comm = false",
    )


@rule(
    "EPO529",
    "deferred-embedding-wgrad-needs-pipeline",
    ERROR,
    enforced=[core()],
    source=megatron("0.16.1", "core/model_parallel_config.py", "425-438"),
    unknown=NOTED,
    fixes=[put(defer_embedding_wgrad_compute=False)],
)
def deferred_embedding_wgrad_needs_pipeline(view: View) -> Check:
    """What it checks: `defer_embedding_wgrad_compute` without a pipeline, without fused gradient accumulation, or with
    a negative limit.

    Why: the embedding's weight gradient is moved into the pipeline's last bubble; Megatron-Core raises ValueError
    where there is none.

    Example: `defer_embedding_wgrad_compute: true` with one pipeline stage

    Fix: leave it off.
    """
    return violated_by(
        [
            (view[PP] == 1, "`defer_embedding_wgrad_compute` needs a pipeline"),
            (view["model.gradient_accumulation_fusion"].off, "it needs `gradient_accumulation_fusion`"),
            (view["model.wgrad_deferral_limit"] < 0, "`wgrad_deferral_limit` is negative"),
        ],
        when=view["model.defer_embedding_wgrad_compute"].on,
        expected="defer_embedding_wgrad_compute = false",
    )


@rule(
    "EPO532",
    "global-batch-divides",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/num_microbatches_calculator.py", "338-346"),
    unknown=NOTED,
    fixes=[Fix(lambda view: _whole_batches(view), safe=False, gives_up="the global batch size")],  # noqa: PLW0108
)
def global_batch_divides(view: View) -> Check:
    """What it checks: the global batch does not divide into whole microbatches on the data-parallel ranks.

    Why: the microbatch calculator asserts it before the first step.

    Example: global batch 100, micro batch 2, 16 data-parallel ranks

    Fix: a global batch that is a multiple of micro batch x data-parallel size.
    """
    batch, micro, ranks = view["train.global_batch_size"], view["train.micro_batch_size"], view.data_parallel_size
    step = micro * ranks
    return violated(
        view["train.rampup_batch_size"].off & step.is_set & (step > 0) & (batch % step > 0),
        f"global batch {batch} is no multiple of micro batch {micro} x {ranks} data-parallel ranks",
        expected="global_batch_size % (micro_batch_size * data_parallel_size) = 0",
    )


def _pipeline_size(view: View) -> int:
    pp = view.effective[PP]
    return pp.value if pp.known else 0


def _useful_count(view: View) -> int:
    """The smallest multiple of PP, from 2 x PP, with a pair on every rank; 2 without a pipeline."""
    pp, vpp = _pipeline_size(view), view.effective[VPP]
    if pp <= 1:
        return 2
    chunks = vpp.value if vpp.known and vpp.value else 1
    return next((m for m in range(2 * pp, 8 * pp, pp) if 0 not in overlapped_pairs(m, pp, chunks, pp)), 0)


def _whole_batches(view: View) -> Iterable[Mapping[str, int]]:
    """The multiples of all ranks' microbatches nearest to the global batch, the smaller first."""
    batch, step = view["train.global_batch_size"], view["train.micro_batch_size"] * view.data_parallel_size
    if batch.known and step.known and batch.raw and step.raw:
        below = batch.raw - batch.raw % step.raw
        yield from ({"train.global_batch_size": size} for size in (below, below + step.raw) if size)


def _larger_batch(view: View, microbatches: int) -> Iterable[Mapping[str, int]]:
    micro, ranks = view["train.micro_batch_size"], view.data_parallel_size
    if microbatches > 0 and micro.known and ranks.known and micro.raw and ranks.raw:
        yield {"train.global_batch_size": microbatches * micro.raw * ranks.raw}


def _half_the_ranks(view: View) -> Iterable[Mapping[str, int]]:
    ep = view.effective["model.expert_model_parallel_size"]
    if ep.known and isinstance(ep.value, int) and ep.value >= 4 and ep.value % 2 == 0:
        yield {ep.path: ep.value // 2}
