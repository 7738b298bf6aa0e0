"""EPO218 to EPO228, EPO642: half and quarter precision, and the Transformer Engine they need."""

from __future__ import annotations

from functools import partial
from operator import gt
from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    MET,
    NOTED,
    Fix,
    core,
    megatron_lm,
    put,
    put_paths,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sources import arguments, core_config, transformer_engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View


@rule(
    "EPO218",
    "permute-fusion-needs-te",
    ERROR,
    enforced=[core()],
    unknown=MET,
    source=core_config("0.16.1", "1833-1850"),
    fixes=[put(moe_permute_fusion=False)],
)
def permute_fusion_needs_te(view: View) -> Check:
    """What it checks: `moe_permute_fusion` with Transformer Engine before 2.1, or without it.

    Why: the fused permutation is Transformer Engine's; Megatron-Core raises when it cannot be imported.

    Example: `--moe-permute-fusion` with no Transformer Engine installed

    Fix: install Transformer Engine 2.1 or newer, or `moe_permute_fusion=false`.
    """
    return violated(
        view["model.moe_permute_fusion"].on & view.te.below("2.1"),
        f"Transformer Engine is {view.te}; `moe_permute_fusion` needs 2.1",
        expected="transformer-engine >= 2.1",
    )


@rule(
    "EPO219",
    "one-half-precision",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "915-918"),
    fixes=[put(fp16=False)],
)
def one_half_precision(view: View) -> Check:
    """What it checks: `bf16` and `fp16` are both on.

    Why: parameters have one type; Megatron-Core rejects the pair.

    Example: `--bf16 --fp16`

    Fix: keep one, `bf16` unless the model was trained in fp16.
    """
    return violated(
        view["model.bf16"].on & view["model.fp16"].on, "`bf16` and `fp16` are both on", expected="bf16 or fp16"
    )


@rule(
    "EPO220",
    "one-quantised-format",
    ERROR,
    enforced=[core(">=0.15")],
    unknown=NOTED,
    source=core_config("0.16.1", "1034-1035"),
    fixes=[put(fp4=None, gives_up="FP4 compute"), put(fp8=None, gives_up="FP8 compute")],
)
def one_quantised_format(view: View) -> Check:
    """What it checks: `fp8` and `fp4` are both set.

    Why: a matrix product runs in one format; Megatron-Core rejects the pair.

    Example: `--fp8-format hybrid --fp4-format e2m1`

    Fix: keep one.
    """
    fp8, fp4 = view["model.fp8"], view["model.fp4"]
    return violated(fp8.on & fp4.on, f"`fp8` is {fp8} and `fp4` is {fp4}", expected="fp8 or fp4")


@rule(
    "EPO221",
    "quantised-parameters-need-their-format",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1027-1032"),
    fixes=[Fix(lambda view: _without_parameters(view))],  # noqa: PLW0108
)
def quantised_parameters_need_their_format(view: View) -> Check:
    """What it checks: `fp8_param` without `fp8`, or `fp4_param` without `fp4`.

    Why: parameters kept in a format need the compute in it; Megatron-Core rejects the rest.

    Example: `fp8_param: true` in a bf16 model

    Fix: set the format, or drop the parameter option.
    """
    return violated_by(
        [
            (view[f"model.{name}_param"].on & view[f"model.{name}"].off, f"`{name}_param` is on without `{name}`")
            for name in ("fp8", "fp4")
        ],
        expected="fp8 with fp8_param, fp4 with fp4_param",
    )


@rule(
    "EPO222",
    "bf16-end-layers-limits",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "988-1016"),
    fixes=[put(first_last_layers_bf16=False, gives_up="bf16 in the first and last layers")],
)
def bf16_end_layers_limits(view: View) -> Check:
    """What it checks: in an FP8 model, `first_last_layers_bf16` with delayed scaling, or with more such layers than a
    pipeline stage holds.

    Why: delayed scaling knows no exception by layer; Megatron-Core rejects it, and counts out of range.

    Example: `--fp8-format hybrid --first-last-layers-bf16` (the default recipe is delayed)

    Fix: another `fp8_recipe`, or fewer layers.
    """
    stage = view["model.num_layers"] // view["model.pipeline_model_parallel_size"]
    counts = {end: view[f"model.num_layers_at_{end}_in_bf16"] for end in ("start", "end")}
    outside = [((n < 0) | (n > stage), f"`num_layers_at_{end}_in_bf16` is {n}") for end, n in counts.items()]
    return violated_by(
        [(view["model.fp8_recipe"] == "delayed", "`first_last_layers_bf16` with delayed scaling"), *outside],
        when=view["model.fp8"].on & view["model.first_last_layers_bf16"].on,
        expected="another recipe than delayed, and counts from 0 to the layers of a stage",
    )


@rule(
    "EPO223",
    "custom-recipe-needs-quantizer",
    ERROR,
    enforced=[core(">=0.16")],
    unknown=NOTED,
    source=core_config("0.16.1", "1018-1044"),
    fixes=[
        put(fp8_recipe="blockwise", gives_up="the custom FP8 recipe"),
        put(fp4_recipe="nvfp4", gives_up="the custom FP4 recipe"),
    ],
)
def custom_recipe_needs_quantizer(view: View) -> Check:
    """What it checks: a `custom` FP8 or FP4 recipe without the factory of its quantizers.

    Why: Megatron-Core imports the factory by the path that is given, and rejects the recipe without one.

    Example: `--fp8-format hybrid --fp8-recipe custom`

    Fix: give `fp8_quantizer_factory`, or a named recipe.
    """
    return violated_by(
        [
            (
                view[f"model.{name}"].on
                & (view[f"model.{name}_recipe"] == "custom")
                & view[f"model.{name}_quantizer_factory"].off,
                f"`{name}_recipe` is custom without `{name}_quantizer_factory`",
            )
            for name in ("fp8", "fp4")
        ],
        expected="a quantizer factory with a custom recipe",
    )


@rule(
    "EPO224",
    "fp8-experts-need-te",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1599-1611"),
    fixes=[put(fp8=None, gives_up="FP8 compute")],
)
def fp8_experts_need_te(view: View) -> Check:
    """What it checks: FP8 in a model with experts and Transformer Engine before 1.7, or 1.11 with grouped GEMM.

    Why: older versions fail on an expert without tokens; Megatron-Core raises ValueError.

    Example: `--fp8-format hybrid --num-experts 8` with no Transformer Engine installed

    Fix: install a current Transformer Engine.
    """
    grouped = view["model.moe_grouped_gemm"].on & view.te.below("1.11")
    return violated(
        view["model.num_moe_experts"].on & view["model.fp8"].on & (view.te.below("1.7.0.dev0") | grouped),
        f"Transformer Engine is {view.te} with FP8 experts",
        expected="transformer-engine >= 1.11",
    )


@rule(
    "EPO225",
    "fp8-output-projection-needs-mxfp8",
    ERROR,
    enforced=[core(">=0.18")],
    unknown=NOTED,
    source=core_config("0.18.2", "1300-1307"),
    fixes=[put(fp8_output_proj=False, gives_up="FP8 in the output projection")],
)
def fp8_output_projection_needs_mxfp8(view: View) -> Check:
    """What it checks: `fp8_output_proj` without `fp8`, or with another recipe than `mxfp8`.

    Why: the vocabulary projection is quantised in blocks of 32 only; Megatron-Core rejects the rest.

    Example: `--fp8-format hybrid --fp8-output-proj` (the default recipe is delayed)

    Fix: `fp8_recipe=mxfp8`, or drop the option.
    """
    fp8, recipe = view["model.fp8"], view["model.fp8_recipe"]
    return violated(
        view["model.fp8_output_proj"].on & (fp8.off | (recipe != "mxfp8")),
        f"`fp8_output_proj` is on with `fp8` {fp8} and `fp8_recipe` {recipe}",
        expected="fp8 with fp8_recipe=mxfp8",
    )


@rule(
    "EPO227",
    "fp16-loss-needs-fp16",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "846-847"),
    about=["args.fp16_lm_cross_entropy"],
    fixes=[put_paths({"args.fp16_lm_cross_entropy": False})],
)
def fp16_loss_needs_fp16(view: View) -> Check:
    """What it checks: `--fp16-lm-cross-entropy` without `--fp16`.

    Why: Megatron-LM asserts it.

    Example: `--bf16 --fp16-lm-cross-entropy`

    Fix: leave it out.
    """
    return violated(
        view["args.fp16_lm_cross_entropy"].on & view["model.fp16"].off,
        "`fp16_lm_cross_entropy` is on without fp16",
        expected="fp16_lm_cross_entropy = false",
    )


@rule(
    "EPO228",
    "fp32-residual-needs-half-precision",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "848-850"),
    about=["model.fp32_residual_connection"],
    fixes=[put(fp32_residual_connection=False)],
)
def fp32_residual_needs_half_precision(view: View) -> Check:
    """What it checks: `fp32_residual_connection` in a model that is fp32 as a whole.

    Why: Megatron-LM asserts bf16 or fp16.

    Example: `--fp32-residual-connection` without `--bf16`

    Fix: leave it out, or `--bf16`.
    """
    return violated(
        view["model.fp32_residual_connection"].on & view["model.bf16"].off & view["model.fp16"].off,
        "`fp32_residual_connection` is on without bf16 or fp16",
        expected="bf16 = true",
    )


def _without_parameters(view: View) -> Iterable[Mapping[str, bool]]:
    """The formats of the parameters off, by whichever field asks for them."""
    names = ("model.fp8_param", "model.fp4_param", "ddp.fp8_param_gather", "ddp.fp4_param_gather")
    yield {path: False for path in names if view.effective.requested(path).value is True}


@rule(
    "EPO642",
    "low-precision-needs-its-gpu",
    ERROR,
    enforced=[run_time()],
    source=transformer_engine("d0067d0da6", "pytorch/quantization.py", "149-186"),
    unknown=NOTED,
    about=["model.fp8", "model.fp4"],
    fixes=[
        put(fp8_recipe="blockwise", gives_up="the FP8 recipe"),
        put(fp8_recipe="tensorwise", gives_up="the FP8 recipe"),
        put(fp8=None, gives_up="FP8"),
        put(fp4=None, gives_up="FP4"),
    ],
)
def low_precision_needs_its_gpu(view: View) -> Check:
    """What it checks: FP8 or FP4 on a GPU whose tensor cores do not have it.

    Why: Transformer Engine refuses it in the first forward pass: FP8 needs compute capability 8.9 (Ada, Hopper), with
    the blockwise recipe 9.0, MXFP8 and NVFP4 10.0 (Blackwell).

    Example: `--fp8-format e4m3 --fp8-recipe mxfp8` on H100

    Fix: a recipe that the GPU has, or bf16.
    """
    recipe = view["model.fp8_recipe"]
    needs = [(view["model.fp4"].on, "fp4", (10, 0))]
    needs += [(view["model.fp8"].on & (recipe == name), f"fp8_recipe {name}", least) for name, least in _LEAST.items()]
    return violated_by(
        [
            (used & view.gpu_capability.test(partial(gt, least)), _too_old(view, what, least))
            for used, what, least in needs
        ],
        expected="a precision that the GPU has",
    )


_LEAST = {"delayed": (8, 9), "tensorwise": (8, 9), "blockwise": (9, 0), "mxfp8": (10, 0)}


def _too_old(view: View, what: str, least: tuple[int, int]) -> str:
    return f"{what} needs compute capability {least[0]}.{least[1]}; the GPU is {view.gpu_name}"
