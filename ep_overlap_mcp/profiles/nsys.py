"""Nsight Systems exports (`nsys export --type sqlite`, schemas 3.24 and 3.25), opened read-only.

Tables that would be empty are absent and columns differ between versions, so both are asked for. Kernels are
named by `demangledName`: `shortName` has lost the namespace that tells DeepEP's `dispatch` apart.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import Counter, defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.kernels import Kind, family_of, kind_of_collective
from ep_overlap_mcp.profiles.timeline import NO_TIME, Window
from ep_overlap_mcp.profiles.trace import Device, Profile, ambiguous_sendrecv, is_combined, is_step, windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_STRINGS = "StringIds"
_RANGES = "NVTX_EVENTS"
_META = "META_DATA_EXPORT"
_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_TABLES = (_STRINGS, _RANGES, _META, _KERNEL, _MEMCPY, _MEMSET, _RUNTIME, _GRAPH)
_PEER_TO_PEER = 10  # CUPTI's copy kind
_NUMBERS = frozenset((int, type(None)))
_STEPS = 1_000_000  # of SQLite's machine, between two looks at the bound
_STEPS_A_BYTE = 200  # a row has tens of bytes, and takes tens of steps
_EVERY = 1 << 14  # rows between two reports of progress


class _Range(NamedTuple):
    start: int
    end: int
    thread: int | None
    name: str

    @property
    def process(self) -> int | None:
        return None if self.thread is None else _process(self.thread)


def read_nsys(path: Path, on_progress: Callable[[float], None] | None = None) -> Profile:
    """The devices of an export, one for each process and GPU.

    Errors: `ProfileError` for a file that is no such export or holds no kernels.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            database.set_progress_handler(_Bound(path.stat().st_size).exceeded, _STEPS)
            return _Export(path, database, on_progress or (lambda _: None)).read()
    except sqlite3.Error as error:
        raise ProfileError(
            f"{path}: not a readable SQLite database ({error}). Export again with `nsys export --type sqlite"
            " --output OUT.sqlite REPORT.nsys-rep`"
        ) from None


class _Export:
    def __init__(self, path: Path, database: sqlite3.Connection, on_progress: Callable[[float], None]) -> None:
        self.profile = Profile(path, "Nsight Systems SQLite")
        self._database = database
        self._on_progress = on_progress
        self._devices: dict[tuple[int | None, int | None], Device] = {}
        self._ranges: list[_Range] = []
        self._launches_indexed = False

    def read(self) -> Profile:
        self._refuse_views()
        if not self._columns(_KERNEL):
            raise ProfileError(
                f"{self.profile.path}: has no table {_KERNEL}: no GPU kernel was recorded. Profile with `nsys"
                " profile --trace cuda,nvtx` on a rank that trains"
            )
        self.profile.format = f"Nsight Systems SQLite {self._version()}".rstrip()
        self._ranges = list(self._nvtx())
        self._read_kernels()
        self._read_copies()
        self._finish_devices()
        self._on_progress(1.0)
        return self.profile

    def _refuse_views(self) -> None:
        """An export holds tables; a view in the place of one runs what somebody wrote into it, perhaps without end."""
        ours = {table.lower() for table in _TABLES}
        for (name,) in self._query("SELECT name FROM sqlite_master WHERE type = 'view'"):
            if str(name).lower() in ours:
                raise ProfileError(
                    f"{self.profile.path}: {name} is a view, not the table that Nsight Systems writes, so it is not"
                    " read; export the report again with `nsys export --type sqlite`"
                )

    def _read_kernels(self) -> None:
        used = f"SELECT demangledName FROM {_KERNEL}"  # noqa: S608 (our own names, here and below)
        names = dict(self._query(f"SELECT id, CAST(value AS TEXT) FROM {_STRINGS} WHERE id IN ({used})"))  # noqa: S608
        enclosing = _Enclosing([found for found in self._ranges if _kind_of_range(found.name)])
        total = next(self._query(f"SELECT count(*) FROM {_KERNEL}"))[0] or 1  # noqa: S608
        for count, (start, end, number, stream, name_id, process, correlation) in enumerate(
            self._integers(
                _KERNEL, "start", "end", "deviceId", "streamId", "demangledName", "globalPid", "correlationId"
            )
        ):
            name = names.get(name_id) or f"unnamed kernel {name_id}"
            kind = None
            if enclosing and family_of(name).kind is Kind.SENDRECV:
                kind = enclosing.kind(self._launch(process, correlation))
            self._device(process, number).add_kernel(name, stream, *_times(start, end), kind)
            if count % _EVERY == 0:
                self._on_progress(count / total)

    def _read_copies(self) -> None:
        for start, end, number, stream, process, kind in self._integers(
            _MEMCPY, "start", "end", "deviceId", "streamId", "globalPid", "copyKind"
        ):
            what = Kind.P2P if kind == _PEER_TO_PEER else Kind.MEMORY
            self._device(process, number).add(what, stream, *_times(start, end))
        for start, end, number, stream, process in self._integers(
            _MEMSET, "start", "end", "deviceId", "streamId", "globalPid"
        ):
            self._device(process, number).add(Kind.MEMORY, stream, *_times(start, end))

    def _finish_devices(self) -> None:
        shared = Counter(number for _, number in self._devices)
        for (process, number), device in sorted(
            self._devices.items(), key=lambda item: (item[0][1] or 0, item[0][0] or 0)
        ):
            if shared[number] > 1 and process is not None:
                device.name = f"GPU {number} of process {_process(process)}"
            steps = [r for r in self._ranges if is_step(r.name)]
            own = [r for r in steps if process is not None and r.process == _process(process)]
            device.steps = windows(Window(r.start, r.end) for r in own or steps)
            if unexplained := device.timeline.count(Kind.SENDRECV):
                self.profile.caveats.append(ambiguous_sendrecv(device, unexplained))
                device.timeline.relabel(Kind.SENDRECV, Kind.P2P)
            self.profile.devices.append(device)
        self.profile.combined = Counter(r.name for r in self._ranges if is_combined(r.name))
        if next(self._rows(_GRAPH, "start"), None):
            self.profile.caveats.append(
                "CUDA graphs were recorded as a whole, so the kernels in them are missing from every number here;"
                " profile with `--cuda-graph-trace=node`"
            )

    def _device(self, process: int | None, number: int | None) -> Device:
        device = self._devices.get((process, number))
        if device is None:
            device = self._devices[process, number] = Device(f"GPU {number}")
        return device

    def _nvtx(self) -> Iterator[_Range]:
        """The ranges whose names this package understands; a name stands in the row or among the strings."""
        if not self._columns(_RANGES):
            return
        named = (
            "CAST(coalesce(n.text, s.value) AS TEXT)" if "textId" in self._columns(_RANGES) else "CAST(n.text AS TEXT)"
        )
        thread = "n.globalTid" if "globalTid" in self._columns(_RANGES) else "NULL"
        join = f"LEFT JOIN {_STRINGS} s ON s.id = n.textId" if "s.value" in named else ""
        query = f'SELECT n.start, n."end", {thread}, {named} AS name FROM {_RANGES} n {join}'  # noqa: S608
        timed = """typeof(n.start) = 'integer' AND typeof(n."end") = 'integer'"""
        for row in self._query(f"{query} WHERE {timed} AND name IS NOT NULL"):
            found = _Range(*row)
            if is_step(found.name) or is_combined(found.name) or _kind_of_range(found.name):
                yield found

    def _launch(self, process: int | None, correlation: int | None) -> tuple[int | None, int] | None:
        """The thread and time that launched a kernel; None inside CUDA graphs or without the table."""
        self._index_launches()
        return next(
            self._query(
                "SELECT thread, start FROM temp.launches WHERE correlation = ? AND (? IS NULL OR process = ?)",
                (correlation, process, None if process is None else process >> 24),
            ),
            None,
        )

    def _index_launches(self) -> None:
        """A temporary table, outside the user's file, because the export has no index on correlations."""
        if self._launches_indexed:
            return
        self._launches_indexed = True
        self._database.execute(
            "CREATE TEMP TABLE launches (thread INTEGER, start INTEGER, correlation INTEGER, process INTEGER)"
        )
        self._database.executemany(
            "INSERT INTO temp.launches VALUES (?1, ?2, ?3, ?1 >> 24)",
            self._integers(_RUNTIME, "globalTid", "start", "correlationId"),
        )
        self._database.execute("CREATE INDEX temp.by_correlation ON launches (correlation)")

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table; a column this schema does not have reads as NULL, a missing table as empty."""
        present = self._columns(table)
        if present:
            chosen = ", ".join(f'"{column}"' if column in present else "NULL" for column in columns)
            yield from self._query(f"SELECT {chosen} FROM {table}")  # noqa: S608 (our own names)

    def _integers(self, table: str, *columns: str) -> Iterator[tuple[int | None, ...]]:
        """Rows of a table whose columns are all numbers; raises `ProfileError` where they are not."""
        for row in self._rows(table, *columns):
            if not _NUMBERS.issuperset(map(type, row)):
                stated = ", ".join(f"{column} {value!r:.40}" for column, value in zip(columns, row, strict=True))
                raise ProfileError(
                    f"{self.profile.path}: {table} holds a row with {stated}, where Nsight Systems writes whole"
                    " numbers: the file is damaged or something else; export it again"
                )
            yield row

    def _query(self, text: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        return iter(self._database.execute(text, values))

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._query(f"PRAGMA table_info({table})")}

    def _version(self) -> str:
        stated = dict(self._rows(_META, "name", "value"))
        return str(stated.get("EXPORT_SCHEMA_VERSION") or "")


class _Bound:
    """Stops SQLite where it works longer than a file of this size can take: pages may point at each other."""

    def __init__(self, size: int) -> None:
        self._left = 100 + _STEPS_A_BYTE * size // _STEPS

    def exceeded(self) -> bool:
        self._left -= 1
        return self._left < 0


class _Enclosing:
    """Which range a launch stood in: the one that began last on its thread and had not ended."""

    def __init__(self, ranges: list[_Range]) -> None:
        self._by_thread: dict[int | None, list[_Range]] = defaultdict(list)
        for found in sorted(ranges):
            self._by_thread[found.thread].append(found)

    def __bool__(self) -> bool:
        return bool(self._by_thread)

    def kind(self, launch: tuple[int | None, int] | None) -> Kind | None:
        if launch is None:
            return None
        thread, time = launch
        ranges = self._by_thread.get(thread, [])
        before = bisect_right(ranges, time, key=lambda found: found.start)
        for found in reversed(ranges[max(0, before - 8) : before]):  # deeper nesting does not occur
            if found.end > time:
                return _kind_of_range(found.name)
        return None


def _kind_of_range(name: str) -> Kind | None:
    """What an NVTX range says of the SendRecv kernels launched in it.

    Megatron's schedule nodes are `moe_dispatch forward`, `moe_combine backward` and so on: NVIDIA/Megatron-LM
    @ d98e8a6 : megatron/core/pipeline_parallel/utils.py : 99. The node's name decides, in backward too, where
    its gradients travel the other way.
    """
    lowered = name.lower()
    if "moe_dispatch" in lowered or lowered.startswith("dispatch("):
        return Kind.DISPATCH
    if "moe_combine" in lowered or lowered.startswith("combine("):
        return Kind.COMBINE
    return kind_of_collective(name) if lowered.startswith("nccl") else None


def _times(start: int | None, end: int | None) -> tuple[int, int]:
    return NO_TIME if start is None or end is None else (start, end)


def _process(serialized: int) -> int:
    """The process id in a serialized global id: bits 24 to 47."""
    return (serialized >> 24) & 0xFFFFFF
