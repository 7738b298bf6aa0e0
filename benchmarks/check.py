"""`check` and `propose` against their budgets, as ratios in one run on one machine.

python benchmarks/check.py [--python PATH] [--rounds 5] [--calls 200]

- cold: `ep-overlap-mcp check` on a 300-line script against `python -c` building the installed TransformerConfig, in
  turns; budget: under a tenth.
- running server: `check_overlap_config` over stdio, one call after the other: what-ifs about that script (budget: 5 ms
  median), and a script that is new in every call.
- proposals for that script and the example; budget: 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp import Client, StdioServerParameters

from ep_overlap_mcp.reports.brief import brief
from ep_overlap_mcp.reports.text import as_text
from ep_overlap_mcp.rules.checking import check
from ep_overlap_mcp.verbs import Question, propose_configuration, requests

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = Path(__file__).parents[1] / "examples" / "qwen3_30b_a3b_16xh100.sh"
STACK = "megatron-lm==0.16.1,transformer-engine==2.9.0,torch==2.9.0"
COLD = """
from megatron.core.transformer import TransformerConfig
TransformerConfig(num_layers=48, hidden_size=2048, num_attention_heads=32, num_moe_experts=128,
    expert_model_parallel_size=16, moe_token_dispatcher_type="alltoall", add_bias_linear=False, bf16=True,
    overlap_moe_expert_parallel_comm=True)
"""
LINES = 300
COLD_BUDGET, SERVER_BUDGET_MS, PROPOSAL_BUDGET_MS = 0.1, 5.0, 100.0

BLOCKS = {
    "NETWORK": """num-layers 48|hidden-size 2048|ffn-hidden-size 6144|num-attention-heads 32|group-query-attention
        num-query-groups 4|kv-channels 128|qk-layernorm|seq-length 4096|max-position-embeddings 40960|swiglu
        position-embedding-type rope|rotary-base 1000000|rotary-percent 1.0|normalization RMSNorm|norm-epsilon 1e-6
        disable-bias-linear|untie-embeddings-and-output-weights|attention-dropout 0.0|hidden-dropout 0.0
        init-method-std 0.02|make-vocab-size-divisible-by 1187|attention-backend flash
        transformer-impl transformer_engine|cross-entropy-loss-fusion|cross-entropy-fusion-impl te
        no-masked-softmax-fusion""",
    "EXPERTS": """num-experts 128|moe-router-topk 8|moe-ffn-hidden-size 768|moe-router-load-balancing-type aux_loss
        moe-aux-loss-coeff 1e-3|moe-router-dtype fp32|moe-grouped-gemm|moe-permute-fusion
        moe-token-dispatcher-type alltoall|moe-router-score-function softmax|moe-layer-freq 1""",
    "PARALLEL": """tensor-model-parallel-size ${TP}|pipeline-model-parallel-size ${PP}|context-parallel-size ${CP}
        expert-model-parallel-size ${EP}|expert-tensor-parallel-size 1|use-distributed-optimizer|overlap-grad-reduce
        overlap-param-gather|distributed-timeout-minutes 60|overlap-moe-expert-parallel-comm""",
    "MEMORY": "recompute-granularity selective|recompute-modules layernorm core_attn|manual-gc|manual-gc-interval 50",
    "TRAINING": """bf16|micro-batch-size ${MBS}|global-batch-size ${GBS}|train-samples 24414062|lr 3.0e-4|min-lr 3.0e-5
        lr-decay-style cosine|lr-decay-samples 24400000|lr-warmup-samples 60000|weight-decay 0.1|clip-grad 1.0
        adam-beta1 0.9|adam-beta2 0.95|seed 1234|optimizer adam|grad-reduce-in-bf16""",
    "DATA": """tokenizer-type HuggingFaceTokenizer|tokenizer-model ${TOKENIZER}|data-path ${DATA}|split 99,1,0
        num-workers 6|no-mmap-bin-files|no-create-attention-mask-in-dataloader""",
    "OUTPUT": """save ${OUT}/checkpoints|load ${OUT}/checkpoints|save-interval 500|eval-interval 200|eval-iters 32
        log-interval 1|log-throughput|tensorboard-dir ${OUT}/tensorboard|wandb-project moe|wandb-exp-name ${NAME}
        logging-level 40|ckpt-format torch_dist|async-save|auto-detect-ckpt-format|dist-ckpt-strictness log_all""",
}


def script(lines: int = LINES) -> str:
    """A launch script as teams keep them: settings at the top, a block of flags a topic, comments, one command."""
    head = ["#!/usr/bin/env bash", "set -euo pipefail", ""]
    head += [f"export {name}" for name in ("CUDA_DEVICE_MAX_CONNECTIONS=32", "NVTE_FLASH_ATTN=1", "NCCL_DEBUG=WARN")]
    head += [f"export SITE_VARIABLE_{number}=value-{number}" for number in range(40)]
    sizes = {"TP": 1, "PP": 1, "CP": 1, "EP": 16, "MBS": 1, "GBS": 1024}
    head += ["", *(f"{name}=${{{name}:-{value}}}" for name, value in sizes.items())]
    head += [
        "OUT=${OUT:-/scratch/moe}",
        "NAME=${NAME:-moe-30b}",
        "DATA=${OUT}/data/corpus",
        "TOKENIZER=${OUT}/tokenizer",
    ]
    body: list[str] = []
    for name, flags in BLOCKS.items():
        words = [word.strip() for word in flags.replace("\n", "|").split("|")]
        body += [
            "",
            f"# {name.lower()}: as agreed in the last review",
            f"{name}=(",
            *(f"    --{w}" for w in words),
            ")",
        ]
    call = " ".join(f'"${{{name}[@]}}"' for name in BLOCKS)
    tail = ["", f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {call}"]
    notes = lines - len(head) - len(body) - len(tail)
    comments = [f"# {number}: what we tried before, and why it is not used any more" for number in range(notes)]
    return "\n".join([*head, *comments, *body, *tail]) + "\n"


def main() -> int:
    """Print the numbers as JSON; exit 1 when one is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the training environment's Python")
    parser.add_argument("--rounds", type=int, default=5, help="cold starts of each kind")
    parser.add_argument("--calls", type=int, default=200, help="calls to the running server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.sh"
        path.write_text(script(), encoding="utf-8")
        numbers = cold(options.python, path, options.rounds)
        numbers |= asyncio.run(served(path.read_text(encoding="utf-8"), options.calls))
        numbers |= {f"propose_{p.stem}_ms": proposal(p) for p in (path, EXAMPLE)}
    sys.stdout.write(json.dumps(numbers, indent=2) + "\n")
    proposals = [value for name, value in numbers.items() if name.startswith("propose_")]
    over = numbers["cold_ratio"] > COLD_BUDGET or numbers["server_median_ms"] > SERVER_BUDGET_MS
    return int(over or max(proposals) > PROPOSAL_BUDGET_MS)


def cold(python: str, path: Path, rounds: int) -> dict[str, Any]:
    """Seconds of both commands, in turns, and their ratio."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: checked(path)))
        theirs.append(seconds(lambda: run([python, "-c", COLD])))
    return {
        "script_lines": len(path.read_text(encoding="utf-8").splitlines()),
        "cold_check_s": round(statistics.median(ours), 3),
        "cold_transformer_config_s": round(statistics.median(theirs), 3),
        "cold_ratio": round(statistics.median(ours) / statistics.median(theirs), 4),
        "cold_budget": COLD_BUDGET,
    }


def checked(path: Path) -> None:
    """The verdict must be `valid`, or the numbers would be of something else."""
    run([sys.executable, "-m", "ep_overlap_mcp", "check", str(path), "--stack", STACK])


def run(command: list[str]) -> None:
    """A command that must succeed."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


async def served(text: str, calls: int) -> dict[str, Any]:
    """Milliseconds of a call as a client over stdio sees it: what-ifs about one script, and a new script each time."""
    what_ifs = [{"config": text, "settings": {"train.global_batch_size": 1024 + 16 * n}} for n in range(calls)]
    edited = [{"config": text.replace("GBS:-1024", f"GBS:-{1024 + 16 * n}")} for n in range(calls)]
    server = StdioServerParameters(command=sys.executable, args=["-m", "ep_overlap_mcp"])
    async with Client(server) as client:
        first = await timed(client, {"config": text})
        again = sorted([await timed(client, arguments) for arguments in what_ifs])
        new = sorted([await timed(client, arguments) for arguments in edited])
    return {
        "server_first_call_ms": round(first, 2),
        "server_median_ms": round(statistics.median(again), 3),
        "server_p95_ms": round(again[int(0.95 * calls)], 3),
        "server_budget_ms": SERVER_BUDGET_MS,
        "server_new_script_median_ms": round(statistics.median(new), 3),
        **{f"work_{name}_ms": value for name, value in parts(text).items()},
    }


async def timed(client: Client, arguments: dict[str, Any]) -> float:
    """Milliseconds of one call, whose verdict must be `valid`, or the numbers would be of something else."""
    begin = time.perf_counter()
    result = await client.call_tool("check_overlap_config", {**arguments, "stack": STACK})
    taken = 1e3 * (time.perf_counter() - begin)
    if result.is_error or (result.structured_content or {})["verdict"] != "valid":
        raise SystemExit(f"the benchmark's script was not judged valid: {result.content}")
    return taken


def parts(text: str, rounds: int = 50) -> dict[str, float]:
    """Medians of reading, judging and writing, in process."""
    (request,) = requests(Question(text=text, stack=STACK))
    result = check(request)
    fresh = iter(f"{text}# {number}\n" for number in range(rounds))
    work: dict[str, Callable[[], object]] = {
        "read": lambda: requests(Question(text=next(fresh), stack=STACK)),
        "judge": lambda: check(request),
        "write": lambda: (brief(result), as_text([result])),
    }
    return {name: round(1e3 * statistics.median(seconds(one) for _ in range(rounds)), 3) for name, one in work.items()}


def proposal(path: Path, rounds: int = 5) -> float:
    """Milliseconds of a proposal, rules loaded."""
    question = Question(files=(path,), stack=STACK, gpu="H100", roots=(Path("/"),))
    propose_configuration(question)
    return round(1e3 * statistics.median(seconds(lambda: propose_configuration(question)) for _ in range(rounds)), 2)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of a call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
