"""EPO1xx: what EP overlap itself asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, bridge, core, put, rule, violated

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

CORE_CONFIG = "NVIDIA/Megatron-LM@core_v0.16.1:megatron/core/transformer/transformer_config.py:"
BRIDGE_SETUP = "NVIDIA-NeMo/Megatron-Bridge@067f987df:src/megatron/bridge/training/comm_overlap.py:"


@rule(
    "EPO101",
    "needs-expert-parallelism",
    ERROR,
    enforced=[core(">=0.14"), bridge()],
    source=[CORE_CONFIG + "1863-1865", BRIDGE_SETUP + "479-481"],
)
def needs_expert_parallelism(view: View) -> Check:
    """What it checks: EP overlap is on and `expert_model_parallel_size` is 1.

    Why: without expert parallelism no token leaves its rank, so there is no all-to-all to hide. Megatron-Core
    asserts it when the configuration is built.

    Example: `--overlap-moe-expert-parallel-comm --expert-model-parallel-size 1`

    Fix: use an `expert_model_parallel_size` of 2 or more that divides the number of experts. It changes the layout
    of the experts over GPUs.
    """
    ep = view["model.expert_model_parallel_size"]
    return violated(
        view.overlap & (ep <= 1),
        f"`expert_model_parallel_size` is {ep}; EP overlap needs at least 2",
        expected="expert_model_parallel_size > 1",
    )


@rule(
    "EPO103",
    "dispatcher-alltoall-or-flex",
    ERROR,
    enforced=[core(">=0.14"), bridge()],
    source=[CORE_CONFIG + "1866-1871", BRIDGE_SETUP + "486-489"],
    fixes=[put(moe_token_dispatcher_type="alltoall")],
)
def dispatcher_alltoall_or_flex(view: View) -> Check:
    """What it checks: EP overlap is on and the token dispatcher is neither `alltoall` nor `flex`.

    Why: only these two dispatchers split dispatch and combine into the steps that the combined schedule interleaves.
    Megatron-Core's own default is `allgather`, so the switch alone, with nothing else written, fails.

    Example: `--overlap-moe-expert-parallel-comm` without `--moe-token-dispatcher-type`

    Fix: `moe_token_dispatcher_type=alltoall`, or `flex` with a backend that the GPU supports.
    """
    dispatcher = view["model.moe_token_dispatcher_type"]
    return violated(
        view.overlap & ~dispatcher.one_of("alltoall", "flex"),
        f"`moe_token_dispatcher_type` is {dispatcher}; EP overlap works with alltoall or flex",
        expected="moe_token_dispatcher_type in (alltoall, flex)",
    )
