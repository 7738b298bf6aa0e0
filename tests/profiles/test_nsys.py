"""Reading Nsight Systems exports."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kineto_events import ALL_REDUCE, DISPATCH, GEMM, SENDRECV, kernel

from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.kernels import Kind
from ep_overlap_mcp.profiles.kineto import read_kineto
from ep_overlap_mcp.profiles.nsys import read_nsys
from ep_overlap_mcp.profiles.timeline import Window

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ep_overlap_mcp.profiles.trace import Profile

    Write = Callable[..., Path]

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
PROCESS = 4711 << 24
THREAD = PROCESS | 1


def row(name: str, start: int | None, end: int, **columns: Any) -> dict[str, Any]:
    """A kernel; `shortName` has lost its namespace, as in a real export."""
    base = {"start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": start, "globalPid": PROCESS}
    return {**base, "demangledName": name, "shortName": "dispatch", **columns}


def launch(at: int, correlation: int) -> dict[str, Any]:
    return {"start": at, "end": at + 1, "globalTid": THREAD, "correlationId": correlation}


def nvtx(text: str, start: int, end: int | None) -> dict[str, Any]:
    return {"start": start, "end": end, "eventType": 59, "text": text, "globalTid": THREAD, "textId": None}


def stretches(profile: Profile) -> dict[str, list[tuple[int, int, int]]]:
    return {device.name: list(device.timeline.sweep()) for device in profile.devices}


def test_kernels_are_known_by_their_demangled_names(write_nsys: Write):
    """Nanoseconds as they stand, also before the profiler's zero; copies between devices are communication."""
    path = write_nsys(
        **{
            KERNEL: [row(GEMM, -5, 10), row(DISPATCH, 0, 20, streamId=8)],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [
                {"start": 30, "end": 31, "deviceId": 0, "streamId": 9, "copyKind": 10, "globalPid": PROCESS},
                {"start": 32, "end": 33, "deviceId": 0, "streamId": 9, "copyKind": 8, "globalPid": PROCESS},
            ],
            "CUPTI_ACTIVITY_KIND_MEMSET": [
                {"start": 34, "end": 35, "deviceId": 0, "streamId": 9, "globalPid": PROCESS},
            ],
            "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"}],
        }
    )
    profile = read_nsys(path)
    assert profile.format == "Nsight Systems SQLite 3.25.0"
    assert stretches(profile) == {
        "GPU 0": [
            (-5, 0, Kind.GEMM_ATTENTION),
            (0, 10, Kind.GEMM_ATTENTION | Kind.DISPATCH),
            (10, 20, Kind.DISPATCH),
            (30, 31, Kind.P2P),
            (32, 33, Kind.MEMORY),
            (34, 35, Kind.MEMORY),
        ]
    }


def test_tables_and_columns_that_are_missing_are_no_trouble(write_nsys: Write):
    """The export leaves out empty tables, and older schemas have fewer columns."""
    bare = {"start": 0, "end": 5, "deviceId": 1, "streamId": 7, "demangledName": ALL_REDUCE}
    assert stretches(read_nsys(write_nsys(**{KERNEL: [bare]}))) == {"GPU 1": [(0, 5, Kind.COLLECTIVE)]}


def test_ranks_on_one_device_number_stay_apart(write_nsys: Write):
    """Containers number their GPUs from 0: the process tells the ranks apart."""
    other = 4712 << 24
    path = write_nsys(**{KERNEL: [row(DISPATCH, 0, 5), row(GEMM, 1, 3, globalPid=other), row(GEMM, 2, 4, deviceId=1)]})
    assert stretches(read_nsys(path)) == {
        "GPU 0 of process 4711": [(0, 5, Kind.DISPATCH)],
        "GPU 0 of process 4712": [(1, 3, Kind.GEMM_ATTENTION)],
        "GPU 1": [(2, 4, Kind.GEMM_ATTENTION)],
    }


def test_steps_and_the_combined_schedule_come_from_nvtx(write_nsys: Write):
    """Names stand in the row or among the strings; ranges that never ended are left out."""
    ranges = [
        nvtx("megatron.bridge.training.train.training_step_3", 0, 50),
        {**nvtx("", 50, 90), "text": None, "textId": 2},
        nvtx("layer_0f-layer_1b", 5, 9),
        nvtx("training_step_9", 95, None),
        nvtx("optimizer_step", 40, 45),
    ]
    path = write_nsys(
        **{KERNEL: [row(DISPATCH, 0, 5), row("training_step_4", 6, 7, globalPid=PROCESS)], "NVTX_EVENTS": ranges}
    )
    profile = read_nsys(path)
    # the second string of the file, `dispatch`, is no step; the third is one
    assert profile.devices[0].steps == [Window(0, 50)]
    assert profile.combined == {"layer_0f-layer_1b": 1}


def test_an_nvtx_name_among_the_strings_is_found(write_nsys: Write):
    """Registered strings have `textId` instead of `text`; strings are numbered as the kernels first use them."""
    named_by_id = {**nvtx("", 0, 90), "text": None, "textId": 1}
    path = write_nsys(**{KERNEL: [row("training_step_4", 0, 5)], "NVTX_EVENTS": [named_by_id]})
    assert read_nsys(path).devices[0].steps == [Window(0, 90)]


@pytest.mark.parametrize(
    ("around", "kind", "ambiguous"),
    [
        ("moe_dispatch forward", Kind.DISPATCH, False),
        ("moe_combine backward", Kind.COMBINE, False),
        ("nccl:all_to_all", Kind.ALL_TO_ALL, False),
        ("ncclSend", Kind.P2P, True),
        ("mlp forward", Kind.P2P, True),
    ],
)
def test_sendrecv_is_told_apart_by_the_range_that_launched_it(
    write_nsys: Write, around: str, kind: Kind, *, ambiguous: bool
):
    """The launch on the host, found by correlation, stands in a range of Megatron's schedule."""
    path = write_nsys(
        **{
            KERNEL: [row(SENDRECV, 100, 150, correlationId=9)],
            RUNTIME: [launch(2, 8), launch(12, 9)],
            "NVTX_EVENTS": [nvtx("moe_dispatch forward", 0, 5), nvtx(around, 10, 20)],
        }
    )
    profile = read_nsys(path)
    assert stretches(profile) == {"GPU 0": [(100, 150, kind)]}
    assert bool(profile.caveats) is ambiguous


def test_graphs_recorded_as_a_whole_are_said(write_nsys: Write):
    """Their kernels are missing, so the numbers are, too."""
    graph = {"start": 0, "end": 5, "deviceId": 0}
    path = write_nsys(**{KERNEL: [row(DISPATCH, 0, 5)], "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [graph]})
    assert "--cuda-graph-trace=node" in read_nsys(path).caveats[0]


def test_json_and_sqlite_of_one_run_agree(write_nsys: Write, write_kineto: Write):
    """The same intervals, whichever tool recorded them."""
    runs = [(GEMM, 0, 7), (DISPATCH, 5, 12), (ALL_REDUCE, 20, 29)]
    exported = read_nsys(write_nsys(**{KERNEL: [row(name, 1000 * a, 1000 * b) for name, a, b in runs]}))
    traced = read_kineto(write_kineto([kernel(name, start, end - start) for name, start, end in runs]))
    assert stretches(exported) == stretches(traced)


def test_the_file_is_not_touched(write_nsys: Write):
    """Byte for byte, and no journal beside it, even where a table of launches has to be indexed."""
    path = write_nsys(
        **{
            KERNEL: [row(SENDRECV, 100, 150, correlationId=9)],
            RUNTIME: [launch(12, 9)],
            "NVTX_EVENTS": [nvtx("moe_dispatch forward", 10, 20)],
        }
    )
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    path.chmod(0o444)
    read_nsys(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_name_with_characters_of_addresses_is_opened(write_nsys: Write):
    """SQLite opens an address; what means something there is escaped."""
    path = write_nsys("run #1?mode=rwc 100%.sqlite", **{KERNEL: [row(DISPATCH, 0, 5)]})
    assert stretches(read_nsys(path)) == {"GPU 0": [(0, 5, Kind.DISPATCH)]}


def test_an_export_without_kernels_is_refused(write_nsys: Write):
    """nsys ran without CUDA tracing."""
    with pytest.raises(ProfileError, match=r"has no table CUPTI_ACTIVITY_KIND_KERNEL.*--trace cuda,nvtx"):
        read_nsys(write_nsys(META_DATA_EXPORT=[{"name": "EXPORT_SCHEMA_VERSION", "value": "3.24.14"}]))


def test_a_damaged_database_is_refused(tmp_path: Path):
    """SQLite's own words, and what to do."""
    path = tmp_path / "half.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\1" * 5000)
    with pytest.raises(ProfileError, match=r"half.sqlite: not a readable SQLite database .*nsys export"):
        read_nsys(path)


def test_a_kernel_without_a_start_is_damaged(write_nsys: Write):
    """It is counted, and takes no time."""
    path = write_nsys(**{KERNEL: [row(GEMM, None, 10), row(DISPATCH, 0, 5)]})
    timeline = read_nsys(path).devices[0].timeline
    assert (timeline.count(), timeline.damaged(), list(timeline.sweep())) == (2, 1, [(0, 5, Kind.DISPATCH)])


@pytest.mark.parametrize("column", ["start", "deviceId", "globalPid"])
def test_text_in_a_column_of_numbers_is_refused(write_nsys: Write, column: str):
    """SQLite keeps any value in any column."""
    path = write_nsys(**{KERNEL: [{**row(GEMM, 0, 10), column: "abc"}]})
    with pytest.raises(ProfileError, match=rf"{KERNEL} holds a row with .*{column} 'abc'"):
        read_nsys(path)


ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"


@pytest.mark.parametrize(
    ("table", "columns"),
    [("StringIds", "n AS id, 'x' AS value"), (KERNEL.lower(), "n AS start"), ("NVTX_EVENTS", "n AS start")],
)
def test_a_view_in_the_place_of_a_table_is_refused(write_nsys: Write, table: str, columns: str):
    """It would run for ever; names of tables have no case."""
    path = write_nsys(**{KERNEL: [row(GEMM, 0, 10)]})
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DROP TABLE IF EXISTS {table}")
        database.execute(f"CREATE VIEW {table} AS {ENDLESS} SELECT {columns} FROM c")  # noqa: S608
    with pytest.raises(ProfileError, match=rf"profile\.sqlite: {table} is a view, not the table"):
        read_nsys(path)


def test_work_without_end_is_stopped(write_nsys: Write, monkeypatch: pytest.MonkeyPatch):
    """What a file of its size cannot need, as where damaged pages point at each other."""
    monkeypatch.setattr("ep_overlap_mcp.profiles.nsys._STEPS", 100)
    monkeypatch.setattr("ep_overlap_mcp.profiles.nsys._STEPS_A_BYTE", 0)
    with pytest.raises(ProfileError, match=r"not a readable SQLite database \(interrupted\)"):
        read_nsys(write_nsys(**{KERNEL: [row(GEMM, at, at + 1) for at in range(5000)]}))
