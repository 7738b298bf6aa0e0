"""EPO311, 313, 314, 316, 328: what CUDA graphs ask of the rest of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    INFO,
    NOTED,
    bridge,
    evidence,
    megatron_lm,
    put,
    put_paths,
    rule,
    run_time,
    violated,
)
from ep_overlap_mcp.rules.graphs import IMPLEMENTATION, graphs_iteration, graphs_on
from ep_overlap_mcp.rules.remedies import no_graphs
from ep_overlap_mcp.rules.sources import arguments, megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, TRUE

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

_ALLOCATOR, _REGISTER = "env.PYTORCH_CUDA_ALLOC_CONF", "env.NCCL_GRAPH_REGISTER"


@rule(
    "EPO311",
    "graph-with-expandable-segments-needs-register-off",
    ERROR,
    enforced=[
        megatron_lm(">=0.16"),
        run_time(">=0.16"),
        megatron_lm(">=0.15,<0.16", forbidden=True, any_implementation=True),
        megatron_lm("<0.15", forbidden=True),
        run_time("<0.16", forbidden=True),
    ],
    unknown=NOTED,
    source=[
        arguments("0.14.0", "1109-1113"),
        arguments("0.16.1", "1247-1254"),
        megatron("0.16.1", "core/transformer/cuda_graphs.py", "1682-1688"),
    ],
    fixes=[put_paths({_REGISTER: 0})],
)
def graph_with_expandable_segments_needs_register_off(
    view: View, *, forbidden: bool = False, any_implementation: bool = False
) -> Check:
    """What it checks: Transformer Engine's CUDA graphs with `expandable_segments:True` in the allocator's settings and
    `NCCL_GRAPH_REGISTER` not 0. Before 0.16 expandable segments are refused altogether.

    Why: NCCL registers buffers whose memory such segments may remap; replays then access illegal memory. Megatron-LM
    and the graph helper of Megatron-Core assert it.

    Example: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` with `--cuda-graph-impl transformer_engine`

    Fix: `NCCL_GRAPH_REGISTER=0`.
    """
    allocator, register = view[_ALLOCATOR], view[_REGISTER]
    chosen = graphs_on(view) if any_implementation else view[IMPLEMENTATION] == "transformer_engine"
    registered = TRUE if forbidden else ~view.written(_REGISTER) | register.test(lambda v: str(v) != "0")
    return violated(
        chosen & allocator.test(lambda text: "expandable_segments:True" in str(text)) & registered,
        f"`PYTORCH_CUDA_ALLOC_CONF` is {allocator} with CUDA graphs and `NCCL_GRAPH_REGISTER` not 0",
        expected="no expandable segments" if forbidden else "NCCL_GRAPH_REGISTER=0",
    )


@rule(
    "EPO313",
    "full-iteration-graph-excludes-nan-check",
    ERROR,
    enforced=[bridge(">=0.3"), megatron_lm(off_in_fp16=True)],
    source=[
        megatron_bridge("main", "training/config.py", "1508-1513"),
        arguments("0.16.1", "725-728"),
        arguments("main", "1235-1237"),
    ],
    fixes=[put_paths({"rerun_state_machine.check_for_nan_in_loss": False}, gives_up="the NaN check")],
)
def full_iteration_graph_excludes_nan_check(view: View, *, off_in_fp16: bool = False) -> Check:
    """What it checks: one CUDA graph of the whole iteration while the loss is checked for NaN, which is the default.

    Why: the check reads the loss on the host in the middle of the iteration; both frameworks assert that it is off.
    Megatron-LM switches it off by itself for fp16.

    Example: `--cuda-graph-impl full_iteration` without `--no-check-for-nan-in-loss-and-grad`

    Fix: switch the check off.
    """
    checks = view["rerun_state_machine.check_for_nan_in_loss"]
    spared = view["model.fp16"].on if off_in_fp16 else FALSE
    return violated(
        graphs_iteration(view) & checks.on & ~spared,
        "a full-iteration CUDA graph while the loss is checked for NaN",
        expected="rerun_state_machine.check_for_nan_in_loss=false (--no-check-for-nan-in-loss-and-grad)",
    )


@rule(
    "EPO314",
    "graph-needs-te-rng-tracker",
    ERROR,
    enforced=[bridge()],
    source=[
        megatron_bridge("main", "models/gpt_provider.py", "234-238"),
        megatron_bridge("main", "training/config.py", "1415-1416"),
    ],
    fixes=[put(use_te_rng_tracker=True)],
)
def graph_needs_te_rng_tracker(view: View) -> Check:
    """What it checks: in Bridge, CUDA graphs without `use_te_rng_tracker` (or `rng.te_rng_tracker`).

    Why: a captured dropout needs a generator that a graph can advance; building the model asserts it. Megatron-LM
    turns it on by itself.

    Example: `model.cuda_graph_impl=transformer_engine` in a recipe that leaves the tracker off

    Fix: `model.use_te_rng_tracker=true`.
    """
    tracked = view["model.use_te_rng_tracker"].on | view["rng.te_rng_tracker"].on
    return violated(
        graphs_on(view) & ~tracked,
        f"`cuda_graph_impl` is {view[IMPLEMENTATION]} and `use_te_rng_tracker` is off",
        expected="use_te_rng_tracker=true",
    )


@rule(
    "EPO316",
    "graph-capture-order-unproven",
    INFO,
    enforced=[evidence(">=0.16,!dev")],
    unknown=NOTED,
    source=[
        megatron("0.16.1", "core/transformer/cuda_graphs.py", "2057"),
        megatron("main", "core/transformer/cuda_graphs.py", "2605-2611"),
    ],
)
def graph_capture_order_unproven(view: View) -> Check:
    """What it checks: EP overlap with Transformer Engine's CUDA graphs in a pipeline.

    Why: graphs are captured in the order of the plain schedule's warm-up, while the overlapped one warms up with one
    microbatch more; whether the orders can differ harmfully is not established. The dev branch passes the flag on.

    Example: `--cuda-graph-impl transformer_engine --cuda-graph-scope attn --pipeline-model-parallel-size 4`

    Fix: compare the loss of the first steps with graphs on and off.
    """
    pp = view["model.pipeline_model_parallel_size"]
    return violated(
        view.overlap & (view[IMPLEMENTATION] == "transformer_engine") & (pp > 1),
        f"CUDA graphs are captured in the plain schedule's order at `pipeline_model_parallel_size` {pp}",
    )


@rule(
    "EPO328",
    "local-graph-of-experts-needs-padding",
    ERROR,
    enforced=[megatron_lm(">=0.16,<0.18")],
    unknown=NOTED,
    source=[arguments("0.16.1", "1158-1160"), arguments("0.17.1", "1458-1460")],
    fixes=[
        put(moe_pad_experts_for_cuda_graph_inference=True, gives_up="inference without padded experts"),
        no_graphs(),
    ],
)
def local_graph_of_experts_needs_padding(view: View) -> Check:
    """What it checks: in Megatron-LM 0.16 and 0.17, local CUDA graphs with expert parallelism and without
    `--moe-pad-experts-for-cuda-graph-inference`.

    Why: inference under a graph needs experts of fixed size; the arguments are asserted for training runs too.

    Example: `--cuda-graph-impl local --expert-model-parallel-size 8` on 0.16.1

    Fix: add the flag, or use Transformer Engine's graphs.
    """
    ep, padded = view["model.expert_model_parallel_size"], view["model.moe_pad_experts_for_cuda_graph_inference"]
    spared = view["model.transformer_impl"] == "inference_optimized"
    return violated(
        (view[IMPLEMENTATION] == "local") & (ep > 1) & padded.off & ~spared,
        f"`cuda_graph_impl` is local with `expert_model_parallel_size` {ep} and no padded experts",
        expected="moe_pad_experts_for_cuda_graph_inference=true",
    )
