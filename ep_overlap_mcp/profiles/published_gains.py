"""The published A/Bs (overlap off against on, all else equal) that the model of gains is held to."""

from __future__ import annotations

from dataclasses import dataclass

from ep_overlap_mcp.profiles.gain_model import Bound, Layout
from ep_overlap_mcp.results.estimate import PublishedAB


def error_table() -> list[PublishedAB]:
    """What the model says about every published A/B, beside what was measured."""
    return [case.judged() for case in PUBLISHED]


@dataclass(frozen=True)
class Published:
    """A published pair of runs, overlap off and on, all else equal."""

    case: str
    source: str
    layout: Layout
    bandwidth_gb_s: float
    step_ms: float  # overlap off
    speedup: float

    def judged(self) -> PublishedAB:
        """The model's answer beside the measurement."""
        comm = self.layout.transfer_bytes() / (self.bandwidth_gb_s * 1e6) * self.layout.transfers()
        bound = Bound(self.step_ms, comm, self.layout.pairable())
        return PublishedAB(
            case=self.case,
            source=self.source,
            ceiling=round(bound.ceiling, 2),
            band=(round(bound.band[0], 2), round(bound.band[1], 2)),
            actual=self.speedup,
            realised=round((self.step_ms - self.step_ms / self.speedup) / comm, 2),
        )


PUBLISHED = (
    Published(
        case="Qwen3-30B-A3B, 16 H100, EP16 alltoall",
        source="NVIDIA-NeMo/Megatron-Bridge PR 3862",
        layout=Layout(4096, 2048, 8, 16, moe_layers=48, microbatches=64, dispatcher="alltoall"),
        bandwidth_gb_s=45,
        step_ms=41_250,
        speedup=1.317,
    ),
    Published(
        case="Qwen3-30B-A3B, 16 H100, EP16 HybridEP, CUDA graphs",
        source="NVIDIA-NeMo/Megatron-Bridge PR 5094",
        layout=Layout(4096, 2048, 8, 16, moe_layers=48, microbatches=64, dispatcher="hybridep"),
        bandwidth_gb_s=62,
        step_ms=24_714,
        speedup=1.177,
    ),
    Published(
        case="Qwen3-235B-A22B, 256 H100, TP2 PP8 VPP4, EP32 DeepEP",
        source="MoE-ModelZoo, qwen3",
        layout=Layout(
            2048,
            4096,
            8,
            32,
            moe_layers=94 / 8,
            microbatches=128,
            dispatcher="deepep",
            pipeline_parallel=8,
            virtual_pipeline=4,
        ),
        bandwidth_gb_s=57.5,
        step_ms=19_700,
        speedup=1.119,
    ),
    Published(
        case="DeepSeek-V3-like, 14 layers, 64 H100, PP4, EP16 alltoall, full recompute",
        source="NVIDIA/Megatron-LM PR 6311; its step time follows from FLOPs, +-20 %",
        layout=Layout(
            2048,
            7168,
            8,
            16,
            moe_layers=3.5,
            microbatches=16,
            dispatcher="alltoall",
            full_recompute=True,
            pipeline_parallel=4,
        ),
        bandwidth_gb_s=45,
        step_ms=2_740,
        speedup=1.078,
    ),
)
