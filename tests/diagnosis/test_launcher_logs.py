# ruff: noqa: E501 - log lines are as long as launchers print them
"""What torchrun and Slurm say of how ranks ended: who was first, what was ended from outside, which attempt counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ep_overlap_mcp.diagnosis import diagnose

if TYPE_CHECKING:
    from ep_overlap_mcp.results.diagnose import DiagnoseResult

STEPS = "".join(
    f" iteration {n:8d}/ 100 | consumed samples: {n} | elapsed time per iteration (ms): 120.0 | lm loss: 7.1E+00 |\n"
    for n in (1, 2, 3)
)


def summary_of(code: str, more: str = "") -> str:
    """What torchrun 2.13 prints at its end when rank 1 ended first, with this exit code."""
    return f"""\
W1201 16:11:15.467000 15189 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 15306 closing signal SIGTERM
E1201 16:11:15.507000 15189 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code.split(maxsplit=1)[0]}) local_rank: 1 (pid: 15307) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/local/lib/python3.12/dist-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
=======================================================
pretrain_gpt.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_16:11:15
  host      : node01
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 15306)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 15306
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_16:11:15
  host      : node01
  rank      : 1 (local_rank: 1)
  exitcode  : {code}
  error_file: <N/A>
  traceback : {more or "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"}
=======================================================
"""


def first(result: DiagnoseResult) -> tuple[int | None, str]:
    """The rank that failed first, and the evidence of the first cause."""
    assert result.first_failure
    return result.first_failure.rank, result.causes[0].evidence[0].text


@pytest.mark.parametrize(
    ("code", "test"),
    [
        ("-9 (pid: 15307)  (SIGKILL)", "`dmesg` on its node"),
        ("-11 (pid: 15307)  (SIGSEGV)", "PYTHONFAULTHANDLER=1"),
        ("3 (pid: 15307)", "the output of that rank alone"),
    ],
)
def test_a_rank_that_ends_without_a_word_is_first_by_its_exit_code(code: str, test: str) -> None:
    """The others were ended by torchrun, which names it; its kind of end says where to look."""
    result = diagnose(text=STEPS + summary_of(code))
    assert first(result) == (1, f"exitcode  : {code}")
    assert test in result.causes[0].test


def test_a_peer_that_lost_it_is_not_first() -> None:
    """Its closed connection follows, though it alone printed an exception."""
    lost = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4486.\n"
    assert first(diagnose(text=STEPS + lost + summary_of("-9 (pid: 15307)  (SIGKILL)")))[0] == 1


def test_an_exception_of_its_own_counts_before_the_exit_code() -> None:
    """What the rank says tells more than how it ended."""
    text = STEPS + "[rank1]: ValueError: odd\n" + summary_of("1 (pid: 15307)")
    assert first(diagnose(text=text)) == (1, "ValueError: odd")


def test_a_watchdog_ends_its_own_rank() -> None:
    """A time-out aborts the process: its exit code says no more than that."""
    watchdog = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
    text = STEPS + watchdog + summary_of("-6 (pid: 15307)  (SIGABRT)")
    assert first(diagnose(text=text)) == (1, watchdog.partition(": ")[2].strip())


def test_a_rank_without_a_name_is_torchruns_first_where_all_say_the_same() -> None:
    """Plain output names no rank; two that say different things are not mixed up."""
    error = "AssertionError: overlap_moe_expert_parallel_comm is supported with alltoall/flex token dispatcher\n"
    assert first(diagnose(text=error + error + summary_of("1 (pid: 15307)")))[0] == 1
    assert first(diagnose(text=error + "ValueError: odd\n" + summary_of("1 (pid: 15307)")))[0] is None


def test_a_segmentation_fault_is_a_failure() -> None:
    """Python's fault handler prints frames and no exception."""
    said = "[default1]:Fatal Python error: Segmentation fault\n"
    result = diagnose(text=STEPS + said + summary_of("-11 (pid: 15307)  (SIGSEGV)"))
    assert first(result) == (1, "Fatal Python error: Segmentation fault")
    assert "PYTHONFAULTHANDLER=1" in result.causes[0].test


TIME_LIMIT = """\
slurmstepd: error: *** STEP 77213.0 ON node07 CANCELLED AT 2026-12-01T14:00:02 DUE TO TIME LIMIT ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
torch.distributed.elastic.multiprocessing.api.SignalException: Process 15096 got signal: 15
"""
KILLED_BY_SLURM = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=77213.0. Some of the step tasks have been OOM Killed.
srun: error: node07: task 5: Out Of Memory
 2: [rank2]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.2.3]:45123
srun: error: node07: tasks 0-4,6-7: Terminated
"""


@pytest.mark.parametrize(
    ("log", "said", "test"),
    [
        (TIME_LIMIT, "DUE TO TIME LIMIT", "a job that still made steps only needs more time"),
        (KILLED_BY_SLURM, "oom_kill event", "`dmesg` on its node"),
    ],
)
def test_what_slurm_ended_did_not_fail_by_itself(log: str, said: str, test: str) -> None:
    """The launcher's signal and the peers' broken connections follow."""
    result = diagnose(text=STEPS + log)
    assert said in first(result)[1]
    assert test in result.causes[0].test


def test_the_step_is_cancelled_after_the_real_cause() -> None:
    """Slurm ends the other ranks; the one that ran out of memory was first."""
    text = """\
 11: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.21 GiB is free.
  3: [rank3]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
slurmstepd: error: *** STEP 77213.0 ON node07 CANCELLED AT 2026-12-01T10:21:11 ***
srun: error: node08: task 11: Exited with exit code 1
srun: error: node07: tasks 0-7: Terminated
"""
    result = diagnose(text=STEPS + text)
    assert result.causes[0].cause == "out-of-memory"
    assert first(result)[0] == 11


REFUSED = "[rank0]: AssertionError: When using upcycling, the --save option must be specified.\n"
OUT_OF_MEMORY = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB.\n"


def test_of_several_attempts_in_a_log_the_last_failure_counts() -> None:
    """The first attempt was refused, the next one trained: its end is the question."""
    result = diagnose(text=REFUSED + summary_of("1 (pid: 15307)") + STEPS + OUT_OF_MEMORY + summary_of("1 (pid: 2)"))
    assert [cause.cause for cause in result.causes] == ["out-of-memory"]
    assert first(result)[0] == 5


def test_an_attempt_that_is_still_well_leaves_the_failure_of_the_one_before() -> None:
    """Nothing failed since, so the question is about that one."""
    result = diagnose(text=STEPS + OUT_OF_MEMORY + summary_of("1 (pid: 2)") + STEPS)
    assert result.causes[0].cause == "out-of-memory"


def test_steps_that_other_ranks_log_after_a_failure_make_no_new_attempt() -> None:
    """Without a launcher's word in between it is the same one."""
    result = diagnose(text=OUT_OF_MEMORY + STEPS + "[rank2]: ValueError: odd\n")
    assert result.causes[0].cause == "out-of-memory"


def test_ranks_that_never_met_point_to_the_nodes() -> None:
    """No code of the model has run."""
    result = diagnose(
        text="[rank3]: torch.distributed.DistStoreError: Timed out after 601 seconds, 15/16 clients joined.\n"
    )
    assert "MASTER_ADDR" in result.causes[0].test


def test_a_connection_that_nccl_cannot_make_is_the_network() -> None:
    """NCCL says which address it could not reach."""
    text = """\
node01:1234:5678 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45123> failed : No route to host
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error, NCCL version 2.27.3
"""
    assert diagnose(text=text).causes[0].cause == "network-not-overlap"


def test_a_warning_in_the_words_of_a_refusal_is_none() -> None:
    """Megatron warns of deprecated settings as it refuses them elsewhere."""
    warned = "/opt/megatron/core/x.py:16: UserWarning: moe_router_topk_limited_devices is deprecated and replaced by moe_router_group_topk and moe_router_num_groups.\n"
    result = diagnose(text=warned + STEPS + "[rank1]: ValueError: odd\n")
    assert (result.causes[0].cause, first(result)[1]) == ("unknown", "ValueError: odd")
