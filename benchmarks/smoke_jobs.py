"""How long a smoke run takes from the request to the verdict, on CPU ranks, against the budgets.

    python benchmarks/smoke_jobs.py [--python PYTHON]

PYTHON has torch and megatron-core (default: this one). Prints one JSON line a run: seconds to plan, to start, to the
verdict and to cancel a running job with all its processes gone. Exit 1 when a budget is missed or a verdict is not
that of a sound run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

from ep_overlap_mcp import smoke
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.smoke.options import SmokeOptions
from ep_overlap_mcp.smoke.processes import processes_of
from ep_overlap_mcp.smoke.store import STATE_DIR
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.training_env import TrainingEnvironment

MODEL = {
    "num_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "ffn_hidden_size": 6144,
    "num_moe_experts": 64, "moe_router_topk": 2, "moe_ffn_hidden_size": 768, "expert_model_parallel_size": 16,
    "moe_token_dispatcher_type": "alltoall", "moe_router_dtype": "fp32", "bf16": True, "add_bias_linear": False,
    "overlap_moe_expert_parallel_comm": True,
}  # fmt: skip
PIPELINE = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 3}
RUNS = {"EP2": (45.0, MODEL), "PP2 x VPP2 x EP2": (90.0, MODEL | PIPELINE)}  # name: seconds to the verdict, model
CANCEL_BUDGET_S = 8.0


def main() -> int:
    """Run each and print its line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--python", default=sys.executable)
    environment = TrainingEnvironment(parser.parse_args().python)
    with tempfile.TemporaryDirectory() as state:
        os.environ[STATE_DIR] = state
        lines = [_verdict(environment, name, *run) for name, run in RUNS.items()]
        lines.append(_cancelled(environment))
    for line in lines:
        print(json.dumps(line))
    return 0 if all(line["ok"] for line in lines) else 1


def _plan(environment: TrainingEnvironment, model: dict[str, Any]) -> Any:
    reading = Reading("json", "job.json", framework="megatron-core")
    for line, (name, value) in enumerate(model.items(), start=1):
        reading.add(f"model.{name}", value, line=line, text=f"{name}={value}")
    ranks = 4 if "pipeline_model_parallel_size" in model else 2
    return smoke.plan(build_request([reading]), environment, SmokeOptions(ranks=ranks))


def _verdict(environment: TrainingEnvironment, name: str, budget_s: float, model: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    plan = _plan(environment, model)
    planned = time.monotonic()
    result = smoke.start(plan)
    started = time.monotonic()
    while result.status in ("queued", "running"):
        result = smoke.get(result.id, 25)
    wall = time.monotonic() - began
    sound = (result.overlap_ran.verdict, result.numerics.verdict) == ("yes", "unchanged")
    return {
        "run": name,
        "plan_s": round(planned - began, 2),
        "start_s": round(started - planned, 2),
        "verdict_s": round(wall, 1),
        "budget_s": budget_s,
        "summary": result.summary,
        "ok": sound and wall <= budget_s,
    }


def _cancelled(environment: TrainingEnvironment) -> dict[str, Any]:
    result = smoke.start(_plan(environment, MODEL))
    while "parity" not in smoke.get(result.id, 0.5).progress:
        pass
    began = time.monotonic()
    smoke.cancel(result.id)
    while processes_of(result.id):
        time.sleep(0.05)
    wall = time.monotonic() - began
    return {"run": "cancel", "gone_s": round(wall, 2), "budget_s": CANCEL_BUDGET_S, "ok": wall <= CANCEL_BUDGET_S}


if __name__ == "__main__":
    sys.exit(main())
