"""Lanes of computation and communication over each step: what the HTML page draws.

Stretches closer together than the resolution are drawn as one, which bounds the page; numbers never come from
the picture.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ep_overlap_mcp.profiles.analysis import Sides, read
from ep_overlap_mcp.profiles.kernels import COMMUNICATION, COMPUTE, Kind
from ep_overlap_mcp.profiles.timeline import Window
from ep_overlap_mcp.results.profile import DevicePicture, Lane, StepPicture

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.profiles.timeline import Stretch
    from ep_overlap_mcp.profiles.trace import Device

_STEPS = 6  # drawn for each device, besides the whole
_ACROSS = 3000  # the finest stretch, as a part of the window


class _Row(NamedTuple):
    name: str
    style: str
    all_of: tuple[int, ...]
    none_of: int = 0


_ROWS = (
    _Row("GEMM and attention", "gemm", (Kind.GEMM_ATTENTION,)),
    _Row("other computation", "compute", (Kind.OTHER_COMPUTE,)),
    _Row("dispatch", "communication", (Kind.DISPATCH,)),
    _Row("combine", "communication", (Kind.COMBINE,)),
    _Row("all-to-all", "communication", (Kind.ALL_TO_ALL,)),
    _Row("collectives", "communication", (Kind.COLLECTIVE,)),
    _Row("point to point", "communication", (Kind.P2P,)),
    _Row("control", "control", (Kind.CONTROL,)),
    _Row("exposed communication", "exposed", (COMMUNICATION,), COMPUTE),
)


def draw_devices(sides: Sides, on_progress: Callable[[float], None] | None = None) -> list[DevicePicture]:
    """A picture of every device: the whole window, then its first steps."""
    return [
        _draw(device, str(path), side)
        for (side, path), progress in zip(sides, sides.progress(on_progress), strict=True)
        for device in read(path, progress).devices
        if device.timeline.extent
    ]


def _draw(device: Device, file: str, side: str) -> DevicePicture:
    whole = device.timeline.extent or Window(0, 0)
    drawn = [("whole profile", whole)]
    drawn += [(f"step {number}", step) for number, step in enumerate(device.steps[:_STEPS], 1)]
    canvases = [_Canvas(title, window) for title, window in drawn]
    for stretch in device.timeline.sweep():
        for canvas in canvases:
            canvas.add(stretch)
    return DevicePicture(
        device=device.name,
        rank=device.rank,
        file=file,
        side=side,
        steps=[canvas.picture() for canvas in canvases],
        left_out=max(0, len(device.steps) - _STEPS),
    )


@cache
def _rows_of(kinds: int) -> tuple[int, ...]:
    """The rows in which a stretch of these kinds appears."""
    return tuple(
        number
        for number, row in enumerate(_ROWS)
        if not kinds & row.none_of and all(kinds & mask for mask in row.all_of)
    )


class _Canvas:
    """One window being drawn."""

    def __init__(self, title: str, window: Window) -> None:
        self._title, self._window = title, window
        self._resolution = max(1, (window.end - window.start) // _ACROSS)
        self._lanes: list[list[tuple[int, int]]] = [[] for _ in _ROWS]

    def add(self, stretch: Stretch) -> None:
        start, end, kinds = stretch
        start, end = max(start, self._window.start), min(end, self._window.end)
        if start >= end:
            return
        for row in _rows_of(kinds):
            self._extend(self._lanes[row], start - self._window.start, end - self._window.start)

    def _extend(self, lane: list[tuple[int, int]], start: int, end: int) -> None:
        if lane and start - lane[-1][1] < self._resolution:
            lane[-1] = (lane[-1][0], end)
        else:
            lane.append((start, end))

    def picture(self) -> StepPicture:
        return StepPicture(
            title=self._title,
            window_ns=self._window.end - self._window.start,
            resolution_ns=self._resolution,
            lanes=[
                Lane(name=row.name, style=row.style, stretches=lane)
                for row, lane in zip(_ROWS, self._lanes, strict=True)
                if lane
            ],
        )
