"""HolisticTraceAnalysis's definition beside ours, on one small trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kineto_events import ALL_REDUCE, DISPATCH, GEMM, Event, annotation, kernel

from ep_overlap_mcp.profiles import ProfileError, analyze

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    WriteKineto = Callable[..., Path]


def launched(name: str, ts: float, dur: float, correlation: int, at: float, stream: int = 7) -> list[Event]:
    """A kernel and its launch on the host."""
    launch = {**annotation("cudaLaunchKernel", at, 1, cat="cuda_runtime"), "args": {"correlation": correlation}}
    return [launch, kernel(name, ts, dur, stream=stream, correlation=correlation)]


def numbers(path: Path, compat: str) -> tuple[float, float, float | None]:
    device = analyze([path], compat=compat).devices[0]
    return device.comm_ms, device.hidden_ms, device.hidden_pct


def test_kernels_of_the_last_step_are_dropped(write_kineto: WriteKineto):
    """HTA keeps what was launched before the last ProfilerStep began; ours keeps all."""
    path = write_kineto(
        [
            annotation("ProfilerStep#1", 0, 50),
            annotation("ProfilerStep#2", 50, 50),
            *launched(ALL_REDUCE, 10, 20, 1, at=5, stream=8),
            *launched(GEMM, 20, 20, 2, at=6),
            *launched(ALL_REDUCE, 60, 40, 3, at=55, stream=8),
            *launched(GEMM, 60, 40, 4, at=56),
        ]
    )
    assert numbers(path, "hta") == (0.02, 0.01, 50.0)
    assert numbers(path, "none") == (0.06, 0.05, 83.33)


def test_kernels_without_a_launch_in_the_trace_are_dropped(write_kineto: WriteKineto):
    """They were launched before the trace began."""
    path = write_kineto(
        [
            annotation("ProfilerStep#1", 0, 50),
            annotation("ProfilerStep#2", 50, 50),
            *launched(ALL_REDUCE, 10, 20, 1, at=5, stream=8),
            kernel(ALL_REDUCE, 30, 10, stream=8, correlation=99),
        ]
    )
    assert numbers(path, "hta") == (0.02, 0.0, 0.0)
    assert numbers(path, "none") == (0.03, 0.0, 0.0)


def test_broken_microseconds_are_rounded_inwards(write_kineto: WriteKineto):
    """Start up, end down, wherever a time stamp of the file is a float."""
    path = write_kineto([kernel(ALL_REDUCE, 10.4, 20.4, stream=8), kernel(GEMM, 20.2, 20.2)])
    assert numbers(path, "hta") == (0.019, 0.009, 47.37)
    assert numbers(path, "none") == (0.0204, 0.0106, 51.96)


def test_dispatch_kernels_are_invisible_to_hta(write_kineto: WriteKineto):
    """Where HTA answers NaN, compat refuses; beside NCCL kernels it counts them as computation, as HTA does."""
    with pytest.raises(ProfileError, match="recognises no communication here and answers NaN"):
        analyze([write_kineto([kernel(DISPATCH, 0, 5)])], compat="hta")
    path = write_kineto([kernel(ALL_REDUCE, 0, 10, stream=8), kernel(DISPATCH, 5, 10, stream=9)])
    assert numbers(path, "hta") == (0.01, 0.005, 50.0)
    assert numbers(path, "none") == (0.015, 0.0, 0.0)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (kernel(GEMM, 1e308, 1e308), "ends at inf us: not a Kineto trace"),
        (kernel(GEMM, 0, 10**30), "not a Kineto trace"),
        ({**kernel(GEMM, 0, 1), "dur": "long"}, "has duration 'long': not a Kineto trace"),
    ],
)
def test_times_that_are_none_are_refused(write_kineto: WriteKineto, event: Event, message: str):
    """By the name of the event, as without compat."""
    path = write_kineto([kernel(ALL_REDUCE, 0, 10, stream=8), event])
    for compat in ("hta", "none"):
        with pytest.raises(ProfileError, match=message if compat == "hta" else "not a Kineto trace|days apart"):
            analyze([path], compat=compat)


def test_kernels_that_took_no_time_are_refused(write_kineto: WriteKineto):
    """There is no window to speak of."""
    with pytest.raises(ProfileError, match="its kernels took no time"):
        analyze([write_kineto([kernel(ALL_REDUCE, 0, 0, stream=8)])], compat="hta")


def test_negative_durations_are_said(write_kineto: WriteKineto):
    """HTA would not; the number is HTA's, the caveat ours."""
    path = write_kineto([kernel(ALL_REDUCE, 0, 10, stream=8), kernel(GEMM, 5, -1)])
    assert analyze([path], compat="hta").caveats[1] == (
        "1 of 2 activities have a negative duration, so they are in no number here"
    )
