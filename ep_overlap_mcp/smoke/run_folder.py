"""The folder of one run: all its file names stand here."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

TAIL = 8_000  # bytes read from the end of a log


@dataclass(frozen=True)
class RunFolder:
    """Files of a run. `smoke_train.py` writes progress.jsonl, rank<k>.* and result.json; the rest is ours."""

    path: Path

    @property
    def job(self) -> Path:
        """What the supervisor is to run, and its bounds."""
        return self.path / "job.json"

    @property
    def request(self) -> Path:
        """The request of smoke_train.py."""
        return self.path / "request.json"

    @property
    def log(self) -> Path:
        """Output of the job."""
        return self.path / "log.txt"

    @property
    def supervisor_log(self) -> Path:
        """Output of the supervisor; empty unless it broke."""
        return self.path / "supervisor.log"

    @property
    def cancel(self) -> Path:
        """Its presence asks the supervisor to end the job."""
        return self.path / "cancel"

    @property
    def progress(self) -> Path:
        """One JSON line a finished part of the work."""
        return self.path / "progress.jsonl"

    @property
    def stall(self) -> Path:
        """Where every rank was when nothing moved."""
        return self.path / "stall.json"

    @property
    def far(self) -> Path:
        """Where a job behind a prefix runs."""
        return self.path / "far.json"

    @property
    def far_end(self) -> Path:
        """Why a job elsewhere ended, where its exit code does not say it."""
        return self.path / "far_end.json"

    @property
    def slurm(self) -> Path:
        """The Slurm job of the run, and what Slurm said of it last."""
        return self.path / "slurm.json"

    @property
    def result(self) -> Path:
        """The evidence."""
        return self.path / "result.json"

    def state(self, rank: int) -> Path:
        """Where a rank is now."""
        return self.path / f"rank{rank}.state.json"

    def rank(self, rank: int) -> Path:
        """How a rank ended."""
        return self.path / f"rank{rank}.json"

    def stacks(self, rank: int) -> Path:
        """Stacks that a rank dumped."""
        return self.path / f"rank{rank}.stacks.txt"

    def states(self, world_size: int) -> dict[int, dict[str, Any]]:
        """The state files that can be read, by rank."""
        rows = {rank: read_json(self.state(rank)) for rank in range(world_size)}
        return {rank: row for rank, row in rows.items() if isinstance(row, dict) and row}

    def last_progress(self) -> dict[str, Any] | None:
        """The newest line of progress.jsonl."""
        for line in reversed(tail(self.progress)):
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    return row
        return None

    def size(self) -> int:
        """Bytes of all files."""
        total = 0
        for entry in os.scandir(self.path):
            with contextlib.suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
        return total


def tail(path: Path, size: int = TAIL) -> list[str]:
    """The last lines of a file; none when it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read(size).decode(errors="replace").splitlines()
    except OSError:
        return []


def read_json(path: Path) -> Any:
    """The value in the file, or None while it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write the file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value, indent=1), encoding="utf-8")
    draft.replace(path)
