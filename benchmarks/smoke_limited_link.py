"""Does overlap pay on a slow link? Real Megatron-Core schedule, loopback limited to 500 Mbit/s.

    sudo python benchmarks/smoke_limited_link.py [--python PYTHON] [--rate 500mbit] [--pairs 12]

Needs root, ip and tc (iproute2). Makes a network namespace of its own, limits its loopback with tc's token
bucket filter, and runs the smoke program in it twice: comm nodes on their own thread ("threads"), and in program
order ("inline"), the control that cannot overlap anything. Prints a JSON line a mode and variant: the median of
baseline / variant over interleaved pairs with a bootstrap 95 % interval. Exit 1 unless the overlap variant is
measurably faster (its whole interval above 1) with "threads" and is not with "inline".

Run it on an idle machine with two cores or more: the two ranks use them fully, and other work drowns the effect
(`load` is the load average of the minute before the run). Two cores without native bf16 products take ten minutes.

The numbers are about two CPU ranks and a slow link: no forecast for GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoke_cpu import MODEL, smoke_run, train

if TYPE_CHECKING:
    from collections.abc import Iterator

# fine-grained experts: much traffic for little arithmetic, also where bf16 products are slow (no AVX512_BF16)
WIDE = MODEL | {
    "hidden_size": 512, "ffn_hidden_size": 1024, "num_moe_experts": 8, "moe_router_topk": 4, "moe_ffn_hidden_size": 128,
}  # fmt: skip
BATCH = train(num_microbatches=6, seq_length=256)


def main() -> int:
    """Measure both modes and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rate", default="500mbit", help="as tc spells it")
    parser.add_argument("--pairs", type=int, default=12)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    with limited_loopback(arguments.rate) as namespace, tempfile.TemporaryDirectory() as scratch:
        lines = {mode: measure(arguments, namespace, Path(scratch) / mode, mode) for mode in ("threads", "inline")}
    faster = {mode: variants["overlap"]["ci95"][0] > 1 for mode, variants in lines.items()}
    return 0 if faster == {"threads": True, "inline": False} else 1


@contextlib.contextmanager
def limited_loopback(rate: str) -> Iterator[str]:
    """A network namespace whose loopback passes no more than the rate."""
    name = f"smoke{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        # at the loopback's own MTU of 64 KiB a packet would not fit the bucket
        run("ip", "-n", name, "link", "set", "lo", "mtu", "1500", "up")
        run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf",
            "rate", rate, "burst", "256kb", "latency", "500ms")  # fmt: skip
        yield name
    finally:
        run("ip", "netns", "del", name)


def run(*command: str) -> None:
    """Run it or fail."""
    subprocess.run(command, check=True)


def measure(arguments: argparse.Namespace, namespace: str, out: Path, mode: str) -> dict[str, dict[str, Any]]:
    """One smoke run in the namespace; a line a variant."""
    out.mkdir()
    load = round(os.getloadavg()[0], 1)
    variants = ["baseline", "overlap", "overlap_delay_wgrad"] if mode == "threads" else ["baseline", "overlap"]
    request = {"model": WIDE, "train": BATCH, "mode": mode, "variants": variants, "pairs": arguments.pairs,
               "wall_limit_s": 900, "collective_timeout_s": 120}  # fmt: skip
    prefix = ("ip", "netns", "exec", namespace, "env", "GLOO_SOCKET_IFNAME=lo")
    status = smoke_run(arguments.python, out, 2, request, prefix)
    result = json.loads((out / "result.json").read_text())
    if status or not all(row["equal"] for row in result["steps"]):
        raise SystemExit(f"{mode}: the run failed or its numbers differ: {result['failure']}")
    lines = {}
    for variant, timing in result["timing"].items():
        ratios = [pair["ms"]["baseline"] / pair["ms"]["variant"] for pair in timing["pairs"]]
        overlap = result["overlap"][variant][0]
        lines[variant] = {
            "rate": arguments.rate,
            "load": load,
            "mode": mode,
            "variant": variant,
            "ratio": round(statistics.median(ratios), 3),
            "ci95": bootstrap(ratios),
            "pairs": len(ratios),
            "baseline_ms": round(statistics.median(pair["ms"]["baseline"] for pair in timing["pairs"])),
            "variant_ms": round(statistics.median(pair["ms"]["variant"] for pair in timing["pairs"])),
            "all_to_all_ms": round(overlap["all_to_all_ms"]),
            "all_to_all_hidden_ms": round(overlap["all_to_all_hidden_ms"]),
            "all_to_all_mb": round(overlap["all_to_all_bytes"] / 1e6, 1),
        }
        print(json.dumps(lines[variant]), flush=True)
    return lines


def bootstrap(ratios: list[float], resamples: int = 10_000) -> list[float]:
    """The 95 % interval of the median."""
    draw = random.Random(0)  # noqa: S311  # resampling, not a secret
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return [round(medians[round(q * (resamples - 1))], 3) for q in (0.025, 0.975)]


if __name__ == "__main__":
    sys.exit(main())
