"""Stands in for torchrun and a training program, without torch: the same files, the same shape of process tree.

    python stand_in.py BEHAVIOUR OUT RANKS

The launcher starts each rank in a session of its own, as torchrun does, and closes them on SIGTERM. Ranks

    finish         write a completed result.json after half a second
    no_result      end well without evidence
    run            go on, with a sign of life every tenth of a second
    ignore_term    go on whatever SIGTERM says, with a grandchild that has an empty environment
    deaf           go on whatever SIGTERM says, the launcher as well
    hang           rank 1 sleeps in no collective while the others wait in an all-to-all for it
    late           like hang, but after three seconds all go on and finish
    spew           print three MiB, then finish
    fail           exit with 3
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def launch(behaviour: str, out: Path, ranks: int) -> int:
    children = [
        subprocess.Popen([sys.executable, __file__, behaviour, str(out), str(ranks), str(rank)], start_new_session=True)
        for rank in range(ranks)
    ]

    def close(*_: object) -> None:
        for child in children:
            child.terminate()
        sys.exit(1)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else close)
    return max(child.wait() for child in children)


class Rank:
    def __init__(self, out: Path, rank: int) -> None:
        self.out, self.rank, self.count = out, rank, 0
        faulthandler.register(signal.SIGUSR1, file=(out / f"rank{rank}.stacks.txt").open("a"), all_threads=True)

    def live(self, *, waiting: bool) -> None:
        self.count += 1
        call = {"name": "all_to_all_single", "seq": self.count, "group": "ep", "bytes": 64, "done": not waiting}
        row = {"rank": self.rank, "pid": os.getpid(), "phase": "parity", "variant": "overlap", "step": 0, "last": call}
        draft = self.out / f"draft{self.rank}"
        draft.write_text(json.dumps({**row, "in_flight": [call] if waiting else []}))
        draft.replace(self.out / f"rank{self.rank}.state.json")
        if self.rank == 0:
            with (self.out / "progress.jsonl").open("a") as file:
                file.write(json.dumps({"phase": "parity", "done": self.count, "total": 1000}) + "\n")

    def go_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.live(waiting=False)
            time.sleep(0.1)

    def finish(self, status: str = "completed") -> None:
        if self.rank == 0:
            (self.out / "result.json").write_text(json.dumps({"schema": 1, "status": status}))


def start_orphan() -> None:
    """A grandchild without the marker whose own parent is gone at once."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(120)"], {})  # noqa: S606
        os._exit(0)


def run_rank(behaviour: str, rank: Rank) -> int:
    if behaviour == "fail":
        return 3
    if behaviour == "no_result":
        return 0
    if behaviour in ("ignore_term", "deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "ignore_term":
        start_orphan()
    if behaviour in ("hang", "late"):
        rank.live(waiting=rank.rank != 1)
        time.sleep(3 if behaviour == "late" else 120)
    if behaviour == "spew":
        for _ in range(3 * 2**10):
            sys.stdout.write("x" * 1023 + "\n")
    rank.go_on(0.5 if behaviour in ("finish", "late", "spew") else 120)
    rank.finish()
    return 0


if __name__ == "__main__":
    name, folder, count, *number = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        if not number:
            sys.exit(launch(name, Path(folder), int(count)))
        sys.exit(run_rank(name, Rank(Path(folder), int(number[0]))))
