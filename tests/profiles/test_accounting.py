"""From activities to the answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from kineto_events import (
    ALL_REDUCE,
    COMBINE,
    DISPATCH,
    GEMM,
    NOTIFY,
    OTHER,
    SENDRECV,
    annotation,
    kernel,
)

from ep_overlap_mcp.profiles import ProfileError, analyze
from ep_overlap_mcp.results.profile import (
    ByKind,
    DeviceProfile,
    KindTime,
    PerStep,
    ProfileSource,
    ScheduleEvidence,
    Unclassified,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    WriteKineto = Callable[..., Path]


def test_a_rank_is_accounted_for(write_kineto: WriteKineto):
    """Two steps of dispatch, combine and control kernels beside computation, every number by hand.

    0    10   20   30   40   50   60   70   80   90  100 us
    |--------- step 1 --------|--------- step 2 --------|
    gemm gemm gemm                 gemm gemm
                        other
         disp disp disp disp                comb comb
    ctl                                               ar
    """
    path = write_kineto(
        [
            annotation("ProfilerStep#1", 0, 50),
            annotation("ProfilerStep#2", 50, 50),
            annotation("layer_0f-layer_1b", 0, 20),
            kernel(NOTIFY, 0, 5, stream=20),
            kernel(GEMM, 0, 30),
            kernel(DISPATCH, 10, 40, stream=20),
            kernel(OTHER, 40, 5),
            kernel(GEMM, 60, 20),
            kernel(COMBINE, 70, 20, stream=20),
            kernel(ALL_REDUCE, 92, 8, stream=21),
        ],
        distributedInfo={"rank": 2},
    )
    result = analyze([path])
    assert result.devices == [
        DeviceProfile(
            device="GPU 0",
            rank=2,
            file=str(path),
            window_ms=0.1,
            steps=2,
            compute_ms=0.055,
            comm_ms=0.073,
            control_ms=0.005,
            idle_ms=0.012,
            hidden_ms=0.040,
            exposed_ms=0.033,
            hidden_pct=54.79,
            hidden_pct_gemm_attention=47.95,
            by_kind=ByKind(
                dispatch=KindTime(ms=0.04, hidden_ms=0.025, hidden_pct=62.5, activities=1),
                combine=KindTime(ms=0.02, hidden_ms=0.01, hidden_pct=50.0, activities=1),
                collective=KindTime(ms=0.008, hidden_ms=0.0, hidden_pct=0.0, activities=1),
            ),
            per_step=PerStep(n=2, median=51.19, min=35.71, max=66.67),
            unclassified=[],
        )
    ]
    assert result.source == [ProfileSource(file=str(path), format="Kineto", side="profile")]
    assert result.schedule_evidence == ScheduleEvidence(
        combined_1f1b="yes",
        ranges=1,
        example="layer_0f-layer_1b",
        why="Megatron marks each pair of layers its combined forward-backward schedule runs together",
    )
    assert (result.compare, result.caveats, result.compat) == (None, [], "none")
    assert result.summary == (
        "rank 2 (GPU 0): 0.040 of 0.073 ms communication ran while any computation did (54.79 %, 47.95 % while matrix"
        " multiplication or attention ran), 0.033 ms were exposed in a window of 0.100 ms; control kernels, which"
        " wait, were 0.005 ms of the communication. Hidden is not gain: only unprofiled step times of a"
        " matched A/B decide."
    )


def test_no_communication_is_an_error_never_a_percentage(write_kineto: WriteKineto):
    """The longest unknown kernels are named: one of them may be the communication."""
    path = write_kineto([kernel(GEMM, 0, 30), kernel("acme_shuffle<1>(int)", 40, 5)])
    with pytest.raises(ProfileError) as error:
        analyze([path])
    assert str(error.value) == (
        f"{path}: no communication kernel recognised among 2 activities, so there is nothing to hide and no"
        " percentage. Unknown kernels, longest first: `acme_shuffle<1>(int)`. Profile a rank that communicates, over"
        " whole training steps; if it did communicate, its kernels have names this package does not know: report them"
    )


def test_one_silent_device_beside_one_that_communicates_is_a_caveat(write_kineto: WriteKineto):
    """Its percentage is null, not 0."""
    result = analyze([write_kineto([kernel(DISPATCH, 0, 5), kernel(GEMM, 0, 5, device=1)])])
    assert [device.hidden_pct for device in result.devices] == [0.0, None]
    assert result.caveats == ["GPU 1 of trace.json: no communication kernel recognised on this device"]


def test_a_suspicious_kernel_that_matters_is_an_error(write_kineto: WriteKineto):
    """Counting it as computation would hide communication under communication."""
    path = write_kineto([kernel(DISPATCH, 0, 50), kernel("void mori::EpDispatchKernel<1>(int)", 50, 50)])
    with pytest.raises(ProfileError) as error:
        analyze([path])
    assert str(error.value) == (
        "GPU 0 of trace.json: kernel `void mori::EpDispatchKernel<1>(int)` (50.00 % of the window) may be"
        " communication, yet is in no row of the name table; report its name and library, so that it can be classified"
    )


def test_a_suspicious_kernel_that_does_not_matter_is_a_caveat(write_kineto: WriteKineto):
    """Below one per cent of the window it cannot change the answer."""
    result = analyze([write_kineto([kernel(DISPATCH, 0, 995), kernel("device_sync", 995, 5)])])
    assert len(result.caveats) == 1
    assert "kernel `device_sync` (0.50 % of the window) may be communication" in result.caveats[0]


def test_a_fused_kernel_is_an_error(write_kineto: WriteKineto):
    """Communication inside a computing kernel cannot be measured by intervals."""
    path = write_kineto([kernel(ALL_REDUCE, 0, 50), kernel("sm100_fp8_mega_moe_impl", 50, 50)])
    with pytest.raises(ProfileError, match="in one kernel, so intervals cannot tell them apart; prove the gain"):
        analyze([path])


@pytest.mark.parametrize("duration", [None, -3])
def test_damaged_activities_are_a_caveat(write_kineto: WriteKineto, duration: int | None):
    """One in many cannot change the answer, yet it is said."""
    damaged = {**kernel(GEMM, 0, 1), "dur": duration}
    result = analyze(
        [write_kineto([*(kernel(GEMM, at, 1) for at in range(150)), damaged, kernel(DISPATCH, 0, 9, stream=20)])]
    )
    assert result.caveats == [
        "GPU 0 of trace.json: 1 of 152 activities have no duration or a negative one, so they are in no number here"
    ]
    assert result.devices[0].compute_ms == 0.15


@pytest.mark.parametrize(("name", "sort"), [(GEMM, "computation"), (DISPATCH, "communication")])
def test_damaged_activities_that_matter_are_an_error(write_kineto: WriteKineto, name: str, sort: str):
    """Without its only computation, communication would read as not hidden at all."""
    others = [kernel(each, 0, 1) for each in (GEMM, DISPATCH)]
    with pytest.raises(ProfileError, match=rf"with 1 of 2 of {sort} missing no percentage would be honest"):
        analyze([write_kineto([*others, {**kernel(name, 5, 1), "dur": None}])])


def test_a_device_of_damaged_activities_is_an_error(write_kineto: WriteKineto):
    """It is no device that ran nothing, which would be left out."""
    damaged = kernel(GEMM, 0, -1, device=1)
    with pytest.raises(ProfileError, match=r"GPU 1 of trace\.json: 1 of 1 activities have no duration"):
        analyze([write_kineto([kernel(DISPATCH, 0, 9), damaged])])


def test_a_damaged_suspicious_kernel_takes_nothing_off_the_others(write_kineto: WriteKineto):
    """A negative duration makes no material kernel immaterial."""
    runs = [kernel("acme_all_reduce", at, 1) for at in range(150)]
    with pytest.raises(ProfileError, match=r"kernel `acme_all_reduce` \(100.00 % of the window\)"):
        analyze([write_kineto([*runs, kernel("acme_all_reduce", 0, -1000), kernel(DISPATCH, 0, 9)])])


def test_unknown_kernels_are_listed_from_one_per_cent(write_kineto: WriteKineto):
    """They count as computation; the reader sees which and how much."""
    events = [kernel(DISPATCH, 0, 1000), kernel("acme_a", 0, 30), kernel("acme_a", 50, 10), kernel("acme_b", 90, 9)]
    device = analyze([write_kineto(events)]).devices[0]
    assert device.unclassified == [Unclassified(name="acme_a", ms=0.04, pct_of_window=4.0, count=2)]
    assert device.hidden_ms == 0.049


def test_a_stream_that_runs_two_kernels_at_once_is_a_caveat(write_kineto: WriteKineto):
    """Overflowing durations look like this."""
    result = analyze([write_kineto([kernel(DISPATCH, 0, 100), kernel(GEMM, 50, 100)])])
    assert result.caveats == [
        (
            "GPU 0 of trace.json: stream 7 runs two kernels at once for 0.05 ms; a stream is serial, except for"
            " programmatic launches, so check the durations in the file"
        )
    ]


def test_communication_outside_the_step_windows_is_said(write_kineto: WriteKineto):
    """The host marks the step, the device runs behind it."""
    events = [annotation("ProfilerStep#1", 0, 50), kernel(DISPATCH, 40, 20), kernel(GEMM, 40, 20, stream=8)]
    result = analyze([write_kineto(events)])
    assert result.devices[0].per_step == PerStep(n=1, median=100.0, min=100.0, max=100.0)
    assert result.caveats == [
        (
            "GPU 0 of trace.json: 50 % of the communication ran outside the step windows, which the host marks while"
            " the device runs behind; per_step describes the rest"
        )
    ]


def test_without_marks_of_the_schedule_nothing_is_claimed(write_kineto: WriteKineto):
    """They are off by default: absence is `unknown`, not `no`."""
    evidence = analyze([write_kineto([kernel(DISPATCH, 0, 5)])]).schedule_evidence
    assert (evidence.combined_1f1b, evidence.ranges, evidence.example) == ("unknown", 0, None)


def test_what_cannot_be_told_apart_is_a_caveat_of_the_answer(write_kineto: WriteKineto):
    """The reader's caveats reach the result."""
    result = analyze([write_kineto([kernel(SENDRECV, 0, 5)])])
    assert result.devices[0].by_kind.p2p is not None
    assert "1 SendRecv kernels may be expert all-to-alls or pipeline traffic" in result.caveats[0]


def test_a_cpu_rank_says_what_it_is(write_kineto: WriteKineto):
    """Nested operators are one computation; both compute sets are the matrix multiplications."""
    events = [
        annotation("aten::linear", 0, 30, cat="cpu_op"),
        annotation("aten::addmm", 1, 28, cat="cpu_op"),
        annotation("gloo:all_to_all", 20, 20, tid=9),
    ]
    result = analyze([write_kineto(events, distributedInfo={"backend": "gloo", "rank": 1})])
    device = result.devices[0]
    assert (device.device, device.rank, device.hidden_pct, device.hidden_pct_gemm_attention) == ("CPU", 1, 50.0, 50.0)
    assert result.caveats == [
        "CPU rank: computation is ATen's matrix multiplications only; what overlaps here says nothing about GPUs"
    ]


def test_a_pipe_is_refused_unopened(tmp_path: Path, write_kineto: WriteKineto):
    """Opening one waits for a writer for ever."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for paths, before in (([pipe], None), ([write_kineto([kernel(DISPATCH, 0, 9)])], pipe)):
        with pytest.raises(ProfileError, match=r"pipe\.json: not a regular file; write the profile to a file first"):
            analyze(paths, before=before)


@pytest.mark.parametrize("again", ["trace.json", "link.json", "folder"])
def test_a_profile_that_is_named_twice_is_refused(tmp_path: Path, write_kineto: WriteKineto, again: str):
    """It would read as two devices, or be compared with itself."""
    path = write_kineto([kernel(DISPATCH, 0, 9)])
    (tmp_path / "link.json").symlink_to(path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "rank0.json").hardlink_to(path)
    for paths, before in (([path, tmp_path / again], None), ([path], tmp_path / again)):
        with pytest.raises(ProfileError, match=r"\.json: is the same file as .*\.json; name each profile once"):
            analyze(paths, before=before)


def test_a_rank_in_two_files_is_said(write_kineto: WriteKineto):
    """A copy, or two profiles of one rank: the devices are fewer than they seem."""
    events = [kernel(DISPATCH, 0, 9)]
    paths = [write_kineto(events, name, distributedInfo={"rank": 3}) for name in ("a.json", "b.json")]
    assert analyze(paths).caveats == [
        f"rank 3 (GPU 0) is in 2 files and counts as 2 devices: {paths[0]}, {paths[1]}; give one file a rank"
    ]
