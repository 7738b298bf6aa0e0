"""EPO165, EPO166: layers made for inference in a configuration that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, core, put, rule, violated_by
from ep_overlap_mcp.rules.sources import core_config

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

IMPLEMENTATION = "model.transformer_impl"
_INFERENCE = "inference_optimized"


@rule(
    "EPO165",
    "inference-options-need-their-implementation",
    ERROR,
    enforced=[
        core(">=0.16,<0.17", options=("inference_fuse_tp_communication",)),
        core(">=0.17", options=("inference_fuse_tp_communication", "inference_disable_triton_nvls_kernels")),
    ],
    source=[core_config("0.16.1", "1993-1997"), core_config("0.19.0", "2854-2868")],
    about=["model.inference_fuse_tp_communication", "model.inference_disable_triton_nvls_kernels"],
    unknown=NOTED,
    fixes=[put(inference_fuse_tp_communication=False, inference_disable_triton_nvls_kernels=False)],
)
def inference_options_need_their_implementation(view: View, options: tuple[str, ...]) -> Check:
    """What it checks: options of the inference-optimized layers with another `transformer_impl`.

    Why: Megatron-Core asserts it.

    Example: `--inference-fuse-tp-communication` in a training run

    Fix: turn them off.
    """
    return violated_by(
        [
            (view[f"model.{name}"].on, f"`{name}` is on with transformer_impl {view[IMPLEMENTATION]}")
            for name in options
        ],
        when=view[IMPLEMENTATION] != _INFERENCE,
        expected="both off",
    )


@rule(
    "EPO166",
    "inference-layers-limits",
    ERROR,
    enforced=[core(">=0.16,<0.17", with_experts=False), core(">=0.17", with_experts=True)],
    source=[core_config("0.16.1", "1980-1985"), core_config("0.19.0", "1471-1500")],
    about=[IMPLEMENTATION],
    unknown=NOTED,
    fixes=[put(transformer_impl="transformer_engine")],
)
def inference_layers_limits(view: View, *, with_experts: bool) -> Check:
    """What it checks: the inference-optimized layers with a norm, a bias or an expert setting that they do not have.

    Why: Megatron-Core asserts it; the experts' part is of 0.17.

    Example: `--transformer-impl inference_optimized` with LayerNorm

    Fix: `transformer_impl=transformer_engine`: these layers are no help in training.
    """
    kinds = ("layernorm_zero_centered_gamma", "add_bias_linear", "add_qkv_bias", "use_kitchen")
    limits = [(view["model.normalization"] != "RMSNorm", f"normalization is {view['model.normalization']}")]
    limits += [(view[f"model.{name}"].on, f"`{name}` is on") for name in kinds]
    if with_experts:
        experts = view["model.num_moe_experts"].is_set
        limits += [
            (experts & (view["model.expert_tensor_parallel_size"] > 1), "experts are split by tensor parallelism"),
            (experts & view["model.moe_expert_capacity_factor"].is_set, "`moe_expert_capacity_factor` is set"),
            (experts & view["model.moe_router_padding_for_quantization"].on, "the router pads for quantization"),
            (experts & (view["model.moe_router_dtype"] != "fp32"), "`moe_router_dtype` is not fp32"),
            (experts & view["model.gated_linear_unit"].on, "`gated_linear_unit` is on"),
        ]
    return violated_by(
        [(violation, f"{text}, which {_INFERENCE} layers do not have") for violation, text in limits],
        when=view[IMPLEMENTATION] == _INFERENCE,
        expected="transformer_impl = transformer_engine",
    )
