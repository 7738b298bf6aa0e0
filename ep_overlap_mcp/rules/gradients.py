"""EPO640: how gradients of the data-parallel ranks are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, put_paths, rule, run_time, violated
from ep_overlap_mcp.rules.sources import megatron

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View


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
