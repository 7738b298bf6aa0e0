"""Smoke runs as jobs of a real Slurm with two nodes, and what Slurm says of jobs, read."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from planted import CASES, run
from stand_in_runs import plan_of, stand_in_torch, until

from ep_overlap_mcp import smoke
from ep_overlap_mcp.smoke import slurm as jobs
from ep_overlap_mcp.smoke.batch_script import Shape, batch_script, shape_of
from ep_overlap_mcp.smoke.run_folder import read_json
from ep_overlap_mcp.smoke.slurm_state import State, parse_sacct, parse_scontrol
from ep_overlap_mcp.smoke.store import Store
from ep_overlap_mcp.training_env import Cluster, TrainingEnvironment

HAS_MEGATRON = importlib.util.find_spec("megatron") is not None


@pytest.fixture
def cluster(slurm, tmp_path):
    """Two nodes of one rank each, as a user would name them; nothing of theirs is open before."""
    slurm.said("scancel", "--user=root")
    until(lambda: slurm.said("sinfo", "-h", "-o", "%T %D") == "idle 2", 30)
    return Cluster("test", str(tmp_path / "shared"), nodes=2, cpus_per_node=1, partition="smoke")


@pytest.fixture
def start(cluster, tmp_path):
    """Start the stand-in on both nodes."""
    search = stand_in_torch(tmp_path)

    def start_it(behaviour, **changes):
        plan = replace(
            plan_of(limit_s=40.0),
            request={"behaviour": behaviour},
            variables={"PYTHONPATH": search},
            cluster=replace(cluster, **changes),
        )
        return smoke.start(plan)

    return start_it


def status_within(run_id, status, seconds=25):
    """The run once it has the status."""
    until(lambda: smoke.get(run_id).status == status, seconds)
    return smoke.get(run_id)


def job_of(run_id):
    """Its number."""
    return read_json(Store().run_folder(run_id).slurm)["job"]


def processes_in(folder):
    """Living processes that were told to write there."""
    found = [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["status"] != psutil.STATUS_ZOMBIE]
    return [p for p in found if any(str(folder) in word for word in p.info["cmdline"] or ())]


def test_a_run_on_two_nodes_is_followed_to_its_evidence(start, tmp_path):
    """Queued, running, done; waiting is told apart; files lie in the shared folder."""
    first = start("finish")
    assert first.status == "queued"
    last = status_within(first.id, "done")
    assert (last.failure, last.pending_s is not None, last.pending_s <= last.elapsed_s) == (None, True, True)
    folder = tmp_path / "shared" / first.id
    assert {"job.sh", "shape.sh", "log.txt", "slurm.started", "result.json"} <= {p.name for p in folder.iterdir()}
    assert (folder / "slurm.exit").read_text() == "0\n"
    assert [line.id for line in smoke.list_runs().runs] == [first.id]


def test_another_server_finds_the_job_again(start, tmp_path):
    """Whoever asks next follows it; nothing of the first process is needed."""
    run_ = start("run")
    status_within(run_.id, "running")
    code = f"from ep_overlap_mcp import smoke; print(smoke.get({run_.id!r}).status, smoke.cancel({run_.id!r}).status)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "running cancelled\n"
    until(lambda: not processes_in(tmp_path / "shared"), 10)


def test_the_end_of_a_server_ends_no_job(start):
    """Its signal handler ends what it supervises; Slurm's jobs go on."""
    run_ = start("run")
    status_within(run_.id, "running")
    smoke.end_all_jobs()
    time.sleep(1)
    assert smoke.get(run_.id).status == "running"
    assert smoke.cancel(run_.id).status == "cancelled"


def test_a_job_whose_number_was_not_written_down_is_found_by_its_name(start):
    """As when the server is killed between sbatch's answer and the next line."""
    run_ = start("run")
    folder = Store().run_folder(run_.id)
    job = job_of(run_.id)
    folder.slurm.unlink()
    with Store()._database() as database:
        database.execute("update runs set owner_pid = 1, owner_created = 1")
    assert status_within(run_.id, "running").status == "running"
    assert job_of(run_.id) == job
    smoke.cancel(run_.id)


def test_cancel_ends_ranks_that_ignore_signals_and_can_be_repeated(start, tmp_path):
    """Slurm kills after its grace; the second cancel changes nothing."""
    run_ = start("deaf")
    status_within(run_.id, "running")
    until(lambda: len(processes_in(tmp_path / "shared")) >= 3)
    first = smoke.cancel(run_.id)
    assert (first.status, first.failure) == ("cancelled", None)
    until(lambda: not processes_in(tmp_path / "shared"), 10)
    assert smoke.cancel(run_.id).elapsed_s == first.elapsed_s


def test_a_job_that_waits_says_for_what_and_its_time_counts_apart(slurm, start):
    """Pending time is not run time; the reason is Slurm's."""
    blocker = slurm.said("sbatch", "--parsable", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 60")
    run_ = start("finish")
    until(lambda: "Resources" in smoke.get(run_.id).progress or "Priority" in smoke.get(run_.id).progress)
    waiting = smoke.get(run_.id)
    assert (waiting.status, waiting.progress.startswith(f"Slurm job {job_of(run_.id)}: PENDING (")) == ("queued", True)
    time.sleep(2)
    slurm.said("scancel", blocker)
    last = status_within(run_.id, "done")
    assert last.pending_s >= 1  # Slurm tells whole seconds
    assert last.elapsed_s - last.pending_s < 15


def test_a_reason_that_never_passes_says_what_to_do(start):
    """More time than the partition gives waits for ever."""
    run_ = start("finish", time_min=90)
    until(lambda: "PartitionTimeLimit" in smoke.get(run_.id).progress)
    assert smoke.get(run_.id).progress.endswith("this does not pass: lower time_min, or take another partition")
    smoke.cancel(run_.id)


def test_a_job_cancelled_by_others_is_cancelled(slurm, start):
    """By an administrator, or by the user's own scancel."""
    run_ = start("run")
    status_within(run_.id, "running")
    slurm.said("scancel", job_of(run_.id))
    last = status_within(run_.id, "cancelled")
    assert (last.failure, Store().get(run_.id).ending["cause"]) == (None, "cancelled in Slurm, not by us")


def test_a_failing_job_tells_its_exit_code(start):
    """And where it ran; of several nodes Slurm tells the highest, the log tells the first."""
    last = status_within(start("fail").id, "failed")
    assert last.failure.cause.startswith("the job ended with exit code ")
    assert last.failure.cause.endswith(" on n[1-2]; it left no result.json")
    assert any("n1: task 0: Exited with exit code 3" in line for line in last.failure.evidence)


def test_a_job_that_ends_well_without_evidence_has_failed(start, monkeypatch):
    """After a patience with the shared file system."""
    monkeypatch.setattr(jobs, "FILES_S", 1.0)
    last = status_within(start("no_result").id, "failed")
    assert last.failure.cause == "ended by itself; it left no result.json"


def test_a_failed_node_ends_the_run(slurm, start):
    """Slurm takes the job off all nodes, and does not start it again."""
    run_ = start("run")
    status_within(run_.id, "running")
    slurm.said("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    last = status_within(run_.id, "failed")
    slurm.said("scontrol", "update", "NodeName=n2", "State=RESUME")
    assert last.failure.cause.startswith("a node failed on n[1-2]; start it again")


def test_a_preempted_run_says_so(slurm, start):
    """Another job of a higher priority takes the nodes."""
    run_ = start("run")
    status_within(run_.id, "running")
    other = slurm.said(
        "sbatch", "--parsable", "-N2", "-p", "urgent", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5"
    )
    last = status_within(run_.id, "failed")
    slurm.said("scancel", other)
    assert last.failure.cause.startswith("preempted by another job on n[1-2]; start it again, or take a QoS that")


def test_a_requeued_run_starts_anew(slurm, start):
    """Only where the site's lines ask for it: old evidence goes, and it waits again."""
    run_ = start("run", sbatch=("--requeue",))
    status_within(run_.id, "running")
    folder = Store().run_folder(run_.id)
    until(folder.progress.exists)
    folder.result.write_text('{"schema": 1, "status": "completed"}')
    slurm.said("scontrol", "requeue", job_of(run_.id))
    again = status_within(run_.id, "queued")
    assert "requeued 1 times" in again.progress
    slurm.said("scontrol", "update", f"JobId={job_of(run_.id)}", "StartTime=now")
    status_within(run_.id, "running", 40)
    until(lambda: not folder.result.exists(), 10)
    smoke.cancel(run_.id)


@pytest.mark.slow
def test_the_time_limit_ends_the_run(start):
    """Slurm counts whole minutes."""
    run_ = start("deaf", time_min=1)
    last = status_within(run_.id, "failed", 150)
    assert last.failure.cause.startswith("Slurm's time limit of 00:01:00 was reached on n[1-2]")


def test_what_slurm_refuses_is_told_in_its_words(start):
    """And no run stays open."""
    with pytest.raises(smoke.SmokeError, match=r"Slurm did not take the job: .*[Ii]nvalid partition"):
        start("finish", partition="nowhere")
    assert [line.status for line in smoke.list_runs().runs] == ["failed"]


def test_a_user_has_so_many_jobs_at_once(start):
    """`most_jobs` of the table."""
    first = start("run", most_jobs=1)
    with pytest.raises(smoke.SmokeError, match="1 jobs of yours are open on `test` and most_jobs is 1"):
        start("run", most_jobs=1)
    smoke.cancel(first.id)
    smoke.cancel(start("run", most_jobs=1).id)


def test_a_controller_that_does_not_answer_changes_nothing(slurm, start):
    """The run stays what it was, and the text says that nothing is known."""
    run_ = start("run")
    status_within(run_.id, "running")
    slurm.processes["slurmctld"].send_signal(signal.SIGSTOP)
    try:
        jobs._asked.clear()
        subprocess.run(["true"], check=True)
        os.environ["SLURM_CONF"], kept = str(slurm.folder / "elsewhere.conf"), os.environ["SLURM_CONF"]
        lines = slurm.conf.read_text().splitlines()
        closed = [line if not line.startswith("SlurmctldPort") else "SlurmctldPort=1" for line in lines]
        (slurm.folder / "elsewhere.conf").write_text("\n".join([*closed, "MessageTimeout=2"]) + "\n")
        assert smoke.get(run_.id).status == "running"
        assert read_json(Store().run_folder(run_.id).slurm)["said"].startswith("not known: ")
    finally:
        os.environ["SLURM_CONF"] = kept
        slurm.processes["slurmctld"].send_signal(signal.SIGCONT)
    assert smoke.cancel(run_.id).status == "cancelled"


def test_without_slurm_on_this_host_it_says_where_to_start(tmp_path, monkeypatch):
    """A laptop has no sbatch."""
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = replace(plan_of(), cluster=Cluster("test", str(tmp_path / "shared"), nodes=2, cpus_per_node=1))
    with pytest.raises(smoke.SmokeError, match="`sbatch` is not on this host: start ep-overlap-mcp where Slurm's"):
        smoke.start(plan)


def test_a_job_that_slurm_forgot_is_told_by_its_files(start):
    """The controller keeps jobs for minutes; the batch script's own exit code stays."""
    runs = [start("finish").id, start("run", partition="smoke").id]
    first = status_within(runs[0], "done")
    for run_id in runs:
        job, folder = job_of(run_id), Store().run_folder(run_id)
        folder.slurm.write_text('{"job": "999999", "said": ""}')
        with Store()._database() as database:
            database.execute("update runs set status = 'running', ended = null where id = ?", (run_id,))
        jobs._asked.clear()
        known = smoke.get(run_id)
        expected = "done" if run_id == runs[0] else "lost"
        assert known.status == expected
        if expected == "lost":
            assert known.failure.cause == "Slurm knows the job no longer and it left no exit code"
            subprocess.run(["scancel", job], check=True)
    assert first.status == "done"


@pytest.mark.slow
def test_accounting_says_what_the_controller_says(accounted_slurm, tmp_path):
    """A real slurmdbd: the same state, exit code and times from sacct."""
    search = stand_in_torch(tmp_path)
    place = Cluster("test", str(tmp_path / "shared"), cpus_per_node=2)  # one node: sacct cuts exit codes above 127
    for behaviour, status in (("finish", "done"), ("fail", "failed")):
        plan = replace(plan_of(), request={"behaviour": behaviour}, variables={"PYTHONPATH": search}, cluster=place)
        run_ = smoke.start(plan)
        assert status_within(run_.id, status, 40).status == status
        job = job_of(run_.id)
        until(lambda job=job: (found := jobs._of_accounting(job)) is not None and found.ended is not None)
        one, other = jobs._of_controller(job), jobs._of_accounting(job)
        assert one.exit_code is not None
        assert replace(other, nodes="", reason="") == replace(one, nodes="", reason="", limit="")
    accounted_slurm.said("scancel", "--user=root")


@pytest.mark.skipif(not HAS_MEGATRON, reason="megatron-core is not installed in this Python")
@pytest.mark.megatron
@pytest.mark.slow
def test_a_real_run_on_two_nodes_answers_the_questions(cluster):
    """The installed megatron-core, one rank a node, over torchrun's c10d rendezvous."""
    environment = TrainingEnvironment(sys.executable, cluster=cluster)
    result = run(CASES["sound"], environment, pairs=0)
    assert (result.status, result.overlap_ran.verdict, result.numerics.verdict) == ("done", "yes", "unchanged")
    assert (result.world_size, result.failure) == (2, None)


SCONTROL = (
    "JobId=7 JobName=a b UserId=me(1000) JobState={} Reason={} Dependency=(null) Requeue=1 Restarts=2 ExitCode={}"
    " TimeLimit=00:10:00 StartTime=1970-01-02T00:00:00 EndTime=1970-01-02T00:01:40 NodeList=n[1-2] BatchHost=n1\n"
)


@pytest.mark.parametrize(
    ("state", "reason", "code", "ending"),
    [
        ("TIMEOUT", "TimeLimit", "143:0", ("failed", "Slurm's time limit of 00:10:00 was reached on n[1-2]")),
        ("NODE_FAIL", "None", "1:0", ("failed", "a node failed on n[1-2]; start it again")),
        (
            "OUT_OF_MEMORY",
            "OutOfMemory",
            "0:125",
            ("failed", "killed for memory on n[1-2]; take fewer ranks or smaller sizes"),
        ),
        ("BOOT_FAIL", "None", "0:0", ("failed", "a node did not boot on n[1-2]; start it again")),
        ("DEADLINE", "None", "0:0", ("failed", "its deadline passed before it could run")),
        ("FAILED", "NonZeroExitCode", "3:0", ("failed", "the job ended with exit code 3 on n[1-2]")),
        ("COMPLETED", "None", "0:0", ("done", "ended by itself")),
        ("REVOKED", "None", "0:0", ("failed", "Slurm ended it as REVOKED on n[1-2]")),
    ],
)
def test_each_end_of_a_job_is_a_status_and_a_cause(state, reason, code, ending):
    """As scontrol says it; suffixes and times are read."""
    found = parse_scontrol(SCONTROL.format(state, reason, code))
    assert found.ending(asked_to_end=False) == ending
    assert (found.ended - found.started, found.restarts, found.waits, found.runs) == (100, 2, False, False)


def test_accounting_is_read_to_the_newest_record():
    """`--duplicates` shows a requeued job as several; a state may carry who ended it."""
    requeued = "REQUEUED|0:0|1970-01-02T00:00:00|1970-01-02T00:01:00|n1|None\n"
    cancelled = "CANCELLED by 0|0:15|Unknown|Unknown|None assigned|\n"
    assert parse_sacct(requeued + cancelled) == State("CANCELLED", exit_code=143, restarts=1)
    assert parse_sacct("") is None
    assert parse_scontrol("No jobs in the system\n") is None


@pytest.mark.parametrize(
    ("ranks", "nodes", "gpus", "shape"),
    [(16, 2, 8, Shape(2, 8)), (4, 2, 8, Shape(1, 4)), (12, 3, 8, Shape(2, 6)), (9, 3, 8, Shape(3, 3))],
)
def test_ranks_are_laid_out_evenly_on_the_fewest_nodes(ranks, nodes, gpus, shape):
    """EP=16 on nodes of eight GPUs takes two."""
    assert shape_of(ranks, Cluster("a", "/x", nodes=nodes, gpus_per_node=gpus)) == shape


def test_ranks_that_do_not_fit_are_refused():
    """With what to change."""
    with pytest.raises(smoke.SmokeError, match=r"17 ranks do not fit evenly on 2 nodes of 8 ranks each.*\[slurm.a\]"):
        shape_of(17, Cluster("a", "/x", nodes=2, gpus_per_node=8))


def test_the_batch_script_is_as_recorded():
    """Every field of the table has its place; EP_OVERLAP_ACCEPT=1 records anew."""
    cluster = Cluster(
        "h100", "/shared", gpus_per_node=8, nodes=2, partition="batch", account="me", qos="short", time_min=20,
        container_image="nvcr.io#nvidia/nemo:25.09", container_mounts=("/data:/data",), sbatch=("--exclusive",),
        setup=("module load cuda",), prefix=("numactl", "-l"),
    )  # fmt: skip
    plan = replace(plan_of(ranks=16), python="python3")
    text = batch_script([plan], cluster, Path("/shared/smoke-1"), "ep-overlap-smoke-1")
    recorded = Path(__file__).parent / "recorded" / "job.sh"
    if os.environ.get("EP_OVERLAP_ACCEPT"):
        recorded.write_text(text)
    assert text == recorded.read_text()
