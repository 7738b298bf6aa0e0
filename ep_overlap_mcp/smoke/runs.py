"""Starts, follows and ends runs; every one survives the process that started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import ep_overlap_mcp
from ep_overlap_mcp.smoke import slurm
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.job import Job
from ep_overlap_mcp.smoke.processes import GRACE_S, MARKER, PATIENCE_S, Identity, end_processes
from ep_overlap_mcp.smoke.run_folder import write_json
from ep_overlap_mcp.smoke.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.smoke.planning import SmokePlan
    from ep_overlap_mcp.smoke.run_folder import RunFolder
    from ep_overlap_mcp.smoke.store import Run

LONGEST_WAIT_S = 25.0  # below the time after which clients give a call up
POLL_S = 0.2
KEPT_RUNS = 50
START_S = 30.0  # for a supervisor to be written down
ANSWER_S = GRACE_S + PATIENCE_S + 4.0  # for a supervisor to end its job

_starting = threading.Lock()  # counting a user's runs and adding one are one step
_started: dict[str, tuple[subprocess.Popen[bytes], RunFolder]] = {}


def start_run(
    plan: SmokePlan,
    command: Callable[[RunFolder], list[str]] | None = None,
    *,
    user: str | None = None,
    most: int | None = None,
) -> Run:
    """Start the plan under a supervisor of its own; SmokeError when its devices are taken or `user` has enough."""
    store = Store()
    end_lost_runs(store)
    store.forget_old(KEPT_RUNS)
    with _starting:
        if user is not None and most is not None:
            store.refuse_more_than(most, user)
        if plan.cluster is not None:
            return slurm.start(store, plan, plan.cluster, user)
        run = store.add(plan.device_set, plan.shown.model_dump(mode="json"), plan.shown.limit_s, user=user)
    return _supervised(store, run, plan, command)


def _supervised(store: Store, run: Run, plan: SmokePlan, command: Callable[[RunFolder], list[str]] | None) -> Run:
    """Give the run a supervisor, which starts its job."""
    folder = store.run_folder(run.id)
    write_json(folder.request, plan.request)
    job = _job(run.id, plan, command(folder) if command else _command(plan, folder))
    job.write(folder)
    try:
        process = _supervisor(run.id, folder)
    except OSError as problem:
        store.end(run.id, "failed", {"cause": f"no supervisor: {problem}"})
        raise SmokeError(f"the supervisor of {run.id} cannot be started: {problem}; see {folder.path}") from problem
    _started[run.id] = (process, folder)
    if (identity := Identity.of(process.pid)) is not None:
        store.supervised_by(run.id, identity)
    return store.get(run.id)


def _command(plan: SmokePlan, folder: RunFolder) -> list[str]:
    from ep_overlap_mcp.smoke import relay

    return relay.command(folder, plan.far) if plan.far else torchrun(plan, folder)


def _job(run_id: str, plan: SmokePlan, argv: list[str]) -> Job:
    """A job behind a prefix holds its limit there; here the start of the prefix counts as well."""
    far = plan.far
    return Job(
        run_id,
        argv,
        plan.shown.world_size,
        plan.shown.limit_s + (far.start_limit_s if far else 0),
        plan.stall_s,
        variables={} if far else dict(plan.variables),
        relayed=far is not None,
    )


def torchrun(plan: SmokePlan, folder: RunFolder) -> list[str]:
    """The command of a real job: smoke_train.py under the training environment's torchrun."""
    from ep_overlap_mcp.bundled import bundled

    program = bundled("tools") / "smoke_train.py"
    launcher = [plan.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={plan.shown.world_size}"]
    return [*launcher, str(program), "--request", str(folder.request), "--out", str(folder.path)]


def wait_for(run_id: str, wait_s: float) -> Run:
    """The run, as soon as it has ended or the wait is over."""
    if not 0 <= wait_s <= LONGEST_WAIT_S:
        raise SmokeError(f"wait_s is {wait_s:g}; it takes 0 to {LONGEST_WAIT_S:g}, so call again instead")
    store = Store()
    deadline = time.monotonic() + wait_s
    while True:
        end_lost_runs(store)
        run = store.get(run_id)
        if not run.open or time.monotonic() >= deadline:
            return run
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


def cancel_run(run_id: str, user: str | None = None) -> Run:
    """End the run and all its processes, from any process; a run that has ended stays as it is."""
    store = Store()
    end_lost_runs(store)
    run = store.get(run_id)
    if user is not None and run.user != user:
        raise SmokeError(f"{run_id} is not yours: {run.user or 'this host'} started it, and can end it")
    if not run.open:
        return run
    if slurm.is_job(run):
        slurm.cancel(store, run)
        return store.get(run_id)
    store.run_folder(run_id).cancel.touch()
    if run.supervisor:
        run.supervisor.signal(15)
    deadline = time.monotonic() + ANSWER_S
    while run.open and _looked_after(run) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        run = store.get(run_id)
    if run.open:  # a supervisor that is stuck, stopped, or that the signal met before it was ready
        if run.supervisor:
            run.supervisor.signal(9)
        end_processes(run_id, grace_s=0.5)
        store.end(run_id, "cancelled", {"cause": "cancelled by request; its supervisor did not answer"})
    return store.get(run_id)


def end_lost_runs(store: Store) -> None:
    """Mark open runs that nobody looks after as lost, and end what they left; ask Slurm for those that it has."""
    for process, _ in _started.values():
        process.poll()  # a supervisor that has ended must not stay a zombie
    for run in store.open_runs():
        if slurm.is_job(run):
            slurm.follow(store, run)
            continue
        if _looked_after(run):
            continue
        survivors = end_processes(run.id)
        who = f"its supervisor (pid {run.supervisor.pid}) is gone" if run.supervisor else "it was never supervised"
        left = f"; pids {survivors} could not be ended" if survivors else "; what it left was ended"
        ending = {"cause": f"{who}: killed, or the machine was restarted{left}", "survivors": survivors}
        store.end(run.id, "lost", ending)


def end_own_runs() -> None:
    """Ask the supervisors of runs that this process started to end them; returns at once, for signal handlers."""
    for process, folder in _started.values():
        with contextlib.suppress(OSError):
            folder.cancel.touch()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()


def _looked_after(run: Run) -> bool:
    if run.supervisor is not None:
        return run.supervisor.alive
    if run.owner is not None and run.owner.alive:
        return run.elapsed_s < START_S
    return run.elapsed_s < 5.0  # its supervisor may just be writing itself down


def _supervisor(run_id: str, folder: RunFolder) -> subprocess.Popen[bytes]:
    package = Path(ep_overlap_mcp.__file__).parent
    with folder.supervisor_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ep_overlap_mcp.smoke.supervisor", str(folder.path)],
            cwd=package.parent,  # so that `-m` finds the package, and no file of the user's directory
            env={**os.environ, MARKER: run_id},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
