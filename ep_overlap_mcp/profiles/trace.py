"""A profile once read, whatever its format: devices with timelines and step windows, marks of the schedule."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ep_overlap_mcp.profiles.kernels import Kind, family_of
from ep_overlap_mcp.profiles.timeline import Timeline, Window

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_STEP = re.compile(
    r"^ProfilerStep#\d+$|(?:^|[./ ])(?:train(?:ing)?_?)?(?:step|iteration|iter)[ _#:=]*\d+$", re.IGNORECASE
)
_COMBINED = re.compile(r"(?:^|[./ ])layer_\d+f-layer_\d+b$")


@dataclass
class Tally:
    """Time and number of the runs of one kernel name."""

    ns: int = 0
    count: int = 0


@dataclass
class Device:
    """One device of a profile."""

    name: str
    rank: int | None = None
    timeline: Timeline = field(default_factory=Timeline)
    steps: list[Window] = field(default_factory=list)
    unclassified: dict[str, Tally] = field(default_factory=dict)
    fused: dict[str, Tally] = field(default_factory=dict)
    _lanes: dict[tuple[object, ...], int] = field(default_factory=dict)
    _kernels: dict[tuple[object, ...], tuple[int, Tally | None]] = field(default_factory=dict)

    def add(self, kind: Kind, stream: object, start: int, end: int) -> None:
        """An activity whose kind is known; nanoseconds."""
        self.timeline.add(self._lane(kind, stream), start, end)

    def add_kernel(self, name: str, stream: object, start: int, end: int, kind: Kind | None = None) -> None:
        """A kernel, classified by its demangled name; `kind` is what the file tells beyond the name."""
        known = self._kernels.get((name, stream, kind))
        if known is None:
            known = self._kernels[name, stream, kind] = self._new_kernel(name, stream, kind)
        lane, tally = known
        if tally:
            tally.ns += max(0, end - start)
            tally.count += 1
        self.timeline.add(lane, start, end)

    def suspicious(self) -> dict[str, Tally]:
        """Unclassified kernels whose own name speaks of communication."""
        return {name: tally for name, tally in self.unclassified.items() if family_of(name).suspicious}

    def _new_kernel(self, name: str, stream: object, kind: Kind | None) -> tuple[int, Tally | None]:
        family = family_of(name)
        watched = self.fused if family.fused else None if family.known else self.unclassified
        tally = None if watched is None else watched.setdefault(name, Tally())
        return self._lane(kind or family.kind, stream), tally

    def _lane(self, kind: Kind, stream: object) -> int:
        lane = self._lanes.get((int(kind), stream))
        if lane is None:
            lane = self._lanes[int(kind), stream] = self.timeline.lane(kind, str(stream))
        return lane


@dataclass
class Profile:
    """One file."""

    path: Path
    format: str
    devices: list[Device] = field(default_factory=list)
    combined: Counter[str] = field(default_factory=Counter)  # names of combined 1F1B ranges
    caveats: list[str] = field(default_factory=list)


def ambiguous_sendrecv(device: Device, number: int) -> str:
    """The caveat for SendRecv kernels nothing in the file explains."""
    return (
        f"{device.name}: {number} SendRecv kernels may be expert all-to-alls or pipeline traffic; the file"
        " names neither their process group nor a range around them, so they stand under p2p"
    )


def is_step(name: str) -> bool:
    """Whether an annotation names a step: torch.profiler's, or a training loop's `training_step_12`.

    Source: NVIDIA-NeMo/Megatron-Bridge @ 067f987 : src/megatron/bridge/training/train.py : 389.
    """
    return _STEP.search(name) is not None


def is_combined(name: str) -> bool:
    """Whether an annotation is one of the combined forward-backward schedule.

    Source: NVIDIA/Megatron-LM @ d98e8a6 : megatron/core/models/common/model_chunk_schedule_plan.py : 563.
    """
    return _COMBINED.search(name) is not None


def windows(marks: Iterable[Window]) -> list[Window]:
    """Step windows in order, each ending where the next begins at the latest."""
    ordered = sorted(set(marks))
    nexts = [following.start for following in ordered[1:]] + [ordered[-1].end] if ordered else []
    return [
        Window(mark.start, min(mark.end, following))
        for mark, following in zip(ordered, nexts, strict=True)
        if min(mark.end, following) > mark.start
    ]
