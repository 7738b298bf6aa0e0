"""Interval arithmetic against counting nanoseconds one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.profiles.accounting import cover
from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.kernels import COMMUNICATION, COMPUTE, Kind
from ep_overlap_mcp.profiles.timeline import Timeline, Window

KINDS = [Kind.DISPATCH, Kind.CONTROL, Kind.GEMM_ATTENTION, Kind.OTHER_COMPUTE, Kind.MEMORY]

activities = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(-40, 40), st.integers(0, 25)), max_size=25
)
cuts = st.lists(st.integers(-50, 80), unique=True, max_size=6).map(sorted)


def timeline_of(rows: list[tuple[Kind, int, int, int]], run: int = 1 << 18) -> Timeline:
    timeline = Timeline(run)
    lanes: dict[tuple[Kind, int], int] = {}
    for kind, stream, start, length in rows:
        lane = lanes.setdefault((kind, stream), -1)
        if lane < 0:
            lane = lanes[kind, stream] = timeline.lane(kind, str(stream))
        timeline.add(lane, start, start + length)
    return timeline


def kinds_at(rows: list[tuple[Kind, int, int, int]], time: int) -> int:
    return sum({int(kind) for kind, _, start, length in rows if start <= time < start + length})


@settings(deadline=None)
@given(activities)
def test_a_sweep_tells_which_kinds_are_active_in_every_nanosecond(rows: list[tuple[Kind, int, int, int]]):
    """Stretches are what brute force finds nanosecond by nanosecond; between them nothing runs."""
    swept = {time: kinds for start, end, kinds in timeline_of(rows).sweep() for time in range(start, end)}
    assert swept == {time: kinds for time in range(-50, 80) if (kinds := kinds_at(rows, time))}


@settings(deadline=None)
@given(activities, cuts)
def test_coverage_of_windows_clips_what_is_in_flight_at_their_edges(
    rows: list[tuple[Kind, int, int, int]], edges: list[int]
):
    """Unions, intersections and idle time of each window are counts of nanoseconds inside it."""
    windows = [Window(start, end) for start, end in zip(edges[::2], edges[1::2], strict=False)]
    whole, parts = cover(timeline_of(rows).sweep(), Window(-50, 80), windows)
    for window, coverage in zip([Window(-50, 80), *windows], [whole, *parts], strict=True):
        kinds = [kinds_at(rows, time) for time in range(window.start, window.end)]
        assert [
            coverage.time(COMMUNICATION),
            coverage.time(COMMUNICATION, COMPUTE),
            coverage.time(COMMUNICATION, Kind.GEMM_ATTENTION),
            coverage.time(Kind.CONTROL),
            coverage.idle,
        ] == [
            sum(1 for active in kinds if active & COMMUNICATION),
            sum(1 for active in kinds if active & COMMUNICATION and active & COMPUTE),
            sum(1 for active in kinds if active & COMMUNICATION and active & Kind.GEMM_ATTENTION),
            sum(1 for active in kinds if active & Kind.CONTROL),
            sum(1 for active in kinds if not active),
        ]


@settings(deadline=None)
@given(activities)
def test_runs_on_disk_change_nothing(rows: list[tuple[Kind, int, int, int]]):
    """A timeline that keeps four boundaries in memory sweeps like one that keeps all."""
    assert list(timeline_of(rows, run=4).sweep()) == list(timeline_of(rows).sweep())


@settings(deadline=None)
@given(activities)
def test_a_sweep_can_be_repeated(rows: list[tuple[Kind, int, int, int]]):
    """The picture sweeps again after the numbers."""
    timeline = timeline_of(rows, run=8)
    assert list(timeline.sweep()) == list(timeline.sweep())


@settings(deadline=None)
@given(activities)
def test_a_stream_that_runs_two_at_once_is_noticed(rows: list[tuple[Kind, int, int, int]]):
    """The time during which a stream holds two activities or more, per stream."""
    timeline = timeline_of(rows)
    list(timeline.sweep())
    expected = {}
    for stream in {stream for _, stream, _, _ in rows}:
        own = [(start, start + length) for _, at, start, length in rows if at == stream]
        doubled = sum(1 for time in range(-50, 80) if sum(start <= time < end for start, end in own) > 1)
        if doubled:
            expected[str(stream)] = doubled
    assert timeline.stream_overlap == expected


def test_half_open_intervals_that_touch_do_not_overlap():
    """An activity ends where the next begins: one union, no intersection."""
    rows = [(Kind.DISPATCH, 0, 0, 10), (Kind.GEMM_ATTENTION, 1, 10, 5)]
    assert list(timeline_of(rows).sweep()) == [(0, 10, Kind.DISPATCH), (10, 15, Kind.GEMM_ATTENTION)]


def test_relabelling_moves_every_activity_of_a_kind():
    """SendRecv becomes what the file proves it to be, also beside activities that were known before."""
    timeline = timeline_of([(Kind.SENDRECV, 0, 0, 10), (Kind.ALL_TO_ALL, 0, 5, 10)])
    timeline.relabel(Kind.SENDRECV, Kind.ALL_TO_ALL)
    assert list(timeline.sweep()) == [(0, 5, Kind.ALL_TO_ALL), (5, 10, Kind.ALL_TO_ALL), (10, 15, Kind.ALL_TO_ALL)]
    assert timeline.count(Kind.ALL_TO_ALL) == timeline.count() == 2


def test_nanoseconds_of_this_century_are_exact():
    """Absolute time stamps of today need 61 bits; none is lost."""
    start = 1_800_000_000_000_000_001
    assert list(timeline_of([(Kind.DISPATCH, 0, start, 3)]).sweep()) == [(start, start + 3, Kind.DISPATCH)]


def test_clocks_days_apart_are_an_error():
    """Two clocks in one file would stretch the window to nonsense."""
    with pytest.raises(ProfileError, match="lie days apart"):
        timeline_of([(Kind.DISPATCH, 0, 0, 3), (Kind.DISPATCH, 0, 10**18, 3)])


def test_nothing_recorded_has_no_extent():
    """No activity, or only ones without length: there is no window."""
    assert timeline_of([]).extent is None
    assert timeline_of([(Kind.MEMORY, 0, 5, 0)]).extent is None
