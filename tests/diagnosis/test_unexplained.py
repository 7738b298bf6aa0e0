"""A failure that nobody knows stays unknown, with advice for its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ep_overlap_mcp.diagnosis import diagnose

if TYPE_CHECKING:
    from pathlib import Path

STEP = " iteration        5/     100 | elapsed time per iteration (ms): 1200.0 | lm loss: 7.1E+00 |\n"
WATCHDOG = (
    "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("log", "test"),
    [
        ("[rank0]: ValueError: the moon is not full\n", "run `ep-overlap-mcp check` on the configuration"),
        (STEP + "[rank0]: ValueError: the moon is not full\n", "the same job with overlap off and alltoall"),
        ("[rank0]: FileNotFoundError: [Errno 2] '/data/tokenizer.model'\n", "look for the file, package, key"),
        ("[rank0]: KeyError: 'moon'\n", "look for the file, package, key"),
        ("[rank0]: ValueError: the moon is not full\n" + WATCHDOG, "run `ep-overlap-mcp check` on the configuration"),
        (
            "[rank0]: ImportError: te.so: undefined symbol: _ZN3c104cuda9SetDeviceEab\n",
            "look for the file, package, key",
        ),
        (STEP + "[rank0]: torch.AcceleratorError: CUDA error: device-side assert\n", "CUDA_LAUNCH_BLOCKING=1"),
        (WATCHDOG, "flight recorder"),
        ("[rank0]: torch.distributed.DistBackendError: NCCL error\n", "flight recorder"),
    ],
)
def test_the_advice_fits_the_kind_of_failure(log: str, test: str) -> None:
    """An exception of Python at start-up is no matter of NCCL; a hang is."""
    first = diagnose(text=log).causes[0]
    assert (first.cause, first.confidence) == ("unknown", "possible")
    assert test in first.test
    assert ("flight recorder" in first.test) is (test == "flight recorder")


OWN = """\
Traceback (most recent call last):
  File "/home/me/{file}", line 9, in f
    assert len(moe_layers) == expert_parallel_size
AssertionError: custom check: moe_layer must be divisible
"""


def test_an_assertion_of_the_users_own_program_breaks_no_rule_of_the_stack() -> None:
    """Its words name settings; the innermost frame tells whose it is."""
    own = diagnose(text=OWN.format(file="custom_loader.py")).causes[0]
    assert (own.cause, own.title) == ("unknown", "the program's own code raised it, outside Megatron and its libraries")
    assert diagnose(text=OWN.format(file="megatron/core/x.py")).causes[0].cause == "config-rule-violated"


def test_a_line_alone_does_not_say_when_the_run_ended() -> None:
    """An excerpt may leave the steps out."""
    full = diagnose(text="OSError: [Errno 28] No space left on device: '/ckpt/iter_100'")
    odd = diagnose(text="ValueError: the moon is not full")
    assert full.causes[0].title == "the exception is about a file, a package, a key or a connection"
    assert "where the log is whole" in odd.causes[0].fix


CANCELLED = "slurmstepd: error: *** JOB 55 ON node2 CANCELLED AT 2026-11-30T12:00:00{why} ***\n"


@pytest.mark.parametrize(
    ("log", "title"),
    [
        (CANCELLED.format(why=" DUE TO TIME LIMIT"), "the scheduler's time limit ended the job"),
        (CANCELLED.format(why=" DUE TO PREEMPTION"), "the scheduler preempted the job for another one"),
        (CANCELLED.format(why=" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"), "a node failed under the job"),
        (CANCELLED.format(why=""), "the job was cancelled from outside (scancel), which is no failure of its own"),
        ("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n", "a GPU or its link failed"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "a GPU or its link failed"),
        ("Killed\n", "the system killed a process"),
        ("KeyboardInterrupt\n", "somebody interrupted the program"),
    ],
)
def test_what_is_seen_is_named_though_no_cause_is_known(log: str, title: str) -> None:
    """The scheduler, the driver, the shell: their words are facts, and none of them is a cause in overlap."""
    result = diagnose(text=STEP + log)
    assert [(cause.cause, cause.confidence) for cause in result.causes] == [("unknown", "possible")]
    assert result.causes[0].title.startswith(title)
    assert result.causes[0].evidence[0].text == log.strip()
    assert "No known signature" not in result.summary


def test_an_xid_of_the_program_is_no_failed_gpu() -> None:
    """31 is a memory fault of a kernel: what the ranks say counts."""
    assert diagnose(text="NVRM: Xid (PCI:0000:1b:00): 31, pid=9, MMU Fault\n").first_failure is None


@pytest.mark.parametrize(
    ("log", "title", "fit"),
    [
        (WATCHDOG, "a collective timed out", "deepep-transport-timeout"),
        (STEP.replace("7.1E+00", "nan"), "the loss or the gradients are not finite", "attention-graph-nan"),
    ],
)
def test_a_symptom_that_the_log_shows_is_named_with_the_causes_that_fit(log: str, title: str, fit: str) -> None:
    """None of them is shown, so none is listed as a cause."""
    result = diagnose(text=STEP + log)
    assert [cause.cause for cause in result.causes] == ["unknown"]
    assert result.causes[0].title.startswith(title)
    assert result.causes[0].evidence[0].line == 2
    assert fit in result.summary
    assert "What is wrong was not said" not in result.summary


def test_an_empty_log_is_called_empty(tmp_path: Path) -> None:
    """White space alone is nothing."""
    log, other = tmp_path / "empty.log", tmp_path / "other.log"
    log.write_text(" \n\n")
    other.write_text(STEP)
    alone, beside = diagnose([log]), diagnose([log, other])
    assert alone.causes[0].title == "an empty log holds nothing to diagnose"
    assert [(fact.file, fact.text) for fact in alone.seen] == [(str(log), "the log is empty")]
    assert beside.causes[0].title.startswith("the log shows no failure")
    assert beside.seen == alone.seen


def test_a_completed_run_is_called_completed() -> None:
    """Nothing is collected for a failure that is none; it can still be slow or wrong."""
    result = diagnose(text=STEP + "[after training is done] datetime: 2026-11-30 13:00:00\n")
    assert (result.ended, result.first_failure) == ("completed", None)
    assert result.summary.startswith("The run completed: this log shows no failure that ended it. text:2: [after ")
    assert "flight recorder" not in result.summary
