"""Looks after one job until its end, whatever becomes of the server: `python -m … RUN_DIR`.

It outlives the server that started it, holds the job to its bounds, and leaves no process behind. Should it be
killed itself, the kernel kills torchrun with it and torchrun's ranks with that; the next server ends what is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ep_overlap_mcp.smoke.hangs import name_odd_rank
from ep_overlap_mcp.smoke.job import FILE_BYTES, Job
from ep_overlap_mcp.smoke.processes import (
    MARKER,
    Identity,
    adopt_orphans,
    die_with_parent,
    end_processes,
    processes_of,
    reap,
)
from ep_overlap_mcp.smoke.run_folder import RunFolder, read_json, tail, write_json
from ep_overlap_mcp.smoke.store import Store
from ep_overlap_mcp.smoke.watch import Decision, Seen, Watch

FOREIGN = ("PET_", "TORCHELASTIC_")  # options and state of a torchrun that may surround the server
STACKS_S = 1.0  # for faulthandler to write them, and for a relay to bring them


def main() -> int:
    """Supervise the job of the folder; 0 when its end is written down."""
    folder = RunFolder(Path(sys.argv[1]))
    job = Job.read(folder)
    supervisor = Supervisor(folder, job, Store(folder.path.parent))
    signal.signal(signal.SIGTERM, supervisor.ask_to_end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    adopt_orphans()
    if (identity := Identity.of(os.getpid())) is not None:
        supervisor.store.supervised_by(job.run_id, identity)
    return 0 if supervisor.run() else 1


@dataclass
class Supervisor:
    """One job and what is known of it."""

    folder: RunFolder
    job: Job
    store: Store
    _asked: bool = False
    _began: float = field(default_factory=time.monotonic)

    def ask_to_end(self, *_: object) -> None:
        """SIGTERM: cancel."""
        self._asked = True

    def run(self) -> bool:
        """Start, watch, end, write down; False when someone else has written the end."""
        try:
            process = self._started()
        except OSError as problem:
            cause = f"`{self.job.argv[0]}` cannot be started: {problem.strerror}"
            return self.store.end(self.job.run_id, "failed", {"cause": cause})
        self.store.started(self.job.run_id)
        decision = self._watched(process)
        survivors = self._end_all(process)
        return self.store.end(self.job.run_id, self._status(decision), self._ending(decision, process, survivors))

    def _started(self) -> subprocess.Popen[bytes]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        variables = {**inherited, **self.job.variables, MARKER: self.job.run_id}
        with self.folder.log.open("ab") as log:  # appending: the middle can be cut while it is written
            return subprocess.Popen(
                self.job.argv,
                cwd=self.folder.path,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_bound_child,  # noqa: PLW1509 - this process has one thread
            )

    def _watched(self, process: subprocess.Popen[bytes]) -> Decision:
        watch = Watch(self.job)
        while True:
            decision = watch.look(self._seen(process))
            if decision.action == "end":
                return decision
            if decision.action == "collect_stacks":
                self._collect_stacks(decision.cause, process)
            if decision.action == "cut_log":
                _cut_middle(self.folder.log, self.job.log_bytes // 4)
            time.sleep(self.job.poll_s)

    def _seen(self, process: subprocess.Popen[bytes]) -> Seen:
        states = self.folder.states(self.job.world_size)
        phases = {row.get("phase") for row in states.values()}
        return Seen(
            at_s=time.monotonic() - self._began,
            exit_code=process.poll(),
            cancelled=self._asked or self.folder.cancel.exists(),
            life=(repr(states), _size(self.folder.progress)),
            importing=phases <= {"import"},
            log_bytes=_size(self.folder.log),
            folder_bytes=self.folder.size(),
        )

    def _collect_stacks(self, cause: str, launcher: subprocess.Popen[bytes]) -> None:
        """Ask every rank for its stacks, and write down where each was before anything is ended."""
        states = self.folder.states(self.job.world_size)
        ours = {process.pid: process for process in processes_of(self.job.run_id)}
        asked = [launcher.pid] if self.job.relayed else [row.get("pid", 0) for row in states.values()]
        for pid in asked:
            if (process := ours.get(pid)) is not None:
                with contextlib.suppress(Exception):
                    process.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_S)
        rank, evidence = name_odd_rank(states, self._stacks(), self.job.world_size)
        stalled = {"cause": cause, "rank": rank, "evidence": evidence, "states": states}
        write_json(self.folder.stall, {"at_s": round(time.monotonic() - self._began, 1), **stalled})

    def _stacks(self) -> dict[int, list[str]]:
        return {rank: tail(self.folder.stacks(rank)) for rank in range(self.job.world_size)}

    def _end_all(self, process: subprocess.Popen[bytes]) -> list[int]:
        survivors = end_processes(self.job.run_id, grace_s=self.job.grace_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        reap()
        return survivors

    def _status(self, decision: Decision) -> str:
        """A job that ended well without its evidence has failed."""
        if decision.status != "done":
            return decision.status
        result = read_json(self.folder.result)
        return "done" if isinstance(result, dict) and result.get("status") == "completed" else "failed"

    def _ending(self, decision: Decision, process: subprocess.Popen[bytes], survivors: list[int]) -> dict[str, Any]:
        ending = {"cause": decision.cause, "exit_code": process.returncode}
        if survivors:
            ending["survivors"] = survivors
        return ending


def _bound_child() -> None:
    import resource

    die_with_parent()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard == resource.RLIM_INFINITY or hard > FILE_BYTES:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _cut_middle(log: Path, keep: int) -> None:
    """Keep the first and the newest part of a log that is still written to."""
    with log.open("r+b") as file:
        file.seek(-keep, os.SEEK_END)
        newest = file.read(keep)
        file.truncate(keep)
        file.seek(0, os.SEEK_END)
        file.write(b"\n... the middle was cut ...\n" + newest)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
