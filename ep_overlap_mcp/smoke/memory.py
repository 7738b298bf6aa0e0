"""What a run will take of memory, before it takes it. Generous on purpose: it is there to refuse, not to inform."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.smoke.errors import SmokeError

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.machine import Machine

GIB = 2**30
# Of a process with torch and Megatron: resident on the CPU (0.6 GiB seen); context, libraries and NCCL on a GPU
PROCESS_GIB = {"gloo-cpu": 0.8, "gloo-gpu": 2.0, "nccl-gpu": 3.0}
BYTES_A_PARAMETER = 22  # bf16 weight, fp32 weight and gradient, two Adam moments, buffers
IN_FLIGHT = 4  # microbatches whose activations are held
PART = 0.9  # of what is free


def estimate_gib(model: dict[str, Any], train: dict[str, Any], variants: int, engine: str) -> float:
    """GiB of one rank: process, parameters with optimizer of every variant, activations of one."""
    parameters = _parameters(model, train)
    activations = _activation_bytes(model, train)
    return PROCESS_GIB[engine] + (parameters * BYTES_A_PARAMETER * variants + activations) / GIB


def refuse_if_too_big(per_rank_gib: float, ranks: int, machine: Machine) -> float:
    """GiB on the fullest device; SmokeError when that is more than is free."""
    if machine.on_gpu:
        on_one = per_rank_gib * -(-ranks // max(machine.gpus, 1))
        free, where = machine.gpu_memory_gib, "GPU memory"
    else:
        on_one = per_rank_gib * ranks
        free, where = (machine.memory_gib, "memory there") if machine.behind else (free_gib(), "free memory")
    if free is not None and on_one > PART * free:
        raise SmokeError(
            f"the run would take about {on_one:.1f} GiB and there are {free:.1f} GiB of {where}:"
            " take fewer ranks or smaller sizes, or end what else runs here"
        )
    return on_one


def free_gib(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Memory that is available to this process: the host's, or what its control group has left."""
    import psutil

    free = psutil.virtual_memory().available
    try:
        limit = int((cgroup / "memory.max").read_text())
        free = min(free, limit - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group of version 2, or no limit ("max")
        pass
    return free / GIB


def _parameters(model: dict[str, Any], train: dict[str, Any]) -> int:
    """Of the fullest rank, as if it held both the embedding and the output layer."""
    hidden, layers = model["hidden_size"], -(-model["num_layers"] // model["pipeline_model_parallel_size"])
    matrices = 3 if model.get("gated_linear_unit") else 2
    local = -(-model["num_moe_experts"] // model["expert_model_parallel_size"])
    expert = matrices * hidden * (model["moe_ffn_hidden_size"] * local + model["ffn_hidden_size"])
    shared = matrices * hidden * (model.get("moe_shared_expert_intermediate_size") or 0)
    layer = 4 * hidden * hidden + expert + shared
    predictors = model.get("mtp_num_layers") or 0
    return int((layers + predictors) * layer + 2 * train["vocab_size"] * hidden)


def _activation_bytes(model: dict[str, Any], train: dict[str, Any]) -> int:
    tokens = train["seq_length"] * train["micro_batch_size"]
    routed = model["moe_router_topk"] * (8 * model["moe_ffn_hidden_size"] + 8 * model["hidden_size"])
    scores = 6 * model["num_attention_heads"] * train["seq_length"]
    layers = -(-model["num_layers"] // model["pipeline_model_parallel_size"])
    a_token = layers * (34 * model["hidden_size"] + routed + scores) + 10 * train["vocab_size"]
    return int(IN_FLIGHT * tokens * a_token)
