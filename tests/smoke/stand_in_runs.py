"""Starts runs of the stand-in program and looks for what they leave."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ep_overlap_mcp import smoke
from ep_overlap_mcp.results.smoke import Plan, SmokePlanResult
from ep_overlap_mcp.smoke.planning import SmokePlan
from ep_overlap_mcp.smoke.processes import MARKER
from ep_overlap_mcp.smoke.store import STATE_DIR

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.results.smoke import SmokeResult
    from ep_overlap_mcp.smoke.run_folder import RunFolder

STAND_IN = Path(__file__).parent / "stand_in.py"


def plan_of(*, limit_s: float = 20.0, stall_s: float = 10.0, ranks: int = 2, device_set: str = "cpu") -> SmokePlan:
    """A plan of `ranks` ranks, as small as can be."""
    plan = Plan(kept={}, reduced=[], not_tested=[], emulated=[], variants=["baseline", "overlap"], steps=1, pairs=0)
    shown = SmokePlanResult(
        summary="planned", plan=plan, engine="gloo-cpu", device="CPU", world_size=ranks, stack={}, memory_gib=0.1,
        limit_s=limit_s, findings=[], next="start it",
    )  # fmt: skip
    return SmokePlan(python=sys.executable, request={}, device_set=device_set, stall_s=stall_s, shown=shown)


def stand_in(behaviour: str, ranks: int = 2) -> Callable[[RunFolder], list[str]]:
    """The command of the stand-in, for `smoke.start`."""
    return lambda folder: [sys.executable, str(STAND_IN), behaviour, str(folder.path), str(ranks)]


LAUNCHER = f"""
import json, os, sys, time
words = dict(zip(sys.argv, sys.argv[1:]))
flags = dict(word.split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
ranks = int(flags.get("--nnodes", 1)) * int(flags["--nproc-per-node"])
out = words["--out"]
behaviour = json.load(open(words["--request"]))["behaviour"]
if os.environ.get("SLURM_NODEID", "0") == "0":
    os.execv(sys.executable, [sys.executable, {str(STAND_IN)!r}, behaviour, out, str(ranks)])
while behaviour != "no_result" and not os.path.exists(out + "/result.json"):
    time.sleep(0.1)
"""


def stand_in_torch(folder: Path) -> str:
    """A search path with a torchrun that starts the stand-in by the request's `behaviour`, on the first node."""
    launcher = folder / "libraries" / "torch" / "distributed" / "run.py"
    launcher.parent.mkdir(parents=True)
    for package in (launcher.parent, launcher.parents[1]):
        (package / "__init__.py").touch()
    launcher.write_text(LAUNCHER)
    return str(folder / "libraries")


def start(behaviour: str, **options: float) -> SmokeResult:
    """Start the stand-in."""
    return smoke.start(plan_of(**options), command=stand_in(behaviour))


def until(what: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)


def processes_left(known: set[int] | None = None) -> list[psutil.Process]:
    """Living processes of any smoke run started from this test, and those of `known` numbers."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            marked = MARKER in process.environ() and process.environ().get(STATE_DIR) == os.environ[STATE_DIR]
            if marked or process.pid in (known or ()):
                found.append(process)
        except psutil.Error:
            continue
    return found
