"""Before against after, and the ranks of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kineto_events import DISPATCH, GEMM, annotation, kernel

from ep_overlap_mcp.profiles import ProfileError, analyze
from ep_overlap_mcp.results.profile import Compare, CriticalRank, Totals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    WriteKineto = Callable[..., Path]


def rank(number: int, gemm_us: float, dispatch_us: float):
    """A rank of two steps: computation, then a dispatch of which the first 10 us are beside it."""
    events = [annotation(f"ProfilerStep#{step}", 200 * step, 200) for step in range(2)]
    for at in (0, 200):
        events += [kernel(GEMM, at, gemm_us), kernel(DISPATCH, at + gemm_us - 10, dispatch_us, stream=8)]
    return events, {"distributedInfo": {"rank": number}}


def test_before_and_after_are_compared_per_step(write_kineto: WriteKineto):
    """Exposed, all communication, computation and window side by side; no gain is claimed."""
    events, head = rank(0, 100, 60)
    before = write_kineto(events, "before.json", **head)
    events, head = rank(0, 110, 40)
    after = write_kineto(events, "after.json", **head)
    assert analyze([after], before=before).compare == Compare(
        before=Totals(
            per="step",
            devices=1,
            window_ms=0.175,
            compute_ms=0.1,
            comm_ms=0.06,
            control_ms=0.0,
            hidden_ms=0.01,
            exposed_ms=0.05,
            idle_ms=0.025,
            hidden_pct=16.67,
        ),
        after=Totals(
            per="step",
            devices=1,
            window_ms=0.17,
            compute_ms=0.11,
            comm_ms=0.04,
            control_ms=0.0,
            hidden_ms=0.01,
            exposed_ms=0.03,
            idle_ms=0.03,
            hidden_pct=25.0,
        ),
        critical=None,
        exposed_ms_range=(0.03, 0.03),
        reading="Per step: exposed communication 0.050 -> 0.030 ms, all communication 0.060 -> 0.040 ms, computation"
        " 0.100 -> 0.110 ms, window 0.175 -> 0.170 ms. Profiling slows both sides; whether it pays is decided by"
        " unprofiled step times of the same pair.",
    )


def test_in_a_folder_of_ranks_the_critical_one_is_named(write_kineto: WriteKineto):
    """The rank with the most work of its own waits least; the others' communication is partly waiting for it."""
    for number, (gemm_us, dispatch_us) in enumerate([(100, 60), (120, 40), (90, 70)]):
        events, head = rank(number, gemm_us, dispatch_us)
        slowest = write_kineto(events, f"run/rank{number}.json.gz", **head)
    result = analyze([slowest.parent])
    assert [device.rank for device in result.devices] == [0, 1, 2]
    assert result.compare is not None
    assert result.compare.critical == CriticalRank(
        device="GPU 0",
        rank=1,
        file=str(slowest.parent / "rank1.json.gz"),
        own_ms=0.145,
        others_median_ms=0.12,
    )
    assert result.compare.exposed_ms_range == (0.03, 0.06)
    assert result.summary.startswith("On 3 devices 14.29 to 25.00 % of the communication is hidden. Least on rank 2")


def test_progress_runs_over_all_files(write_kineto: WriteKineto):
    """One bar for a folder and the other side of the comparison."""
    shares: list[float] = []
    events, head = rank(0, 100, 60)
    paths = [write_kineto(events, f"{name}.json", **head) for name in ("a", "b", "c")]
    analyze(paths[:2], before=paths[2], on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_an_empty_folder_is_refused(tmp_path: Path):
    """What was looked for is said."""
    with pytest.raises(ProfileError, match=r"holds no profile; expected files ending in .json, .json.gz, .sqlite"):
        analyze([tmp_path])


def test_a_missing_file_is_refused(tmp_path: Path):
    """By name."""
    with pytest.raises(ProfileError, match=r"nowhere.json: not found"):
        analyze([tmp_path / "nowhere.json"])


def test_no_file_at_all_is_refused():
    """With what to give instead."""
    with pytest.raises(ProfileError, match="no profile was given"):
        analyze([])


def test_a_report_of_nsys_has_to_be_exported_first(tmp_path: Path):
    """The command stands in the message."""
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"QDSTRM")
    with pytest.raises(ProfileError, match=r"nsys export --type sqlite --output run.sqlite run.nsys-rep"):
        analyze([path])
