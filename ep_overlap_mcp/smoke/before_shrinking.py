"""What shrinking would hide: the configuration as it is, judged by its own sizes and by the installed Megatron."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.stack import Component

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.settings.effective import Effective
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.training_env import TrainingEnvironment

POSITIVE = (
    *(f"model.{name}" for name in (
        "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups", "kv_channels",
        "seq_length", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_router_num_groups",
        "moe_router_group_topk", "moe_shared_expert_intermediate_size", "moe_latent_size",
        "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
        "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
    )),
    "train.micro_batch_size", "train.global_batch_size", "hardware.world_size",
)  # fmt: skip
SHARES = ("model.hidden_dropout", "model.attention_dropout")  # from 0 to 1: torch refuses others in the forward pass
DIVIDES = (("model.num_query_groups", "model.num_attention_heads"),)
SHOWN_TO_MEGATRON = "2.10.0"  # Transformer Engine where none is installed: what needs it is stood in for, and said


def impossible_sizes(effective: Effective) -> dict[str, str]:
    """Sizes that no model can have, a line each by the setting: a smaller model would have others, and run."""
    return dict(_impossible(effective))


def _impossible(effective: Effective) -> Iterator[tuple[str, str]]:
    for path in POSITIVE:
        if (size := _number(effective, path)) is not None and size <= 0:
            yield path, f"{path} is {size}: it must be positive"
    for path in SHARES:
        if (share := _number(effective, path)) is not None and not 0 <= share <= 1:
            yield path, f"{path} is {share}: it must lie between 0 and 1"
    for path, other in DIVIDES:
        part, whole = _number(effective, path), _number(effective, other)
        if part and whole and part > 0 and whole % part:
            yield path, f"{path} is {part}: it must divide {other}, which is {whole}"


def _number(effective: Effective, path: str) -> float | None:
    value: Any = effective[path].value
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def rejected_by_megatron(request: Request, result: CheckResult, environment: TrainingEnvironment) -> dict[str, str]:
    """Why the installed Megatron rejects the request, as `check --python` asks it; nothing where it cannot be asked.

    Only a local Megatron is asked: another would have to be started behind the prefix or in the cluster's queue.
    """
    if environment.prefix or environment.cluster:
        return {}
    from ep_overlap_mcp.training_env.judging import judge_request

    if request.stack.version("transformer-engine") is None:
        shown = {**request.stack.components, "transformer-engine": Component(SHOWN_TO_MEGATRON, "given")}
        request = replace(request, stack=replace(request.stack, components=shown))
    said = judge_request(request, result, environment)
    if said.accepted is not False:
        return {}
    place = f" at {said.at}" if said.at else ""
    return {"installed megatron-core": f"the installed megatron-core rejects it: {said.exception}{place}"}
