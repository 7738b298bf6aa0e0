"""Which cause comes first, how sure it is said to be, and which rank failed first."""

from __future__ import annotations

from pathlib import Path

import pytest

from ep_overlap_mcp.diagnosis import CAUSES, diagnose
from ep_overlap_mcp.diagnosis.signatures import SIGNATURES

OUT_OF_MEMORY = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
WATCHDOG = "[rank5]:[E101 10:00:09.1 ProcessGroupNCCL.cpp:6] [Rank 1] Watchdog caught collective operation timeout\n"


def test_a_confirming_line_ranks_above_a_candidate() -> None:
    """The out-of-memory error is confirmed although the HybridEP time-out came first."""
    result = diagnose(text="[rank9] HYBRID-EP ALLGATHER TIMEOUT: expecting 8 got 7\n" + OUT_OF_MEMORY)
    assert [(c.cause, c.confidence) for c in result.causes[:2]] == [
        ("out-of-memory", "confirmed"),
        ("hybridep-peer-late", "likely"),
    ]


@pytest.mark.parametrize("row", [row for row in SIGNATURES if row.follows], ids=lambda row: row.literal)
def test_a_consequence_names_no_cause(row: object) -> None:
    """Peers that close, watchdogs and SIGTERM say that something else failed first."""
    assert (row.confirms, row.points_to) == ((), ())  # type: ignore[attr-defined]


def test_only_consequences_leave_the_cause_unknown() -> None:
    """Nothing is guessed: unknown, with what to collect."""
    result = diagnose(text=WATCHDOG + "[rank1]: RuntimeError: Connection closed by peer [10.0.0.1]:4711\n")
    assert [(c.cause, c.confidence) for c in result.causes] == [("unknown", "possible")]
    assert "flight recorder" in result.causes[0].test
    assert "py-spy" in result.causes[0].test


def test_survivors_are_not_the_first_failure() -> None:
    """The watchdog and the terminated rank follow the rank that ran out of memory."""
    text = WATCHDOG + "[rank7]: exitcode: -15 (SIGTERM)\n" + OUT_OF_MEMORY
    first = diagnose(text=text).first_failure
    assert first is not None
    assert (first.rank, first.file, first.line) == (3, "text", 3)


def test_times_order_failures_across_files(tmp_path: Path) -> None:
    """One file per rank: the earlier time wins, not the order of the files."""
    late, early = tmp_path / "rank_0.log", tmp_path / "rank_1.log"
    late.write_text("2026-01-02 10:00:05 ValueError: later\n")
    early.write_text("2026-01-02 10:00:01 KeyError: 'sooner'\n")
    first = diagnose([late, early]).first_failure
    assert first is not None
    assert (first.rank, Path(first.file).name) == (1, "rank_1.log")


def test_without_times_the_launcher_names_the_first_rank() -> None:
    """torchrun's root cause beats the order in which a shared file was flushed."""
    text = """\
[rank4]: ValueError: flushed first
[rank2]: ValueError: failed first
Failures:
[1]:
  rank      : 4 (local_rank: 4)
Root Cause (first observed failure):
[0]:
  rank      : 2 (local_rank: 2)
"""
    first = diagnose(text=text).first_failure
    assert first is not None
    assert first.rank == 2


def test_a_dead_peer_explains_the_time_outs_of_the_others() -> None:
    """An exception nobody knows on one rank, then DeepEP time-outs elsewhere: look at the first rank."""
    text = "[rank3]: FileNotFoundError: shard_17.bin\n[rank9]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n"
    result = diagnose(text=text)
    assert [c.cause for c in result.causes[:2]] == ["unknown", "deepep-transport-timeout"]
    assert result.first_failure is not None
    assert result.first_failure.rank == 3
    assert "shard_17.bin" in result.summary


def test_a_rank_that_spoke_again_is_not_dead() -> None:
    """An exception that was caught hours before, or whose rank logs on, does not explain the time-outs."""
    caught = "2026-03-01 08:00:00 [rank3]: ConnectionError: retrying\n"
    timeout = "2026-03-01 12:00:00 [rank9]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n"
    step = "[rank3]: iteration 5/ 9 | elapsed time per iteration (ms): 10.0 |\n"
    waits = "[rank9]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n"
    for text in (caught + timeout, "[rank3]: ConnectionError: retrying\n" + step + waits):
        assert diagnose(text=text).causes[0].cause == "deepep-transport-timeout"


GUESSED = {name for name, row in CAUSES.items() if row.ceiling != "confirmed"}


def test_guessed_causes_are_never_confirmed() -> None:
    """Causes whose basis is inferred or not established have a ceiling below confirmed."""
    expected = {
        "deepep-transport-timeout",
        "deepep-ibgda-queue-pairs",
        "attention-graph-nan",
        "triton-permute-fusion",
        "fsdp-hooks-bypassed",
        "hybridep-peer-late",
        "one-cuda-connection-serialises",
        "unknown",
    }
    assert expected <= GUESSED


def test_every_answer_tells_test_and_fix() -> None:
    """Each cause of the registry has a title, a test, a fix and a basis."""
    for row in CAUSES.values():
        assert min(map(len, (row.title, row.test, row.fix))) > 10
        assert row.basis


def test_an_answer_is_complete_in_itself_and_short() -> None:
    """The first field is the summary; a default answer stays under 4 KB."""
    answer = diagnose(text="NVSHMEM v3.6.5\nNVSHMEM device 3.4.5\n" + OUT_OF_MEMORY * 30, symptom="hang")
    assert next(iter(answer.model_dump())) == "summary"
    assert len(answer.model_dump_json()) < 4096 * 1.25
