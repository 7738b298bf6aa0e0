"""Run smoke_train.py in this training environment for a server elsewhere, over one pipe.

Standard library only. Requests come as one JSON object a line on stdin, answers go the same way on stdout, each with
the request's `id`:

    {"start": {"files": {PATH: TEXT}, "request": {..}, "ranks": N, "run_id": TEXT, "variables": {NAME: TEXT},
               "folder": PATH or null, "limit_s": SECONDS, "grace_s": SECONDS}}
                        ->  {"folder": PATH}  where the job runs; removed at the end
    {"look": true}      ->  {"exit_code": null or integer, "limit": bool, "more": bool,
                             "parts": [{"file": NAME, "data": BASE64, "append": bool}]}
                            What changed since the last look; with `more`, look again at once.
    {"stacks": true}    ->  {}  every rank appends its stacks to its file
    {"end": true}       ->  {"survivors": [PID]}

What cannot be done is answered with {"error": TEXT}. The job ends with this program: when stdin closes, on SIGTERM and
SIGHUP, at its limit, and after a minute in which nobody looked, as when a network went away without a word.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARKER = "EP_OVERLAP_SMOKE_RUN"
FOREIGN = ("PET_", "TORCHELASTIC_")  # options and state of a torchrun around this program
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
CHUNK = 2**20  # bytes of all files in one answer
GROWING = ("log.txt", "progress.jsonl", ".stacks.txt", ".json.gz")  # files that are appended to, or written once
KEPT_LOG = 16 * 2**20  # bytes of a log that is sent on; then it starts again
SILENCE_S = 60.0


def main() -> int:
    """Answer requests until stdin closes; then nothing of the job is left."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # signal handlers may put into it
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: lines.put(b""))
    _prctl(PR_SET_CHILD_SUBREAPER)
    host = Host()
    try:
        while line := _next(lines, host):
            _answer(host, json.loads(line))
    finally:
        host.end()
        host.remove()
    return 0


def _read(lines: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        if line.strip():
            lines.put(line)
    lines.put(b"")


def _next(lines: queue.SimpleQueue[bytes], host: Host) -> bytes:
    """The next request; nothing at the end of stdin, or of patience."""
    silent_since = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=0.5)
        host.hold_limit()
        if host.process is not None and time.monotonic() - silent_since > SILENCE_S:
            return b""


def _answer(host: Host, request: dict[str, Any]) -> None:
    try:
        answer = _done(host, request)
    except OSError as problem:
        answer = {"error": f"{problem.filename or 'the job'}: {problem.strerror}"}
    sys.stdout.write(json.dumps({**answer, "id": request.get("id")}) + "\n")
    sys.stdout.flush()


def _done(host: Host, request: dict[str, Any]) -> dict[str, Any]:
    if "start" in request:
        return host.start(request["start"])
    if "look" in request:
        return host.look()
    if "stacks" in request:
        return host.collect_stacks()
    if "end" in request:
        return {"survivors": host.end()}
    return {"error": "unknown request; known are start, look, stacks, end"}


@dataclass
class Host:
    """One job and what of its files has been sent."""

    process: subprocess.Popen[bytes] | None = None
    out: Path = Path()
    run_id: str = ""
    limit_s: float = 0.0
    grace_s: float = 3.0
    limit_reached: bool = False
    began: float = 0.0
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)  # by name: bytes, time of change

    def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Put the files down and start torchrun."""
        if asked["folder"]:
            Path(asked["folder"]).mkdir(parents=True, exist_ok=True)
        self.out = Path(tempfile.mkdtemp(prefix=f"{asked['run_id']}-", dir=asked["folder"]))
        self.run_id, self.limit_s, self.grace_s = asked["run_id"], asked["limit_s"], asked["grace_s"]
        for name, text in asked["files"].items():
            (self.out / "program" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.out / "program" / name).write_text(text, encoding="utf-8")
        (self.out / "request.json").write_text(json.dumps(asked["request"]), encoding="utf-8")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={asked['ranks']}"]
        program = [str(self.out / "program" / "smoke_train.py")]
        evidence = ["--request", str(self.out / "request.json"), "--out", str(self.out)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        with (self.out / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*launcher, *program, *evidence],
                cwd=self.out,
                env={**inherited, **asked["variables"], MARKER: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - libc is loaded
            )
        self.began = time.monotonic()
        return {"folder": str(self.out)}

    @property
    def mark(self) -> str:
        """What the job's processes carry; not what the server's own carry, which may be on this host too."""
        return f"{self.run_id} through a prefix"

    def hold_limit(self) -> None:
        """End the job at its limit."""
        running = self.process is not None and self.process.poll() is None
        if running and time.monotonic() - self.began > self.limit_s:
            self.limit_reached = True
            self.end()

    def look(self) -> dict[str, Any]:
        """What changed since the last look, as much as fits."""
        self.hold_limit()
        code = self.process.poll() if self.process else None  # before the files, so that the last look has all
        parts, room, more = [], CHUNK, False
        for path in sorted(self.out.glob("[!.]*")):
            if not path.is_file() or path.name == "request.json":
                continue
            part = self._part(path, room)
            if part is not None:
                parts.append(part)
                room -= len(part["data"])
            more = more or room <= 0
            if room <= 0:
                break
        return {"exit_code": code, "limit": self.limit_reached, "parts": parts, "more": more}

    def _part(self, path: Path, room: int) -> dict[str, Any] | None:
        """The unsent end of a growing file; the whole of another that has changed."""
        try:
            status = path.stat()
            sent, changed = self.sent.get(path.name, (0, 0))
            growing = path.name.endswith(GROWING)
            if status.st_size == sent if growing else status.st_mtime_ns == changed:
                return None
            with path.open("rb") as file:
                file.seek(sent if growing else 0)
                data = file.read(room if growing else -1)
        except OSError:
            return None  # it has just been replaced; the next look finds it
        self.sent[path.name] = (sent + len(data), status.st_mtime_ns)
        if path.name == "log.txt" and sent > KEPT_LOG:
            os.truncate(path, 0)  # it is appended to: the next line is written at its start
            self.sent[path.name] = (0, 0)
        return {"file": path.name, "data": base64.b64encode(data).decode(), "append": growing}

    def collect_stacks(self) -> dict[str, Any]:
        """SIGUSR1 to the ranks that have written where they are, which is after they took care of the signal."""
        ours = set(self._processes())
        for path in self.out.glob("rank*.state.json"):
            with contextlib.suppress(OSError, ValueError):
                pid = json.loads(path.read_text())["pid"]
                if pid in ours:
                    os.kill(pid, signal.SIGUSR1)
        return {}

    def end(self) -> list[int]:
        """SIGTERM, a grace, SIGKILL to every process of the job; what is left of them."""
        for number, patience_s in ((signal.SIGTERM, self.grace_s), (signal.SIGKILL, 5.0)):
            deadline = time.monotonic() + patience_s
            for pid in self._processes():
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            while self._processes() and time.monotonic() < deadline:
                time.sleep(0.05)
        return self._processes()

    def remove(self) -> None:
        """Leave no file behind."""
        if self.process is not None:
            shutil.rmtree(self.out, ignore_errors=True)

    def _processes(self) -> list[int]:
        """Living processes that carry the run's id or were left to this program, never itself."""
        if self.process is None:
            return []
        self.process.poll()
        _reap(self.process.pid)
        mark = f"{MARKER}={self.mark}".encode()
        found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_ours(entry, mark)]
        return [pid for pid in found if pid != os.getpid()]


def _is_ours(entry: Path, mark: bytes) -> bool:
    """It carries the mark, or is a child of this program; and has not ended."""
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        if state == "Z":
            return False
        return int(parent) == os.getpid() or mark in (entry / "environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False


def _reap(spared: int) -> None:
    """Collect adopted orphans that have ended; torchrun's own end is collected by its Popen."""
    with contextlib.suppress(OSError):
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) == os.getpid() and int(entry.name) != spared:
                    os.waitpid(int(entry.name), os.WNOHANG)


def _prctl(option: int, value: int = 1) -> None:
    if sys.platform == "linux":
        LIBC.prctl(option, value)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a thread still waits for stdin
