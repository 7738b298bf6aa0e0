"""The files a run leaves: progress, each rank's part, the result."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENDED_BADLY = ("failed", "timed_out")
PF_EXITING = 0x4  # linux/sched.h


@dataclass
class Place:
    """Where a rank is: read by the state file, by errors and by planted faults."""

    phase: str = "import"
    variant: str | None = None
    step: int | None = None

    def at(self, phase: str, variant: str | None = None, step: int | None = None) -> None:
        """Move on."""
        self.phase, self.variant, self.step = phase, variant, step

    def as_json(self) -> dict[str, Any]:
        """The three fields."""
        return {"phase": self.phase, "variant": self.variant, "step": self.step}


@dataclass
class Report:
    """One rank's view of the folder `out`."""

    out: Path
    rank: int
    world_size: int
    place: Place = field(default_factory=Place)
    started: float = field(default_factory=time.time)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Append one line to progress.jsonl; only rank 0 does."""
        if self.rank == 0:
            line = {"t": round(time.time(), 3), "phase": phase, "done": done, "total": total}
            with (self.out / "progress.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def write_rank(self, status: str, **part: Any) -> None:
        """Write rank<k>.json."""
        row = {"rank": self.rank, "status": status, "t": time.time(), **self.place.as_json(), **part}
        write_json(self.out / f"rank{self.rank}.json", row)

    def write_result(self, status: str, **result: Any) -> None:
        """Write result.json, unless it is there."""
        path = self.out / "result.json"
        if not path.exists():
            elapsed = round(time.time() - self.started, 3)
            write_json(path, {"schema": 1, "status": status, "elapsed_s": elapsed, **result})

    def failure(self, patience_s: float = 2.0) -> dict[str, Any]:
        """Which rank failed and where every rank was, from the files of all ranks.

        Waits a moment for ranks that are still writing.
        """
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and len(self._per_rank("rank{}.json")) < self.world_size:
            time.sleep(0.05)
        return explain(self._per_rank("rank{}.json"), self._per_rank("rank{}.state.json"), self.world_size)

    def alive(self, rank: int) -> bool:
        """The rank's process is there, as far as this host can see."""
        state = self._per_rank("rank{}.state.json").get(rank, {})
        return _parent(state.get("pid", 0)) is not None

    def ask_for_stacks(self) -> None:
        """SIGUSR1 to the other ranks of this launcher: each appends its stacks to its file."""
        for rank, state in self._per_rank("rank{}.state.json").items():
            if rank != self.rank and _parent(state.get("pid", 0)) == os.getppid():
                os.kill(state["pid"], signal.SIGUSR1)

    def _per_rank(self, name: str) -> dict[int, dict[str, Any]]:
        rows = {rank: read_json(self.out / name.format(rank)) for rank in range(self.world_size)}
        return {rank: row for rank, row in rows.items() if row}


def explain(ranks: dict[int, dict[str, Any]], states: dict[int, dict[str, Any]], world_size: int) -> dict[str, Any]:
    """Which rank failed first, and where every rank was.

    A rank that only noticed that a peer was gone or late is not the cause: then the odd rank is named, the
    one that waited in no collective while others did.
    """
    failed = [row for row in ranks.values() if row["status"] in ENDED_BADLY]
    first = min(failed, key=lambda row: (_blames_a_peer(row), row["t"]), default={})
    odd = _odd_ranks(states, world_size)
    rank = odd[0] if odd and (not first or _blames_a_peer(first)) else first.get("rank")
    where = first if rank == first.get("rank") else states.get(-1 if rank is None else rank, {})
    return {
        "rank": rank,
        **{name: where.get(name) for name in ("phase", "variant", "step")},
        "error": first.get("error"),
        "odd_ranks": odd,
        "last_collective": {rank: states.get(rank, {}).get("last") for rank in range(world_size)},
        "in_flight": {rank: states.get(rank, {}).get("in_flight", []) for rank in range(world_size)},
        "ranks": {rank: ranks.get(rank, {}).get("status", "no report") for rank in range(world_size)},
    }


def _odd_ranks(states: dict[int, dict[str, Any]], world_size: int) -> list[int]:
    waiting = [rank for rank in range(world_size) if states.get(rank, {}).get("in_flight")]
    return [rank for rank in range(world_size) if rank not in waiting] if waiting else []


def _blames_a_peer(row: dict[str, Any]) -> bool:
    """The error, or the lack of one when the wall limit struck, comes from waiting for another rank."""
    message = (row.get("error") or {}).get("message")
    signs = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Timed out waiting",
        "collective operation timeout",
    )
    return message is None or any(sign in message for sign in signs)


def _parent(pid: int) -> int | None:
    """The parent of a process, or None when it is gone or ends: its sockets close before it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent, _group, _session, _terminal, _foreground, flags = stat.rpartition(")")[2].split()[:7]
    return None if state in "ZX" or int(flags) & PF_EXITING else int(parent)


def write_json(path: Path, value: Any) -> None:
    """Write the file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def read_json(path: Path) -> Any:
    """The value in the file, or None while it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
