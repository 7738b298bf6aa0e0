"""Jobs with real processes: whatever ends a run, its end is written down and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from stand_in_runs import plan_of, processes_left, stand_in, start, until

from ep_overlap_mcp import smoke
from ep_overlap_mcp.smoke.job import Job
from ep_overlap_mcp.smoke.processes import Identity, processes_of
from ep_overlap_mcp.smoke.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")
PROJECT = Path(__file__).parents[2]


def ended(run_id):
    """The result once the run has ended."""
    result = smoke.get(run_id, 20)
    until(lambda: not processes_left(), 10)
    return result


def running(run_id, ranks=2):
    """Wait until all ranks show signs of life; all processes of the run."""
    folder = Store().run_folder(run_id)
    until(lambda: len(folder.states(ranks)) == ranks)
    return processes_of(run_id)


def launcher_of(run_id):
    """The process that stands in for torchrun."""
    supervisor = Store().get(run_id).supervisor
    return psutil.Process(supervisor.pid).children()[0]


def test_a_run_is_started_followed_and_done():
    """The start returns at once, progress shows while it runs, and the end is kept with the folder of evidence."""
    before = time.monotonic()
    first = start("finish")
    assert (first.status in ("queued", "running"), time.monotonic() - before < 2) == (True, True)
    assert first.next == f"call `ep-overlap-mcp smoke status {first.id}` until it has ended"
    last = ended(first.id)
    assert (last.status, last.failure, last.eta_s) == ("done", None, 0.0)
    assert {path.name for path in Path(last.logs).iterdir()} >= {"request.json", "job.json", "log.txt", "result.json"}


def test_evidence_without_answers_proves_nothing():
    """A completed result.json that holds no rows answers none of the three questions."""
    last = ended(start("finish").id)
    verdicts = last.overlap_ran.verdict, last.numerics.verdict, last.speed.verdict
    assert verdicts == ("unknown", "unknown", "not_measured")


def test_a_job_that_ends_well_without_result_json_has_failed():
    """Exit status 0 is no evidence."""
    last = ended(start("no_result").id)
    assert (last.status, last.failure.cause) == ("failed", "ended by itself; it left no result.json")


def test_a_job_that_fails_says_how():
    """The exit code of the launcher is the cause when no rank explained anything."""
    last = ended(start("fail").id)
    assert (last.status, last.failure.cause) == (
        "failed",
        "torchrun ended with exit code 3; it left no result.json",
    )


def test_a_program_that_cannot_be_started_is_said():
    """A Python that does not exist is the cause."""
    run = smoke.start(plan_of(), command=lambda _: ["/no/such/python"])
    last = ended(run.id)
    assert (last.status, last.failure.cause.split(";")[0]) == (
        "failed",
        "`/no/such/python` cannot be started: No such file or directory",
    )


def test_one_job_holds_a_device_set():
    """Who comes second is told which run holds it; another device set is free, and afterwards this one is."""
    first = start("run")
    with pytest.raises(smoke.SmokeError, match=f"the CPU is busy: smoke run {first.id} holds it"):
        start("run")
    other = smoke.start(plan_of(device_set="gpu"), command=stand_in("run"))
    smoke.cancel(first.id)
    third = start("finish")
    assert [run.id for run in smoke.list_runs().runs] == [third.id, other.id, first.id]
    smoke.cancel(other.id)
    assert ended(third.id).status == "done"


def test_cancel_ends_all_processes_and_can_be_repeated():
    """Ranks that ignore SIGTERM and an orphan without the marker are gone; a second cancel changes nothing."""
    run = start("ignore_term")
    tree = running(run.id)
    known = {process.pid for process in tree}
    until(lambda: len({p.pid for p in processes_of(run.id)} | known) >= 6)  # supervisor, launcher, 2 ranks, 2 orphans
    known |= {process.pid for process in processes_of(run.id)}
    first = smoke.cancel(run.id)
    until(lambda: not processes_left(known), 3)
    assert (first.status, first.failure) == ("cancelled", None)
    assert smoke.cancel(run.id).elapsed_s == first.elapsed_s


def test_cancel_works_from_another_process():
    """A second server can end what the first one started."""
    run = start("run")
    running(run.id)
    code = f"from ep_overlap_mcp import smoke; print(smoke.cancel({run.id!r}).status)"
    said = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert said.stdout == "cancelled\n"
    assert ended(run.id).status == "cancelled"


def test_cancel_ends_a_run_whose_supervisor_is_stopped(monkeypatch):
    """A supervisor that does not answer is killed, and the job with it."""
    monkeypatch.setattr("ep_overlap_mcp.smoke.runs.ANSWER_S", 1.0)
    run = start("run")
    running(run.id)
    os.kill(Store().get(run.id).supervisor.pid, signal.SIGSTOP)
    assert smoke.cancel(run.id).status == "cancelled"
    until(lambda: not processes_left(), 5)


def test_the_wall_clock_limit_ends_a_job_that_ignores_sigterm():
    """The run has failed by its limit, and nothing of it runs on."""
    last = ended(start("ignore_term", limit_s=2.0).id)
    assert (last.status, last.failure.cause) == (
        "failed",
        "the wall-clock limit of 2 s was reached: raise limit_s (--limit); it left no result.json",
    )
    assert last.elapsed_s < 10


def test_a_killed_torchrun_leaves_no_rank():
    """Its ranks are sessions of their own; the supervisor ends them."""
    run = start("run")
    tree = {process.pid for process in running(run.id)}
    launcher_of(run.id).kill()
    last = ended(run.id)
    assert (last.status, last.failure.cause.split(";")[0]) == ("failed", "torchrun was killed by SIGKILL")
    until(lambda: not processes_left(tree), 5)


def test_a_killed_supervisor_makes_the_run_lost_and_leaves_nothing():
    """The launcher dies with it; whoever looks next ends the rest and says why the run is lost."""
    run = start("run")
    tree = {process.pid for process in running(run.id)}
    launcher, supervisor = launcher_of(run.id), Store().get(run.id).supervisor
    supervisor.signal(signal.SIGKILL)
    until(lambda: not launcher.is_running() or launcher.status() == psutil.STATUS_ZOMBIE, 5)
    last = smoke.get(run.id)
    assert (last.status, last.failure.cause) == (
        "lost",
        f"its supervisor (pid {supervisor.pid}) is gone: killed, or the machine was restarted; what it left was ended",
    )
    assert "It proves nothing" in last.summary
    until(lambda: not processes_left(tree), 5)


SERVER = """
import os, signal, sys, time
sys.path.insert(0, "tests/smoke")
from ep_overlap_mcp import smoke
from stand_in_runs import start
def end(number, frame):
    smoke.end_all_jobs()
    os._exit(128 + number)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
print(start(sys.argv[1]).id, flush=True)
sys.stdin.read()
"""


def server(behaviour):
    """A process that starts a run and guards its signals as a server does; it, and the run's id."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, behaviour], cwd=PROJECT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    run_id = process.stdout.readline().strip()
    running(run_id)
    return process, run_id


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_server_that_is_told_to_end_takes_its_jobs_with_it(number):
    """The guard returns at once; the supervisor ends the run without the server."""
    process, run_id = server("run")
    process.send_signal(number)
    assert process.wait(5) == 128 + number
    assert ended(run_id).status == "cancelled"


@pytest.mark.parametrize("how", ["killed", "disconnected"])
def test_a_run_outlives_its_server_and_the_next_one_reads_it(how):
    """SIGKILL of the server, or its client leaving, does not lose a run: it ends within its limits."""
    process, run_id = server("finish")
    if how == "killed":
        process.kill()
    process.communicate()
    assert ended(run_id).status == "done"


def test_a_run_of_a_killed_server_can_be_cancelled():
    """By any other process, as if it were its own."""
    process, run_id = server("ignore_term")
    process.kill()
    process.wait()
    assert smoke.cancel(run_id).status == "cancelled"
    until(lambda: not processes_left(), 5)


def test_a_stall_names_the_odd_rank_while_the_run_goes_on():
    """Rank 1 is in no collective while rank 0 waits: it is named with place and stack before the limit."""
    run = start("hang", stall_s=1.0, limit_s=5.0)
    until(lambda: smoke.get(run.id).failure is not None)
    stalled = smoke.get(run.id)
    assert (stalled.status, stalled.failure.rank) == ("running", 1)
    assert stalled.failure.cause == "rank 1 keeps the others waiting: nothing moved for 1 s"
    last = ended(run.id)
    assert (last.status, last.failure.rank) == ("failed", 1)
    assert last.failure.cause.startswith("rank 1 keeps the others waiting: nothing moved for 1 s; the wall-clock limit")
    odd, other, stacks = last.failure.evidence
    assert odd.startswith("rank 1: in parity overlap step 0; is in no collective; its last was all_to_all_single #1")
    assert "main thread at stand_in.py:" in odd
    assert other.startswith("rank 0: in parity overlap step 0; waits in all_to_all_single #1 of group ep (64 bytes)")
    assert stacks.startswith("stacks of all ranks: ")


def test_a_stall_that_passes_is_no_failure():
    """Ranks that go on after a stall finish as if nothing had been."""
    run = start("late", stall_s=1.0)
    until(lambda: smoke.get(run.id).failure is not None)
    last = ended(run.id)
    assert (last.status, last.failure) == ("done", None)


def test_the_log_is_bounded_and_keeps_its_ends():
    """A job that prints without end loses the middle of its log, not its run."""
    store = Store()
    run = store.add("cpu", plan_of().shown.model_dump(), 20.0)
    folder = store.run_folder(run.id)
    Job(run.id, stand_in("spew")(folder), 2, 20.0, 10.0, poll_s=0.02, log_bytes=2**20).write(folder)
    supervise = [sys.executable, "-m", "ep_overlap_mcp.smoke.supervisor", str(folder.path)]
    assert subprocess.run(supervise, cwd=PROJECT, check=False, timeout=30).returncode == 0
    assert store.get(run.id).status == "done"
    assert folder.log.stat().st_size < 2 * 2**20
    assert b"... the middle was cut ..." in folder.log.read_bytes()


def test_a_run_that_was_never_supervised_is_lost():
    """A server that died between writing a run down and starting it leaves nothing unexplained."""
    store = Store()
    run = store.add("cpu", plan_of().shown.model_dump(), 20.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    owner = Identity(gone.pid, time.time())
    gone.wait()
    with store._database() as database:
        old = time.time() - 60
        database.execute("update runs set owner_pid=?, owner_created=?, created=?", (owner.pid, owner.created, old))
    last = smoke.get(run.id)
    assert (last.status, last.failure.cause.split(":")[0]) == ("lost", "it was never supervised")
    assert ended(start("finish").id).status == "done"


def test_an_unknown_run_is_refused_with_the_known_ones():
    """The message lists what can be asked for."""
    run = start("finish")
    with pytest.raises(smoke.SmokeError, match=rf"no smoke run `nonsense` in .*; the newest here: {run.id}"):
        smoke.get("nonsense")
    ended(run.id)


def test_a_wait_longer_than_clients_wait_is_refused():
    """The limit of the long-poll is said."""
    with pytest.raises(smoke.SmokeError, match="wait_s is 60; it takes 0 to 25, so call again instead"):
        smoke.get("any", 60)


def test_a_reused_process_number_is_not_mistaken():
    """An identity is the number and the time of creation."""
    mine = Identity.of(os.getpid())
    assert (mine.alive, Identity(mine.pid, mine.created - 100).alive) == (True, False)


def test_the_report_holds_files_and_the_end_of_the_log():
    """What a person wants to read after a failure."""
    run = start("spew")
    ended(run.id)
    report = smoke.report(run.id)
    assert report.files["result.json"] > 0
    assert report.log_tail[-1].strip("x") == ""
