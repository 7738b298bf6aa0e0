"""EPO509, 515, 530: which decoder layers are MoE and which are dense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules.engine import (
    ERROR,
    INFO,
    NOTED,
    evidence,
    rule,
    run_time,
    violated,
)
from ep_overlap_mcp.rules.sources import megatron
from ep_overlap_mcp.rules.truth import derived
from ep_overlap_mcp.settings.moe_layers import has_dense_layers, layer_pattern, moe_layers

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

LAYERS, FREQ = "model.num_layers", "model.moe_layer_freq"


@rule(
    "EPO509",
    "last-layer-must-be-moe",
    ERROR,
    enforced=[run_time(">=0.16.0rc0,!dev")],
    source=[
        megatron("0.16.1", "core/models/gpt/fine_grained_callables.py", "186-200"),
        megatron("0.16.1", "core/models/gpt/fine_grained_callables.py", "580-590"),
        megatron("main", "core/models/gpt/fine_grained_callables.py", "214-267"),
    ],
)
def last_layer_must_be_moe(view: View) -> Check:
    """What it checks: EP overlap with a dense last decoder layer.

    Why: the combined schedule applies the final norm in the combine step of the last layer, and a dense layer has no
    such step: the norm is skipped and loss and gradients are silently wrong. 0.14, 0.15 and the dev branch apply it
    elsewhere.

    Example: `--num-layers 12 --moe-layer-freq "([0]*1+[1]*10+[0]*1)"`

    Fix: make the last layer MoE, or keep EP overlap off.
    """
    freq, layers = view[FREQ], view[LAYERS]
    ends_dense = freq.test(_ends_dense)
    every = freq.test(lambda given: isinstance(layer_pattern(given), int) and layer_pattern(given) != 1)
    dense_remainder = derived(_remainder, layers, freq) > 0
    return violated(
        view.overlap & (ends_dense | (every & dense_remainder)),
        f"`moe_layer_freq` {freq} makes the last of {layers} layers dense; the final norm is then skipped",
        expected="an MoE layer last",
    )


@rule(
    "EPO515",
    "dense-layers-lose-overlap",
    INFO,
    enforced=[evidence(">=0.14")],
    source=megatron("0.16.1", "core/models/gpt/fine_grained_callables.py", "586-606"),
)
def dense_layers_lose_overlap(view: View) -> Check:
    """What it checks: EP overlap in a model with dense decoder layers.

    Why: a dense layer has no dispatch and combine, so nothing of the other microbatch's computation hides anything
    there.

    Example: `moe_layer_freq: [0, 0, 0, 1, 1, …]`

    Fix: nothing is wrong; expect less gain.
    """
    freq = view[FREQ]
    return violated(
        view.overlap & freq.test(has_dense_layers),
        f"`moe_layer_freq` {freq} leaves dense layers, which have no communication to hide",
    )


@rule(
    "EPO530",
    "moe-layer-pattern-fits",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/models/gpt/gpt_layer_specs.py", "579-607"),
    unknown=NOTED,
)
def moe_layer_pattern_fits(view: View) -> Check:
    """What it checks: a `moe_layer_freq` that names another number of layers than the model has, or anything but 0
    and 1.

    Why: building the layers asserts one entry a layer.

    Example: `--num-layers 24 --moe-layer-freq "[0]*1+[1]*22"`

    Fix: one 0 or 1 for each layer.
    """
    freq, layers = view[FREQ], view[LAYERS]
    fits = derived(lambda given, count: int(moe_layers(given, count) is not None), freq, layers)
    return violated(
        view["model.num_moe_experts"].is_set & freq.is_set & freq.test(_is_pattern) & (fits == 0),
        f"`moe_layer_freq` {freq} does not describe {layers} layers by 0 and 1",
        expected="one entry a layer, 1 MoE or 0 dense",
    )


def _ends_dense(freq: Any) -> bool:
    pattern = layer_pattern(freq)
    return isinstance(pattern, list) and bool(pattern) and pattern[-1] == 0


def _is_pattern(freq: Any) -> bool:
    return layer_pattern(freq) is not None


def _remainder(layers: int, freq: Any) -> int:
    every = layer_pattern(freq)
    return (layers - 1) % every if isinstance(every, int) and every > 0 else 0
