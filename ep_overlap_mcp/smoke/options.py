"""What a caller may choose about a smoke run, and the bounds of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.surface import argument

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGINES = ("gloo-cpu", "gloo-gpu", "nccl-gpu")
VARIANTS = ("overlap", "overlap_delay_wgrad")
MOST_CPU_RANKS = 8
FEWEST_PAIRS = 8  # fewer give no interval worth the name
SIZES = {  # what may be chosen, and the most of it
    "num_layers": 16,
    "hidden_size": 8192,
    "ffn_hidden_size": 32768,
    "moe_ffn_hidden_size": 16384,
    "seq_length": 16384,
    "vocab_size": 65536,
    "micro_batch_size": 8,
    "num_microbatches": 32,
}


@dataclass(frozen=True)
class SmokeOptions:
    """How to run; the defaults answer all three questions in under a minute.

    `variants`, `ranks` and `engine` follow from the request and the machine when None; `steps` are compared number by
    number, `pairs` are timed; `limit_s` is the wall clock after which the job is ended; `stall_s` without a sign of
    life is a stall, whose stacks are collected; `sizes` replaces the plan's own (SIZES names them); `force` runs what
    the rules reject, to see Megatron fail; `fault` plants one of smoke_train.py's faults, to see it found.
    """

    variants: tuple[str, ...] | None = None
    ranks: int | None = None
    engine: str | None = None
    steps: int = 3
    pairs: int = 8
    warmup: int = 2
    limit_s: float = 300.0
    stall_s: float = 30.0
    seed: int = 1234
    mode: str = "threads"
    profile: bool = False
    force: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    fault: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _within(argument("steps"), self.steps, 1, 20)
        _within("warmup", self.warmup, 0, 10)
        _within(argument("limit_s"), self.limit_s, 5, 900)
        _within("stall_s", self.stall_s, 1, 600)
        if self.pairs:
            _within(argument("pairs"), self.pairs, FEWEST_PAIRS, 64)
        if self.ranks is not None:
            _within(argument("ranks"), self.ranks, 1, 1024)
        if self.engine is not None:
            _one_of(argument("engine"), self.engine, ENGINES)
        _one_of("mode", self.mode, ("threads", "inline"))
        for variant in self.variants or ():
            _one_of("variants", variant, VARIANTS)
        for name, size in self.sizes.items():
            _one_of("sizes", name, tuple(SIZES))
            _within(f"sizes.{name}", size, 1, SIZES[name])


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise SmokeError(f"{name} is {value}; it takes {low} to {high}" + (", or 0" if name.endswith("pairs") else ""))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SmokeError(f"{name}: `{value}` is none of {', '.join(allowed)}")
