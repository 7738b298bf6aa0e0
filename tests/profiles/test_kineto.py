"""Reading Kineto traces."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_events import ALL_REDUCE, DISPATCH, GEMM, OTHER, SENDRECV, Event, annotation, kernel

from ep_overlap_mcp.profiles import kineto_file
from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.kernels import Kind
from ep_overlap_mcp.profiles.kineto import read_kineto
from ep_overlap_mcp.profiles.kineto_file import KinetoFile, times
from ep_overlap_mcp.profiles.timeline import Timeline, Window

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ep_overlap_mcp.profiles.trace import Profile

    WriteKineto = Callable[..., Path]


def stretches(profile: Profile) -> dict[str, list[tuple[int, int, int]]]:
    return {device.name: list(device.timeline.sweep()) for device in profile.devices}


def kinds(profile: Profile) -> list[Kind]:
    return [Kind(kinds) for device in profile.devices for _, _, kinds in device.timeline.sweep()]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "a trace without a suffix that tells"])
def test_kernels_become_intervals_in_nanoseconds(write_kineto: WriteKineto, name: str):
    """Microseconds, whole or broken, plain or gzip; copies and memsets are neither compute nor communication."""
    copy = {**kernel("Memcpy DtoD (Device -> Device)", 13, 1), "cat": "gpu_memcpy"}
    clear = {**kernel("Memset (Device)", 15, 1), "cat": "gpu_memset"}
    path = write_kineto([kernel(GEMM, 10.25, 2.125), kernel(DISPATCH, 11, 1, stream=8), copy, clear], name)
    assert stretches(read_kineto(path)) == {
        "GPU 0": [
            (10_250, 11_000, Kind.GEMM_ATTENTION),
            (11_000, 12_000, Kind.GEMM_ATTENTION | Kind.DISPATCH),
            (12_000, 12_375, Kind.GEMM_ATTENTION),
            (13_000, 14_000, Kind.MEMORY),
            (15_000, 16_000, Kind.MEMORY),
        ]
    }


def test_old_traces_with_capital_categories(write_kineto: WriteKineto):
    """PyTorch before 1.12 wrote `Kernel`, `Memcpy` and `Memset`."""
    path = write_kineto([{**kernel(ALL_REDUCE, 1, 2), "cat": "Kernel"}, {**kernel("Memset", 5, 1), "cat": "Memset"}])
    assert stretches(read_kineto(path)) == {"GPU 0": [(1000, 3000, Kind.COLLECTIVE), (5000, 6000, Kind.MEMORY)]}


def test_devices_stay_apart_and_the_rank_is_read(write_kineto: WriteKineto):
    """Two GPUs in one file; the rank stands in distributedInfo, never in a file's name."""
    events = [kernel(DISPATCH, 1, 2), kernel(GEMM, 1, 2, device=1)]
    path = write_kineto(events, "rank7.json", distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8})
    profile = read_kineto(path)
    assert stretches(profile) == {
        "GPU 0": [(1000, 3000, Kind.DISPATCH)],
        "GPU 1": [(1000, 3000, Kind.GEMM_ATTENTION)],
    }
    assert [device.rank for device in profile.devices] == [3, 3]


def test_a_rank_that_is_written_after_the_events_is_read(tmp_path: Path):
    """Some exports put distributedInfo last."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [kernel(DISPATCH, 1, 2)], "distributedInfo": {"rank": 5}}))
    assert read_kineto(path).devices[0].rank == 5


def test_annotations_on_the_gpu_row_are_not_activities(write_kineto: WriteKineto):
    """`gpu_user_annotation` spans kernels that are counted already."""
    ranges = [
        annotation("ProfilerStep#1", 0, 50, cat="gpu_user_annotation"),
        annotation("nccl:all_reduce", 0, 50, cat="gpu_user_annotation"),
    ]
    profile = read_kineto(write_kineto([kernel(DISPATCH, 1, 2), *ranges]))
    assert stretches(profile) == {"GPU 0": [(1000, 3000, Kind.DISPATCH)]}
    assert profile.devices[0].steps == []


def test_steps_are_windows_in_order(write_kineto: WriteKineto):
    """ProfilerStep ranges of the host; one that runs into the next ends where the next begins."""
    events = [kernel(DISPATCH, 1, 2), annotation("ProfilerStep#2", 10, 10), annotation("ProfilerStep#1", 0, 11)]
    assert read_kineto(write_kineto(events)).devices[0].steps == [Window(0, 10_000), Window(10_000, 20_000)]


def test_marks_of_the_combined_schedule_are_counted(write_kineto: WriteKineto):
    """`layer_{i}f-layer_{j}b` is what Megatron pushes around a forward layer run beside a backward one."""
    events = [kernel(DISPATCH, 1, 2), annotation("layer_0f-layer_3b", 0, 5), annotation("layer_3f", 5, 5)]
    assert read_kineto(write_kineto(events)).combined == {"layer_0f-layer_3b": 1}


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"Collective name": "all_to_allv"}, Kind.ALL_TO_ALL),
        ({"Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP"}, Kind.ALL_TO_ALL),
        ({"Collective name": "send", "Process Group Description": "PIPELINE_MODEL_PARALLEL_GROUP"}, Kind.P2P),
    ],
)
def test_sendrecv_is_told_apart_by_its_arguments(write_kineto: WriteKineto, arguments: dict[str, str], kind: Kind):
    """Recent PyTorch writes operation and process group beside the kernel."""
    profile = read_kineto(write_kineto([kernel(SENDRECV, 1, 2, **arguments)]))
    assert (kinds(profile), profile.caveats) == ([kind], [])


@pytest.mark.parametrize(("called", "kind"), [("nccl:all_to_all", Kind.ALL_TO_ALL), ("nccl:send 0->1", Kind.P2P)])
def test_sendrecv_is_told_apart_by_what_the_process_called(write_kineto: WriteKineto, called: str, kind: Kind):
    """Older traces only hold the calls; when all of them agree, so do the kernels."""
    profile = read_kineto(write_kineto([kernel(SENDRECV, 1, 2), annotation(called, 0, 1)]))
    assert (kinds(profile), profile.caveats) == ([kind], [])


@pytest.mark.parametrize("called", [[], ["nccl:all_to_all", "nccl:recv 0<-1"]])
def test_sendrecv_that_nothing_explains_is_said_to_be_ambiguous(write_kineto: WriteKineto, called: list[str]):
    """Without a call, or with calls of both sorts, it stands under p2p and the caveat says so."""
    profile = read_kineto(write_kineto([kernel(SENDRECV, 1, 2), *(annotation(name, 0, 1) for name in called)]))
    assert kinds(profile) == [Kind.P2P]
    assert profile.caveats == [
        (
            "GPU 0: 1 SendRecv kernels may be expert all-to-alls or pipeline traffic; the file names neither their"
            " process group nor a range around them, so they stand under p2p"
        )
    ]


def test_a_cpu_rank_over_gloo(write_kineto: WriteKineto):
    """gloo's ranges on worker threads are communication, matrix multiplications are computation; nested
    operators and parallel workers are unions, not sums.
    """
    matmul = [{**annotation(name, 10, 20, cat="cpu_op"), "args": {}} for name in ("aten::linear", "aten::addmm")]
    waiting = annotation("aten::empty", 0, 100, cat="cpu_op")
    events = [
        *matmul,
        waiting,
        annotation("gloo:all_to_all", 5, 10, tid=90),
        annotation("gloo:all_to_all", 12, 8, tid=91),
        annotation("gloo:all_reduce", 40, 5, tid=90),
        annotation("ProfilerStep#3", 0, 50),
    ]
    profile = read_kineto(write_kineto(events, distributedInfo={"backend": "gloo", "rank": 1, "world_size": 2}))
    assert profile.format == "Kineto, CPU rank"
    assert stretches(profile) == {
        "CPU": [
            (5_000, 10_000, Kind.ALL_TO_ALL),
            (10_000, 12_000, Kind.ALL_TO_ALL | Kind.GEMM_ATTENTION),
            (12_000, 15_000, Kind.ALL_TO_ALL | Kind.GEMM_ATTENTION),
            (15_000, 20_000, Kind.ALL_TO_ALL | Kind.GEMM_ATTENTION),
            (20_000, 30_000, Kind.GEMM_ATTENTION),
            (40_000, 45_000, Kind.COLLECTIVE),
        ]
    }
    assert (profile.devices[0].rank, profile.devices[0].steps) == (1, [Window(0, 50_000)])


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path):
    """The message says which files are understood."""
    path = tmp_path / "config.json"
    path.write_text('{"model": {"hidden_size": 4096}}')
    with pytest.raises(ProfileError, match=r'config.json: holds no "traceEvents".*nsys export --type sqlite'):
        read_kineto(path)


def test_a_trace_without_activities_is_refused(write_kineto: WriteKineto):
    """Only host operators: nothing to account for."""
    path = write_kineto([annotation("aten::add", 0, 5, cat="cpu_op")])
    with pytest.raises(ProfileError, match="no GPU activity and no gloo communication"):
        read_kineto(path)


def test_a_trace_that_was_cut_off_anywhere_is_refused(write_kineto: WriteKineto):
    """Never a number from the part that is there, wherever the list of events breaks off."""
    whole = write_kineto([kernel(DISPATCH, 1, 2), kernel(GEMM, 1, 2, grid=[1, 1, 1])]).read_bytes()
    path = write_kineto([], "cut.json")
    for length in range(whole.rindex(b"]")):
        path.write_bytes(whole[:length])
        with pytest.raises(ProfileError, match=r'cut\.json: (.*cut off|holds no "traceEvents")'):
            read_kineto(path)


@pytest.mark.parametrize("cut", [0.5, 0.99])
def test_a_gzip_file_that_was_cut_off_is_refused(write_kineto: WriteKineto, cut: float):
    """The stream ends early, whatever the JSON so far looks like."""
    whole = write_kineto([kernel(DISPATCH, at, 1) for at in range(500)], "whole.json.gz").read_bytes()
    path = write_kineto([], "cut.json.gz")
    path.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(ProfileError, match=r"cut\.json\.gz: cannot be read to its end"):
        read_kineto(path)


def test_a_gzip_file_with_a_flipped_byte_is_refused(write_kineto: WriteKineto):
    """Whatever library decompresses it has an exception of its own."""
    path = write_kineto([kernel(DISPATCH, at, at % 7) for at in range(5000)], "flipped.json.gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"flipped\.json\.gz: (?:cannot be read to its end|.*damaged)"):
        read_kineto(path)


@pytest.mark.parametrize("arguments", [[1], {"device": [0], "stream": 7}, {"device": 0, "stream": {}}])
def test_arguments_that_are_no_arguments_are_refused(write_kineto: WriteKineto, arguments: object):
    """What cannot be decoded is said with its place."""
    with pytest.raises(ProfileError, match=r"no Kineto trace: .* at `\$\[0\]\.args"):
        read_kineto(write_kineto([{**kernel(DISPATCH, 1, 2), "args": arguments}]))


@pytest.mark.parametrize(("start", "duration"), [(1e308, 1), (0, 1e308)])
def test_times_that_no_clock_shows_are_refused(write_kineto: WriteKineto, start: float, duration: float):
    """In nanoseconds they would be infinite."""
    with pytest.raises(ProfileError, match=r"has time .*1e\+308.*: not a Kineto trace"):
        read_kineto(write_kineto([kernel(DISPATCH, start, duration)]))


def test_text_between_events_that_is_no_json_is_refused(tmp_path: Path):
    """Damage in the middle is named with the text where it begins."""
    path = tmp_path / "damaged.json"
    event = json.dumps(kernel(DISPATCH, 1, 2))
    path.write_text(f'{{"traceEvents": [{event}, {event[:-1]}, {event}]}}')
    with pytest.raises(ProfileError, match=r"damaged\.json: damaged or cut off"):
        read_kineto(path)


def test_text_nested_without_end_is_refused(tmp_path: Path):
    """Depth is bounded by the parser, and said as damage."""
    path = tmp_path / "deep.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "args": ' + "[" * 100_000 + "]" * 100_000 + "}]}")
    with pytest.raises(ProfileError, match=r"deep\.json: damaged or cut off"):
        read_kineto(path)


def test_a_plain_list_of_events_is_read(tmp_path: Path):
    """Tools that filter traces write the list alone."""
    path = tmp_path / "list.json"
    path.write_text(json.dumps([kernel(DISPATCH, 1, 2)]))
    assert kinds(read_kineto(path)) == [Kind.DISPATCH]


def test_progress_ends_at_one(write_kineto: WriteKineto):
    """Reports rise from the first block to the whole file."""
    shares: list[float] = []
    read_kineto(write_kineto([kernel(DISPATCH, at, 1) for at in range(5000)]), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


LEAVES = st.sampled_from([None, 3, "", "kernel", '}, {"ph"', "{", '"cat": "kernel"'])
ARGUMENTS = st.one_of(
    LEAVES,
    st.lists(st.dictionaries(st.sampled_from(["ph", "name", "cat", "ts"]), LEAVES, min_size=1), max_size=3),
    st.dictionaries(st.sampled_from(["ph", "cat", "inner"]), st.lists(LEAVES, max_size=2), max_size=2),
)
ORDERS = [
    ("ph", "cat", "name", "ts", "dur", "args"),
    ("name", "ph", "args", "ts", "dur", "cat"),
    ("args", "cat", "ph", "ts", "dur", "name"),
]


@st.composite
def trace_events(draw: st.DrawFn) -> Event:
    event = {
        "ph": "X",
        "cat": draw(st.sampled_from(["kernel", "cpu_op", "user_annotation", "ac2g"])),
        "name": draw(st.sampled_from(["a", 'q"uote', "{lambda}", '}, {"ph": "X", "cat": "kernel"', "kernel", "\\"])),
        "ts": draw(st.integers(0, 10**6)),
        "dur": draw(st.integers(0, 50)),
        "args": {"device": 0, "stream": 7, "extra": draw(ARGUMENTS)},
    }
    return {key: event[key] for key in draw(st.sampled_from(ORDERS))}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(trace_events(), max_size=12), st.sampled_from([None, 2]), st.sampled_from([64, 300, 1 << 18]))
def test_the_stream_gives_the_events_that_parsing_everything_gives(
    write_kineto: WriteKineto, events: list[Event], indent: int | None, block: int
):
    """Whatever the order of keys, the nesting of arguments, quotes in names and the size of blocks."""
    path = write_kineto([])
    path.write_text(json.dumps({"traceEvents": events, "traceName": "t"}, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_file, "_BLOCK", block)
        seen = [(event.cat, event.name, times(event)) for event in KinetoFile(path).events(("kernel", "cpu_op"))]
    assert seen == [
        (event["cat"], event["name"], (event["ts"] * 1000, (event["ts"] + event["dur"]) * 1000))
        for event in events
        if event["cat"] in ("kernel", "cpu_op")
    ]


def _peak_of_reading(path: Path) -> int:
    tracemalloc.start()
    read_kineto(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_file(write_kineto: WriteKineto, monkeypatch: pytest.MonkeyPatch):
    """Eight times the events, the same peak: blocks are dropped and full runs of boundaries go to disk."""
    monkeypatch.setattr(Timeline.__init__, "__defaults__", (1 << 12,))
    small = write_kineto([kernel(OTHER, at, 1) for at in range(4_000)], "small.json")
    large = write_kineto([kernel(OTHER, at, 1) for at in range(32_000)], "large.json")
    assert large.stat().st_size > 7 * small.stat().st_size
    assert _peak_of_reading(large) < 1.1 * _peak_of_reading(small)


def test_gzip_is_read_without_isal(write_kineto: WriteKineto, monkeypatch: pytest.MonkeyPatch):
    """Where the fast decompressor has no build, Python's own is used."""
    monkeypatch.setitem(sys.modules, "isal", None)
    path = write_kineto([kernel(DISPATCH, 1, 2)], "trace.json.gz")
    assert gzip.decompress(path.read_bytes())
    assert kinds(read_kineto(path)) == [Kind.DISPATCH]
