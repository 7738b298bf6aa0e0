"""How long CPU smoke runs take, against their budgets.

    python benchmarks/smoke_cpu.py [--python PYTHON] [--keep FOLDER]

PYTHON has torch and megatron-core (default: this one). Prints one JSON line a run: wall seconds from the start
of torchrun to its end, seconds in each phase on rank 0, the budget, and the evidence that the run was a real one.
Exit 1 when a budget is missed or a run does not complete with equal numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "tools" / "smoke_train.py"
MODEL = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128,
    "num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 128, "expert_model_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall", "moe_router_load_balancing_type": "none",
    "moe_router_dtype": "fp32", "add_bias_linear": False, "bf16": True,
}  # fmt: skip
PIPELINE = {"num_layers": 4, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
RUNS = {  # name: (ranks, budget in seconds, model)
    "EP2": (2, 45, MODEL),
    "PP2 x VPP2 x EP2": (4, 90, MODEL | PIPELINE),
}


def main() -> int:
    """Run each and print its line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--keep", type=Path, help="folder for the evidence (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lines = [
            measure(arguments.python, (arguments.keep or Path(scratch)) / name.replace(" ", ""), name, *run)
            for name, run in RUNS.items()
        ]
    return 0 if all(line["ok"] for line in lines) else 1


def measure(python: str, out: Path, name: str, ranks: int, budget_s: float, model: dict[str, Any]) -> dict[str, Any]:
    """One smoke run: two variants, three parity steps, eight pairs."""
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    status = smoke_run(python, out, ranks, {"model": model, "train": train()})
    wall = time.monotonic() - start
    result = json.loads((out / "result.json").read_text())
    equal = bool(result.get("steps")) and all(row["equal"] for row in result["steps"])
    line = {
        "run": name,
        "wall_s": round(wall, 1),
        "budget_s": budget_s,
        "phases_s": phases(out),
        "megatron_core": result["versions"]["megatron_core"],
        "equal": equal,
        "pairs": len(result["timing"]["overlap"]["pairs"]),
        "ok": status == 0 and equal and wall <= budget_s,
    }
    print(json.dumps(line), flush=True)
    return line


def train(**changes: int) -> dict[str, int]:
    """The batch of a rank."""
    return {"micro_batch_size": 2, "num_microbatches": 4, "seq_length": 32, "vocab_size": 512, **changes}


def smoke_run(python: str, out: Path, ranks: int, request: dict[str, Any], prefix: tuple[str, ...] = ()) -> int:
    """Run the program under torchrun with the rest of the request filled in; the exit status."""
    whole = {"engine": "gloo-cpu", "seed": 1234, "variants": ["baseline", "overlap"], **request}
    (out / "request.json").write_text(json.dumps(whole))
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*prefix, *torchrun, str(PROGRAM), "--request", str(out / "request.json"), "--out", str(out)]
    with (out / "log").open("w") as log:
        return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def phases(out: Path) -> dict[str, float]:
    """Seconds from the first line of each phase to the first line of the next."""
    lines = [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]
    begins: dict[str, float] = {}
    for line in lines:
        begins.setdefault(line["phase"], line["t"])
    return {phase: round(then - begin, 1) for (phase, begin), (_, then) in pairwise(begins.items())}


if __name__ == "__main__":
    sys.exit(main())
