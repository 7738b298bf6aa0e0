"""EPO609-611, 613, 616, 621, 637, 638, 640: data parallelism, its sharding, offloading, hybrid context parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    bridge,
    evidence,
    megatron_lm,
    put,
    put_paths,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sources import arguments, megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import TRUE

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

PP = "model.pipeline_model_parallel_size"
V1 = "env.NVTE_CPU_OFFLOAD_V1"

_FSDP_ADAPTER = "core/distributed/fsdp/mcore_fsdp_adapter.py"
_SCHEDULE = "core/pipeline_parallel/combined_1f1b.py"


@rule(
    "EPO609",
    "torch-fsdp2-excludes-ep",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "610-611"),
    fixes=[put_paths({"dist.use_torch_fsdp2": False}, gives_up="torch FSDP2")],
)
def torch_fsdp2_excludes_ep(view: View) -> Check:
    """What it checks: torch FSDP2 with expert parallelism.

    Why: Megatron-LM asserts that expert parallelism is off, so EP overlap cannot run with it.

    Example: `--use-torch-fsdp2 --expert-model-parallel-size 8`

    Fix: Megatron-FSDP or plain data parallelism.
    """
    ep = view["model.expert_model_parallel_size"]
    return violated(
        view["dist.use_torch_fsdp2"].on & (ep > 1),
        f"torch FSDP2 is on with expert parallel size {ep}; Megatron-LM allows only 1",
        expected="dist.use_torch_fsdp2 = false",
    )


@rule(
    "EPO610",
    "fsdp-overlap-needs-0-18",
    ERROR,
    enforced=[evidence(">=0.14,<0.18")],
    source=[
        megatron("0.18.2", _FSDP_ADAPTER, "160-209"),
        megatron("0.17.1", _SCHEDULE, "34-110"),
        "https://github.com/NVIDIA/Megatron-LM/pull/3797",
    ],
    fixes=[put_paths({"ddp.use_megatron_fsdp": False}, gives_up="sharded parameters")],
)
def fsdp_overlap_needs_0_18(view: View) -> Check:
    """What it checks: EP overlap with Megatron-FSDP before 0.18.

    Why: the combined schedule calls the parts of a layer directly, past the hooks that gather its parameters. From
    0.18 there are hooks for the parts; before, nothing checks the combination, and runs have been reported to fail in
    their first layer.

    Example: `use_megatron_fsdp: true` with EP overlap on 0.16

    Fix: Megatron-Core 0.18, or plain data parallelism.
    """
    return violated(
        view.overlap & _megatron_fsdp(view),
        "Megatron-FSDP is on; before megatron-core 0.18 EP overlap runs past its parameter hooks",
        expected="megatron-core >= 0.18, or use_megatron_fsdp = false",
    )


@rule(
    "EPO611",
    "fsdp-overlap-limits",
    ERROR,
    enforced=[run_time(">=0.18")],
    source=[megatron("0.18.2", _FSDP_ADAPTER, "160-170"), megatron("0.18.2", _SCHEDULE, "194-203")],
    fixes=[
        put_paths({"ddp.fsdp_double_buffer": False}, gives_up="the double buffer"),
        put(cuda_graph_impl="none", gives_up="CUDA graphs"),
        put_paths(
            {PP: 1, "model.virtual_pipeline_model_parallel_size": None},
            gives_up="the pipeline",
        ),
    ],
)
def fsdp_overlap_limits(view: View) -> Check:
    """What it checks: EP overlap and Megatron-FSDP with a double buffer, a graph of single modules, or an interleaved
    pipeline.

    Why: each is asserted when the model is wrapped, the pipeline at the first step. EP overlap with a pipeline is
    always interleaved, so one stage remains.

    Example: `use_megatron_fsdp` with PP 4 and VPP 2

    Fix: turn that one off.
    """
    graphs, pp = view["model.cuda_graph_impl"], view[PP]
    return violated_by(
        [
            (view["ddp.fsdp_double_buffer"].on, "`fsdp_double_buffer` is on"),
            (~graphs.one_of("none", "full_iteration", None), f"CUDA graphs are captured by {graphs}"),
            (
                (pp > 1) & view["model.virtual_pipeline_model_parallel_size"].is_set,
                f"the pipeline of {pp} stages is interleaved",
            ),
        ],
        when=view.overlap & _megatron_fsdp(view),
        expected="no double buffer, no graph of single modules, one pipeline stage",
    )


@rule(
    "EPO613",
    "offloading-needs-v1-env",
    ERROR,
    enforced=[megatron_lm(">=0.16"), bridge(">=0.3")],
    source=[arguments("0.16.1", "1222-1227"), megatron_bridge("main", "training/config.py", "2209-2215")],
    unknown=NOTED,
    about=["model.fine_grained_activation_offloading"],
    fixes=[put_paths({V1: 1})],
)
def offloading_needs_v1_env(view: View) -> Check:
    """What it checks: fine-grained activation offloading with Transformer Engine 2.10 or newer and without
    `NVTE_CPU_OFFLOAD_V1=1`.

    Why: the newer offloading would move weights too; Megatron-LM and Bridge demand the variable.

    Example: `--fine-grained-activation-offloading` without the variable

    Fix: `export NVTE_CPU_OFFLOAD_V1=1`.
    """
    return violated(
        view["model.fine_grained_activation_offloading"].on & view.te.at_least("2.10.0") & (view[V1] != 1),
        f"NVTE_CPU_OFFLOAD_V1 is {view[V1]}; fine-grained offloading with Transformer Engine {view.te} needs 1",
        expected="NVTE_CPU_OFFLOAD_V1 = 1",
    )


@rule(
    "EPO616",
    "hybrid-context-parallel-limits",
    ERROR,
    enforced=[megatron_lm(">=0.16")],
    source=arguments("0.16.1", "918-923"),
    about=["model.hybrid_context_parallel"],
    fixes=[put(hybrid_context_parallel=False, gives_up="hybrid context parallelism")],
)
def hybrid_context_parallel_limits(view: View) -> Check:
    """What it checks: hybrid context parallelism with a pipeline, CUDA graphs, Megatron-FSDP or another data loader
    than `single`, or without `calculate_per_token_loss`.

    Why: Megatron-LM asserts all of them.

    Example: `--hybrid-context-parallel --pipeline-model-parallel-size 2`

    Fix: leave the other one out.
    """
    pp, loader = view[PP], view["args.dataloader_type"]
    return violated_by(
        [
            (pp > 1, f"hybrid context parallelism with {pp} pipeline stages"),
            (view["model.enable_cuda_graph"].on, "hybrid context parallelism with CUDA graphs"),
            (view["ddp.use_megatron_fsdp"].on, "hybrid context parallelism with Megatron-FSDP"),
            (view["model.calculate_per_token_loss"].off, "hybrid context parallelism without per-token loss"),
            (~loader.one_of("single", None), f"hybrid context parallelism with data loader {loader}"),
        ],
        when=view["model.hybrid_context_parallel"].on,
        expected="one pipeline stage, no CUDA graphs, no Megatron-FSDP, calculate_per_token_loss = true",
    )


@rule(
    "EPO621",
    "torch-fsdp2-stands-alone",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "605-621"),
    about=["dist.use_torch_fsdp2"],
    fixes=[put_paths({"dist.use_torch_fsdp2": False}, gives_up="torch FSDP2")],
)
def torch_fsdp2_stands_alone(view: View) -> Check:
    """What it checks: torch FSDP2 with a pipeline, the distributed optimizer, fused gradient accumulation, fp16, tied
    embeddings or another checkpoint format than `torch_dist` and `torch_dcp`.

    Why: Megatron-LM asserts each.

    Example: `--use-torch-fsdp2` without `--no-gradient-accumulation-fusion`

    Fix: plain data parallelism; expert parallelism needs it anyway.
    """
    pp, form = view[PP], view["args.ckpt_format"]
    return violated_by(
        [
            (pp > 1, f"torch FSDP2 is on with {pp} pipeline stages"),
            (view["ddp.use_distributed_optimizer"].on, "torch FSDP2 is on with the distributed optimizer"),
            (view["model.gradient_accumulation_fusion"].on, "torch FSDP2 is on with fused gradient accumulation"),
            (view["model.fp16"].on, "torch FSDP2 is on with fp16"),
            (view["args.untie_embeddings_and_output_weights"].off, "torch FSDP2 is on with tied embeddings"),
            (~form.one_of("torch_dist", "torch_dcp"), f"torch FSDP2 is on with `ckpt_format` {form}"),
        ],
        when=view["dist.use_torch_fsdp2"].on,
        expected="use_torch_fsdp2 = false",
    )


@rule(
    "EPO637",
    "manual-registration-needs-megatron-fsdp",
    ERROR,
    enforced=[megatron_lm(">=0.16")],
    source=arguments("0.16.1", "693-695"),
    about=["ddp.fsdp_manual_registration"],
    fixes=[put_paths({"ddp.fsdp_manual_registration": False}, gives_up="the registration of the buffers")],
)
def manual_registration_needs_megatron_fsdp(view: View) -> Check:
    """What it checks: `fsdp_manual_registration` without Megatron-FSDP or without `nccl_ub`.

    Why: it registers Megatron-FSDP's buffers with NCCL; Megatron-LM asserts both.

    Example: `--fsdp-manual-registration` without `--use-nccl-ub`

    Fix: leave it off.
    """
    return violated_by(
        [
            (view["ddp.use_megatron_fsdp"].off, "`fsdp_manual_registration` is on without Megatron-FSDP"),
            (view["ddp.nccl_ub"].off, "`fsdp_manual_registration` is on without `nccl_ub`"),
        ],
        when=view["ddp.fsdp_manual_registration"].on,
        expected="fsdp_manual_registration = false",
    )


@rule(
    "EPO638",
    "registered-buffers-exclude-expandable-segments",
    ERROR,
    enforced=[
        run_time("<0.18", on=("megatron-lm", "bridge"), torch_lifts=False),
        run_time(">=0.18", on=("megatron-lm", "bridge"), torch_lifts=True),
    ],
    source=[
        megatron("0.16.1", "core/distributed/distributed_data_parallel_config.py", "156-161"),
        megatron("0.18.2", "core/distributed/distributed_data_parallel_config.py", "247-252"),
    ],
    unknown=NOTED,
    about=["ddp.nccl_ub"],
    fixes=[put_paths({"ddp.nccl_ub": False}, gives_up="NCCL's registered buffers")],
)
def registered_buffers_exclude_expandable_segments(view: View, *, torch_lifts: bool) -> Check:
    """What it checks: `nccl_ub` with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.

    Why: the registered buffers come from a memory pool that expandable segments do not go with; building the
    data-parallel configuration raises ValueError. From 0.18 torch 2.11 lifts it.

    Example: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` with `--use-nccl-ub`

    Fix: leave one of the two out.
    """
    allocator = view["env.PYTORCH_CUDA_ALLOC_CONF"]
    older = view.version("torch").below("2.11.0a0") if torch_lifts else TRUE
    return violated(
        view["ddp.nccl_ub"].on
        & older
        & allocator.test(lambda v: "expandable_segments:True" in str(v or "").split(",")),
        f"PYTORCH_CUDA_ALLOC_CONF is {allocator}, which `nccl_ub` does not go with",
        expected="nccl_ub = false, or no expandable segments",
    )


@rule(
    "EPO640",
    "per-token-loss-excludes-average-in-collective",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/distributed/distributed_data_parallel.py", "254-257"),
    about=["ddp.average_in_collective"],
    unknown=NOTED,
    fixes=[put_paths({"ddp.average_in_collective": False})],
)
def per_token_loss_excludes_average_in_collective(view: View) -> Check:
    """What it checks: `average_in_collective` with `calculate_per_token_loss`.

    Why: gradients are then divided by the tokens of all ranks, not averaged over ranks; Megatron's data parallelism
    asserts it when the model is wrapped.

    Example: `ddp.average_in_collective: true` with `calculate_per_token_loss: true`

    Fix: `average_in_collective=false`.
    """
    return violated(
        view["model.calculate_per_token_loss"].on & view["ddp.average_in_collective"].on,
        "`average_in_collective` is on and the loss is computed per token",
        expected="ddp.average_in_collective = false",
    )


def _megatron_fsdp(view: View) -> Truth:
    return view["ddp.use_megatron_fsdp"].on | view["ddp.use_custom_fsdp"].on
