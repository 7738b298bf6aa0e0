"""The runs of this host, in SQLite: what was planned, who holds a device set, how each run ended.

One folder a host name, because home directories are shared between hosts and write-ahead logs must not be.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import sqlite3
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.processes import Identity
from ep_overlap_mcp.smoke.run_folder import RunFolder
from ep_overlap_mcp.surface import call

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE_DIR = "EP_OVERLAP_STATE_DIR"
OPEN = ("queued", "running")
_TABLE = """
create table if not exists runs (
    id text primary key, status text not null, device_set text not null, created real not null, started real,
    ended real, owner_pid integer, owner_created real, supervisor_pid integer, supervisor_created real,
    limit_s real not null, plan text not null, ending text
)
"""
_ONE_A_DEVICE_SET = """
create unique index if not exists one_a_device_set on runs (device_set) where status in ('queued', 'running')
"""


@dataclass(frozen=True)
class Run:
    """One run as the store knows it. `plan` is the JSON of a SmokePlanResult, `ending` what its supervisor found."""

    id: str
    status: str
    device_set: str
    created: float
    started: float | None
    ended: float | None
    owner: Identity | None
    supervisor: Identity | None
    limit_s: float
    plan: dict[str, Any]
    ending: dict[str, Any]

    @property
    def open(self) -> bool:
        """It has not ended."""
        return self.status in OPEN

    @property
    def user(self) -> str | None:
        """Who asked for it, over HTTP with a token."""
        return self.plan.get("user")

    @property
    def pending_s(self) -> float:
        """Seconds in a queue, before it was started."""
        return max(0.0, (self.started or self.ended or time.time()) - self.created)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was started, to its end when it has one."""
        return max(0.0, (self.ended or time.time()) - self.created)


class Store:
    """Reads and writes runs; safe between processes. Opens the database anew for every piece of work."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._database() as database:
                database.execute("pragma journal_mode=wal")
                database.execute(_TABLE)
                database.execute(_ONE_A_DEVICE_SET)
        except (OSError, sqlite3.Error) as problem:
            raise SmokeError(
                f"runs cannot be kept in {self.folder}: {problem}. Set {STATE_DIR} to a folder that can be written"
            ) from problem

    def run_folder(self, run_id: str) -> RunFolder:
        """Where the files of a run are."""
        return RunFolder(self.folder / run_id)

    def add(
        self,
        device_set: str,
        plan: dict[str, Any],
        limit_s: float,
        *,
        folder: Path | None = None,
        user: str | None = None,
    ) -> Run:
        """A new queued run that holds the device set; SmokeError when another holds it.

        Its files are kept here, or in a folder of its own within `folder`, which other hosts see as well.
        """
        run_id = f"smoke-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        owner = Identity.of(os.getpid())
        row = (run_id, "queued", device_set, time.time(), owner and owner.pid, owner and owner.created, limit_s)
        try:
            with self._database() as database:
                database.execute(
                    "insert into runs (id, status, device_set, created, owner_pid, owner_created, limit_s, plan)"
                    " values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, json.dumps({**plan, "user": user} if user else plan)),
                )
        except sqlite3.IntegrityError:
            raise SmokeError(self._busy(device_set)) from None
        self._make_folder(run_id, folder)
        return self.get(run_id)

    def get(self, run_id: str) -> Run:
        """The run; SmokeError with the known ones when there is none."""
        found = self._select("where id = ?", run_id)
        if not found:
            known = ", ".join(run.id for run in self.all(5)) or "none"
            raise SmokeError(f"no smoke run `{run_id}` in {self.folder}; the newest here: {known}")
        return found[0]

    def all(self, most: int = 50) -> list[Run]:
        """Runs, the newest first."""
        return self._select("order by created desc limit ?", most)

    def count(self) -> int:
        """How many runs are kept."""
        with self._database() as database:
            return int(database.execute("select count(*) from runs").fetchone()[0])

    def open_runs(self) -> list[Run]:
        """Runs that have not ended."""
        return self._select("where status in ('queued', 'running')")

    def refuse_more_than(self, most: int, user: str) -> None:
        """SmokeError when the user has so many open runs."""
        own = [run.id for run in self.open_runs() if run.user == user]
        if len(own) >= most:
            raise SmokeError(
                f"{user} has {len(own)} open smoke runs of at most {most}: {', '.join(own)}; end one first"
            )

    def supervised_by(self, run_id: str, supervisor: Identity) -> None:
        """Write down who looks after the run."""
        with self._database() as database:
            database.execute(
                "update runs set supervisor_pid = ?, supervisor_created = ? where id = ?",
                (supervisor.pid, supervisor.created, run_id),
            )

    def started(self, run_id: str, at: float | None = None) -> None:
        """The job's processes are there, since now or since a time that a scheduler knows."""
        with self._database() as database:
            database.execute(
                "update runs set status = 'running', started = ? where id = ? and status = 'queued'",
                (at or time.time(), run_id),
            )

    def requeued(self, run_id: str) -> None:
        """A scheduler took its devices away and will start it again."""
        with self._database() as database:
            database.execute(
                "update runs set status = 'queued', started = null where id = ? and status = 'running'", (run_id,)
            )

    def end(self, run_id: str, status: str, ending: dict[str, Any], at: float | None = None) -> bool:
        """End an open run; False when someone else has ended it."""
        with self._database() as database:
            changed = database.execute(
                "update runs set status = ?, ended = ?, ending = ? where id = ? and status in ('queued', 'running')",
                (status, at or time.time(), json.dumps(ending), run_id),
            )
            return changed.rowcount == 1

    def forget_old(self, keep: int) -> None:
        """Remove ended runs but the newest, with their folders."""
        import shutil

        for run in self._select("where ended is not null order by created desc limit -1 offset ?", keep):
            path = self.run_folder(run.id).path
            shutil.rmtree(path.resolve(), ignore_errors=True)
            if path.is_symlink():
                path.unlink()
            with self._database() as database:
                database.execute("delete from runs where id = ?", (run.id,))

    def _make_folder(self, run_id: str, folder: Path | None) -> None:
        path = self.run_folder(run_id).path
        try:
            if folder is not None:
                (folder / run_id).mkdir(parents=True, mode=0o700)
                path.symlink_to(folder / run_id)
            else:
                path.mkdir(mode=0o700)
        except OSError as problem:
            self.end(run_id, "failed", {"cause": f"no folder for its files: {problem}"})
            raise SmokeError(f"no folder for the files of {run_id}: {problem}") from problem

    def _busy(self, device_set: str) -> str:
        holders = [run for run in self.open_runs() if run.device_set == device_set]
        if not holders:
            return f"another run has just left the {_shown(device_set)}; start again"
        run = holders[0]
        return (
            f"the {_shown(device_set)} is busy: smoke run {run.id} holds it for {run.elapsed_s:.0f} s of at most"
            f" {run.limit_s:.0f} s. Follow it with {call('get_smoke_run', id=run.id)}, end it with"
            f" {call('cancel_smoke_run', id=run.id)}, or wait"
        )

    def _select(self, clause: str, *values: Any) -> list[Run]:
        with self._database() as database:
            database.row_factory = sqlite3.Row
            return [_run(row) for row in database.execute(f"select * from runs {clause}", values)]  # noqa: S608 - our own clauses

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.folder / "runs.db", timeout=10)
        try:
            with database:
                yield database
        finally:
            database.close()


def _shown(device_set: str) -> str:
    """`CPU`, or `CPU behind ssh login1`."""
    return device_set[:3].upper() + device_set[3:]


def state_folder() -> Path:
    """The state directory of this host: EP_OVERLAP_STATE_DIR, or the user's own."""
    from platformdirs import user_state_dir

    root = os.environ.get(STATE_DIR) or user_state_dir("ep-overlap-mcp", appauthor=False)
    host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node()) or "host"
    return Path(root).expanduser().absolute() / "smoke" / host


def _run(row: sqlite3.Row) -> Run:
    values = {name: row[name] for name in ("id", "status", "device_set", "created", "started", "ended", "limit_s")}
    return Run(
        **values,
        owner=_identity(row["owner_pid"], row["owner_created"]),
        supervisor=_identity(row["supervisor_pid"], row["supervisor_created"]),
        plan=json.loads(row["plan"]),
        ending=json.loads(row["ending"] or "{}"),
    )


def _identity(pid: int | None, created: float | None) -> Identity | None:
    return Identity(pid, created) if pid is not None and created is not None else None
