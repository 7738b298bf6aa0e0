"""EPO137 to EPO144: activations moved to host memory, whether overlap is on or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, core, put, rule, violated, without
from ep_overlap_mcp.rules.recompute import recomputes
from ep_overlap_mcp.rules.sources import core_config
from ep_overlap_mcp.rules.truth import any_of

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

_MODULES = ("core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear")
_INSIDE_MOE = ("moe_act", "expert_fc1", "fused_group_mlp")
_KEEPS_ON_GPU = "memory: that activation stays on the GPU"
_NO_OFFLOADING = put(fine_grained_activation_offloading=False, gives_up="memory: activations stay on the GPU")


@rule(
    "EPO137",
    "cpu-offloading-limits",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1138-1152"),
    fixes=[put(cpu_offloading=False, gives_up="memory: activations stay on the GPU")],
)
def cpu_offloading_limits(view: View) -> Check:
    """What it checks: `cpu_offloading` with a pipeline, with recomputation, or for all layers and more.

    Why: whole-layer offloading knows neither pipeline stages nor recomputed layers; Megatron-Core rejects these, and a
    `cpu_offloading_num_layers` outside 0 to `num_layers` - 1.

    Example: `--cpu-offloading --pipeline-model-parallel-size 2`

    Fix: `cpu_offloading=false`; `fine_grained_activation_offloading` (0.16 on) works with pipelines.
    """
    number = view["model.cpu_offloading_num_layers"]
    pipeline = view["model.pipeline_model_parallel_size"] > 1
    outside = (number < 0) | (number >= view["model.num_layers"])
    return violated(
        view["model.cpu_offloading"].on & (pipeline | recomputes(view) | outside),
        f"`cpu_offloading` of {number} layers with a pipeline, recomputation or no layer left on the GPU",
        expected="cpu_offloading=false, or PP 1, no recomputation and fewer layers than the model has",
    )


@rule(
    "EPO138",
    "activation-offloading-excludes-cpu-offloading",
    ERROR,
    enforced=[core(">=0.16")],
    unknown=NOTED,
    source=core_config("0.16.1", "1268-1271"),
    fixes=[put(cpu_offloading=False)],
)
def activation_offloading_excludes_cpu_offloading(view: View) -> Check:
    """What it checks: `fine_grained_activation_offloading` together with `cpu_offloading`.

    Why: both would move the same tensors; Megatron-Core asserts that only one is on.

    Example: `--fine-grained-activation-offloading --offload-modules core_attn --cpu-offloading`

    Fix: `cpu_offloading=false`.
    """
    return violated(
        view["model.fine_grained_activation_offloading"].on & view["model.cpu_offloading"].on,
        "`fine_grained_activation_offloading` and `cpu_offloading` are both on",
        expected="one kind of offloading",
    )


@rule(
    "EPO139",
    "offload-modules-known",
    ERROR,
    enforced=[
        core(">=0.16,<0.19", allowed=_MODULES),
        core(">=0.19,<0.20", allowed=(*_MODULES, "fused_group_mlp")),
        core(">=0.20,!dev", allowed=(*_MODULES, "fused_group_mlp", "gdp_qkv")),
        core("dev", allowed=(*_MODULES, "fused_group_mlp")),
    ],
    unknown=NOTED,
    source=[core_config("0.16.1", "1272-1286"), core_config("main", "2131-2147"), core_config("dev", "2402-2421")],
    fixes=[_NO_OFFLOADING],
)
def offload_modules_known(view: View, *, allowed: tuple[str, ...]) -> Check:
    """What it checks: fine-grained offloading without `offload_modules`, or with a name the release does not know.

    Why: Megatron-Core asserts that at least one module is named and that every name is one of its list.

    Example: `--fine-grained-activation-offloading` alone

    Fix: name the modules, such as `offload_modules=[core_attn]`.
    """
    modules = view["model.offload_modules"]
    strange = modules.test(lambda named: not named or bool(set(named) - set(allowed)))
    return violated(
        view["model.fine_grained_activation_offloading"].on & strange,
        f"`offload_modules` is {modules}",
        expected=f"one or more of {', '.join(allowed)}",
    )


@rule(
    "EPO140",
    "attention-projection-offload-needs-core-attention",
    ERROR,
    enforced=[core(">=0.16")],
    unknown=NOTED,
    source=core_config("0.16.1", "1287-1292"),
    fixes=[without("model.offload_modules", "attn_proj", gives_up=_KEEPS_ON_GPU)],
)
def attention_projection_offload_needs_core_attention(view: View) -> Check:
    """What it checks: `attn_proj` among `offload_modules` without `core_attn`.

    Why: the projection's input is the attention's output, which the attention's own backward needs on the GPU.

    Example: `--offload-modules attn_proj`

    Fix: name `core_attn` too, or drop `attn_proj`.
    """
    modules = view["model.offload_modules"]
    return violated(
        view["model.fine_grained_activation_offloading"].on & modules.has("attn_proj") & ~modules.has("core_attn"),
        f"`offload_modules` is {modules}",
        expected="core_attn with attn_proj",
    )


@rule(
    "EPO141",
    "recomputed-moe-excludes-offload-inside",
    ERROR,
    enforced=[core(">=0.19")],
    unknown=NOTED,
    source=core_config("main", "2165-2176"),
    fixes=[without("model.offload_modules", *_INSIDE_MOE, gives_up=_KEEPS_ON_GPU)],
)
def recomputed_moe_excludes_offload_inside(view: View) -> Check:
    """What it checks: modules inside the MoE layer are offloaded while the whole layer is recomputed.

    Why: what is computed again need not be kept anywhere; Megatron-Core asserts that the two do not meet.

    Example: `--recompute-modules moe --offload-modules expert_fc1`

    Fix: drop `moe` from the recompute modules (EP overlap excludes it), or the modules from offloading.
    """
    offloaded = view["model.offload_modules"]
    selective = view["model.recompute_granularity"] == "selective"
    inside = any_of(offloaded.has(module) for module in _INSIDE_MOE)
    recomputed = selective & view["model.recompute_modules"].has("moe")
    return violated(
        view["model.fine_grained_activation_offloading"].on & recomputed & inside,
        f"`offload_modules` is {offloaded} with moe in `recompute_modules`",
        expected="either the layer recomputed or parts of it offloaded",
    )


@rule(
    "EPO142",
    "fused-mlp-offload-limits",
    ERROR,
    enforced=[core(">=0.19")],
    unknown=NOTED,
    source=core_config("main", "2186-2195"),
    fixes=[without("model.offload_modules", "fused_group_mlp", gives_up=_KEEPS_ON_GPU)],
)
def fused_mlp_offload_limits(view: View) -> Check:
    """What it checks: `fused_group_mlp` is offloaded without `use_transformer_engine_op_fuser`, or together with
    `expert_fc1` or `moe_act`.

    Why: it is the fused grouped MLP as a whole, which only the fused operators have; Megatron-Core rejects the rest.

    Example: `--offload-modules fused_group_mlp moe_act`

    Fix: `use_transformer_engine_op_fuser=true` and `fused_group_mlp` alone, or drop it.
    """
    modules = view["model.offload_modules"]
    partly = modules.has("expert_fc1") | modules.has("moe_act")
    limits = view["model.use_transformer_engine_op_fuser"].off | partly
    return violated(
        view["model.fine_grained_activation_offloading"].on & modules.has("fused_group_mlp") & limits,
        f"`offload_modules` is {modules}; fused_group_mlp needs the operator fuser and neither expert_fc1 nor moe_act",
        expected="use_transformer_engine_op_fuser=true and fused_group_mlp without its parts",
    )


@rule(
    "EPO143",
    "offload-amounts-in-range",
    ERROR,
    enforced=[core(">=0.19")],
    unknown=NOTED,
    source=core_config("main", "2177-2185"),
    fixes=[_NO_OFFLOADING],
)
def offload_amounts_in_range(view: View) -> Check:
    """What it checks: fine-grained offloading with a negative size, or a fraction outside 0 to 1.

    Why: Megatron-Core asserts the ranges of `min_offloaded_tensor_size`, `activation_offload_fraction` and
    `delta_offload_bytes_across_pp_ranks`.

    Example: `--activation-offload-fraction 1.5`

    Fix: values in range.
    """
    fraction = view["model.activation_offload_fraction"]
    sizes = ("model.min_offloaded_tensor_size", "model.delta_offload_bytes_across_pp_ranks")
    negative = any_of(view[path] < 0 for path in sizes)
    return violated(
        view["model.fine_grained_activation_offloading"].on & (negative | (fraction < 0) | (fraction > 1)),
        f"`activation_offload_fraction` is {fraction}, or a size is negative",
        expected="sizes >= 0 and a fraction from 0 to 1",
    )


@rule(
    "EPO144",
    "delta-product-offload-excludes-its-recompute",
    ERROR,
    enforced=[core(">=0.20,!dev")],
    unknown=NOTED,
    source=core_config("main", "2155-2164"),
    fixes=[without("model.offload_modules", "gdp_qkv", gives_up=_KEEPS_ON_GPU)],
)
def delta_product_offload_excludes_its_recompute(view: View) -> Check:
    """What it checks: `gdp_qkv` is offloaded while `gdp_in_proj` is recomputed.

    Why: the recomputation discards and rebuilds exactly the tensor that would be offloaded; Megatron-Core rejects it.

    Example: `--offload-modules gdp_qkv --recompute-modules gdp_in_proj`

    Fix: drop one of them.
    """
    offloaded, recomputed = view["model.offload_modules"], view["model.recompute_modules"]
    selective = view["model.recompute_granularity"] == "selective"
    both = offloaded.has("gdp_qkv") & selective & recomputed.has("gdp_in_proj")
    return violated(
        view["model.fine_grained_activation_offloading"].on & both,
        f"`offload_modules` is {offloaded} and `recompute_modules` is {recomputed}",
        expected="gdp_qkv offloaded or gdp_in_proj recomputed",
    )
