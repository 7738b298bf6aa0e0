"""Smoke runs as Slurm jobs: sbatch submits, scontrol and sacct tell where they stand, scancel ends them.

No process of ours watches a job: Slurm holds its limit, and whoever asks next finds it again by what is written in the
run's folder. submitit does not fit: it sends pickled functions to a Python that must have submitit installed, and
follows jobs by sacct alone. NeMo-Run does not either: it brings a packager, an ssh client and its own job folders.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.smoke.batch_script import batch_script, shape_of, shape_script
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.run_folder import read_json, write_json
from ep_overlap_mcp.smoke.slurm_state import State, parse_sacct, parse_scontrol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.smoke.planning import SmokePlan
    from ep_overlap_mcp.smoke.run_folder import RunFolder
    from ep_overlap_mcp.smoke.store import Run, Store
    from ep_overlap_mcp.training_env import Cluster

DEVICES = "slurm "  # how the device sets of these runs begin
ASK_S = 2.0  # a controller is not asked more often for one job
COMMAND_S = 60.0  # for an answer of a busy controller
FILES_S = 15.0  # for a finished job's files to show on a shared file system
CANCEL_S = 20.0  # for scancel to take effect; sites wait 5 to 30 s before they kill

_asked: dict[str, tuple[float, State | None]] = {}


class SlurmUnreachableError(SmokeError):
    """The controller did not answer; nothing is known."""


def start(store: Store, plan: SmokePlan, cluster: Cluster, user: str | None = None) -> Run:
    """Submit one job for the plan."""
    (run,) = submit(store, [plan], cluster, user)
    return run


def submit(store: Store, plans: Sequence[SmokePlan], cluster: Cluster, user: str | None = None) -> list[Run]:
    """Submit one job, or one array job for several plans; SmokeError with sbatch's own words when it refuses."""
    refuse_too_many(store, cluster)
    runs = [_added(store, plan, cluster, user) for plan in plans]
    folders = [store.run_folder(run.id) for run in runs]
    for plan, folder in zip(plans, folders, strict=True):
        _put_files(plan, folder, cluster)
    job_folder = folders[0].path.resolve() if len(runs) == 1 else _array_folder(folders, cluster)
    name = f"ep-overlap-{runs[0].id}"
    script = job_folder / "job.sh"
    script.write_text(batch_script(plans, cluster, job_folder, name), encoding="utf-8")
    try:
        job = _command("sbatch", "--parsable", str(script)).strip().split(";")[0]
    except SmokeError as problem:
        for run in runs:
            store.end(run.id, "failed", {"cause": f"not submitted: {problem}"})
        raise SmokeError(f"Slurm did not take the job: {problem}; its script is {script}") from problem
    for number, folder in enumerate(folders):
        write_json(folder.slurm, {"job": job if len(runs) == 1 else f"{job}_{number}", "said": "PENDING"})
    return [store.get(run.id) for run in runs]


def refuse_too_many(store: Store, cluster: Cluster) -> None:
    """Hold to the cluster's `most_jobs`; an array counts as one job."""
    jobs = {
        str((read_json(store.run_folder(run.id).slurm) or {}).get("job", run.id)).partition("_")[0]
        for run in store.open_runs()
        if run.device_set.startswith(f"{DEVICES}{cluster.name} ")
    }
    if len(jobs) >= cluster.most_jobs:
        raise SmokeError(
            f"{len(jobs)} jobs of yours are open on `{cluster.name}` and most_jobs is {cluster.most_jobs}: wait for"
            " one, or cancel it"
        )


def is_job(run: Run) -> bool:
    """The run is Slurm's, not a supervisor's."""
    return run.device_set.startswith(DEVICES)


def follow(store: Store, run: Run) -> None:
    """Write down what Slurm says of an open run; nothing while it says nothing."""
    folder = store.run_folder(run.id)
    job = _job_of(run, folder)
    if job is None:
        if run.owner is None or not run.owner.alive:
            store.end(run.id, "lost", {"cause": "the server ended before Slurm had taken the job"})
        return
    try:
        state = _state(job)
    except SlurmUnreachableError as problem:
        write_json(folder.slurm, {"job": job, "said": f"not known: {problem}"})
        return
    write_json(folder.slurm, {"job": job, "said": state.said if state else "no longer known to Slurm"})
    _take(store, run, folder, state or _by_its_files(folder))


def cancel(store: Store, run: Run) -> None:
    """scancel, and wait until Slurm says that it took effect."""
    folder = store.run_folder(run.id)
    job = _job_of(run, folder)
    if job is None:
        store.end(run.id, "cancelled", {"cause": "cancelled before it was submitted"})
        return
    folder.cancel.touch()
    _command("scancel", job)
    deadline = time.monotonic() + CANCEL_S
    while store.get(run.id).open and time.monotonic() < deadline:
        time.sleep(0.3)
        _asked.pop(job, None)
        follow(store, store.get(run.id))


def _added(store: Store, plan: SmokePlan, cluster: Cluster, user: str | None) -> Run:
    devices = f"{DEVICES}{cluster.name} {os.urandom(4).hex()}"  # Slurm gives devices out, not the store
    return store.add(
        devices, plan.shown.model_dump(mode="json"), plan.shown.limit_s, folder=Path(cluster.folder), user=user
    )


def _put_files(plan: SmokePlan, folder: RunFolder, cluster: Cluster) -> None:
    """The program travels with the job: the nodes need nothing of this installation."""
    from ep_overlap_mcp.bundled import bundled

    tools, program = bundled("tools"), folder.path / "program"
    (program / "smoke").mkdir(parents=True)
    for path in [tools / "smoke_train.py", *(tools / "smoke").glob("*.py")]:
        shutil.copyfile(path, program / path.relative_to(tools))
    write_json(folder.request, plan.request)
    shape = shape_of(plan.shown.world_size, cluster)
    (folder.path / "shape.sh").write_text(shape_script(shape, plan.variables), encoding="utf-8")


def _array_folder(folders: Sequence[RunFolder], cluster: Cluster) -> Path:
    """A folder whose entries `0`, `1`, … are the folders of the tasks."""
    place = Path(cluster.folder) / f"array-{folders[0].path.name}"
    place.mkdir(parents=True)
    for number, folder in enumerate(folders):
        (place / str(number)).symlink_to(folder.path.resolve())
    return place.resolve()


def _job_of(run: Run, folder: RunFolder) -> str | None:
    """The job's number; found by its name when the server ended before it wrote the number down."""
    known = read_json(folder.slurm)
    if isinstance(known, dict):
        return str(known["job"])
    if run.owner is not None and run.owner.alive:
        return None
    found = _command("squeue", "--noheader", "--all", f"--name=ep-overlap-{run.id}", "--format=%i").split()
    return found[0] if found else None


def _state(job: str) -> State | None:
    """What Slurm says, at most once in ASK_S; None when it knows the job no longer."""
    at, known = _asked.get(job, (-ASK_S, None))
    if time.monotonic() - at < ASK_S:
        return known
    state = _of_controller(job) or _of_accounting(job)
    _asked[job] = (time.monotonic(), state)
    return state


def _of_controller(job: str) -> State | None:
    try:
        return parse_scontrol(_command("scontrol", "--oneliner", "show", "job", job))
    except SmokeError as problem:
        if re.search("invalid job id", str(problem), re.IGNORECASE):
            return None  # ended longer than MinJobAge ago
        raise SlurmUnreachableError(str(problem)) from problem


def _of_accounting(job: str) -> State | None:
    columns = "State,ExitCode,Start,End,NodeList,Reason"
    try:
        return parse_sacct(_command("sacct", "-X", "-n", "-P", "--duplicates", "-j", job, "-o", columns))
    except SmokeError:
        return None  # many sites keep none


def _by_its_files(folder: RunFolder) -> State:
    """The batch script writes its exit code down, which outlives the controller's memory."""
    try:
        code = int((folder.path / "slurm.exit").read_text())
    except (OSError, ValueError):
        return State("LOST", "Slurm knows the job no longer and it left no exit code")
    started, ended = ((folder.path / name).stat().st_mtime for name in ("slurm.started", "slurm.exit"))
    return State("COMPLETED" if code == 0 else "FAILED", exit_code=code, started=started, ended=ended)


def _take(store: Store, run: Run, folder: RunFolder, state: State) -> None:
    if state.name == "COMPLETING" and folder.cancel.exists():
        state = replace(state, name="CANCELLED", ended=time.time())  # Slurm may take long to clear its nodes
    if state.waits:
        store.requeued(run.id)
    elif state.runs or state.ended is not None:
        store.started(run.id, state.started)
    if state.waits or state.runs:
        return
    status, cause = state.ending(asked_to_end=folder.cancel.exists())
    if status == "done" and not _completed(folder):
        if state.ended is not None and time.time() - state.ended < FILES_S:
            return
        status = "failed"
    store.end(run.id, status, {"cause": cause, "exit_code": state.exit_code}, state.ended)


def _completed(folder: RunFolder) -> bool:
    result = read_json(folder.result)
    return isinstance(result, dict) and result.get("status") == "completed"


def _command(*words: str) -> str:
    """The output of one of Slurm's commands; SmokeError with what it said when it fails. Secrets stay here."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("EP_OVERLAP_")}
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
            env=variables,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as problem:
        raise SmokeError(
            f"`{words[0]}` is not on this host: start ep-overlap-mcp where Slurm's commands are, on a login node"
        ) from problem
    except subprocess.TimeoutExpired as problem:
        raise SlurmUnreachableError(f"`{words[0]}` did not answer within {COMMAND_S:g} s") from problem
    if done.returncode:
        said: Any = " ".join((done.stderr or done.stdout).split())
        raise SmokeError(said[:400] or f"`{words[0]}` ended with exit code {done.returncode}")
    return done.stdout
