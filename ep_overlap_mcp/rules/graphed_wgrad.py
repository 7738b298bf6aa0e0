"""EPO209 to EPO211: delayed weight gradients of modules inside a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, WARNING, bridge, megatron_lm, put, rule, violated
from ep_overlap_mcp.rules.remedies import no_delayed_wgrad
from ep_overlap_mcp.rules.sources import arguments, bridge_setup
from ep_overlap_mcp.rules.truth import TRUE, any_of
from ep_overlap_mcp.rules.wgrad import delays, reduces_overlapped

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

_FIELDS = ("model.cuda_graph_modules", "model.cuda_graph_scope")
_ENFORCED = (
    megatron_lm(">=0.17"),
    bridge(">=0.4,<0.5", severity=WARNING, at_setup=True),
    bridge(">=0.5", at_setup=True),
)


@rule(
    "EPO209",
    "graphed-wgrad-needs-te-2-12",
    ERROR,
    enforced=_ENFORCED,
    source=[arguments("0.17.1", "1522-1530"), bridge_setup("0.4.2", "524-548"), bridge_setup("main", "537-548")],
    fixes=[no_delayed_wgrad()],
)
def graphed_wgrad_needs_te_2_12(view: View, *, at_setup: bool = False) -> Check:
    """What it checks: delayed weight gradients of modules inside a CUDA graph (`attn`, or `moe_router` with shared
    experts that are not overlapped) and Transformer Engine before 2.12.

    Why: the weight gradient must be captured in a graph of its own. Megatron-LM asserts it from 0.17 where gradient
    reduction overlaps, Bridge from 0.4 always, even with `cuda_graph_impl=none`. Bridge 0.4 compares names with
    numbers and does not catch it for modules given by name: a warning there.

    Example: `--cuda-graph-scope attn --delay-wgrad-compute --overlap-grad-reduce` with Transformer Engine 2.11

    Fix: upgrade Transformer Engine, or switch one of the two off.
    """
    return violated(
        _graphed_wgrad(view, at_setup=at_setup) & view.te.below("2.12"),
        f"Transformer Engine is {view.te}; weight gradients delayed inside a CUDA graph need 2.12",
        expected="transformer-engine >= 2.12",
    )


@rule(
    "EPO210",
    "graphed-wgrad-needs-fusion",
    ERROR,
    enforced=_ENFORCED,
    source=[arguments("0.17.1", "1531-1535"), bridge_setup("0.4.2", "549-553"), bridge_setup("main", "549-553")],
    fixes=[put(gradient_accumulation_fusion=True), no_delayed_wgrad()],
)
def graphed_wgrad_needs_fusion(view: View, *, at_setup: bool = False) -> Check:
    """What it checks: delayed weight gradients of modules inside a CUDA graph without gradient accumulation fusion.

    Why: the unfused accumulation does not write to a fixed address, which a graph needs. The conditions on the
    modules are those of EPO209.

    Example: `--cuda-graph-scope attn --delay-wgrad-compute --no-gradient-accumulation-fusion`

    Fix: `gradient_accumulation_fusion=true`.
    """
    fusion = view["model.gradient_accumulation_fusion"]
    return violated(
        _graphed_wgrad(view, at_setup=at_setup) & fusion.off,
        f"`gradient_accumulation_fusion` is {fusion}; weight gradients delayed inside a CUDA graph need it",
        expected="gradient_accumulation_fusion=true",
    )


@rule(
    "EPO211",
    "graphed-attention-wgrad-needs-no-bias",
    ERROR,
    enforced=_ENFORCED,
    source=[arguments("0.17.1", "1536-1539"), bridge_setup("0.4.2", "554-557"), bridge_setup("main", "554-557")],
    fixes=[no_delayed_wgrad()],
)
def graphed_attention_wgrad_needs_no_bias(view: View, *, at_setup: bool = False) -> Check:
    """What it checks: delayed weight gradients with `attn` inside a CUDA graph and biases in the linear layers.

    Why: the captured weight gradient leaves the bias out; Megatron-LM and Bridge assert it under the conditions of
    EPO209.

    Example: `--cuda-graph-scope attn --delay-wgrad-compute --add-qkv-bias`

    Fix: switch delayed weight gradients off, or take `attn` out of the graph.
    """
    bias, qkv_bias = view["model.add_bias_linear"], view["model.add_qkv_bias"]
    graphed = _graphed(view, "attn") & delays(view, at_setup=at_setup)
    return violated(
        graphed & (TRUE if at_setup else reduces_overlapped(view, at_setup=False)) & (bias.on | qkv_bias.on),
        f"`add_bias_linear` is {bias} and `add_qkv_bias` is {qkv_bias} with graphed attention",
        expected="add_bias_linear=false and add_qkv_bias=false",
    )


def _graphed(view: View, module: str) -> Truth:
    """Whether a module is named for the graph; these checks do not ask for the implementation."""
    return any_of(view.requested(path).has(module) for path in _FIELDS)


def _graphed_wgrad(view: View, *, at_setup: bool) -> Truth:
    """Whether a delayed weight gradient lies inside a graph; Megatron-LM asks where gradient reduction overlaps."""
    shared = view["model.moe_shared_expert_intermediate_size"].is_set & view["model.moe_shared_expert_overlap"].off
    inside = _graphed(view, "attn") | (_graphed(view, "moe_router") & shared)
    asked = TRUE if at_setup else reduces_overlapped(view, at_setup=False)
    return delays(view, at_setup=at_setup) & asked & inside
