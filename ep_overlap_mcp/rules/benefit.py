"""EPO706-719, 721, 723: overlap that is legal and gains less, or is known to go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    INFO,
    NOTED,
    WARNING,
    core,
    evidence,
    put,
    rule,
    violated,
    without,
)
from ep_overlap_mcp.rules.remedies import drop_shared_expert_overlap
from ep_overlap_mcp.rules.sources import core_config, megatron, megatron_bridge

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

RECOMPUTED = "model.recompute_modules"
PEFT = "peft.scheme"

_SCHEDULE = "core/pipeline_parallel/combined_1f1b.py"


@rule(
    "EPO706",
    "moe-recompute-not-applied",
    WARNING,
    enforced=[evidence(">=0.14,<=0.16.1")],
    source=megatron("0.16.1", "core/models/gpt/fine_grained_callables.py", "504-606"),
    fixes=[without(RECOMPUTED, "moe", gives_up="nothing: it is not applied")],
)
def moe_recompute_not_applied(view: View) -> Check:
    """What it checks: EP overlap with "moe" among the recomputed modules, up to 0.16.1.

    Why: the combined schedule calls the steps of the MoE layer one by one, past the function that recomputes it. The
    setting is accepted and memory is not saved. From 0.17 it is refused.

    Example: `--recompute-granularity selective --recompute-modules moe layernorm`

    Fix: drop `moe`; `moe_act` does work.
    """
    modules = view[RECOMPUTED]
    return violated(
        view.overlap & (view["model.recompute_granularity"] == "selective") & modules.has("moe"),
        f"`recompute_modules` is {modules}; under EP overlap this release does not recompute moe",
        expected="no moe in recompute_modules",
    )


@rule(
    "EPO707",
    "early-attention-release-exposes-communication",
    INFO,
    enforced=[evidence(">=0.16")],
    source=megatron("main", "core/models/common/model_chunk_schedule_plan.py", "276-294"),
)
def early_attention_release_exposes_communication(view: View) -> Check:
    """What it checks: EP overlap with `ep_overlap_early_attn_memory_release`.

    Why: it runs the backward of attention before the forward of the experts. That frees memory early and leaves the
    forward of combine and the backward of dispatch with less to hide under.

    Example: `--ep-overlap-early-attn-memory-release`

    Fix: nothing is wrong; turn it off if memory allows.
    """
    return violated(
        view.overlap & view["model.ep_overlap_early_attn_memory_release"].on,
        "`ep_overlap_early_attn_memory_release` trades hidden communication for memory",
    )


@rule(
    "EPO708",
    "autocast-ignored-by-overlap",
    WARNING,
    enforced=[evidence(">=0.14")],
    source=[megatron("0.16.1", _SCHEDULE, "307-310"), megatron("0.16.1", _SCHEDULE, "380-390")],
    fixes=[put(enable_autocast=False, gives_up="autocast")],
)
def autocast_ignored_by_overlap(view: View) -> Check:
    """What it checks: EP overlap with `enable_autocast`.

    Why: around the combined computation only one of two contexts is entered, and it is not the autocast one; the
    computation runs without autocast and nothing says so.

    Example: `enable_autocast: true`

    Fix: set the parameters' type (`bf16`) instead.
    """
    return violated(
        view.overlap & view["model.enable_autocast"].on,
        "`enable_autocast` is on; the combined schedule computes without it",
        expected="enable_autocast = false",
    )


@rule(
    "EPO709",
    "partial-checkpointing-ignored",
    WARNING,
    enforced=[evidence(">=0.14")],
    source=[megatron("0.16.1", _SCHEDULE, "88"), megatron("0.16.1", _SCHEDULE, "255")],
    fixes=[put(num_microbatches_with_partial_activation_checkpoints=None)],
)
def partial_checkpointing_ignored(view: View) -> Check:
    """What it checks: EP overlap with `num_microbatches_with_partial_activation_checkpoints`.

    Why: the combined schedule never passes it on; memory is not saved.

    Example: `num_microbatches_with_partial_activation_checkpoints: 2`

    Fix: leave it unset.
    """
    count = view["model.num_microbatches_with_partial_activation_checkpoints"]
    return violated(
        view.overlap & count.is_set,
        f"`num_microbatches_with_partial_activation_checkpoints` is {count}; the combined schedule ignores it",
        expected="unset",
    )


@rule(
    "EPO710",
    "hybrid-context-parallel-skipped",
    WARNING,
    enforced=[evidence()],
    source=megatron("0.16.1", "core/pipeline_parallel/schedules.py", "598-616"),
)
def hybrid_context_parallel_skipped(view: View) -> Check:
    """What it checks: EP overlap with hybrid context parallelism and no pipeline.

    Why: the schedule asks for overlap first and then never looks at hybrid context parallelism, so that schedule is
    skipped without a word.

    Example: `--hybrid-context-parallel --overlap-moe-expert-parallel-comm`

    Fix: use one of the two.
    """
    return violated(
        view.overlap & view["model.hybrid_context_parallel"].on & (view["model.pipeline_model_parallel_size"] <= 1),
        "`hybrid_context_parallel` is on; with EP overlap its schedule is skipped",
        expected="one of the two",
    )


@rule(
    "EPO711",
    "attention-graph-nan-report",
    WARNING,
    enforced=[evidence(">=0.19")],
    source="https://github.com/NVIDIA/Megatron-LM/issues/5966",
    fixes=[put(cuda_graph_impl="none", gives_up="CUDA graphs")],
)
def attention_graph_nan_report(view: View) -> Check:
    """What it checks: EP overlap with attention inside a CUDA graph of Transformer Engine, from 0.19.

    Why: a gradient norm that explodes and ends in NaN after tens of steps has been reported for this combination and
    is not explained. The same run without the graph was sound.

    Example: `cuda_graph_impl=transformer_engine cuda_graph_modules=[attn]`

    Fix: watch the gradient norm, or leave attention out of the graph.
    """
    modules = view.graph_modules
    return violated(
        view.overlap & (view["model.cuda_graph_impl"] == "transformer_engine") & modules.has("attn"),
        f"attention is in the CUDA graph ({modules}); a NaN after tens of steps is reported with EP overlap",
        expected="no attn in the graph",
    )


@rule(
    "EPO712",
    "lora-with-overlap-unproven",
    WARNING,
    enforced=[evidence()],
    source=megatron_bridge("main", "peft/lora.py", "159-161"),
)
def lora_with_overlap_unproven(view: View) -> Check:
    """What it checks: EP overlap while adapters are trained.

    Why: no code for adapters knows of the combined schedule or of delayed weight gradients, and no check refuses
    them; it has not been shown to be right.

    Example: `tuner_type: lora` with EP overlap

    Fix: compare the loss with a run without overlap first.
    """
    scheme = view[PEFT]
    return violated(
        view.overlap & scheme.is_set,
        f"{scheme} adapters with EP overlap are unproven; compare the loss with overlap off",
    )


@rule(
    "EPO713",
    "lora-with-shared-expert-overlap",
    WARNING,
    enforced=[evidence()],
    source="https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5634",
    fixes=[drop_shared_expert_overlap()],
)
def lora_with_shared_expert_overlap(view: View) -> Check:
    """What it checks: adapters with overlapped shared experts under tensor parallelism.

    Why: shape errors and wrong adapter outputs have been reported for shared experts there.

    Example: LoRA with `moe_shared_expert_overlap: true` and TP 2

    Fix: `moe_shared_expert_overlap=false`.
    """
    split = (view["model.tensor_model_parallel_size"] > 1) | (view["model.expert_tensor_parallel_size"] > 1)
    return violated(
        view[PEFT].is_set & view["model.moe_shared_expert_overlap"].on & split,
        f"{view[PEFT]} adapters with `moe_shared_expert_overlap` under tensor parallelism are reported to go wrong",
        expected="moe_shared_expert_overlap = false",
    )


@rule(
    "EPO714",
    "latent-moe-wgrad-on-communication-stream",
    INFO,
    enforced=[evidence(">=0.16")],
    source=megatron("main", "core/transformer/moe/moe_layer.py", "721-741"),
)
def latent_moe_wgrad_on_communication_stream(view: View) -> Check:
    """What it checks: EP overlap with latent projections around the experts.

    Why: the projection behind the experts runs on the communication stream, and with delayed weight gradients so does
    its weight gradient, where it takes the place of communication.

    Example: `moe_latent_size: 1024`

    Fix: nothing is wrong; expect less gain.
    """
    return violated(
        view.overlap & view["model.moe_latent_size"].on,
        "`moe_latent_size` is set; a latent projection computes on the communication stream",
    )


@rule(
    "EPO715",
    "stream-priority-without-overlap",
    INFO,
    enforced=[core(">=0.18")],
    source=[core_config("0.18.2", "625"), megatron("main", _SCHEDULE, "200-203")],
    fixes=[put(high_priority_a2a_comm_stream=False)],
)
def stream_priority_without_overlap(view: View) -> Check:
    """What it checks: `high_priority_a2a_comm_stream` without EP overlap.

    Why: only the combined schedule reads it.

    Example: `high_priority_a2a_comm_stream: true` alone

    Fix: leave it out, or turn overlap on.
    """
    return violated(
        view["model.high_priority_a2a_comm_stream"].on & ~view.overlap,
        "`high_priority_a2a_comm_stream` has no effect without EP overlap",
    )


@rule(
    "EPO716",
    "overlap-holds-one-more-microbatch",
    INFO,
    enforced=[evidence(">=0.14")],
    source=megatron("0.16.1", "core/pipeline_parallel/schedules.py", "775-779"),
    unknown=NOTED,
)
def overlap_holds_one_more_microbatch(view: View) -> Check:
    """What it checks: EP overlap with a pipeline.

    Why: each rank runs one more forward before its first backward and holds the activations of one more microbatch.

    Example: EP overlap on a run that just fits its memory

    Fix: keep room for one more microbatch, by recomputation or a smaller micro batch.
    """
    pp = view["model.pipeline_model_parallel_size"]
    return violated(
        view.overlap & (pp > 1),
        f"with {pp} pipeline stages EP overlap holds the activations of one more microbatch on every rank",
    )


@rule(
    "EPO717",
    "hybridep-on-eight-gpu-nodes",
    WARNING,
    enforced=[evidence(">=0.16.0rc0")],
    source="https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/1731",
    unknown=NOTED,
    fixes=[put(moe_flex_dispatcher_backend="deepep")],
)
def hybridep_on_eight_gpu_nodes(view: View) -> Check:
    """What it checks: HybridEP between nodes of eight H100 or H200.

    Why: HybridEP was made for large NVLink domains; on eight-GPU nodes it has been reported slower than `alltoall` or
    DeepEP, and to need more memory.

    Example: `moe_flex_dispatcher_backend=hybridep` with EP 16 on H100

    Fix: measure it against `deepep` and `alltoall`.
    """
    hopper = view.gpu_name.test(lambda name: name is not None and ("H100" in name or "H200" in name))
    return violated(
        view.dispatches_by("flex", "hybridep") & hopper & (view["model.expert_model_parallel_size"] > 8),
        f"HybridEP between nodes of {view.gpu_name}; measure it against deepep and alltoall",
    )


@rule(
    "EPO718",
    "deepep-with-context-folded-experts",
    WARNING,
    enforced=[evidence()],
    source="deepseek-ai/DeepEP@v1.2.1:csrc/kernels/configs.cuh:13-17",
)
def deepep_with_context_folded_experts(view: View) -> Check:
    """What it checks: DeepEP with context parallelism.

    Why: expert ranks are then folded over context ranks, and barriers of DeepEP have been reported to time out when
    one of them is late.

    Example: `--context-parallel-size 2` with DeepEP

    Fix: watch for timeouts; unfold experts from context ranks, or use `alltoall`.
    """
    cp = view["model.context_parallel_size"]
    return violated(
        view.dispatches_by("flex", "deepep") & (cp > 1),
        f"DeepEP with context parallel size {cp}; late ranks are reported to time out its barriers",
    )


@rule(
    "EPO719",
    "shared-overlap-delays-expert-wgrad",
    WARNING,
    enforced=[evidence(">=0.18")],
    source=megatron("main", "core/transformer/moe/moe_layer.py", "721-741"),
)
def shared_overlap_delays_expert_wgrad(view: View) -> Check:
    """What it checks: overlapped shared experts with `overlap_dispatch_backward_with_experts_wgrad`.

    Why: the shared experts then run in between and hold the experts' weight gradients back; a loss of speed has been
    reported.

    Example: both on, with shared experts

    Fix: measure with one of the two off.
    """
    return violated(
        view["model.moe_shared_expert_overlap"].on & view["model.overlap_dispatch_backward_with_experts_wgrad"].on,
        "`moe_shared_expert_overlap` holds back the weight gradients that are to run under the dispatch",
    )


@rule(
    "EPO721",
    "router-graph-with-z-loss",
    WARNING,
    enforced=[evidence("<0.19")],
    source=megatron("0.18.2", "core/transformer/moe/router.py", "496-536"),
)
def router_graph_with_z_loss(view: View) -> Check:
    """What it checks: the router inside a CUDA graph with a z-loss, before 0.19.

    Why: the z-loss copied a value to the host while the graph was captured, and the capture failed in reported runs.

    Example: `cuda_graph_scope=[moe_router] moe_z_loss_coeff=1e-3`

    Fix: leave the router out of the graph, or the z-loss off.
    """
    graphed = ~view["model.cuda_graph_impl"].one_of("none", None) & view.graph_modules.has("moe_router")
    return violated(
        graphed & view["model.moe_z_loss_coeff"].is_set,
        f"the router is in the CUDA graph with `moe_z_loss_coeff` {view['model.moe_z_loss_coeff']}",
        expected="no moe_router in the graph, or no z-loss",
    )


@rule(
    "EPO723",
    "mtp-loss-mask-in-combined-schedule",
    INFO,
    enforced=[evidence(on=("megatron-core",))],
    source="https://github.com/radixark/miles/pull/3233",
    unknown=NOTED,
)
def mtp_loss_mask_in_combined_schedule(view: View) -> Check:
    """What it checks: EP overlap with an MTP layer in a framework of its own.

    Why: the combined schedule computes the MTP loss from the mask that the forward step hands over; frameworks that
    build another mask have reported a different loss.

    Example: `mtp_num_layers: 1` in a reinforcement learning framework

    Fix: compare the MTP loss with overlap off.
    """
    return violated(
        view.overlap & (view["model.mtp_num_layers"] == 1),
        "an MTP layer under EP overlap takes the loss mask of the forward step; compare its loss with overlap off",
    )
