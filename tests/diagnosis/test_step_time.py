"""Step times: how much two runs differ, where one changes, and how sure that is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.diagnosis import diagnose
from ep_overlap_mcp.diagnosis.silent import overlapped_pairs
from ep_overlap_mcp.diagnosis.step_time import change_point, compare_step_times

NOISY = [1000 + 7 * (i * 37 % 11) for i in range(60)]


def test_a_slower_run_is_shown_with_its_interval() -> None:
    """Ten percent on every step: the interval holds 1.10 and leaves 1 out."""
    change = compare_step_times(NOISY, [1.1 * ms for ms in NOISY])
    assert change is not None
    assert change.low <= 1.1 <= change.high
    assert (change.verdict, change.steps_before, change.steps_after) == ("slower", 54, 54)


def test_equal_runs_show_no_difference() -> None:
    """The interval holds 1."""
    change = compare_step_times(NOISY, NOISY)
    assert change is not None
    assert change.verdict == "no difference shown"


def test_warm_up_is_left_out() -> None:
    """The slow first steps of a run do not count."""
    change = compare_step_times(NOISY, [*[9000.0] * 5, *NOISY])
    assert change is not None
    assert change.ratio == pytest.approx(1.0, rel=0.01)


def test_too_few_steps_give_no_answer() -> None:
    """Two steps are no measurement."""
    assert compare_step_times([1.0, 1.0], NOISY) is None


def test_the_step_where_a_run_slows_down() -> None:
    """From step 40 on it takes 1.5 times as long."""
    found = change_point(NOISY[:40] + [1.5 * ms for ms in NOISY])
    assert found is not None
    place, change = found
    assert (place, change.verdict) == (40, "slower")


def test_a_steady_run_has_no_change_point() -> None:
    """Noise alone is no change."""
    assert change_point([1000.0] * 50) is None


def test_the_summary_tells_where_a_run_slowed_down_and_what_it_skipped() -> None:
    """One log: the line from which steps take longer, its ratio, and Megatron's counts."""
    row = " iteration {:8}/ 200 | elapsed time per iteration (ms): {:.1f} | number of skipped iterations:   {} |\n"
    log = "".join(row.format(i, ms if i < 40 else 1.5 * ms, int(i == 7)) for i, ms in enumerate(NOISY + NOISY))
    summary = diagnose(text=log).summary
    assert "From text:41 on a step takes 1.5" in summary
    assert "1 steps were skipped, 0 had NaN." in summary


@settings(deadline=None)  # a thousand resamples an example, on machines that do other work
@given(st.lists(st.floats(1, 1e5), min_size=4, max_size=60), st.floats(0.1, 10))
def test_the_unit_of_time_does_not_matter(times: list[float], scale: float) -> None:
    """Scaling both runs leaves the ratio as it is."""
    other = times[::-1]
    first = compare_step_times(times, other)
    second = compare_step_times([scale * t for t in times], [scale * t for t in other])
    assert (first is None) == (second is None)
    if first and second:
        assert second.ratio == pytest.approx(first.ratio, rel=1e-6)


@pytest.mark.parametrize(
    ("microbatches", "stages", "chunks", "pairs"),
    [(1, 1, 1, [0]), (4, 1, 1, [3]), (8, 8, 4, [0, 0, 0, 0, 1, 3, 5, 7]), (2, 2, 2, [0, 1])],
)
def test_overlapped_pairs_of_the_schedule(microbatches: int, stages: int, chunks: int, pairs: list[int]) -> None:
    """As the real schedule was run: PP 8, VPP 4, 8 micro-batches overlap nothing on the first four ranks."""
    assert overlapped_pairs(microbatches, stages, chunks) == pairs
