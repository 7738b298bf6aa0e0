"""EPO160-164: fused activations, norms and position embeddings that fit only some models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules.engine import ERROR, NOTED, core, put, rule, violated, violated_by
from ep_overlap_mcp.rules.remedies import unfuse_bias_activation
from ep_overlap_mcp.rules.sources import core_config
from ep_overlap_mcp.rules.truth import Value, derived

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

GATED = "model.gated_linear_unit"
TE_ACTIVATION = "model.use_te_activation_func"


@rule(
    "EPO160",
    "bias-activation-fusion-fits",
    ERROR,
    enforced=[core("<0.15", fused=("gelu", "silu")), core(">=0.15", fused=("gelu", "silu", "quick_gelu"))],
    source=[core_config("0.16.1", "1485-1516"), core_config("0.14.0", "1123-1137")],
    about=["model.bias_activation_fusion", "args.squared_relu", "args.quick_geglu", "args.swiglu"],
    unknown=NOTED,
    fixes=[unfuse_bias_activation()],
)
def bias_activation_fusion_fits(view: View, fused: tuple[str, ...]) -> Check:
    """What it checks: `bias_activation_fusion` with an activation that has no fused kernel, with gelu and no bias, with
    an ungated quick_gelu, with a linear offset, or with Transformer Engine's activation.

    Why: Megatron-Core raises ValueError.

    Example: `--squared-relu` without `--disable-bias-linear` or `--no-bias-gelu-fusion`

    Fix: `bias_activation_fusion=false` (`--no-bias-gelu-fusion`, `--no-bias-swiglu-fusion`).
    """
    function = _activation(view)
    plain = view[GATED].off
    return violated_by(
        [
            (~function.one_of(*fused), f"no kernel fuses the bias with activation {function}"),
            (
                (function == "gelu") & plain & view["model.add_bias_linear"].off,
                "there is no bias to fuse with gelu: `add_bias_linear` is off",
            ),
            ((function == "quick_gelu") & plain, "quick_gelu is fused with `gated_linear_unit` only"),
            (
                (function != "quick_gelu") & view["model.glu_linear_offset"].test(bool),
                f"`glu_linear_offset` is fused with quick_gelu only, not with {function}",
            ),
            (view[TE_ACTIVATION].on, "`use_te_activation_func` excludes it"),
        ],
        when=view["model.bias_activation_fusion"].on,
        expected="bias_activation_fusion = false",
    )


@rule(
    "EPO161",
    "te-activation-known",
    ERROR,
    enforced=[core(">=0.15")],
    source=core_config("0.16.1", "1518-1524"),
    about=[TE_ACTIVATION],
    unknown=NOTED,
    fixes=[put(use_te_activation_func=False)],
)
def te_activation_known(view: View) -> Check:
    """What it checks: `use_te_activation_func` with an activation that Transformer Engine does not have.

    Why: it has gelu, silu and relu, gated or not; Megatron-Core raises ValueError for others.

    Example: `--use-te-activation-func --squared-relu`

    Fix: `use_te_activation_func=false`.
    """
    function = _activation(view)
    return violated(
        view[TE_ACTIVATION].on & ~function.one_of("gelu", "silu", "relu"),
        f"`use_te_activation_func` is on with activation {function}",
        expected="gelu, silu or relu",
    )


@rule(
    "EPO162",
    "fp8-activation-input-needs-swiglu",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1526-1528"),
    about=["model.activation_func_fp8_input_store"],
    unknown=NOTED,
    fixes=[put(activation_func_fp8_input_store=False, gives_up="memory: the activation's input is kept unquantised")],
)
def fp8_activation_input_needs_swiglu(view: View) -> Check:
    """What it checks: `activation_func_fp8_input_store` in a model without SwiGLU.

    Why: only the fused SwiGLU stores its input in FP8; Megatron-Core raises ValueError.

    Example: `activation_func_fp8_input_store: true` with gelu

    Fix: turn it off.
    """
    function = _activation(view)
    return violated(
        view["model.activation_func_fp8_input_store"].on & ((function != "silu") | view[GATED].off),
        f"`activation_func_fp8_input_store` is on with activation {function} and `gated_linear_unit` {view[GATED]}",
        expected="activation_func = silu with gated_linear_unit",
    )


@rule(
    "EPO163",
    "fused-residual-norm-needs-rmsnorm",
    ERROR,
    enforced=[core(">=0.17")],
    source=core_config("0.19.0", "2148-2152"),
    about=["model.fused_residual_rmsnorm"],
    unknown=NOTED,
    fixes=[put(fused_residual_rmsnorm=False)],
)
def fused_residual_norm_needs_rmsnorm(view: View) -> Check:
    """What it checks: `fused_residual_rmsnorm` with another normalization.

    Why: Megatron-Core raises ValueError.

    Example: `--fused-residual-rmsnorm` with the default LayerNorm

    Fix: turn it off, or `normalization=RMSNorm`.
    """
    norm = view["model.normalization"]
    return violated(
        view["model.fused_residual_rmsnorm"].on & (norm != "RMSNorm"),
        f"`fused_residual_rmsnorm` is on with normalization {norm}",
        expected="normalization = RMSNorm",
    )


@rule(
    "EPO164",
    "symmetric-all-reduce-needs-te-2-3",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1950-1962"),
    about=["model.symmetric_ar_type"],
    unknown=NOTED,
    fixes=[put(symmetric_ar_type=None)],
)
def symmetric_all_reduce_needs_te_2_3(view: View) -> Check:
    """What it checks: `symmetric_ar_type` with Transformer Engine older than 2.3 or torch older than 2.7.

    Why: Megatron-Core asserts both.

    Example: `--symmetric-ar-type two_shot` with TE 2.2

    Fix: leave it unset, or update.
    """
    kind = view["model.symmetric_ar_type"]
    return violated_by(
        [
            (
                view.te.below("2.3.0"),
                f"`symmetric_ar_type` {kind} needs Transformer Engine 2.3; installed is {view.te}",
            ),
            (view.version("torch").below("2.7.0a0"), f"`symmetric_ar_type` {kind} needs torch 2.7"),
        ],
        when=kind.is_set,
        expected="transformer-engine >= 2.3 and torch >= 2.7",
    )


def _activation(view: View) -> Value:
    """The activation's bare name; unset is Megatron's default, gelu."""
    given = view["model.activation_func"]
    return Value("gelu") if given.known and given.raw is None else derived(_bare, given)


def _bare(given: Any) -> str:
    """`silu` of `torch.nn.functional.silu`, and of the object that a saved Bridge configuration writes for it."""
    written = given.get("_target_", "") if isinstance(given, dict) else given
    return str(written).rpartition(".")[2]
