"""The installed Megatron as judge: a cold `python -c`, a warm worker's verdict, a batch. One run, one machine.

python benchmarks/judge.py [--python PATH] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from ep_overlap_mcp.training_env import TrainingEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable

COLD = """
from megatron.core.transformer import TransformerConfig
TransformerConfig(num_layers=2, hidden_size=512, num_attention_heads=8, num_moe_experts=8,
    expert_model_parallel_size=4, moe_token_dispatcher_type="alltoall", add_bias_linear=False, bf16=True,
    overlap_moe_expert_parallel_comm=True)
"""
SETTINGS = {
    "model.num_layers": 2,
    "model.hidden_size": 512,
    "model.num_attention_heads": 8,
    "model.num_moe_experts": 8,
    "model.expert_model_parallel_size": 4,
    "model.moe_token_dispatcher_type": "alltoall",
    "model.add_bias_linear": False,
    "model.bf16": True,
    "model.overlap_moe_expert_parallel_comm": True,
}
WARM, BATCH = 500, 10_000
WARM_BUDGET_MS = 30.0


def main() -> int:
    """Print the numbers as JSON; exit 1 when the warm verdict is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the training environment's Python")
    parser.add_argument("--rounds", type=int, default=3, help="cold starts to take the median of")
    options = parser.parse_args()
    cold = [seconds(lambda: built_cold(options.python)) for _ in range(options.rounds)]
    with TrainingEnvironment(options.python) as environment:
        start = seconds(lambda: judged(environment))
        warm = sorted(seconds(lambda: judged(environment)) for _ in range(WARM))
        batch = seconds(lambda: environment.judge_all("megatron-core", [SETTINGS] * BATCH))
    median_ms = 1e3 * statistics.median(warm)
    numbers = {
        "cold_python_c_s": round(statistics.median(cold), 3),
        "worker_start_and_first_verdict_s": round(start, 3),
        "warm_verdict_median_ms": round(median_ms, 3),
        "warm_verdict_p99_ms": round(1e3 * warm[int(0.99 * WARM)], 3),
        "batch_verdicts_per_s": round(BATCH / batch),
        "cold_to_warm": round(statistics.median(cold) / statistics.median(warm)),
        "warm_budget_ms": WARM_BUDGET_MS,
    }
    sys.stdout.write(json.dumps(numbers, indent=2) + "\n")
    return int(median_ms > WARM_BUDGET_MS)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of a call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def built_cold(python: str) -> None:
    """What a person would type to let Megatron check a configuration."""
    subprocess.run([python, "-c", COLD], check=True, stdin=subprocess.DEVNULL, capture_output=True)


def judged(environment: TrainingEnvironment) -> None:
    """One verdict, which must be an acceptance."""
    if not environment.judge("megatron-core", SETTINGS).accepted:
        raise SystemExit("the benchmark's configuration was rejected; its numbers would mean nothing")


if __name__ == "__main__":
    sys.exit(main())
