"""What Slurm says of a job, read from scontrol and sacct, and what that means for a run. No I/O."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
# Reasons that no waiting cures, by how they begin, and what does
NEVER = {
    "PartitionTimeLimit": "lower time_min, or take another partition",
    "PartitionNodeLimit": "take fewer nodes, or another partition",
    "PartitionDown": "take another partition",
    "PartitionInactive": "take another partition",
    "BadConstraints": "no node has what the #SBATCH lines ask for",
    "InvalidAccount": "correct account",
    "InvalidQOS": "correct qos",
    "JobHeldUser": "release it with scontrol release",
    "JobHeldAdmin": "ask the administrators: they hold it",
    "QOSMax": "the QoS does not allow so much: take fewer nodes or another qos",
    "AssocGrp": "the account has used its share: take another account",
    "AssocMax": "the account does not allow so much: take fewer nodes",
    "launch_failed_requeued_held": "the node could not start it: see its log, then scontrol release",
}


@dataclass(frozen=True)
class State:
    """A job's state as Slurm spells it, without its suffixes; times are seconds since the epoch."""

    name: str
    reason: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    nodes: str = ""
    restarts: int = 0
    limit: str = ""

    @property
    def waits(self) -> bool:
        """It has not begun, or has to begin again."""
        return self.name in WAITING

    @property
    def runs(self) -> bool:
        """It holds nodes."""
        return self.name in RUNNING

    @property
    def said(self) -> str:
        """State and reason in a line, with what to do where waiting is of no use."""
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        again = f", requeued {self.restarts} times" if self.restarts else ""
        cure = next((text for begin, text in NEVER.items() if self.waits and self.reason.startswith(begin)), "")
        return f"{self.name}{reason}{again}{'; this does not pass: ' + cure if cure else ''}"

    def ending(self, *, asked_to_end: bool) -> tuple[str, str]:
        """The run's status and cause."""
        if self.name == "COMPLETED":
            return "done", "ended by itself"
        if self.name == "CANCELLED":
            return "cancelled", "cancelled by request" if asked_to_end else "cancelled in Slurm, not by us"
        if self.name == "LOST":
            return "lost", self.reason
        return "failed", self._cause()

    def _cause(self) -> str:
        where = f" on {self.nodes}" if self.nodes not in ("", "(null)") else ""
        causes = {
            "TIMEOUT": f"Slurm's time limit{' of ' + self.limit if self.limit else ''} was reached{where}",
            "NODE_FAIL": f"a node failed{where}; start it again",
            "PREEMPTED": f"preempted by another job{where}; start it again, or take a QoS that is not preempted",
            "OUT_OF_MEMORY": f"killed for memory{where}; take fewer ranks or smaller sizes",
            "BOOT_FAIL": f"a node did not boot{where}; start it again",
            "DEADLINE": "its deadline passed before it could run",
            "FAILED": f"the job ended with exit code {self.exit_code}{where}",
        }
        return causes.get(self.name, f"Slurm ended it as {self.name}{where}")


def parse_scontrol(text: str) -> State | None:
    """The newest record of `scontrol --oneliner show job`; None when there is none."""
    records = [line for line in text.splitlines() if line.startswith("JobId=")]
    if not records:
        return None
    fields = dict(re.findall(r"(?:^| )([A-Za-z/:]+)=(\S*)", records[0]))
    ended = _name(fields["JobState"]) not in WAITING + RUNNING
    return State(
        name=_name(fields["JobState"]),
        reason=fields.get("Reason", ""),
        exit_code=_code(fields.get("ExitCode", "")),
        started=_seconds(fields.get("StartTime", "")),
        ended=_seconds(fields.get("EndTime", "")) if ended else None,
        nodes=fields.get("NodeList", ""),
        restarts=int(fields.get("Restarts", "0") or 0),
        limit=fields.get("TimeLimit", ""),
    )


def parse_sacct(text: str) -> State | None:
    """The newest record of `sacct -X -n -P -o State,ExitCode,Start,End,NodeList,Reason`; others are requeues."""
    records = [line.split("|") for line in text.splitlines() if line.count("|") == 5]
    if not records:
        return None
    state, code, started, ended, nodes, reason = records[-1]
    name = _name(state)
    return State(
        name=name,
        reason=reason,
        exit_code=_code(code),
        started=_seconds(started),
        ended=None if name in WAITING + RUNNING else _seconds(ended),
        nodes=nodes.replace("None assigned", ""),
        restarts=len(records) - 1,
    )


def _name(text: str) -> str:
    """`CANCELLED by 1000` and `COMPLETED+` are what they begin with."""
    match = re.match("[A-Z_]+", text)
    return match.group() if match else text


def _code(text: str) -> int | None:
    """`0:15` is exit code and signal; a signal reads as shells say it."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        return None
    code, signal = map(int, match.groups())
    return code or (128 + signal if signal else 0)


def _seconds(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    return None
