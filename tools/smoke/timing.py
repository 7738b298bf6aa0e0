"""Interleaved pairs: baseline and variant in alternating order on equal data."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .schedule import exposed_ms, overlap_times

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .collectives import Call, Watch
    from .evidence import Place
    from .model import Variant
    from .schedule import Node, NodeLog
    from .steps import Timed, Trainer

TIMED_STEP = 1_000  # all timed steps use the data of this one: kernels made for its shapes are made once


@dataclass
class Measured:
    """What this rank measured of one variant."""

    pairs: list[dict[str, Any]] = field(default_factory=list)
    warmup_pairs: list[dict[str, Any]] = field(default_factory=list)
    own_ms: dict[str, list[float]] = field(default_factory=lambda: {"baseline": [], "variant": []})
    overlap: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Stopwatch:
    """Times steps on this rank."""

    trainer: Trainer
    nodes: NodeLog
    watch: Watch
    place: Place

    def measure(self, baseline: Variant, variant: Variant, progress: Callable[[], None]) -> Measured:
        """Warm-up and timed pairs of the request."""
        measured = Measured()
        warmup, pairs = self.trainer.request.warmup, self.trainer.request.pairs
        for index in range(warmup + pairs):
            sides = {"baseline": baseline, "variant": variant}
            order = list(sides) if index % 2 == 0 else list(reversed(sides))
            steps = {side: self._timed(sides[side], side, index, measured, counts=index >= warmup) for side in order}
            pair = {
                "order": [sides[side].name for side in order],
                "ms": {side: step.ms for side, step in steps.items()},
                "forward_backward_ms": {side: step.forward_backward_ms for side, step in steps.items()},
            }
            (measured.pairs if index >= warmup else measured.warmup_pairs).append(pair)
            progress()
        return measured

    def profile(self, variant: Variant, trace: Path) -> dict[str, Any]:
        """One more step under torch.profiler, with collectives of all threads."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.trainer.engine.on_gpu:
            activities.append(ProfilerActivity.CUDA)
        self.place.at("profile", variant.name)
        self._clear()
        # without it the collectives of the comm-stream thread are absent
        everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # noqa: SLF001
        with profile(activities=activities, experimental_config=everywhere) as profiler:
            self.trainer.timed_step(variant, TIMED_STEP)
        profiler.export_chrome_trace(str(trace))
        calls = sum(call.name == "all_to_all_single" for call in self.watch.calls)
        events = sum(_is_all_to_all(event.name) for event in profiler.events() or ())
        return {"file": str(trace), "all_to_all_events": events, "all_to_all_calls": calls}

    def _timed(self, variant: Variant, side: str, index: int, measured: Measured, *, counts: bool) -> Timed:
        self.place.at("timing", variant.name, index)
        self._clear()
        step = self.trainer.timed_step(variant, TIMED_STEP)
        if counts:
            nodes, calls = self.nodes.take(), self.watch.calls[1:]  # the first is the barrier before the step
            measured.own_ms[side].append(step.ms - exposed_ms(nodes, calls))
            if side == "variant":
                measured.overlap.append(self._overlap(nodes, calls))
        return step

    def _overlap(self, nodes: list[Node], calls: list[Call]) -> dict[str, Any]:
        sent = [call.size for call in calls if call.name == "all_to_all_single"]
        times = overlap_times(nodes, calls, host_times=self.trainer.engine.host_times)
        return {**times, "all_to_all_calls": len(sent), "all_to_all_bytes": sum(sent)}

    def _clear(self) -> None:
        self.nodes.take()
        self.watch.calls.clear()


def _is_all_to_all(name: str) -> bool:
    return name in ("gloo:all_to_all", "nccl:all_to_all", "nccl:all_to_allv")


def gather_timing(ranks: list[Measured], *, host_times: bool) -> dict[str, Any]:
    """The `timing` of one variant from the measurements of all ranks: the slowest rank counts."""
    return {
        "pairs": _gather_pairs([rank.pairs for rank in ranks]),
        "warmup_pairs": _gather_pairs([rank.warmup_pairs for rank in ranks]),
        "own_ms": {side: [_median(rank.own_ms[side]) for rank in ranks] for side in ("baseline", "variant")}
        if host_times
        else None,
    }


def gather_overlap(ranks: list[Measured]) -> list[dict[str, Any]]:
    """The `overlap` of one variant: medians over the timed steps, a row a rank."""
    return [
        {"rank": rank, **{name: _median([row[name] for row in measured.overlap]) for name in measured.overlap[0]}}
        for rank, measured in enumerate(ranks)
        if measured.overlap
    ]


def _gather_pairs(ranks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    pairs = []
    for rows in zip(*ranks, strict=True):
        per_rank = {side: [row["ms"][side] for row in rows] for side in ("baseline", "variant")}
        pairs.append(
            {
                "order": rows[0]["order"],
                "ms": {side: max(values) for side, values in per_rank.items()},
                "forward_backward_ms": {
                    side: max(row["forward_backward_ms"][side] for row in rows) for side in per_rank
                },
                "per_rank_ms": per_rank,
            }
        )
    return pairs


def _median(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
