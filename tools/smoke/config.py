"""Megatron's config from the request: typed values, the variant's switches, what the engine forces."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import TYPE_CHECKING, Any

from .request import RequestError

if TYPE_CHECKING:
    import torch

    from .engine import Engine
    from .faults import Planted
    from .request import Request

REPRODUCIBLE = {
    "hidden_dropout": (0.0, "the schedules would draw different random masks"),
    "attention_dropout": (0.0, "the schedules would draw different random masks"),
    "moe_input_jitter_eps": (None, "the schedules would draw different noise"),
    "moe_router_force_load_balancing": (False, "the schedules would draw different random routes"),
    "moe_router_force_biased": (None, "the schedules would draw different random routes"),
}
CPU_FIELDS = {
    **REPRODUCIBLE,
    "use_cpu_initialization": (True, "weights are made on the CPU"),
    "moe_grouped_gemm": (False, "grouped GEMM is a CUDA kernel; experts run one after another"),
    "gradient_accumulation_fusion": (False, "the fused kernel is CUDA only"),
    "bias_dropout_fusion": (False, "fused kernels are CUDA only"),
    "bias_activation_fusion": (False, "fused kernels are CUDA only"),
    "masked_softmax_fusion": (False, "fused kernels are CUDA only"),
    "apply_rope_fusion": (False, "fused kernels are CUDA only"),
    "cross_entropy_loss_fusion": (False, "fused kernels are CUDA only"),
    "moe_permute_fusion": (False, "fused kernels are CUDA only"),
    "moe_router_fusion": (False, "fused kernels are CUDA only"),
    "use_te_activation_func": (False, "needs Transformer Engine"),
    "batch_p2p_comm": (False, "gloo has no batched send and receive"),
    "cuda_graph_impl": ("none", "there are no CUDA graphs on the CPU"),
    "fp8": (None, "FP8 needs Transformer Engine and a GPU"),
    "fp4": (None, "FP4 needs Transformer Engine and a GPU"),
}
LOCAL_FIELDS = {name: CPU_FIELDS[name] for name in ("moe_grouped_gemm", "use_te_activation_func", "fp8", "fp4")}
DTYPE_FIELDS = ("params_dtype", "pipeline_dtype", "autocast_dtype", "main_grads_dtype", "main_params_dtype",
                "exp_avg_dtype", "exp_avg_sq_dtype")  # fmt: skip


def transformer_config(request: Request, engine: Engine, name: str, planted: Planted) -> Any:
    """The installed Megatron's config for the variant."""
    _refuse_what_cannot_run(request, engine)
    values = typed_values(config_class(request), request.model, "model")
    values.update(_precision(values))
    for setting, change in adjustments(request, engine).items():
        values[setting] = change["to"]
    overlap = planted.overlap_switch(name, asked=name != "baseline")
    values["overlap_moe_expert_parallel_comm"] = overlap
    values["delay_wgrad_compute"] = overlap and name == "overlap_delay_wgrad"
    if not overlap:  # valid with the overlap only
        values.pop("ep_overlap_early_attn_memory_release", None)
    return config_class(request)(**values)


def _refuse_what_cannot_run(request: Request, engine: Engine) -> None:
    """Where Megatron itself would fail without saying why."""
    if request.model.get("moe_token_dispatcher_type") == "flex" and not engine.on_gpu:
        raise RequestError("model.moe_token_dispatcher_type: flex needs a GPU; gloo-cpu runs alltoall")
    if request.model.get("multi_latent_attention") and not engine.transformer_engine:
        # local DotProductAttention takes no k_channels: megatron-core 0.16.1 and 0.19.0
        raise RequestError("model.multi_latent_attention: needs Transformer Engine, which is not usable here")


def config_class(request: Request) -> Any:
    """TransformerConfig, or its subclass for multi-latent attention."""
    from megatron.core.transformer import transformer_config

    mla = request.model.get("multi_latent_attention")
    return transformer_config.MLATransformerConfig if mla else transformer_config.TransformerConfig


def adjustments(request: Request, engine: Engine) -> dict[str, dict[str, Any]]:
    """Fields that the engine forces to another value than the request (or the default) has."""
    changed = {}
    defaults = {f.name: f.default for f in dataclasses.fields(config_class(request))}
    for name, (forced, why) in _forced(engine).items():
        if name in defaults:
            asked = request.model.get(name, defaults[name])
            if asked != forced:
                changed[name] = {"setting": f"model.{name}", "from": asked, "to": forced, "why": why}
    modules = request.model.get("recompute_modules") or []
    if "moe_act" in modules and "moe_grouped_gemm" in _forced(engine):
        changed["recompute_modules"] = {
            "setting": "model.recompute_modules",
            "from": modules,
            "to": [module for module in modules if module != "moe_act"],
            "why": "moe_act is recomputed in grouped GEMM only",
        }
    return changed


def _forced(engine: Engine) -> dict[str, tuple[Any, str]]:
    """Config fields that the engine must set, each with the value and the reason."""
    if not engine.on_gpu:
        return CPU_FIELDS
    fields = REPRODUCIBLE | ({} if engine.transformer_engine else LOCAL_FIELDS)
    if importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is None and not engine.transformer_engine:
        fields["gradient_accumulation_fusion"] = (False, "APEX's fused kernel is not installed")
    if engine.backend == "gloo":
        fields["batch_p2p_comm"] = CPU_FIELDS["batch_p2p_comm"]
    fields["deterministic_mode"] = (True, "the variants are compared number by number")
    return fields


def typed_values(kind: Any, given: dict[str, Any], where: str) -> dict[str, Any]:
    """JSON values as the config class wants them."""
    known = {f.name for f in dataclasses.fields(kind)}
    if unknown := sorted(set(given) - known):
        import megatron.core

        raise RequestError(
            f"{where}.{unknown[0]}: {kind.__name__} of megatron-core {megatron.core.__version__} has no such field"
        )
    return {name: _value(name, value) for name, value in given.items()}


def _value(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name in DTYPE_FIELDS:
        return _dtype(value)
    if name == "activation_func":
        return _activation(value)
    if name == "attention_backend":
        from megatron.core.transformer.enums import AttnBackend

        return AttnBackend[value.rpartition(".")[2]]
    return value


def _dtype(name: str) -> torch.dtype:
    import torch

    short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    bare = name.removeprefix("torch.")
    dtype = getattr(torch, short.get(bare, bare), None)
    if not isinstance(dtype, torch.dtype):
        raise RequestError(f"`{name}` is no torch dtype; write bfloat16, float16 or float32")
    return dtype


def _activation(name: str) -> Any:
    from megatron.core import activations
    from megatron.core.fusions import fused_bias_geglu
    from torch.nn import functional

    bare = name.rpartition(".")[2]
    # quick_gelu stands in both of Megatron's modules; the one of the fused kernels is the one it knows again
    places = (functional, fused_bias_geglu, activations)
    function = next((getattr(place, bare) for place in places if hasattr(place, bare)), None)
    if function is None:
        raise RequestError(f"model.activation_func: `{name}` is neither in torch.nn.functional nor megatron.core")
    return function


def _precision(values: dict[str, Any]) -> dict[str, Any]:
    """The dtypes that Megatron-LM's arguments derive from bf16 and fp16."""
    import torch

    half = torch.bfloat16 if values.get("bf16") else torch.float16 if values.get("fp16") else torch.float32
    dtype = values.get("params_dtype", half)
    return {"params_dtype": dtype, "pipeline_dtype": values.get("pipeline_dtype", dtype)}
