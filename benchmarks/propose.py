"""CPU time of a proposal and of the conflicts matrix for every configuration in a folder: median, p99 and maximum.

python benchmarks/propose.py FOLDER [--stack megatron-core==0.16.1] [--every 1]

Exits 1 when a proposal takes more than the budget. CPU time is taken, as a shared machine's wall clock says little;
each number is the better of two runs, the first of which also loads what the process has not loaded yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.verbs import Question, propose_configuration, requests, wgrad_conflicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUDGET_MS = 100.0


def main() -> int:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stack", default="", help="as for `propose`; without it every release is judged")
    parser.add_argument("--every", type=int, default=1, help="take every n-th file")
    options = parser.parse_args()
    files = sorted(path for path in options.folder.rglob("*") if path.is_file())[:: options.every]
    asked = [question for path in files for question in configurations(path, options.folder, options.stack)]
    if not asked:
        raise SystemExit(f"{options.folder}: holds no configuration that can be read")
    took = {
        "propose": {name(question): cpu_ms(propose_configuration, question) for question in asked},
        "conflicts": {name(question): cpu_ms(wgrad_conflicts, question) for question in asked},
    }
    numbers = {verb: summary(times) for verb, times in took.items()}
    sys.stdout.write(json.dumps({"configurations": len(asked), "budget_ms": BUDGET_MS, **numbers}, indent=2) + "\n")
    return int(max(took["propose"].values()) > BUDGET_MS)


def configurations(path: Path, folder: Path, stack: str) -> Iterator[Question]:
    """A question for each configuration of a file; none for a file that is no configuration."""
    question = Question(files=(path,), roots=(folder,), assume="overlap", stack=stack)
    try:
        found = requests(question)
    except Refusal:
        return
    names = {request.name for request in found} if len(found) > 1 else {None}
    for select in sorted(names, key=str):
        yield Question(files=(path,), roots=(folder,), assume="overlap", stack=stack, select=select)


def name(question: Question) -> str:
    """File and configuration."""
    return f"{question.files[0]} {question.select or ''}".strip()


def cpu_ms(work: Callable[[Question], object], question: Question) -> float:
    """The smaller CPU time of two calls, in milliseconds."""
    times = []
    for _ in range(2):
        begin = time.process_time()
        work(question)
        times.append(1e3 * (time.process_time() - begin))
    return min(times)


def summary(times: dict[str, float]) -> dict[str, object]:
    """Median, 99th percentile, maximum and the slowest."""
    ordered = sorted(times.values())
    slowest = max(times, key=times.__getitem__)
    return {
        "median_ms": round(statistics.median(ordered), 1),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))], 1),
        "max_ms": round(ordered[-1], 1),
        "slowest": slowest,
    }


if __name__ == "__main__":
    sys.exit(main())
