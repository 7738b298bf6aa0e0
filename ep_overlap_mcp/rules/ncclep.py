"""EPO408-415, 447, 448: NCCL EP, the third flex backend, and what the backends share from 0.18 on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.dispatcher import BACKEND, DISPATCHER
from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    WARNING,
    Fix,
    core,
    evidence,
    put,
    rule,
    run_time,
    violated,
    violated_by,
    without,
)
from ep_overlap_mcp.rules.sources import core_config, megatron

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

STATIC_SHAPE = "model.moe_ncclep_static_shape"
RANK_CAPACITY = "model.moe_expert_rank_capacity_factor"


@rule(
    "EPO408",
    "ncclep-needs-flex",
    ERROR,
    enforced=[core(">=0.19")],
    source=core_config("0.19.0", "1609-1614"),
    fixes=[put(moe_token_dispatcher_type="flex")],
)
def ncclep_needs_flex(view: View) -> Check:
    """What it checks: the flex backend is `ncclep` and the dispatcher is not `flex`.

    Why: unlike the other backends, which are then ignored, this one raises ValueError.

    Example: `--moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend ncclep`

    Fix: `moe_token_dispatcher_type=flex`.
    """
    dispatcher = view[DISPATCHER]
    return violated(
        (view[BACKEND] == "ncclep") & (dispatcher != "flex"),
        f"flex backend ncclep is set with dispatcher {dispatcher}; it needs flex",
        expected="moe_token_dispatcher_type = flex",
    )


@rule(
    "EPO409",
    "ncclep-needs-te-2-17",
    ERROR,
    enforced=[run_time(">=0.19")],
    source=[
        megatron("main", "core/transformer/moe/token_dispatcher.py", "1549-1553"),
        "NVIDIA/TransformerEngine@008c3d20a:transformer_engine/pytorch/ep.py:1-26",
    ],
)
def ncclep_needs_te_2_17(view: View) -> Check:
    """What it checks: NCCL EP carries the tokens and Transformer Engine is older than 2.17 or absent.

    Why: the dispatch operations come from Transformer Engine, which has them since 2.17; building the MoE layer
    raises ImportError without them.

    Example: `moe_flex_dispatcher_backend=ncclep` with Transformer Engine 2.14

    Fix: Transformer Engine 2.17 built with NCCL EP, or another backend.
    """
    return violated(
        view.dispatches_by("flex", "ncclep") & view.te.below("2.17"),
        f"NCCL EP needs Transformer Engine 2.17; installed is {view.te}",
        expected="transformer-engine >= 2.17",
    )


@rule(
    "EPO410",
    "ncclep-excludes-expert-offload",
    ERROR,
    enforced=[core(">=0.19")],
    source=[core_config("0.19.0", "2717-2736"), core_config("main", "3048-3060")],
    fixes=[without("model.offload_modules", "expert_fc1", gives_up="offloading of the experts' input")],
)
def ncclep_excludes_expert_offload(view: View) -> Check:
    """What it checks: EP overlap with NCCL EP while the experts' input is offloaded.

    Why: the combined schedule frees that very input early; Megatron-Core asserts it.

    Example: `--fine-grained-activation-offloading --offload-modules expert_fc1` with `ncclep` and EP overlap

    Fix: drop `expert_fc1` from `offload_modules`.
    """
    offloaded = view["model.fine_grained_activation_offloading"].on & view["model.offload_modules"].has("expert_fc1")
    return violated(
        view.overlap & view.dispatches_by("flex", "ncclep") & offloaded,
        "`offload_modules` holds expert_fc1; EP overlap with NCCL EP frees that input early",
        expected="no expert_fc1 in offload_modules",
    )


@rule(
    "EPO411",
    "ncclep-eager-synchronises-host",
    WARNING,
    enforced=[
        core(">=0.19,<0.20", static_by=STATIC_SHAPE),
        core("dev", static_by=STATIC_SHAPE),
        evidence(">=0.20,!dev", static_by=RANK_CAPACITY),
    ],
    source=[
        core_config("0.19.0", "2721-2729"),
        megatron("main", "core/transformer/moe/token_dispatcher.py", "1537-1539"),
    ],
)
def ncclep_eager_synchronises_host(view: View, static_by: str) -> Check:
    """What it checks: EP overlap with NCCL EP in its eager mode.

    Why: each dispatch then copies the token counts to the host, which serialises the overlap. 0.19 warns; main, where
    an unset `moe_expert_rank_capacity_factor` means eager, says nothing.

    Example: `moe_flex_dispatcher_backend=ncclep` with EP overlap on main, no rank capacity

    Fix: the static mode, which needs the operation fuser and grouped GEMM.
    """
    return violated(
        view.overlap & view.dispatches_by("flex", "ncclep") & view[static_by].off,
        f"NCCL EP runs in eager mode (`{static_by.partition('.')[2]}` is {view[static_by]}), which waits on the host",
        expected=f"{static_by.partition('.')[2]} set",
    )


@rule(
    "EPO412",
    "ncclep-static-needs-op-fuser",
    ERROR,
    enforced=[
        run_time(">=0.19,<0.20", static_by=STATIC_SHAPE, refuses_padding=False),
        run_time(">=0.20,!dev", static_by=RANK_CAPACITY, refuses_padding=True),
    ],
    source=[
        megatron("0.19.0", "core/transformer/moe/token_dispatcher.py", "1534-1544"),
        megatron("main", "core/transformer/moe/token_dispatcher.py", "1554-1576"),
    ],
    fixes=[put(use_transformer_engine_op_fuser=True, moe_grouped_gemm=True, gives_up="the unfused experts")],
)
def ncclep_static_needs_op_fuser(view: View, static_by: str, *, refuses_padding: bool) -> Check:
    """What it checks: NCCL EP's static mode without the operation fuser and grouped GEMM; on main also its use with
    an expert capacity.

    Why: the experts get the whole receive buffer and must skip its unused tail on the device, which only the fused
    grouped GEMM does. Building the MoE layer raises ValueError.

    Example: `moe_expert_rank_capacity_factor=1.5` with `ncclep` and no `use_transformer_engine_op_fuser`, on main

    Fix: `use_transformer_engine_op_fuser=true` and `moe_grouped_gemm=true`, or leave the static mode.
    """
    fused = view["model.use_transformer_engine_op_fuser"].on & view["model.moe_grouped_gemm"].on
    capacity = view["model.moe_expert_capacity_factor"].is_set | view["model.moe_pad_expert_input_to_capacity"].on
    parts = [(view[static_by].on & ~fused, "NCCL EP's static mode needs the operation fuser and grouped GEMM")]
    if refuses_padding:
        parts.append((capacity, "NCCL EP has no mode with expert capacity or padding"))
    return violated_by(
        parts,
        when=view.dispatches_by("flex", "ncclep"),
        expected="use_transformer_engine_op_fuser and moe_grouped_gemm on, no expert capacity",
    )


@rule(
    "EPO413",
    "quantized-dispatch-needs-ncclep",
    ERROR,
    enforced=[core(">=0.20,!dev")],
    source=core_config("main", "1776-1788"),
    fixes=[put(moe_dispatch_fwd_dtype="bf16", moe_combine_bwd_dtype="bf16", gives_up="fewer bytes on the wire")],
)
def quantized_dispatch_needs_ncclep(view: View) -> Check:
    """What it checks: dispatch or combine in another type than bf16 without NCCL EP, operation fuser and grouped GEMM.

    Why: only this path carries and consumes the quantized tokens; Megatron-Core raises ValueError.

    Example: `moe_dispatch_fwd_dtype=mxfp8` with the alltoall dispatcher

    Fix: keep both types at bf16.
    """
    forward, backward = view["model.moe_dispatch_fwd_dtype"], view["model.moe_combine_bwd_dtype"]
    able = (
        view.dispatches_by("flex", "ncclep")
        & view["model.use_transformer_engine_op_fuser"].on
        & view["model.moe_grouped_gemm"].on
    )
    return violated(
        ((forward != "bf16") | (backward != "bf16")) & ~able,
        f"dispatch runs in {forward}, the backward of combine in {backward}; other types than bf16 need NCCL EP with "
        "the operation fuser and grouped GEMM",
        expected="moe_dispatch_fwd_dtype = moe_combine_bwd_dtype = bf16",
    )


@rule(
    "EPO414",
    "rank-capacity-needs-hybridep",
    ERROR,
    enforced=[
        core(">=0.18,<0.19", backends=("hybridep",)),
        core(">=0.19", backends=("hybridep", "ncclep")),
    ],
    source=[core_config("0.18.2", "1515-1525"), core_config("0.19.0", "1692-1704"), core_config("main", "1868-1882")],
    fixes=[put(moe_expert_rank_capacity_factor=None, gives_up="the bound on a rank's tokens")],
)
def rank_capacity_needs_hybridep(view: View, backends: tuple[str, ...]) -> Check:
    """What it checks: `moe_expert_rank_capacity_factor` with a flex backend that has no use for it, or with HybridEP
    and unfused experts.

    Why: the factor sizes a receive buffer that these backends have and that only fused experts can read. The dispatcher
    type is not looked at: with `alltoall` the default backend, `deepep`, already raises ValueError.

    Example: `moe_expert_rank_capacity_factor=1.5` with `alltoall`

    Fix: remove it, or use HybridEP with `use_transformer_engine_op_fuser`.
    """
    backend = view[BACKEND]
    unfused = view["model.use_transformer_engine_op_fuser"].off & view["model.moe_use_grouped_tensor"].off
    return violated_by(
        [
            (~backend.one_of(*backends), f"the flex backend is {backend}, not {' or '.join(backends)}"),
            ((backend == "hybridep") & unfused, "HybridEP needs `use_transformer_engine_op_fuser` with it"),
        ],
        when=view[RANK_CAPACITY].is_set,
        expected="moe_expert_rank_capacity_factor unset",
    )


@rule(
    "EPO415",
    "flex-sm-counts-agree",
    ERROR,
    enforced=[core(">=0.19")],
    source=core_config("0.19.0", "1616-1636"),
    fixes=[Fix(lambda view: _one_sm_count(view))],  # noqa: PLW0108
)
def flex_sm_counts_agree(view: View) -> Check:
    """What it checks: the two deprecated SM counts differ and the one that replaces them is unset.

    Why: from 0.19 there is one count for every backend, `moe_flex_dispatcher_num_sms`; two different old ones raise
    ValueError.

    Example: `moe_deepep_num_sms=20 moe_hybridep_num_sms=32`

    Fix: set `moe_flex_dispatcher_num_sms` instead of both.
    """
    deepep, hybridep = view["model.moe_deepep_num_sms"], view["model.moe_hybridep_num_sms"]
    return violated(
        view["model.moe_flex_dispatcher_num_sms"].unset & deepep.is_set & hybridep.is_set & (deepep != hybridep),
        f"`moe_deepep_num_sms` is {deepep} and `moe_hybridep_num_sms` is {hybridep}; this release has one count",
        expected="moe_flex_dispatcher_num_sms alone",
    )


@rule(
    "EPO447",
    "ncclep-needs-rank-capacity",
    ERROR,
    enforced=[run_time(">=0.19,<0.20"), run_time("dev")],
    unknown=NOTED,
    source=megatron("0.19.0", "core/transformer/moe/token_dispatcher.py", "1563-1568"),
)
def ncclep_needs_rank_capacity(view: View) -> Check:
    """What it checks: NCCL EP on 0.19 without `moe_expert_rank_capacity_factor`.

    Why: it sizes the receive buffer there, and building the MoE layer raises ValueError without it. On main an unset
    factor means the eager mode.

    Example: `moe_flex_dispatcher_backend=ncclep` alone, on 0.19

    Fix: set a generous `moe_expert_rank_capacity_factor`.
    """
    return violated(
        view.dispatches_by("flex", "ncclep") & view[RANK_CAPACITY].unset,
        "NCCL EP has no `moe_expert_rank_capacity_factor`; this release sizes its receive buffer by it",
        expected="moe_expert_rank_capacity_factor set",
    )


@rule(
    "EPO448",
    "grouped-tensor-needs-fused-experts",
    ERROR,
    enforced=[core(">=0.20,!dev")],
    unknown=NOTED,
    source=[core_config("main", "1413-1414"), core_config("main", "1769-1774")],
    fixes=[put(moe_use_grouped_tensor=False)],
)
def grouped_tensor_needs_fused_experts(view: View) -> Check:
    """What it checks: `moe_use_grouped_tensor` without grouped GEMM, or with NCCL EP and without the operation fuser.

    Why: the grouped tensor is the storage of the grouped GEMM, and NCCL EP feeds it through the fuser only.
    Megatron-Core raises ValueError.

    Example: `moe_use_grouped_tensor=true` without `moe_grouped_gemm`

    Fix: leave `moe_use_grouped_tensor` off, or turn on what it needs.
    """
    unfused = view["model.use_transformer_engine_op_fuser"].off
    return violated_by(
        [
            (view["model.moe_grouped_gemm"].off, "`moe_use_grouped_tensor` needs `moe_grouped_gemm`"),
            ((view[BACKEND] == "ncclep") & unfused, "with NCCL EP it needs `use_transformer_engine_op_fuser`"),
        ],
        when=view["model.moe_use_grouped_tensor"].on,
        expected="moe_use_grouped_tensor = false",
    )


def _one_sm_count(view: View) -> Iterable[Mapping[str, object]]:
    """The count of the backend that runs, deprecated names unset."""
    names = {"hybridep": "model.moe_hybridep_num_sms"}
    chosen = view.effective[names.get(str(view.effective[BACKEND].value), "model.moe_deepep_num_sms")]
    if chosen.known:
        yield {
            "model.moe_flex_dispatcher_num_sms": chosen.value,
            "model.moe_deepep_num_sms": None,
            "model.moe_hybridep_num_sms": None,
        }
