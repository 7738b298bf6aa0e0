"""Diagnose a large log: seconds, and peak memory of the process above what its imports take.

Run: python benchmarks/diagnose_large_log.py [--mb 200] [--kind mixed|prose|nccl|errors]
Budget: 200 MB of a mixed log within 5 s and 150 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import string
import tempfile
import time
from pathlib import Path

from ep_overlap_mcp.diagnosis import diagnose

WORDS = ["the", "of", "in", "a", "to", "and", "is", "for", "token", "expert", "router", "value", "rank", "answer"]
HEAD = """\
[start] torch=2.9.0 megatron-core=0.16.1 transformer-engine=2.10.0
  overlap_moe_expert_parallel_comm ................ True
  moe_token_dispatcher_type ....................... flex
  moe_flex_dispatcher_backend ..................... deepep
[start] deep_ep 1.2.1 (device code built with NVSHMEM 3.4.5)
[start] libnvshmem_host.so.3: NVSHMEM v3.6.5
"""
TAIL = """\
[rank11]: Traceback (most recent call last):
[rank11]:   File "deep_ep/buffer.py", line 412, in internode_dispatch
[rank11]: RuntimeError: DeepEP error: timeout (dispatch CPU)
"""


def step(chance: random.Random, number: int) -> str:
    """An iteration as Megatron-LM logs it."""
    return (
        f" [2026-08-01 10:{number // 60 % 60:02}:{number % 60:02}.123] iteration {number:8}/ 1000000 |"
        f" consumed samples: {number * 192:12} | elapsed time per iteration (ms): {chance.gauss(9000, 50):.1f} |"
        f" learning rate: 1.0E-05 | global batch size:   192 | lm loss: {chance.gauss(8, 0.1):.6E} |"
        f" loss scale: 1.0 | grad norm: {chance.gauss(1, 0.1):.3f} | number of skipped iterations:   0 |\n"
    )


def nccl(chance: random.Random, number: int) -> str:
    """A line of NCCL_DEBUG=INFO from one of 512 ranks."""
    rank = number % 512
    return (
        f"[rank{rank}]: node{rank // 8:03}:{number % 99999}:{number % 9999} [{rank % 8}] NCCL INFO Channel "
        f"{number % 32:02}/0 : {rank}[{rank % 8}] -> {chance.randrange(512)}[{rank % 8}] via P2P/CUMEM\n"
    )


def prose(chance: random.Random, number: int) -> str:
    """A rollout of a Ray actor: text that never comes twice."""
    return f"(Actor pid={number}) sample {number}: " + " ".join(chance.choices(WORDS, k=18)) + "\n"


def error(chance: random.Random, number: int) -> str:
    """Hostile: every line names another error on another rank."""
    return f"[rank{number % 4096}]: {chance.choice(WORDS)}{number}Error: {' '.join(chance.choices(WORDS, k=12))}\n"


KINDS = {
    "mixed": (step, nccl, nccl, prose),
    "prose": (prose,),
    "nccl": (nccl,),
    "errors": (error,),
}


def write(path: Path, megabytes: int, kind: str) -> None:
    """A log of the given size whose last lines hold the failure."""
    chance = random.Random(1)  # noqa: S311
    lines = [maker(chance, number) for number in range(20_000) for maker in KINDS[kind]]
    with path.open("w") as file:
        file.write(HEAD)
        while file.tell() < megabytes << 20:
            chance.shuffle(lines)
            # letters that no other pass has, so that a line of prose never comes twice
            mark = " ".join(chance.choices(string.ascii_lowercase, k=5))
            file.writelines(line.replace(" of ", f" {mark} of ") for line in lines)
        file.write(TAIL)


def main() -> None:
    """Write a log, diagnose it, print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--kind", choices=KINDS, default="mixed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        write(path, args.mb, args.kind)
        start_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start, start_cpu = time.perf_counter(), time.process_time()
        result = diagnose([path])
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "kind": args.kind,
                "mb": args.mb,
                "seconds": round(seconds, 2),
                "cpu_seconds": round(cpu, 2),
                "peak_mb": peak // 1024,
                "peak_before_mb": start_rss // 1024,
                "cause": result.causes[0].cause,
                "first_failure": result.first_failure and result.first_failure.rank,
            }
        )
    )


if __name__ == "__main__":
    main()
