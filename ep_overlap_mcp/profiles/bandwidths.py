"""Bandwidths that dispatchers were published to reach, counted as each dispatcher counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Bandwidth:
    """Gigabytes (1e9) a second and GPU, for EP sizes from the first to the last named."""

    dispatcher: str
    gpus: tuple[str, ...]
    nodes: Literal["within", "across"]
    expert_parallel: tuple[int, int]
    gb_s: float
    source: str


_HOPPER = ("H100", "H200", "H800")
_DEEPEP = "published: deepseek-ai/DeepEP README, H800"
_HYBRIDEP = "published: HybridEP tables (deepseek-ai/DeepEP @ 94a9f8f), H100, lower end"

# Lower ends of the ranges: a slower link means more communication, and a ceiling must not be too low.
_TABLE = (
    Bandwidth("deepep", _HOPPER, "within", (2, 8), 153, f"{_DEEPEP}, NVLink"),
    Bandwidth("deepep", _HOPPER, "across", (2, 16), 43, f"{_DEEPEP}, RDMA EP16"),
    Bandwidth("deepep", _HOPPER, "across", (17, 32), 57, f"{_DEEPEP}, RDMA EP32"),
    Bandwidth("deepep", _HOPPER, "across", (33, 64), 50, f"{_DEEPEP}, RDMA EP64"),
    Bandwidth("hybridep", _HOPPER, "across", (2, 16), 63, f"{_HYBRIDEP}, EP16"),
    Bandwidth("hybridep", _HOPPER, "across", (17, 32), 51, f"{_HYBRIDEP}, EP32"),
    Bandwidth("hybridep", _HOPPER, "across", (33, 64), 47, f"{_HYBRIDEP}, EP64"),
    Bandwidth("hybridep", ("GB200", "GB300"), "within", (2, 36), 540, "published: HybridEP, GB200, lower end"),
    Bandwidth("alltoall", _HOPPER, "within", (2, 8), 330, "assumed: NCCL over fourth-generation NVLink"),
    Bandwidth("alltoall", _HOPPER, "across", (2, 1 << 20), 45, "assumed: NCCL over one 400 Gb/s port a GPU"),
)


def published_bandwidth(dispatcher: str, gpu: str | None, expert_parallel: int, gpus_per_node: int) -> Bandwidth | None:
    """The bandwidth for a dispatcher on a GPU; None where nothing is published or the GPU is not named."""
    nodes = "across" if expert_parallel > gpus_per_node else "within"
    return next(
        (
            row
            for row in _TABLE
            if row.dispatcher == dispatcher
            and row.nodes == nodes
            and gpu is not None
            and any(known in gpu.upper() for known in row.gpus)
            and row.expert_parallel[0] <= expert_parallel <= row.expert_parallel[1]
        ),
        None,
    )
