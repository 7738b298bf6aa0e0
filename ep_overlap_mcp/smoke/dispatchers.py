"""Which token dispatcher a run has, and what alltoall stands in for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.draft import Draft


@dataclass(frozen=True)
class StandIn:
    """A flex backend that cannot run here, and what it would need."""

    backend: str
    need: str


def pass_on_dispatcher(draft: Draft) -> None:
    """The effective one; alltoall where a flex backend cannot run."""
    dispatcher = draft.value("model.moe_token_dispatcher_type", "alltoall")
    if dispatcher != "flex":
        draft.set("moe_token_dispatcher_type", dispatcher)
        return
    if (missing := flex_stands_in(draft)) is not None:
        draft.leave_out("model.moe_flex_dispatcher_backend", missing.backend, missing.need)
        draft.set("moe_token_dispatcher_type", "alltoall", f"{missing.backend} {missing.need}")
        draft.model["moe_enable_deepep"] = False
        return
    draft.set("moe_token_dispatcher_type", "flex")
    for name in ("moe_flex_dispatcher_backend", "moe_enable_deepep"):
        if draft.known(f"model.{name}"):
            draft.set(name, draft.value(f"model.{name}"))


def flex_stands_in(draft: Draft) -> StandIn | None:
    """What alltoall stands in for; None where the dispatcher is no flex one, or can run."""
    if draft.value("model.moe_token_dispatcher_type", "alltoall") != "flex":
        return None
    backend = draft.value("model.moe_flex_dispatcher_backend", "deepep")
    usable = {"deepep": draft.machine.deepep, "hybridep": draft.machine.hybridep}.get(backend)
    if draft.machine.engine == "nccl-gpu" and usable:
        return None
    on_gpus = draft.machine.engine == "nccl-gpu"
    return StandIn(backend, "its package is not installed here" if on_gpus else "needs a GPU a rank")
