"""EPO433, 435-437, 439-443, 445: what Megatron-Core asks of experts, their capacity and the router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules.engine import ERROR, NOTED, core, put, rule, violated, violated_by
from ep_overlap_mcp.rules.sources import core_config
from ep_overlap_mcp.rules.truth import TRUE, all_of, any_of, derived
from ep_overlap_mcp.settings.moe_layers import has_dense_layers

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

EXPERTS = "model.num_moe_experts"
CAPACITY = "model.moe_expert_capacity_factor"
BALANCING = "model.moe_router_load_balancing_type"


@rule(
    "EPO433",
    "capacity-needs-aux-loss",
    ERROR,
    enforced=[
        core("<0.15", balanced=("aux_loss", "seq_aux_loss", "none")),
        core(">=0.15", balanced=("aux_loss", "seq_aux_loss", "global_aux_loss", "none")),
    ],
    source=[core_config("0.16.1", "1105-1135"), core_config("0.14.0", "786-806")],
    unknown=NOTED,
    fixes=[
        put(moe_pad_expert_input_to_capacity=False, gives_up="fixed-size expert inputs"),
        put(moe_expert_capacity_factor=None, moe_pad_expert_input_to_capacity=False, gives_up="the expert capacity"),
    ],
)
def capacity_needs_aux_loss(view: View, balanced: tuple[str, ...]) -> Check:
    """What it checks: an expert capacity with a load balancing other than the auxiliary losses, or padding to a
    capacity that is not set.

    Why: Megatron-Core raises ValueError.

    Example: `--moe-pad-expert-input-to-capacity` without `--moe-expert-capacity-factor`

    Fix: balance by an auxiliary loss, or drop capacity and padding.
    """
    types = view[BALANCING]
    return violated_by(
        [
            (
                view.requested(CAPACITY).is_set & types.test(lambda given: not set(listed(given)) <= set(balanced)),
                f"`moe_expert_capacity_factor` is set with load balancing {types}; it works with {', '.join(balanced)}",
            ),
            (
                view["model.moe_pad_expert_input_to_capacity"].on & view[CAPACITY].unset,
                "`moe_pad_expert_input_to_capacity` is on without `moe_expert_capacity_factor`",
            ),
        ],
        expected="a capacity factor for the padding, auxiliary losses for the capacity",
    )


@rule(
    "EPO435",
    "expert-bias-terms-need-etp-1",
    ERROR,
    enforced=[core("<0.15", any_tp=True), core(">=0.15", any_tp=False)],
    source=[core_config("0.16.1", "1588-1591"), core_config("0.14.0", "1197-1198")],
    unknown=NOTED,
    fixes=[
        put(expert_tensor_parallel_size=1, gives_up="the layout of the experts"),
        put(add_bias_linear=False, gives_up="the bias terms"),
    ],
)
def expert_bias_terms_need_etp_1(view: View, *, any_tp: bool) -> Check:
    """What it checks: a model with experts and `add_bias_linear`, which is on by default, under expert tensor
    parallelism (0.14: at all).

    Why: the bias of a split expert would be added once a rank. Megatron-Core asserts it.

    Example: `--num-experts 8 --tensor-model-parallel-size 2` without `--disable-bias-linear`

    Fix: `add_bias_linear=false` (`--disable-bias-linear`), or `expert_tensor_parallel_size=1`.
    """
    etp = view["model.expert_tensor_parallel_size"]
    split = TRUE if any_tp else etp != 1
    return violated(
        view[EXPERTS].is_set & view["model.add_bias_linear"].on & split,
        f"`add_bias_linear` is on in a model with experts (expert tensor parallel size {etp})",
        expected="add_bias_linear = false, or expert_tensor_parallel_size = 1",
    )


@rule(
    "EPO436",
    "expert-width-needs-experts",
    ERROR,
    enforced=[core("<0.18", mixed_passes=False), core(">=0.18", mixed_passes=True)],
    source=[core_config("0.16.1", "1058-1061"), core_config("0.18.2", "1396-1413")],
    unknown=NOTED,
    fixes=[put(moe_ffn_hidden_size=None)],
)
def expert_width_needs_experts(view: View, *, mixed_passes: bool) -> Check:
    """What it checks: `moe_ffn_hidden_size` is set in a model without experts.

    Why: Megatron-Core refuses it; from 0.18 a pattern with dense layers makes it a warning.

    Example: `--moe-ffn-hidden-size 1024` without `--num-experts`

    Fix: set `num_moe_experts`, or remove the width.
    """
    alone = view[EXPERTS].unset & view["model.moe_ffn_hidden_size"].is_set
    if mixed_passes:
        alone = alone & ~view["model.moe_layer_freq"].test(has_dense_layers)
    return violated(
        alone,
        f"`moe_ffn_hidden_size` is {view['model.moe_ffn_hidden_size']} and there are no experts",
        expected="num_moe_experts set",
    )


@rule(
    "EPO437",
    "experts-positive",
    ERROR,
    enforced=[core()],
    source=[core_config("0.16.1", "1051-1052"), core_config("0.16.1", "1083-1089")],
    unknown=NOTED,
)
def experts_positive(view: View) -> Check:
    """What it checks: the number of experts, or the width of the shared experts, is zero or less.

    Why: Megatron-Core raises ValueError; a dense model leaves both unset. Megatron-LM turns `--num-experts 0` into
    unset itself.

    Example: `num_moe_experts: 0`

    Fix: a positive number, or null.
    """
    experts, shared = view[EXPERTS], view["model.moe_shared_expert_intermediate_size"]
    return violated_by(
        [
            (experts <= 0, f"`num_moe_experts` is {experts}"),
            (shared <= 0, f"`moe_shared_expert_intermediate_size` is {shared}"),
        ],
        expected="a positive number, or unset",
    )


@rule(
    "EPO439",
    "one-coefficient-a-balancing-loss",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1097-1103"),
    unknown=NOTED,
)
def one_coefficient_a_balancing_loss(view: View) -> Check:
    """What it checks: several load balancing types without a list of as many coefficients.

    Why: each loss has its own `moe_aux_loss_coeff`; Megatron-Core asserts equal lengths.

    Example: `--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.01`

    Fix: give one coefficient for each type.
    """
    types, coefficients = view[BALANCING], view["model.moe_aux_loss_coeff"]
    several = types.test(lambda given: len(listed(given)) > 1)
    numbers = derived(lambda t, c: len(listed(t)) - len(listed(c)), types, coefficients)
    return violated(
        several & (numbers != 0),
        f"load balancing is {types} and `moe_aux_loss_coeff` is {coefficients}; each type needs its coefficient",
        expected="as many coefficients as types",
    )


@rule(
    "EPO440",
    "router-bias-needs-sigmoid",
    ERROR,
    enforced=[core("<0.18", scores=("sigmoid",)), core(">=0.18", scores=("sigmoid", "sqrtsoftplus"))],
    source=[core_config("0.16.1", "1593-1597")],
    unknown=NOTED,
)
def router_bias_needs_sigmoid(view: View, scores: tuple[str, ...]) -> Check:
    """What it checks: the router's expert bias with a score function it is not made for.

    Why: balancing by a bias works on independent scores; Megatron-Core raises ValueError.

    Example: `--moe-router-enable-expert-bias` with the default softmax

    Fix: `moe_router_score_function=sigmoid`.
    """
    score = view["model.moe_router_score_function"]
    return violated(
        view["model.moe_router_enable_expert_bias"].on & ~score.one_of(*scores),
        f"`moe_router_enable_expert_bias` is on with score function {score}; it needs {' or '.join(scores)}",
        expected=f"moe_router_score_function in ({', '.join(scores)})",
    )


@rule(
    "EPO441",
    "router-padding-needs-quantization",
    ERROR,
    enforced=[
        core("<0.16", flags=("moe_router_padding_for_fp8",), formats=("fp8",)),
        core(
            ">=0.16.0rc0",
            flags=("moe_router_padding_for_fp8", "moe_router_padding_for_quantization"),
            formats=("fp8", "fp4"),
        ),
    ],
    source=[core_config("0.16.1", "1613-1631"), core_config("0.15.3", "1326-1334")],
    unknown=NOTED,
    fixes=[put(moe_router_padding_for_quantization=False, moe_router_padding_for_fp8=False)],
)
def router_padding_needs_quantization(view: View, flags: tuple[str, ...], formats: tuple[str, ...]) -> Check:
    """What it checks: the router pads for quantization in a model that is not quantized, or with a dispatcher that
    cannot carry the padding.

    Why: Megatron-Core raises ValueError.

    Example: `moe_router_padding_for_quantization: true` without `fp8`

    Fix: turn the padding off, or quantize and use `alltoall` or `flex`.
    """
    padding = any_of(view[f"model.{flag}"].on for flag in flags)
    plain = all_of(view[f"model.{name}"].unset for name in formats)
    dispatcher = view["model.moe_token_dispatcher_type"]
    return violated_by(
        [
            (plain, f"the router pads for quantization and neither of {', '.join(formats)} is set"),
            (
                dispatcher.one_of("allgather", "alltoall_seq"),
                f"the router pads for quantization, which dispatcher {dispatcher} cannot carry",
            ),
        ],
        when=padding,
        expected="no padding, or fp8 or fp4 with alltoall or flex",
    )


@rule(
    "EPO442",
    "top-1-needs-pre-softmax",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1633-1641"),
    unknown=NOTED,
    fixes=[put(moe_router_pre_softmax=True, gives_up="the router's scores as they are")],
)
def top_1_needs_pre_softmax(view: View) -> Check:
    """What it checks: one expert a token with a softmax after the choice.

    Why: a softmax over one value is constant and gives the router no gradient; Megatron-Core raises ValueError.

    Example: `--moe-router-topk 1` without `--moe-router-pre-softmax`

    Fix: `moe_router_pre_softmax=true`.
    """
    return violated(
        (view["model.moe_router_topk"] == 1)
        & (view["model.moe_router_score_function"] == "softmax")
        & view["model.moe_router_pre_softmax"].off
        & view[BALANCING].test(lambda given: listed(given) != ["sinkhorn"]),
        "`moe_router_topk` is 1 with a softmax after the choice, which gives the router no gradient",
        expected="moe_router_pre_softmax = true",
    )


@rule(
    "EPO443",
    "group-routing-fits-experts",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1643-1661"),
    unknown=NOTED,
)
def group_routing_fits_experts(view: View) -> Check:
    """What it checks: group-limited routing whose groups are missing, do not divide the experts, or are too few.

    Why: the router picks `moe_router_group_topk` of `moe_router_num_groups` equal groups; Megatron-Core refuses
    anything else, and the deprecated `moe_router_topk_limited_devices` beside it.

    Example: `--moe-router-group-topk 4` without `--moe-router-num-groups`

    Fix: give a number of groups that divides the experts and is not below `moe_router_group_topk`.
    """
    chosen, groups, experts = view["model.moe_router_group_topk"], view["model.moe_router_num_groups"], view[EXPERTS]
    return violated_by(
        [
            (
                view["model.moe_router_topk_limited_devices"].on,
                "`moe_router_topk_limited_devices` is deprecated beside it",
            ),
            (groups.off, "`moe_router_group_topk` is set without `moe_router_num_groups`"),
            (groups.on & (experts % groups != 0), f"{experts} experts do not divide into {groups} groups"),
            (groups.on & (chosen > groups), f"`moe_router_group_topk` {chosen} exceeds the {groups} groups"),
        ],
        when=chosen.on,
        expected="num_moe_experts % moe_router_num_groups = 0 and moe_router_group_topk <= moe_router_num_groups",
    )


@rule(
    "EPO445",
    "paged-stash-needs-rank-capacity",
    ERROR,
    enforced=[
        core(">=0.18,<0.19", stashed=("expert_fc1", "moe_act")),
        core(">=0.19", stashed=("expert_fc1", "moe_act", "fused_group_mlp")),
    ],
    source=[core_config("0.18.2", "1683-1697"), core_config("main", "2210-2228")],
    unknown=NOTED,
    fixes=[put(moe_paged_stash=False, gives_up="the paged stash")],
)
def paged_stash_needs_rank_capacity(view: View, stashed: tuple[str, ...]) -> Check:
    """What it checks: `moe_paged_stash` without a rank capacity, with CPU offloading, or with modules it stashes
    already.

    Why: the stash keeps what a rank capacity left unbounded; Megatron-Core refuses the other combinations.

    Example: `moe_paged_stash: true` without `moe_expert_rank_capacity_factor`

    Fix: set the rank capacity, or turn the stash off.
    """
    offloaded = view["model.offload_modules"]
    return violated_by(
        [
            (view["model.cpu_offloading"].on, "`moe_paged_stash` excludes `cpu_offloading`"),
            (
                view["model.moe_expert_rank_capacity_factor"].unset,
                "`moe_paged_stash` needs `moe_expert_rank_capacity_factor`",
            ),
            (
                offloaded.test(lambda given: bool(set(stashed) & set(listed(given)))),
                f"`offload_modules` {offloaded} holds what the stash keeps already",
            ),
        ],
        when=view["model.moe_paged_stash"].on,
        expected="moe_expert_rank_capacity_factor set, no offloading of the experts",
    )


def listed(value: Any) -> list[Any]:
    """A list as it is, one value as a list of one, unset as empty."""
    return value if isinstance(value, list) else [] if value is None else [value]
