"""What one device did and when: half-open intervals of integer nanoseconds, and a sweep over them.

The sweep cuts time into stretches during which the set of active kinds does not change. Every union,
intersection and difference of kinds is then a sum over such stretches, so nothing else is needed.
"""

from __future__ import annotations

import heapq
import tempfile
from array import array
from collections import Counter
from typing import IO, TYPE_CHECKING, NamedTuple

from ep_overlap_mcp.profiles.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ep_overlap_mcp.profiles.kernels import Kind

# A boundary is one integer: nanoseconds since the first activity seen, the lane, and whether it ends.
_LANE_BITS = 13
_LANES = 1 << _LANE_BITS
_LANE_MASK = _LANES - 1
_SHIFT = _LANE_BITS + 1
_RUN = 1 << 18  # boundaries kept in memory (2 MB); full runs go to an anonymous temporary file
_ALL = -1  # every kind
_PIECE = 1 << 13  # boundaries read back at a time


class Window(NamedTuple):
    """A half-open stretch of time, nanoseconds."""

    start: int
    end: int


# Start, end, and the kinds (bits of `Kind`, at least one) that were active from one to the other and no others.
# A plain tuple: there are two for every activity.
Stretch = tuple[int, int, int]


NO_TIME = Window(0, -1)  # of an activity whose start or end the file does not hold


class Timeline:
    """The activities of one device. Memory stays bounded: sorted runs move to disk as they fill up."""

    def __init__(self, run: int = _RUN) -> None:
        self.stream_overlap: dict[str, int] = {}  # ns during which a stream ran two at once, after a sweep
        self._kinds: list[int] = []  # of each lane
        self._streams: list[str] = []
        self._counts: list[int] = []
        self._damaged: Counter[int] = Counter()  # by lane
        self._base: int | None = None
        self._first = self._last = 0
        self._runs = _SortedRuns(run)

    @property
    def extent(self) -> Window | None:
        """From the first start to the last end; None when nothing happened."""
        return None if self._base is None else Window(self._first, self._last)

    def lane(self, kind: Kind, stream: str) -> int:
        """A lane for activities of one kind on one stream.

        Errors: `ProfileError` for more of them than a device can have.
        """
        if len(self._kinds) == _LANES:
            raise ProfileError(f"more than {_LANES} kernels and streams to tell apart; profile fewer steps")
        self._kinds.append(int(kind))
        self._streams.append(stream)
        self._counts.append(0)
        return len(self._kinds) - 1

    def add(self, lane: int, start: int, end: int) -> None:
        """Record an activity; one without length takes no time and is only counted, `NO_TIME` and others that end
        before they start as damaged.

        Errors: `ProfileError` for time stamps days apart.
        """
        self._counts[lane] += 1
        if end <= start:
            self._damaged[lane] += end < start
            return
        base = self._base
        if base is None:
            base = self._base = self._first = start
            self._last = end
        self._first = min(self._first, start)
        self._last = max(self._last, end)
        lane <<= 1
        try:
            self._runs.add((start - base) << _SHIFT | lane, (end - base) << _SHIFT | lane | 1)
        except OverflowError:
            raise ProfileError(
                f"time stamps {start} ns and {base} ns lie days apart: the file is damaged or joins runs with"
                " different clocks; export one run"
            ) from None

    def count(self, kinds: int = _ALL) -> int:
        """Activities of these kinds (bits of `Kind`), damaged ones too."""
        return sum(count for kind, count in zip(self._kinds, self._counts, strict=True) if kind & kinds)

    def damaged(self, kinds: int = _ALL) -> int:
        """Activities of these kinds that end before they start: nobody knows how long they took."""
        return sum(count for lane, count in self._damaged.items() if self._kinds[lane] & kinds)

    def relabel(self, old: Kind, new: Kind) -> None:
        """Make every activity of kind `old` one of kind `new`."""
        self._kinds = [int(new) if kind == old else kind for kind in self._kinds]

    def sweep(self) -> Iterator[Stretch]:
        """The stretches in order of time; idle time lies between them."""
        names = list(dict.fromkeys(self._streams))
        number = {name: at for at, name in enumerate(names)}
        streams = [number[stream] for stream in self._streams]
        on_stream, doubled_since, doubled = ([0] * len(names) for _ in range(3))
        active = dict.fromkeys(self._kinds, 0)
        base, of_lane, kinds, then = self._base or 0, self._kinds, 0, 0
        for boundary in self._runs:
            now = boundary >> _SHIFT
            if now != then:
                if kinds:
                    yield base + then, base + now, kinds
                then = now
            lane = boundary >> 1 & _LANE_MASK
            kind, stream = of_lane[lane], streams[lane]
            if boundary & 1:
                active[kind] -= 1
                if not active[kind]:
                    kinds ^= kind
                on_stream[stream] -= 1
                if on_stream[stream] == 1:
                    doubled[stream] += now - doubled_since[stream]
            else:
                active[kind] += 1
                kinds |= kind
                on_stream[stream] += 1
                if on_stream[stream] == 2:
                    doubled_since[stream] = now
        self.stream_overlap = {name: time for name, time in zip(names, doubled, strict=True) if time}


class _SortedRuns:
    """Integers of 64 bits, read back in order; at most `limit` of them stay in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = array("q")
        self._file: IO[bytes] | None = None
        self._spilled: list[tuple[int, int]] = []  # offset and bytes of each run on disk

    def add(self, first: int, second: int) -> None:
        self._open.append(first)
        self._open.append(second)
        if len(self._open) >= self._limit:
            self._spill()

    def __iter__(self) -> Iterator[int]:
        self._open = array("q", sorted(self._open))
        runs: list[Iterable[int]] = [self._read(*place) for place in self._spilled]
        return iter(self._open) if not runs else heapq.merge(*runs, self._open)

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="ep-overlap-profile-")  # noqa: SIM115 (lives as long)
        run = array("q", sorted(self._open)).tobytes()
        offset = self._file.seek(0, 2)
        self._file.write(run)
        self._spilled.append((offset, len(run)))
        self._open = array("q")

    def _read(self, offset: int, size: int) -> Iterator[int]:
        assert self._file is not None  # noqa: S101 (a run on disk has a file)
        for at in range(offset, offset + size, _PIECE * 8):
            self._file.seek(at)
            yield from array("q", self._file.read(min(_PIECE * 8, offset + size - at)))
