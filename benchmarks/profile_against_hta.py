"""Time and memory of the profile analysis against HolisticTraceAnalysis, on one big trace, in one run.

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis==0.5.0 'pandas<3'
    python benchmarks/profile_against_hta.py TRACE.json.gz --hta-python hta/bin/python

The big trace is TRACE repeated in time until it holds the megabytes asked for. Every contender is a process of its
own, measured whole: start, imports, reading, answer. The floor is what no reader can avoid: decompression as a
stream, and a structural scan of the text without making objects of it. Exit code 1: a budget is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

FASTER, SMALLER, ABOVE_FLOOR = 25.0, 20.0, 3.0

OURS = """
import sys
from pathlib import Path
from ep_overlap_mcp.profiles import analyze
print(analyze([Path(sys.argv[1])]).devices[0].hidden_pct)
"""

HTA = """
import os, sys
from hta.trace_analysis import TraceAnalysis
trace = sys.argv[1]
analysis = TraceAnalysis(trace_files={0: trace}, trace_dir=os.path.dirname(trace))
print(analysis.get_comm_comp_overlap(visualize=False).values.tolist()[0][1])
"""

FLOOR = """
import sys
import msgspec
from isal import igzip
pieces = []
with igzip.open(sys.argv[1], "rb") as file:
    while piece := file.read(1 << 18):
        if sys.argv[2] == "scan":
            pieces.append(piece)
if pieces:
    text = b"".join(pieces)
    del pieces
    import time
    start = time.process_time()
    msgspec.json.decode(text, type=msgspec.Raw)
    print(time.process_time() - start)
"""


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    answer: str


def main() -> int:
    """Measure and judge; the exit code."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="profile-benchmark-") as folder:
        big = Path(folder) / "big.json.gz"
        # elsewhere, because a process begins with the peak memory of the one it is forked from
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            size = pool.submit(repeat_in_time, arguments.trace, big, arguments.megabytes).result()
        print(f"{big.stat().st_size / 1e6:.1f} MB gzip, {size / 1e6:.1f} MB JSON")
        gunzip = run(sys.executable, FLOOR, str(big), "gunzip")
        scan = run(sys.executable, FLOOR, str(big), "scan")
        ours = min((run(sys.executable, OURS, str(big)) for _ in range(arguments.runs)), key=lambda cost: cost.cpu_s)
        hta = run(arguments.hta_python, HTA, str(big)) if arguments.hta_python else None
    floor_s = gunzip.cpu_s + float(scan.answer)
    print(f"floor: gunzip {gunzip.cpu_s:.2f} s + structural scan {float(scan.answer):.2f} s = {floor_s:.2f} s CPU")
    print(f"ours:  {ours.cpu_s:.2f} s CPU, {ours.wall_s:.2f} s, {ours.peak_mb:.0f} MB, hidden {ours.answer} %")
    met = [judge("above the floor", ours.cpu_s / floor_s, at_most=ABOVE_FLOOR)]
    if hta:
        print(f"HTA:   {hta.cpu_s:.2f} s CPU, {hta.wall_s:.2f} s, {hta.peak_mb:.0f} MB, overlap {hta.answer} %")
        met.append(judge("faster than HTA", hta.cpu_s / ours.cpu_s, at_least=FASTER))
        met.append(judge("less memory than HTA", hta.peak_mb / ours.peak_mb, at_least=SMALLER))
    return 0 if all(met) else 1


def judge(what: str, ratio: float, *, at_least: float = 0.0, at_most: float = float("inf")) -> bool:
    """Print a ratio beside its budget."""
    met = at_least <= ratio <= at_most
    budget = f"at least {at_least:g}" if at_least else f"at most {at_most:g}"
    print(f"{ratio:6.1f} x {what} (budget {budget}): {'met' if met else 'MISSED'}")
    return met


def run(python: str, program: str, *arguments: str) -> Cost:
    """A program in a process of its own; its peak memory and CPU time as the kernel counted them."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    answer = process.stdout.read().strip() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{python} failed with exit code {process.returncode}")
    peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return Cost(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, peak, answer)


def repeat_in_time(trace: Path, out: Path, megabytes: int) -> int:
    """Write `trace` again and again, each copy after the one before; the bytes of JSON written."""
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as file:
        content = json.load(file)
    events = content.pop("traceEvents")
    timed = [event for event in events if "dur" in event]
    span = max(event["ts"] + event["dur"] for event in timed) - min(event["ts"] for event in timed) + 1000
    correlations = 1 + max(_correlation(event) for event in events)
    written = copy = 0
    with gzip.open(out, "wt", compresslevel=4) as file:
        written += file.write(json.dumps(content)[:-1] + ', "traceEvents": [\n')
        while written < megabytes * 1_000_000:
            for at, event in enumerate(events):
                shifted = _shifted(event, copy, span, correlations)
                written += file.write((",\n" if copy or at else "") + json.dumps(shifted, indent=2))
            copy += 1
        written += file.write("\n]}")
    return written


def _shifted(event: dict[str, Any], copy: int, span: float, correlations: int) -> dict[str, Any]:
    """The event in a later copy: later, with its own correlation, in a step of its own."""
    shifted = dict(event)
    if "ts" in event:
        shifted["ts"] = event["ts"] + copy * span
    if _correlation(event) >= 0:
        shifted["args"] = {**event["args"], "correlation": event["args"]["correlation"] + copy * correlations}
    if str(event.get("name", "")).startswith("ProfilerStep#"):
        shifted["name"] = f"ProfilerStep#{int(event['name'].split('#')[1]) + 1000 * copy}"
    return shifted


def _correlation(event: dict[str, Any]) -> int:
    value = (event.get("args") or {}).get("correlation", -1)
    return value if isinstance(value, int) else -1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path, help="a real Kineto trace with NCCL kernels")
    parser.add_argument("--hta-python", help="Python of an environment with HolisticTraceAnalysis")
    parser.add_argument("--megabytes", type=int, default=461)
    parser.add_argument("--runs", type=int, default=3, help="of ours; the least CPU time counts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
