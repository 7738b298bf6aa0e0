"""EPO460-466: what an MoE layer asserts when it is built or first runs, after the configuration was accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, core, put, rule, run_time, violated, violated_by
from ep_overlap_mcp.rules.experts import EXPERTS, listed
from ep_overlap_mcp.rules.sources import core_config, megatron
from ep_overlap_mcp.rules.truth import FALSE, derived

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

BIAS = "model.add_bias_linear"
LATENT = "model.moe_latent_size"
SHARED = "model.moe_shared_expert_intermediate_size"
TOPK = "model.moe_router_topk"

_EXPERTS = "core/transformer/moe/experts.py"
_NO_BIAS = put(add_bias_linear=False, gives_up="the bias terms")


@rule(
    "EPO460",
    "shared-experts-exclude-bias",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/transformer/moe/shared_experts.py", "47-48"),
    about=[SHARED],
    unknown=NOTED,
    fixes=[_NO_BIAS],
)
def shared_experts_exclude_bias(view: View) -> Check:
    """What it checks: shared experts in a model with `add_bias_linear`, which is on by default.

    Why: the shared experts assert that there is no bias when the model is built.

    Example: `--moe-shared-expert-intermediate-size 1024` without `--disable-bias-linear`

    Fix: `add_bias_linear=false` (`--disable-bias-linear`).
    """
    shared = view[SHARED]
    return violated(
        view[EXPERTS].is_set & shared.is_set & view[BIAS].on,
        f"`moe_shared_expert_intermediate_size` is {shared} and `add_bias_linear` is on",
        expected="add_bias_linear = false",
    )


@rule(
    "EPO461",
    "grouped-experts-exclude-fused-bias",
    ERROR,
    enforced=[run_time("<0.15", any_bias=True), run_time(">=0.15", any_bias=False)],
    source=[megatron("0.16.1", _EXPERTS, "529-531"), megatron("0.14.0", _EXPERTS, "761-763")],
    about=["model.moe_grouped_gemm"],
    unknown=NOTED,
    fixes=[_NO_BIAS, put(bias_dropout_fusion=False)],
)
def grouped_experts_exclude_fused_bias(view: View, *, any_bias: bool) -> Check:
    """What it checks: grouped GEMM experts in a model with `add_bias_linear` and `bias_dropout_fusion` (0.14: with any
    bias).

    Why: the grouped experts of Transformer Engine assert it when the model is built. Both are on by default on
    Megatron-LM's command line.

    Example: `--moe-grouped-gemm` without `--disable-bias-linear`

    Fix: `add_bias_linear=false` (`--disable-bias-linear`), or `bias_dropout_fusion=false`.
    """
    fused = view["model.bias_dropout_fusion"].on
    biased = view[EXPERTS].is_set & view["model.moe_grouped_gemm"].on & view[BIAS].on
    return violated(
        biased if any_bias else biased & fused & view["model.moe_use_legacy_grouped_gemm"].off,
        "`moe_grouped_gemm` and `add_bias_linear` are on" + ("" if any_bias else " with `bias_dropout_fusion`"),
        expected="add_bias_linear = false",
    )


@rule(
    "EPO462",
    "legacy-grouped-experts-limits",
    ERROR,
    enforced=[
        run_time("<0.17", on=("megatron-core", "bridge"), latent=True),
        run_time("<0.17", on=("megatron-lm",), latent=False),
    ],
    source=[megatron("0.16.1", _EXPERTS, "82-110"), megatron("0.16.1", _EXPERTS, "225")],
    about=["model.moe_grouped_gemm"],
    unknown=NOTED,
    fixes=[_NO_BIAS, put(moe_use_legacy_grouped_gemm=False)],
)
def legacy_grouped_experts_limits(view: View, *, latent: bool) -> Check:
    """What it checks: grouped GEMM without Transformer Engine's grouped layers, with bias or without bf16; where
    `moe_use_legacy_grouped_gemm` asks for it also with latent experts, of which EPO451 tells in Megatron-LM.

    Why: the older grouped experts, which `moe_use_legacy_grouped_gemm` or a missing Transformer Engine chooses before
    0.17, assert these when the model is built and in the first step.

    Example: `--moe-grouped-gemm --moe-use-legacy-grouped-gemm` without `--disable-bias-linear`

    Fix: `add_bias_linear=false`, or Transformer Engine's grouped layers.
    """
    return violated_by(
        [
            (view[BIAS].on, "the legacy grouped experts know no bias and `add_bias_linear` is on"),
            (
                view[LATENT].is_set & view["model.moe_use_legacy_grouped_gemm"].on if latent else FALSE,
                f"the legacy grouped experts know no `moe_latent_size` ({view[LATENT]})",
            ),
            (view["model.bf16"].off, "the legacy grouped experts run in bf16 only"),
        ],
        when=view[EXPERTS].is_set & view["model.moe_grouped_gemm"].on & _legacy_groups(view),
        expected="add_bias_linear = false, bf16, no moe_latent_size; or Transformer Engine's grouped layers",
    )


@rule(
    "EPO463",
    "sinkhorn-excludes-aux-loss",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/transformer/moe/router.py", "238"),
    about=["model.moe_router_load_balancing_type"],
    unknown=NOTED,
    fixes=[put(moe_aux_loss_coeff=0.0, gives_up="the auxiliary loss")],
)
def sinkhorn_excludes_aux_loss(view: View) -> Check:
    """What it checks: sinkhorn routing with an auxiliary loss coefficient.

    Why: the router asserts in its first forward pass that the coefficient is 0.

    Example: `--moe-router-load-balancing-type sinkhorn --moe-aux-loss-coeff 0.01`

    Fix: `moe_aux_loss_coeff=0`, or balance by the auxiliary loss.
    """
    types, coefficient = view["model.moe_router_load_balancing_type"], view["model.moe_aux_loss_coeff"]
    weighted = coefficient.test(lambda given: any(listed(given)))
    return violated(
        view[EXPERTS].is_set & types.test(lambda given: "sinkhorn" in listed(given)) & weighted,
        f"load balancing is sinkhorn and `moe_aux_loss_coeff` is {coefficient}",
        expected="moe_aux_loss_coeff = 0",
    )


@rule(
    "EPO464",
    "latent-experts-need-te",
    ERROR,
    enforced=[run_time(">=0.16")],
    source=megatron("0.16.1", "core/transformer/moe/moe_layer.py", "169-172"),
    about=[LATENT],
    unknown=NOTED,
)
def latent_experts_need_te(view: View) -> Check:
    """What it checks: `moe_latent_size` without Transformer Engine.

    Why: the projections around latent experts are Transformer Engine's; the layer asserts it when it is built.

    Example: `--moe-latent-size 512` in an environment without Transformer Engine

    Fix: install Transformer Engine.
    """
    return violated(
        view[EXPERTS].is_set & view[LATENT].is_set & view.te.absent,
        f"`moe_latent_size` is {view[LATENT]} and Transformer Engine is not installed",
        expected="Transformer Engine installed",
    )


@rule(
    "EPO465",
    "topk-fits-routing-groups",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/transformer/moe/moe_utils.py", "552-570"),
    about=["model.moe_router_num_groups"],
    unknown=NOTED,
)
def topk_fits_routing_groups(view: View) -> Check:
    """What it checks: group-limited routing whose chosen groups hold fewer experts than a token is sent to.

    Why: the best groups are found by `moe_router_topk` / `moe_router_group_topk` experts of each; torch raises in the
    first forward pass when a group has fewer.

    Example: `--num-experts 8 --moe-router-num-groups 4 --moe-router-group-topk 1 --moe-router-topk 4`

    Fix: more groups a token, fewer groups, or a smaller topk.
    """
    groups, chosen, topk = view["model.moe_router_num_groups"], view["model.moe_router_group_topk"], view[TOPK]
    held = derived(lambda experts, number: experts // number if number else None, view[EXPERTS], groups)
    wanted = derived(lambda every, number: every // number if number else None, topk, chosen)
    return violated(
        groups.is_set & (wanted > held),
        f"topk {topk} in {chosen} groups asks for {wanted} experts of a group; each of {groups} groups holds {held}",
        expected="moe_router_topk / moe_router_group_topk <= num_moe_experts / moe_router_num_groups",
    )


@rule(
    "EPO466",
    "single-grouped-parameters-limits",
    ERROR,
    enforced=[core(">=0.18")],
    source=core_config("0.19.0", "1556-1588"),
    about=["model.moe_single_grouped_weight", "model.moe_single_grouped_bias"],
    unknown=NOTED,
    fixes=[put(moe_single_grouped_weight=False, moe_single_grouped_bias=False)],
)
def single_grouped_parameters_limits(view: View) -> Check:
    """What it checks: `moe_single_grouped_weight` or `moe_single_grouped_bias` without grouped GEMM, and what each of
    them needs besides.

    Why: one tensor holds the parameters of all local experts, which only fused grouped layers of Transformer Engine
    2.14 take; Megatron-Core raises ValueError.

    Example: `--moe-single-grouped-weight` without `--use-transformer-engine-op-fuser`

    Fix: turn it off.
    """
    weight, bias = view["model.moe_single_grouped_weight"].on, view["model.moe_single_grouped_bias"].on
    return violated_by(
        [
            (view["model.moe_grouped_gemm"].off, "parameters of all experts in one tensor need `moe_grouped_gemm`"),
            (view.te.below("2.14.0"), f"parameters of all experts in one tensor need TE 2.14; installed is {view.te}"),
            (
                weight & view["model.use_transformer_engine_op_fuser"].off,
                "`moe_single_grouped_weight` needs `use_transformer_engine_op_fuser`",
            ),
            (bias & view[BIAS].off, "`moe_single_grouped_bias` needs `add_bias_linear`"),
        ],
        when=weight | bias,
        expected="both off, or grouped GEMM with what each needs",
    )


def _legacy_groups(view: View) -> Truth:
    """Whether the grouped experts are not Transformer Engine's."""
    return view["model.moe_use_legacy_grouped_gemm"].on | view.te.absent
