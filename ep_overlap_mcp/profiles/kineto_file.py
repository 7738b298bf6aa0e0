"""The events of a Kineto trace (torch.profiler's JSON, plain or gzip) as a stream of bounded memory.

The decompressed text is cut between events, and only events of the wanted categories are decoded. Kineto writes
`{"ph": "X", "cat": …` first in every complete event, which lets the others be skipped unparsed; blocks written
in another order are decoded whole.
"""

from __future__ import annotations

import gzip
import re
import zlib
from contextlib import suppress
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.timeline import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_BLOCK = 1 << 18
_LIMIT = 1 << 26  # bytes of one event, or of what stands before the events
_WHOLE_LIMIT = 1 << 30  # bytes of a file that has to be held whole

_NOT_JSON = (msgspec.MsgspecError, RecursionError)
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')
_NEXT_EVENT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|pid)")')
_EVENT_START = re.compile(rb'\{\s*"ph"\s*:\s*"X"\s*,\s*')
_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*(\{[^{}]*)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d+)')


_Block = tuple[bytes, int]  # a text and where its last whole event ends


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that matter here."""

    device: int | float | str | None = None
    stream: int | float | str | None = None
    correlation: int | float | str | None = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Description", default=None)


class Event(msgspec.Struct, gc=False):
    """A trace event. Times are microseconds, integers or floats; traces older than `baseTimeNanoseconds` hold
    absolute floats, which are exact to a quarter of a microsecond.
    """

    cat: str | None = None
    name: str | int | float | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


def times(event: Event) -> tuple[int, int]:
    """Start and end in nanoseconds, `NO_TIME` without duration. `ts` and `dur` are rounded apart: `ts` may have lost
    its fraction.

    Errors: `ProfileError` for a time that is no number, or none that a clock shows.
    """
    start, duration = event.ts, event.dur
    if duration is None:
        return NO_TIME
    if isinstance(start, (int, float)) and isinstance(duration, (int, float)):
        with suppress(OverflowError, ValueError):
            first = round(start * 1000)
            return first, first + round(duration * 1000)
    raise ProfileError(f"event `{event.name}` has time {start!r} and duration {duration!r}: not a Kineto trace")


_DECODER = msgspec.json.Decoder(list[Event])


class _Document(msgspec.Struct):
    """A trace, or what is left of it after its first events."""

    trace_events: list[msgspec.Raw] = msgspec.field(name="traceEvents", default_factory=list)
    distributed_info: msgspec.Raw = msgspec.field(name="distributedInfo", default=msgspec.Raw(b""))


class _CutInsideEventError(Exception):
    """A block does not end where an event ends: the arguments of one hold a list of what looks like events.

    Of the whole list of events it says what is wrong with it.
    """


class KinetoFile:
    """One trace file; `rank` is known once its events have been read."""

    def __init__(self, path: Path, on_progress: Callable[[float], None] | None = None) -> None:
        self.path = path
        self.rank: int | None = None
        self._is_list = False
        self._on_progress = on_progress or (lambda _: None)

    def events(self, categories: tuple[str, ...] | None) -> Iterator[Event]:
        """The events of these categories, or of all, in the file's order; those that mark a moment, too.

        Errors: `ProfileError` for a file that cannot be read, is no trace, or is cut off.
        """
        wanted = _pattern(categories) if categories else None
        given = 0
        try:
            for events in self._decoded(self._blocks(), wanted):
                for event in events:
                    if _chosen(event, categories):
                        given += 1
                        yield event
        except _CutInsideEventError:
            whole = (event for events in self._decoded(self._whole(), None) for event in events)
            chosen = (event for event in whole if _chosen(event, categories))
            yield from self._readable(islice(chosen, given, None))

    def _readable(self, events: Iterator[Event]) -> Iterator[Event]:
        """Events of the whole file; nothing else is left to try where it cannot be decoded."""
        try:
            yield from events
        except _CutInsideEventError as problem:
            raise ProfileError(
                f"{self.path}: damaged or cut off, or no Kineto trace: its list of events cannot be read ({problem});"
                " copy it again or profile again"
            ) from None

    def _decoded(self, blocks: Iterator[_Block], wanted: re.Pattern[bytes] | None) -> Iterator[list[Event]]:
        try:
            for block in blocks:
                yield _decode(*block, wanted)
        except _broken_streams() as error:
            raise ProfileError(
                f"{self.path}: cannot be read to its end ({error}): the file is damaged or was cut off;"
                " copy it again or profile again"
            ) from None

    def _blocks(self) -> Iterator[_Block]:
        """The text between the brackets of `traceEvents`, up to an end between events."""
        with self.path.open("rb") as raw:
            text = cast("IO[bytes]", _decompressed(raw))
            size = max(self.path.stat().st_size, 1)
            buffer = self._after_head(text)
            while chunk := text.read(_BLOCK):
                self._on_progress(min(raw.tell() / size, 1.0))
                buffer += chunk
                cut = _last_cut(buffer)
                if cut:
                    yield buffer, cut[0]
                    buffer = buffer[cut[1] :]
                elif len(buffer) > _LIMIT:
                    raise ProfileError(f"{self.path}: no event ends within {_LIMIT >> 20} MB: not a Kineto trace")
        last = self._before_tail(buffer)
        yield last, len(last)
        self._on_progress(1.0)

    def _whole(self) -> Iterator[_Block]:
        """All of it at once, for files in which events hold lists of what looks like events."""
        with self.path.open("rb") as raw:
            text = cast("IO[bytes]", _decompressed(raw))
            buffer = self._after_head(text) + text.read(_WHOLE_LIMIT)
        events = self._before_tail(buffer)
        yield events, len(events)

    def _after_head(self, text: IO[bytes]) -> bytes:
        buffer = b""
        while chunk := text.read(_BLOCK):
            buffer += chunk
            head = _HEAD.search(buffer)
            if head:
                self._is_list = not head[0].startswith(b'"')
                distributed = _DISTRIBUTED.search(buffer, 0, head.start())
                self._find_rank(distributed[1] if distributed else b"")
                return buffer[head.end() :]
            if len(buffer) > _LIMIT:
                break
        raise ProfileError(
            f'{self.path}: holds no "traceEvents": not a Kineto trace. Give the JSON that torch.profiler'
            " exports (.json or .json.gz), or an Nsight Systems export made with `nsys export --type sqlite`"
        )

    def _before_tail(self, buffer: bytes) -> bytes:
        """The last events; what follows them has to complete the document."""
        if buffer.rstrip()[-1:] not in (b"}", b"]"):
            raise ProfileError(
                f"{self.path}: the trace was cut off, as when a run is killed while it exports. Profile again and"
                " let the export finish"
            )
        try:
            if self._is_list:
                events = msgspec.json.decode(b"[" + buffer, type=list[msgspec.Raw])
            else:
                rest = msgspec.json.decode(b'{"traceEvents":[' + buffer, type=_Document)
                events = rest.trace_events
                self._find_rank(rest.distributed_info)
        except _NOT_JSON as problem:
            raise _CutInsideEventError(problem) from None
        return b",".join(events)

    def _find_rank(self, distributed_info: bytes) -> None:
        found = _RANK.search(distributed_info)
        if found:
            self.rank = int(found[1])


def _chosen(event: Event, categories: tuple[str, ...] | None) -> bool:
    """Whether it is an event of these categories; what looks like one, in another's arguments, has no process."""
    return (not categories or event.cat in categories) and (event.dur is not None or event.pid is not None)


def _decompressed(raw: IO[bytes]) -> Any:
    """The stream itself or its decompression, told by the first two bytes, not by the name."""
    magic = raw.read(2)
    raw.seek(0)
    if magic != b"\x1f\x8b":
        return raw
    try:
        from isal import igzip
    except ImportError:  # not on every platform
        return gzip.GzipFile(fileobj=raw)
    return igzip.IGzipFile(fileobj=raw)  # type: ignore[no-untyped-call]


def _broken_streams() -> tuple[type[Exception], ...]:
    """What reading a damaged file, or decompressing it, raises."""
    try:
        from isal import isal_zlib
    except ImportError:  # not on every platform
        return OSError, EOFError, zlib.error
    return OSError, EOFError, zlib.error, cast("type[Exception]", isal_zlib.error)


def _last_cut(buffer: bytes) -> tuple[int, int] | None:
    """Where the last whole event ends and where the next begins."""
    back = 1 << 12
    while True:
        last = None
        for last in _NEXT_EVENT.finditer(buffer, max(0, len(buffer) - back)):  # noqa: B007
            pass
        if last:
            return last.start() + 1, last.end()
        if back >= len(buffer):
            return None
        back *= 8


def _pattern(categories: tuple[str, ...]) -> re.Pattern[bytes]:
    names = b"|".join(re.escape(category.encode()) for category in categories)
    return re.compile(rb'"cat"\s*:\s*"(?:' + names + rb')"')


def _decode(text: bytes, end: int, wanted: re.Pattern[bytes] | None) -> list[Event]:
    """The events before `end`, the wanted ones at least."""
    if wanted:
        with suppress(*_NOT_JSON):
            return _DECODER.decode(b"[" + _cut_out(text, end, wanted) + b"]")
    try:
        return _DECODER.decode(b"[" + text[:end] + b"]")
    except _NOT_JSON as problem:
        raise _CutInsideEventError(problem) from None


def _cut_out(text: bytes, end: int, wanted: re.Pattern[bytes]) -> bytes:
    """The wanted events before `end`, or all of them where they are not laid out as Kineto writes them.

    A cut in the wrong place leaves braces open, so it can only fail to decode.
    """
    pieces, usual = [], b""
    for hit in wanted.finditer(text, 0, end):
        category = hit.start()
        start = text.rfind(b"{", 0, category)
        opening = text[start:category]
        if opening != usual and not _EVENT_START.fullmatch(opening):
            return text[:end]
        usual = opening
        following = text.find(b'"ph"', category, end)
        close = end if following < 0 else text.rfind(b"}", start, following) + 1
        if not close:
            return text[:end]
        pieces.append(text[start:close])
    return b",".join(pieces)
