"""The order of work: baseline, plain overlap, then delayed weight gradients; one switch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.results.propose import Step
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_DELAY, MODEL_SWITCH
from ep_overlap_mcp.surface import given

if TYPE_CHECKING:
    from ep_overlap_mcp.proposals.search import Proposal
    from ep_overlap_mcp.settings.request import Request

_HARNESS = (
    "; leave the harness flag --moe_a2a_overlap out, it breaks the isolation: true turns delayed weight gradients on "
    "as well and shared-expert overlap off, false does not turn overlap off. Use the overrides instead"
)


def order_of_work(request: Request, proposal: Proposal) -> list[Step]:
    """Three runs that differ in one switch each; every other change of the proposal is in all of them."""
    bridge = request.framework == "bridge"
    switch = BRIDGE_SWITCH if bridge else MODEL_SWITCH
    delay = BRIDGE_DELAY if bridge else MODEL_DELAY
    rest = {path: value for path, value in proposal.changes.items() if path not in (switch, delay)}
    harness = request.as_written.get("bridge.moe_a2a_overlap") is not None
    return [
        Step(
            name="baseline",
            settings={**rest, switch: False, delay: False},
            why="all other changes, overlap off" + (_HARNESS if harness else ""),
        ),
        Step(
            name="overlap",
            settings={**rest, switch: True, delay: False},
            compare_with="baseline",
            why="what plain overlap gains; keep it only if step time falls and the loss is unchanged",
        ),
        Step(
            name="overlap_delay_wgrad",
            settings={**rest, switch: True, delay: True},
            compare_with="overlap",
            why=f"what delayed weight gradients add; check it with {given('assume', 'overlap_delay_wgrad')} first",
        ),
    ]
