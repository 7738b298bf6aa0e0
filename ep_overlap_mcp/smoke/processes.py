"""Finds and ends all processes of a run.

torchrun's ranks are sessions of their own, so no group reaches them: every process of a run carries its id in the
environment, and descends from its supervisor, which adopts orphans where the kernel lets it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MARKER = "EP_OVERLAP_SMOKE_RUN"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 3.0
PATIENCE_S = 5.0  # for SIGKILL to show


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has the number now, if there is one."""
        with contextlib.suppress(psutil.Error):
            return cls(pid, psutil.Process(pid).create_time())
        return None

    @property
    def alive(self) -> bool:
        """It runs; one that only waits to be reaped does not."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            return _same(process.create_time(), self.created) and process.status() != psutil.STATUS_ZOMBIE
        return False

    def signal(self, number: int) -> None:
        """Send a signal, unless it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def _same(one: float, other: float) -> bool:
    return abs(one - other) < 0.1  # psutil counts in clock ticks from a boot time that may be corrected


def processes_of(run_id: str) -> list[psutil.Process]:
    """All living processes that carry the run's id, and their descendants; never this process."""
    marked = [process for process in psutil.process_iter() if _carries(process, run_id)]
    found = {process.pid: process for process in marked}
    for process in marked:
        with contextlib.suppress(psutil.Error):
            found.update({child.pid: child for child in process.children(recursive=True)})
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _runs(process)]


def end_processes(run_id: str, *, spare: Iterable[int] = (), grace_s: float = GRACE_S) -> list[int]:
    """SIGTERM, a grace, SIGKILL, until none is left; the numbers of those that even that did not end."""
    spared = set(spare)

    def left() -> list[psutil.Process]:
        return [process for process in processes_of(run_id) if process.pid not in spared]

    _send(left(), signal.SIGTERM)
    if _gone(left, grace_s):
        return []
    deadline = time.monotonic() + PATIENCE_S
    while remaining := left():
        _send(remaining, signal.SIGKILL)
        psutil.wait_procs(remaining, timeout=0.2)
        if time.monotonic() > deadline:
            return [process.pid for process in remaining]
    return []


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents die."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the parent dies; for `preexec_fn`."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def reap() -> None:
    """Collect adopted children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _carries(process: psutil.Process, run_id: str) -> bool:
    try:
        return process.environ().get(MARKER) == run_id
    except (psutil.Error, OSError):
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):  # psutil compares creation times before it sends
            process.send_signal(number)


def _gone(left: Callable[[], list[psutil.Process]], grace_s: float) -> bool:
    deadline = time.monotonic() + grace_s
    while remaining := left():
        if time.monotonic() > deadline:
            return False
        psutil.wait_procs(remaining, timeout=0.1)
    return True
