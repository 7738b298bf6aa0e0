"""Two logs: two runs to compare, or ranks of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ep_overlap_mcp.diagnosis.reading import read_logs
from ep_overlap_mcp.diagnosis.runs import two_runs

if TYPE_CHECKING:
    from pathlib import Path

STEP = "{prefix}iteration {number:8}/ 100 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 9.0E+00\n"
ROW = "  overlap_moe_expert_parallel_comm ................ {}\n"


def steps(prefix: str = "", ms: float = 1000.0) -> str:
    """Ten steps; `{second}` in the prefix counts."""
    return "".join(STEP.format(prefix=prefix.replace("{s}", f"{n:02}"), number=n, ms=ms + n) for n in range(1, 11))


def are_two(folder: Path, first: str, second: str, names: tuple[str, str] = ("before.log", "after.log")) -> bool:
    """Whether two texts are taken for two runs."""
    for name, text in zip(names, (first, second), strict=True):
        (folder / name).write_text(text)
    return two_runs(read_logs([folder / name for name in names], {})) is not None


def test_logs_without_ranks_are_two_runs(tmp_path: Path) -> None:
    """Even when their steps show the same losses, which overlap should not change."""
    assert are_two(tmp_path, steps(), steps(ms=900.0))


@pytest.mark.parametrize(
    "names", [("rank_0.log", "rank_1.log"), ("node_0.out", "node_1.out"), ("worker-3.log", "worker-4.log")]
)
def test_names_for_parts_of_a_job_are_one_run(tmp_path: Path, names: tuple[str, str]) -> None:
    """Names that differ in the number after rank, node or worker."""
    assert not are_two(tmp_path, steps(), steps(), names)


def test_numbered_runs_are_two(tmp_path: Path) -> None:
    """run1 and run2 are no parts of a job."""
    assert are_two(tmp_path, steps(), steps(), ("run1.log", "run2.log"))


def test_different_ranks_are_one_run(tmp_path: Path) -> None:
    """Two runs log their steps from the same rank."""
    assert not are_two(tmp_path, steps("[rank0]: "), steps("[rank7]: "))
    assert are_two(tmp_path, steps("[rank7]: "), steps("[rank7]: "))


def test_steps_that_end_together_are_one_run(tmp_path: Path) -> None:
    """The same steps at the same times; an hour apart they are two runs."""
    early, late = "[2026-08-01 10:00:{s}.000] ", "[2026-08-01 11:00:{s}.000] "
    assert not are_two(tmp_path, steps(early), steps(early))
    assert are_two(tmp_path, steps(early), steps(late))


def test_different_settings_are_two_runs_whatever_the_names(tmp_path: Path) -> None:
    """One run has one configuration."""
    first, second = ROW.format("False") + steps(), ROW.format("True") + steps()
    assert are_two(tmp_path, first, second, ("node_0.log", "node_1.log"))
