"""EPO105-108: recompute that EP overlap excludes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, bridge, core, put, rule, violated
from ep_overlap_mcp.rules.recompute import recomputes_modules
from ep_overlap_mcp.rules.remedies import drop_moe_recompute
from ep_overlap_mcp.rules.sources import bridge_setup, core_config
from ep_overlap_mcp.rules.truth import TRUE

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View


@rule(
    "EPO105",
    "no-full-recompute",
    ERROR,
    enforced=[core(">=0.14,!dev"), bridge(), core("dev", replayed=True)],
    source=[core_config("0.16.1", "1871-1873"), core_config("dev", "3398-3443"), bridge_setup("main", "499-501")],
    fixes=[
        put(recompute_granularity=None, gives_up="activation memory: nothing is recomputed any more"),
        put(
            recompute_granularity="selective",
            recompute_method=None,
            recompute_num_layers=None,
            gives_up="activation memory: only the named modules are recomputed",
        ),
    ],
)
def no_full_recompute(view: View, *, replayed: bool = False) -> Check:
    """What it checks: EP overlap is on with `recompute_granularity=full`.

    Why: full recompute runs a layer's forward inside its backward; the combined schedule has taken the layer apart.
    Megatron-LM's dev branch replays whole layers instead, and then refuses dropout, `distribute_saved_activations`,
    FP8 with delayed scaling, and MTP under `uniform` with more than one layer a segment.

    Example: `--recompute-granularity full --recompute-method uniform --recompute-num-layers 1`

    Fix: drop full recompute, or recompute modules (`recompute_granularity=selective`). Both need more memory.
    """
    granularity = view["model.recompute_granularity"]
    refused = _not_replayed(view) if replayed else TRUE
    limits = " and a replay that dev refuses (dropout, FP8 delayed scaling, MTP segments, sharded saves)"
    return violated(
        view.overlap & (granularity == "full") & refused,
        f"`recompute_granularity` is {granularity}{limits if replayed else ''}; EP overlap excludes it",
        expected="recompute_granularity unset or selective",
    )


@rule(
    "EPO106",
    "no-recompute-method",
    ERROR,
    enforced=[core(">=0.14,!dev"), bridge(), core("dev", but_full=True)],
    source=[core_config("0.16.1", "1874-1876"), core_config("dev", "3444-3447"), bridge_setup("main", "502-504")],
    fixes=[put(recompute_method=None)],
)
def no_recompute_method(view: View, *, but_full: bool = False) -> Check:
    """What it checks: EP overlap is on with `recompute_method` set, whatever the granularity.

    Why: the method belongs to full recompute, which EP overlap excludes; Megatron-Core asserts that it is unset even
    where it would have no effect. The dev branch looks at it only without full recompute.

    Example: `--overlap-moe-expert-parallel-comm --recompute-method uniform`

    Fix: remove `recompute_method`.
    """
    method = view["model.recompute_method"]
    looked_at = view["model.recompute_granularity"] != "full" if but_full else TRUE
    return violated(
        view.overlap & method.is_set & looked_at,
        f"`recompute_method` is {method}; EP overlap needs it unset",
        expected="recompute_method unset",
    )


@rule(
    "EPO107",
    "no-recompute-num-layers",
    ERROR,
    enforced=[core(">=0.14,!dev"), bridge(), core("dev", but_full=True)],
    source=[
        core_config("0.16.1", "1877-1879"),
        core_config("0.16.1", "1179-1185"),
        core_config("dev", "3448-3451"),
        bridge_setup("main", "505-507"),
    ],
    fixes=[put(recompute_num_layers=None)],
)
def no_recompute_num_layers(view: View, *, but_full: bool = False) -> Check:
    """What it checks: `recompute_num_layers` is set with EP overlap, or with selective recompute.

    Why: the number belongs to full recompute. Megatron-Core asserts that it is unset with EP overlap, and raises
    ValueError with `recompute_granularity=selective`, overlap or not.

    Example: `--recompute-granularity selective --recompute-num-layers 1`

    Fix: remove `recompute_num_layers`.
    """
    number, granularity = view["model.recompute_num_layers"], view["model.recompute_granularity"]
    looked_at = granularity != "full" if but_full else TRUE
    return violated(
        number.is_set & ((view.overlap & looked_at) | recomputes_modules(view)),
        f"`recompute_num_layers` is {number} with `recompute_granularity` {granularity}; it must be unset",
        expected="recompute_num_layers unset",
    )


@rule(
    "EPO108",
    "no-moe-in-recompute-modules",
    ERROR,
    enforced=[core(">=0.17.0rc0"), bridge(">=0.6")],
    source=[core_config("main", "3030-3032"), bridge_setup("main", "508-512")],
    fixes=[drop_moe_recompute()],
)
def no_moe_in_recompute_modules(view: View) -> Check:
    """What it checks: EP overlap is on with `moe` among `recompute_modules`, whatever the granularity.

    Why: recomputing the MoE layer would run dispatch and combine again in the backward, outside the schedule. Core
    0.17 and later assert it. Earlier releases accept it and recompute nothing. `moe_act` is another module and fine.

    Example: `--recompute-granularity selective --recompute-modules moe`

    Fix: drop `moe`; `moe_act` and `layernorm` save some of the memory.
    """
    modules, old_flag = view["model.recompute_modules"], view["model.moe_layer_recompute"]
    return violated(
        view.overlap & (modules.has("moe") | old_flag.on),
        f"`recompute_modules` is {modules}; EP overlap excludes moe",
        expected="no moe in recompute_modules",
    )


def _not_replayed(view: View) -> Truth:
    """What dev's replay of a whole layer refuses."""
    dropout = (view["model.attention_dropout"] != 0) | (view["model.hidden_dropout"] != 0)
    delayed = view["model.fp8"].on & (view["model.fp8_recipe"] == "delayed")
    uniform = view["model.recompute_method"] == "uniform"
    segments = view["model.mtp_num_layers"].on & uniform & (view["model.recompute_num_layers"] != 1)
    return view["model.distribute_saved_activations"].on | dropout | delayed | segments
