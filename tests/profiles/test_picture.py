"""What is drawn of a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kineto_events import COMBINE, DISPATCH, GEMM, OTHER, annotation, kernel

from ep_overlap_mcp.profiles import analyze, draw
from ep_overlap_mcp.reports.profile_page import profile_page
from ep_overlap_mcp.results.profile import DevicePicture, Lane, StepPicture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    WriteKineto = Callable[..., Path]


def test_lanes_are_unions_by_kind_clipped_to_the_window(write_kineto: WriteKineto):
    """The whole profile, then the step; exposed is communication beside no computation."""
    path = write_kineto(
        [
            annotation("ProfilerStep#1", 10, 20),
            kernel(GEMM, 0, 20),
            kernel(DISPATCH, 15, 15, stream=8),
            kernel(OTHER, 25, 5, stream=9),
        ],
        distributedInfo={"rank": 4},
    )
    assert draw([path]) == [
        DevicePicture(
            device="GPU 0",
            rank=4,
            file=str(path),
            side="profile",
            left_out=0,
            steps=[
                StepPicture(
                    title="whole profile",
                    window_ns=30_000,
                    resolution_ns=10,
                    lanes=[
                        Lane(name="GEMM and attention", style="gemm", stretches=[(0, 20_000)]),
                        Lane(name="other computation", style="compute", stretches=[(25_000, 30_000)]),
                        Lane(name="dispatch", style="communication", stretches=[(15_000, 30_000)]),
                        Lane(name="exposed communication", style="exposed", stretches=[(20_000, 25_000)]),
                    ],
                ),
                StepPicture(
                    title="step 1",
                    window_ns=20_000,
                    resolution_ns=6,
                    lanes=[
                        Lane(name="GEMM and attention", style="gemm", stretches=[(0, 10_000)]),
                        Lane(name="other computation", style="compute", stretches=[(15_000, 20_000)]),
                        Lane(name="dispatch", style="communication", stretches=[(5_000, 20_000)]),
                        Lane(name="exposed communication", style="exposed", stretches=[(10_000, 15_000)]),
                    ],
                ),
            ],
        )
    ]


def test_gaps_too_small_to_see_are_closed(write_kineto: WriteKineto):
    """A three-thousandth of the window bounds the picture, whatever the number of kernels."""
    events = [kernel(COMBINE, at, 0.9) for at in range(10_000)]
    lane = draw([write_kineto(events)])[0].steps[0].lanes[0]
    assert lane == Lane(name="combine", style="communication", stretches=[(0, 9_999_900)])


def test_only_the_first_steps_are_drawn(write_kineto: WriteKineto):
    """The number of those left out is said."""
    steps = [annotation(f"ProfilerStep#{at}", 10 * at, 10) for at in range(9)]
    picture = draw([write_kineto([*steps, kernel(DISPATCH, 0, 90)])])[0]
    assert [step.title for step in picture.steps] == ["whole profile", *(f"step {number}" for number in range(1, 7))]
    assert picture.left_out == 3


def test_both_sides_of_a_comparison_reach_the_page(write_kineto: WriteKineto):
    """From files to the page: before and after with their lanes and totals."""
    before = write_kineto([kernel(GEMM, 0, 20), kernel(DISPATCH, 20, 20, stream=8)], "a.json")
    after = write_kineto([kernel(GEMM, 0, 20), kernel(DISPATCH, 10, 20, stream=8)], "b.json")
    pictures = draw([after], before=before)
    assert [(picture.side, picture.file) for picture in pictures] == [("before", str(before)), ("after", str(after))]
    page = profile_page(analyze([after], before=before), pictures)
    assert "exposed communication 0.020 -&gt; 0.010 ms" in page
