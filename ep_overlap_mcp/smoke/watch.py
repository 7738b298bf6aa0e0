"""When to act on a running job: a state machine without I/O. The supervisor shows it what it saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.job import Job

Action = Literal["go_on", "collect_stacks", "cut_log", "end"]


@dataclass(frozen=True)
class Seen:
    """One look at a job: seconds since its start, exit status, cancel request, signs of life and sizes in bytes."""

    at_s: float
    exit_code: int | None = None
    cancelled: bool = False
    life: object = None
    importing: bool = False
    log_bytes: int = 0
    folder_bytes: int = 0


@dataclass(frozen=True)
class Decision:
    """What to do now; with `end`, the run's status and the cause."""

    action: Action
    status: str = ""
    cause: str = ""


@dataclass
class Watch:
    """Decides at each look. Stacks are collected once a stall; a stall does not end a job, its limit does."""

    job: Job
    stalled: bool = False
    _life: object = field(default=None, repr=False)
    _moved_at: float = 0.0

    def look(self, seen: Seen) -> Decision:
        """What the look calls for, the most urgent first."""
        self._note_life(seen)
        if seen.exit_code is not None:
            return Decision("end", "done" if seen.exit_code == 0 else "failed", _exit(seen.exit_code))
        if seen.cancelled:
            return Decision("end", "cancelled", "cancelled by request")
        if seen.at_s >= self.job.limit_s:
            return Decision("end", "failed", self._limit(seen))
        if seen.folder_bytes > self.job.folder_bytes:
            return Decision("end", "failed", f"its files passed {self.job.folder_bytes} bytes")
        if seen.log_bytes > self.job.log_bytes:
            return Decision("cut_log")
        quiet_s = seen.at_s - self._moved_at
        if not self.stalled and quiet_s >= (self.job.import_stall_s if seen.importing else self.job.stall_s):
            self.stalled = True
            return Decision("collect_stacks", cause=f"nothing moved for {quiet_s:.0f} s")
        return Decision("go_on")

    def _note_life(self, seen: Seen) -> None:
        if seen.life != self._life:
            self._life, self._moved_at, self.stalled = seen.life, seen.at_s, False

    def _limit(self, seen: Seen) -> str:
        what = f"the wall-clock limit of {self.job.limit_s:g} s was reached"
        if self.stalled:
            return f"{what}; nothing had moved for {seen.at_s - self._moved_at:.0f} s"
        return f"{what}: raise limit_s (--limit)"


def _exit(code: int) -> str:
    if code == 0:
        return "ended by itself"
    import signal

    if code < 0:
        try:
            return f"torchrun was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"torchrun was killed by signal {-code}"
    return f"torchrun ended with exit code {code}"
