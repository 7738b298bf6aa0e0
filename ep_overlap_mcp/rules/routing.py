"""EPO449-454: how many experts a token takes, and what stands in the way of taking them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    Fix,
    megatron_lm,
    put,
    put_paths,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sources import arguments, megatron
from ep_overlap_mcp.rules.truth import FALSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

EXPERTS, TOPK = "model.num_moe_experts", "model.moe_router_topk"
PROBS, LATENT, UPCYCLING = "model.moe_apply_probs_on_input", "model.moe_latent_size", "args.moe_use_upcycling"


@rule(
    "EPO449",
    "topk-at-most-experts",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/transformer/moe/moe_utils.py", "697"),
    unknown=NOTED,
    about=[EXPERTS, TOPK],
    fixes=[Fix(lambda view: _all_experts(view), safe=False, gives_up="the number of experts a token takes")],  # noqa: PLW0108
)
def topk_at_most_experts(view: View) -> Check:
    """What it checks: `moe_router_topk` above the number of experts.

    Why: nothing checks it; the first forward pass ends in `torch.topk` with "selected index k out of range".

    Example: `--num-experts 4 --moe-router-topk 8`

    Fix: a `moe_router_topk` that the model has experts for.
    """
    experts, topk = view[EXPERTS], view[TOPK]
    return violated(
        experts < topk,
        f"a token takes {topk} of {experts} experts",
        expected="moe_router_topk <= num_moe_experts",
    )


@rule(
    "EPO450",
    "probs-on-input-need-topk-1",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/transformer/moe/experts.py", "657-665"),
    about=[PROBS],
    fixes=[put(moe_apply_probs_on_input=False, gives_up="the router's weights on the experts' input: another model")],
)
def probs_on_input_need_topk_1(view: View) -> Check:
    """What it checks: `moe_apply_probs_on_input` with more than one expert a token.

    Why: the router's weight is put on the input of the expert, which several experts would share; every kind of
    experts asserts it in the first forward pass.

    Example: `--moe-apply-probs-on-input --moe-router-topk 8`

    Fix: leave it off.
    """
    topk = view[TOPK]
    return violated(
        view[PROBS].on & view[EXPERTS].is_set & (topk != 1),
        f"`moe_apply_probs_on_input` is on with `moe_router_topk` {topk}",
        expected="moe_apply_probs_on_input = false",
    )


@rule(
    "EPO451",
    "latent-experts-fit",
    ERROR,
    enforced=[megatron_lm(">=0.16,<0.17", old_gemm=True), megatron_lm(">=0.17", old_gemm=False)],
    source=arguments("0.16.1", "1268-1273"),
    about=[LATENT],
    fixes=[put(moe_latent_size=None, gives_up="the latent projection of the experts: another model")],
)
def latent_experts_fit(view: View, *, old_gemm: bool) -> Check:
    """What it checks: `moe_latent_size` in a model without experts or, in 0.16, with the legacy grouped GEMM.

    Why: Megatron-LM asserts it.

    Example: `--moe-latent-size 512 --moe-use-legacy-grouped-gemm`

    Fix: leave it out.
    """
    legacy = view["model.moe_use_legacy_grouped_gemm"].on if old_gemm else FALSE
    return violated_by(
        [
            (view[EXPERTS].unset, "`moe_latent_size` is set and there are no experts"),
            (legacy, "`moe_latent_size` is set with `moe_use_legacy_grouped_gemm`"),
        ],
        when=view[LATENT].is_set,
        expected="moe_latent_size unset",
    )


@rule(
    "EPO452",
    "upcycling-needs-save",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "1163-1164"),
    about=[UPCYCLING],
)
def upcycling_needs_save(view: View) -> Check:
    """What it checks: `--moe-use-upcycling` without `--save`.

    Why: the run turns a dense checkpoint into an MoE one, which it must put somewhere; Megatron-LM asserts it.

    Example: `--moe-use-upcycling --load /dense`

    Fix: `--save` with a folder for the new checkpoint.
    """
    return violated(
        view[UPCYCLING].on & view["args.save"].unset,
        "`moe_use_upcycling` is on without `save`",
        expected="save set",
    )


@rule(
    "EPO453",
    "old-releases-train-experts-in-bf16",
    ERROR,
    enforced=[megatron_lm("<0.16")],
    source=[arguments("0.14.0", "790-791"), arguments("0.14.0", "955-956"), arguments("0.15.3", "876-877")],
    about=["model.fp16", "model.moe_grouped_gemm"],
    fixes=[put(fp16=False, bf16=True, gives_up="fp16")],
)
def old_releases_train_experts_in_bf16(view: View) -> Check:
    """What it checks: expert parallelism in fp16, or grouped GEMM without bf16, before 0.16.

    Why: Megatron-LM asserts both up to 0.15.

    Example: `--fp16 --expert-model-parallel-size 8` on 0.15

    Fix: `--bf16`, or Megatron-Core 0.16.
    """
    ep = view["model.expert_model_parallel_size"]
    return violated_by(
        [
            (view["model.fp16"].on & (ep > 1), f"fp16 with expert parallel size {ep}"),
            (view["model.moe_grouped_gemm"].on & view["model.bf16"].off, "`moe_grouped_gemm` without bf16"),
        ],
        expected="bf16 = true",
    )


@rule(
    "EPO454",
    "old-releases-build-experts-without-spec",
    ERROR,
    enforced=[megatron_lm("<0.16")],
    source=[arguments("0.14.0", "940-941"), arguments("0.15.3", "1026-1027")],
    about=["args.spec"],
    fixes=[put_paths({"args.spec": None}, gives_up="the layers of the specification")],
)
def old_releases_build_experts_without_spec(view: View) -> Check:
    """What it checks: `--spec` in a model with experts, before 0.16.

    Why: Megatron-LM chooses the layers of MoE models itself; it asserts up to 0.15 that no specification is given.

    Example: `--spec local --num-experts 8` on 0.15

    Fix: leave `--spec` out.
    """
    spec = view["args.spec"]
    return violated(
        spec.on & view[EXPERTS].is_set,
        f"`spec` is {spec} in a model with experts",
        expected="spec unset",
    )


def _all_experts(view: View) -> Iterable[Mapping[str, int]]:
    experts = view.effective[EXPERTS]
    if experts.known and isinstance(experts.value, int) and experts.value > 0:
        yield {TOPK: experts.value}
