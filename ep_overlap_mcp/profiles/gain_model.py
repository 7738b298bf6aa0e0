"""What overlap could gain at most: a first-order model of expert-parallel communication.

    transfer bytes   tokens x topk x hidden x bytes x (nodes - 1) / nodes      no deduplication (alltoall)
                     tokens x hidden x bytes x distinct nodes                  one copy a node (DeepEP, HybridEP)
    transfers        dispatch and combine, forward and backward: 4 for each layer and microbatch; 6 when the
                     forward pass is computed again
    ceiling          step / (step - min(communication the schedule can pair, step - communication))

The model leaves out skew, synchronisation and the SMs that communication takes, so it underestimates how long
kernels stay: by 20 % (HybridEP) to 48 % (DeepEP with notify) where both are known. Therefore a ceiling, a band
and verdict classes, never a point. Calibrated on H100 only; GB200, FP8 and pipeline bubbles are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dispatcher = Literal["alltoall", "deepep", "hybridep", "ncclep"]

_BAND = (0.1, 0.6)  # shares of the communication; the four published A/Bs saved 0.23 to 0.56


@dataclass(frozen=True)
class Layout:
    """What decides how much one rank sends in a step. Tokens are of a microbatch: seq x mbs / (TP x CP)."""

    tokens_per_rank: int
    hidden_size: int
    topk: int
    expert_parallel: int
    moe_layers: float  # on this rank; of a pipeline the mean over its stages
    microbatches: int
    dispatcher: Dispatcher
    gpus_per_node: int = 8
    node_groups: int | None = None  # node-limited routing: experts of a token lie on so many nodes
    bytes_per_value: float = 2.0
    full_recompute: bool = False
    pipeline_parallel: int = 1
    virtual_pipeline: int | None = None

    @property
    def nodes(self) -> int:
        """Nodes an expert-parallel group spans."""
        return max(1, -(-self.expert_parallel // self.gpus_per_node))

    def transfer_bytes(self) -> float:
        """Bytes of one dispatch or combine, as the bandwidth of the dispatcher is counted."""
        places = self.nodes if self.nodes > 1 else self.expert_parallel
        if self.dispatcher == "alltoall":
            copies = self.topk * (places - 1) / places
        else:  # published bandwidths count the copy that stays at home, too
            reach = min(places, self.node_groups or places) if self.nodes > 1 else places
            copies = reach * (1 - (1 - 1 / reach) ** self.topk)
        return self.tokens_per_rank * self.hidden_size * self.bytes_per_value * copies

    def transfers(self) -> float:
        """Dispatches and combines of one step."""
        return (6 if self.full_recompute else 4) * self.moe_layers * self.microbatches

    def pairable(self) -> float:
        """The share of microbatches whose forward runs beside another's backward, at best over the stages.

        Without pipeline all but the first forward and the last backward; with it what the interleaved schedule's
        warm-up leaves, one more with overlap on: NVIDIA/Megatron-LM @ d98e8a6 : megatron/core/
        pipeline_parallel/schedules.py : 957-970. Unknown virtual stages count as one, which
        leaves most, for a ceiling.
        """
        if self.pipeline_parallel == 1 or self.virtual_pipeline is None:
            return 1 - 1 / self.microbatches
        chunks = self.microbatches * self.virtual_pipeline
        return max(0.0, 1 - ((self.virtual_pipeline - 1) * self.pipeline_parallel + 1) / chunks)


@dataclass(frozen=True)
class Bound:
    """Communication of a step and what hiding it could make of the step; milliseconds."""

    step_ms: float
    comm_ms: float
    pairable: float

    @property
    def overlappable_ms(self) -> float:
        """What the schedule can pair, as long as there is computation to hide it under."""
        return max(0.0, min(self.comm_ms * self.pairable, self.step_ms - self.comm_ms))

    @property
    def lacks_computation(self) -> bool:
        """Whether the step holds too little computation to hide what the schedule can pair."""
        return self.step_ms - self.comm_ms < self.comm_ms * self.pairable

    @property
    def ceiling(self) -> float:
        """The speedup if all of it were hidden."""
        return self.step_ms / (self.step_ms - self.overlappable_ms)

    @property
    def band(self) -> tuple[float, float]:
        """The speedups between a tenth and six tenths of the communication saved, never above the ceiling."""
        low, high = (self.step_ms / (self.step_ms - share * self.comm_ms) for share in _BAND)
        return round(min(low, self.ceiling), 3), round(min(high, self.ceiling), 3)
