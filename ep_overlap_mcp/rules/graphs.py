"""EPO301, 303 to 309, 320, 324 to 326: what may lie inside a layer's CUDA graph.

"Modules" are `cuda_graph_scope` until 0.17 and `cuda_graph_modules` from 0.18.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, core, put, rule, run_time, violated, violated_by, without
from ep_overlap_mcp.rules.remedies import drop_moe_recompute, graph_only, graph_without, no_graphs
from ep_overlap_mcp.rules.sources import core_config, megatron
from ep_overlap_mcp.rules.truth import TRUE, any_of
from ep_overlap_mcp.settings.moe_layers import layer_pattern

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

IMPLEMENTATION = "model.cuda_graph_impl"
_KEEPS = "activation memory: that module is kept"


def graphs_on(view: View) -> Truth:
    """Whether anything is captured in a CUDA graph."""
    return ~view[IMPLEMENTATION].one_of(None, "none")


def graphs_layers(view: View) -> Truth:
    """Whether graphs hold parts of layers, not the whole iteration."""
    return view[IMPLEMENTATION].one_of("local", "transformer_engine")


def graphs_iteration(view: View) -> Truth:
    """Whether one graph holds the whole training iteration."""
    local = (view[IMPLEMENTATION] == "local") & view.graph_modules.has("full_iteration")
    return local | (view[IMPLEMENTATION] == "full_iteration")


@rule(
    "EPO301",
    "graph-leaves-experts-out",
    ERROR,
    enforced=[core(">=0.16")],
    source=[core_config("0.16.1", "1898-1907"), core_config("main", "3061-3071")],
    fixes=[graph_without("moe", "mlp"), no_graphs()],
)
def graph_leaves_experts_out(view: View) -> Check:
    """What it checks: EP overlap is on and Transformer Engine's CUDA graph holds `moe` or `mlp`.

    Why: the schedule interleaves exactly these parts of two microbatches; a graph that holds them cannot be
    interleaved. Megatron-Core asserts it.

    Example: `--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp --overlap-moe-expert-parallel-comm`

    Fix: name only `attn`, `moe_router`, `moe_preprocess` or `mamba`.
    """
    modules = view.graph_modules
    return violated(
        view.overlap
        & (view[IMPLEMENTATION] == "transformer_engine")
        & any_of(modules.has(module) for module in ("moe", "mlp")),
        f"the CUDA graph holds {modules}; EP overlap needs moe and mlp outside it",
        expected="neither moe nor mlp in the graph's modules",
    )


@rule(
    "EPO303",
    "graph-modules-must-be-named",
    ERROR,
    enforced=[run_time(">=0.16")],
    source=[
        megatron("0.16.1", "core/transformer/transformer_layer.py", "1030-1046"),
        megatron("main", "core/transformer/transformer_layer.py", "1366-1375"),
    ],
    fixes=[graph_only("attn"), no_graphs()],
)
def graph_modules_must_be_named(view: View) -> Check:
    """What it checks: EP overlap is on and Transformer Engine's CUDA graph names no modules, or `full`: it then holds
    the whole layer.

    Why: the configuration is accepted, and the first replay asserts that EP overlap is off.

    Example: `--cuda-graph-impl transformer_engine --overlap-moe-expert-parallel-comm`

    Fix: name modules, such as `attn`.
    """
    modules = view.graph_modules
    return violated(
        view.overlap & (view[IMPLEMENTATION] == "transformer_engine") & modules.off,
        "the CUDA graph names no modules and so holds whole layers, which EP overlap cannot interleave",
        expected="named modules without moe and mlp, such as attn",
    )


@rule(
    "EPO304",
    "preprocess-graph-needs-router-graph",
    ERROR,
    enforced=[core(">=0.16.0rc0")],
    source=[core_config("0.16.1", "1747-1750"), core_config("main", "2821-2824")],
    fixes=[graph_without(adding="moe_router"), graph_without("moe_preprocess")],
)
def preprocess_graph_needs_router_graph(view: View) -> Check:
    """What it checks: the CUDA graph holds `moe_preprocess` without `moe_router`.

    Why: preprocessing works on the router's result inside the graph; Megatron-Core asserts that both are there. The
    local implementation adds the router by itself.

    Example: `--cuda-graph-impl transformer_engine --cuda-graph-scope moe_preprocess`

    Fix: add `moe_router`.
    """
    modules = view.graph_modules
    return violated(
        graphs_layers(view) & modules.has("moe_preprocess") & ~modules.has("moe_router"),
        f"the CUDA graph holds {modules}; moe_preprocess needs moe_router",
        expected="moe_router with moe_preprocess",
    )


@rule(
    "EPO305",
    "moe-graph-excludes-router-graph",
    ERROR,
    enforced=[core(">=0.16.0rc0")],
    source=[core_config("0.16.1", "1743-1746"), core_config("main", "2817-2820")],
    fixes=[graph_without("moe"), graph_without("moe_router", "moe_preprocess")],
)
def moe_graph_excludes_router_graph(view: View) -> Check:
    """What it checks: the CUDA graph holds both `moe` and `moe_router`.

    Why: `moe` is the whole layer with its router; Megatron-Core asserts that only one is named.

    Example: `--cuda-graph-scope attn moe moe_router`

    Fix: drop `moe`, which EP overlap excludes anyway.
    """
    modules = view.graph_modules
    return violated(
        graphs_layers(view) & modules.has("moe") & modules.has("moe_router"),
        f"the CUDA graph holds {modules}; moe and moe_router exclude each other",
        expected="moe or moe_router",
    )


@rule(
    "EPO306",
    "moe-graph-needs-drop-and-pad",
    ERROR,
    enforced=[core(">=0.16.0rc0")],
    source=[core_config("0.16.1", "1763-1770"), core_config("main", "2838-2844")],
    fixes=[graph_without("moe")],
)
def moe_graph_needs_drop_and_pad(view: View) -> Check:
    """What it checks: the CUDA graph holds `moe` while experts take any number of tokens.

    Why: a graph has fixed shapes; only a capacity factor with padding gives the experts fixed ones. Megatron-Core
    asserts it.

    Example: `--cuda-graph-scope moe` without `--moe-expert-capacity-factor` and `--moe-pad-expert-input-to-capacity`

    Fix: drop `moe` from the graph.
    """
    modules = view.graph_modules
    return violated(
        graphs_layers(view) & _has_experts(view) & modules.has("moe") & ~_drops_and_pads(view),
        f"the CUDA graph holds {modules} without a capacity factor and padding",
        expected="no moe in the graph, or moe_expert_capacity_factor with moe_pad_expert_input_to_capacity",
    )


@rule(
    "EPO307",
    "mlp-graph-needs-dense-layer",
    ERROR,
    enforced=[core(">=0.16.0rc0")],
    source=[core_config("0.16.1", "1757-1762"), core_config("main", "2831-2837")],
    fixes=[graph_without("mlp")],
)
def mlp_graph_needs_dense_layer(view: View) -> Check:
    """What it checks: the CUDA graph holds `mlp` in a model whose layers all have experts.

    Why: `mlp` means the dense layers' MLP; Megatron-Core asserts that there is one.

    Example: `--cuda-graph-scope attn mlp` with `--moe-layer-freq 1`

    Fix: drop `mlp` from the graph.
    """
    modules, freq = view.graph_modules, view["model.moe_layer_freq"]
    all_moe = freq.test(lambda value: _every_layer_moe(layer_pattern(value)))
    return violated(
        graphs_layers(view) & _has_experts(view) & modules.has("mlp") & all_moe,
        f"the CUDA graph holds {modules} and every layer is MoE (`moe_layer_freq` is {freq})",
        expected="no mlp in the graph",
    )


@rule(
    "EPO308",
    "preprocess-graph-excludes-host-copies",
    ERROR,
    enforced=[core(">=0.16.0rc0")],
    source=[core_config("0.16.1", "1771-1778"), core_config("main", "2845-2853")],
    fixes=[graph_without("moe_preprocess")],
)
def preprocess_graph_excludes_host_copies(view: View) -> Check:
    """What it checks: the CUDA graph holds `moe_preprocess` where the alltoall dispatcher copies counts to the host: a
    capacity factor without padding, or router padding for FP8.

    Why: such a copy waits for the host and cannot be captured; Megatron-Core asserts it.

    Example: `--cuda-graph-scope moe_router moe_preprocess --moe-expert-capacity-factor 1.0`

    Fix: drop `moe_preprocess` from the graph.
    """
    modules, factor = view.graph_modules, view["model.moe_expert_capacity_factor"]
    copies = factor.is_set | view["model.moe_router_padding_for_fp8"].on
    return violated(
        graphs_layers(view)
        & _has_experts(view)
        & modules.has("moe_preprocess")
        & view.dispatches_by("alltoall")
        & copies
        & ~_drops_and_pads(view),
        f"the CUDA graph holds {modules} while alltoall copies counts to the host",
        expected="no moe_preprocess in the graph",
    )


@rule(
    "EPO309",
    "router-graph-excludes-moe-recompute",
    ERROR,
    enforced=[core(">=0.16")],
    source=[core_config("0.16.1", "1786-1795"), core_config("main", "2860-2870")],
    fixes=[drop_moe_recompute(), graph_without("moe_router", "moe_preprocess")],
)
def router_graph_excludes_moe_recompute(view: View) -> Check:
    """What it checks: Transformer Engine's CUDA graph holds `moe_router` while the MoE layer is recomputed.

    Why: the recomputed part must lie wholly inside or wholly outside the graph, and the layer covers the router.

    Example: `--cuda-graph-scope attn moe_router --recompute-granularity selective --recompute-modules moe`

    Fix: drop `moe` from the recompute modules, which EP overlap excludes anyway.
    """
    modules, recomputed = view.graph_modules, view["model.recompute_modules"]
    selective = view["model.recompute_granularity"] == "selective"
    return violated(
        (view[IMPLEMENTATION] == "transformer_engine") & selective & recomputed.has("moe") & modules.has("moe_router"),
        f"the CUDA graph holds {modules} and `recompute_modules` is {recomputed}",
        expected="no moe in recompute_modules",
    )


@rule(
    "EPO320",
    "recompute-stays-outside-graph",
    ERROR,
    enforced=[
        core("<0.15", only_local=True),
        core(">=0.15,<0.16", only_attention=True),
        core("==0.16.0rc0"),
    ],
    unknown=NOTED,
    source=[
        core_config("0.14.0", "1267-1271"),
        core_config("0.15.3", "1397-1414"),
        "NVIDIA/Megatron-LM@0d8e0714:megatron/core/transformer/transformer_config.py:1584-1640",
    ],
    fixes=[put(recompute_granularity=None, gives_up="activation memory: nothing is recomputed"), no_graphs()],
)
def recompute_stays_outside_graph(view: View, *, only_local: bool = False, only_attention: bool = False) -> Check:
    """What it checks: on releases before 0.16, selective recompute together with CUDA graphs.

    Why: 0.14 admits no recomputation with its own graphs. 0.15 admits it only beside Transformer Engine's graph of the
    attention, without `core_attn` and `mla_up_proj`. The 0.16 pre-release of Bridge 0.2 compares module by module.
    From 0.16.0 on these rules are gone (see EPO309 and EPO324).

    Example: `--external-cuda-graph --cuda-graph-scope full --recompute-granularity selective` on 0.15

    Fix: drop the recomputation or the graph.
    """
    modules, recomputed = view.graph_modules, view["model.recompute_modules"]
    selective = view["model.recompute_granularity"] == "selective"
    attention = modules.test(lambda named: named == ["attn"]) & (view[IMPLEMENTATION] == "transformer_engine")
    if only_local:
        refused = view[IMPLEMENTATION] == "local"
    elif only_attention:
        refused = ~attention | _again(view, "core_attn", "mla_up_proj")
    else:
        refused = modules.off | (~(modules.test(lambda named: named == ["full_iteration"])) & _graphed_and_again(view))
    return violated(
        graphs_on(view) & selective & refused,
        f"`recompute_modules` is {recomputed} with CUDA graphs of {modules}",
        expected="no recomputation of what a CUDA graph holds",
    )


@rule(
    "EPO324",
    "graphed-recompute-excludes-randomness",
    ERROR,
    enforced=[core(">=0.16")],
    unknown=NOTED,
    source=[core_config("0.16.1", "1797-1825"), core_config("main", "2872-2908")],
    fixes=[
        put(attention_dropout=0.0, hidden_dropout=0.0, gives_up="dropout"),
        without("model.recompute_modules", "core_attn", "mlp", "moe", gives_up=_KEEPS),
    ],
)
def graphed_recompute_excludes_randomness(view: View) -> Check:
    """What it checks: a module is recomputed inside a CUDA graph and draws random numbers: dropout (0.1 by default),
    or the router's jitter.

    Why: the replay cannot draw the same numbers again; Megatron-Core asserts that there are none.

    Example: `--cuda-graph-impl transformer_engine --cuda-graph-scope attn --recompute-granularity selective` with the
    default dropout and `core_attn`

    Fix: `attention_dropout=0` and `hidden_dropout=0`, as nearly every large model has them, or recompute less.
    """
    attention, hidden = view["model.attention_dropout"], view["model.hidden_dropout"]
    jitter = view["model.moe_input_jitter_eps"]
    mlp_again, moe_again = _graphed(view, "mlp") & _again(view, "mlp"), _graphed(view, "moe") & _again(view, "moe")
    selective = view["model.recompute_granularity"] == "selective"
    return violated_by(
        [
            (
                (attention != 0) & _graphed(view, "attn") & _again(view, "core_attn"),
                f"`attention_dropout` is {attention} with graphed, recomputed core_attn",
            ),
            ((hidden != 0) & (mlp_again | moe_again), f"`hidden_dropout` is {hidden} with a graphed, recomputed MLP"),
            (jitter.is_set & moe_again, f"`moe_input_jitter_eps` is {jitter} with a graphed, recomputed MoE layer"),
        ],
        when=graphs_on(view) & selective,
        expected="no dropout and no jitter in what is graphed and recomputed",
    )


@rule(
    "EPO325",
    "moe-graph-needs-experts",
    ERROR,
    enforced=[core(">=0.16.0rc0")],
    unknown=NOTED,
    source=[core_config("0.16.1", "1751-1755"), core_config("main", "2825-2829")],
    fixes=[graph_without("moe", "moe_router", "moe_preprocess")],
)
def moe_graph_needs_experts(view: View) -> Check:
    """What it checks: the CUDA graph holds `moe` or `moe_router` in a model without experts, or with one.

    Why: there is no such module; Megatron-Core asserts that there is.

    Example: `--cuda-graph-scope attn moe_router` for a dense model

    Fix: drop the module from the graph.
    """
    modules, experts = view.graph_modules, view["model.num_moe_experts"]
    return violated(
        graphs_layers(view) & ~_has_experts(view) & (modules.has("moe") | modules.has("moe_router")),
        f"the CUDA graph holds {modules} and `num_moe_experts` is {experts}",
        expected="no moe and moe_router in the graph",
    )


@rule(
    "EPO326",
    "offloading-with-graphs",
    ERROR,
    enforced=[core(">=0.18,<0.19"), core(">=0.19", local=("expert_fc1", "moe_act", "fused_group_mlp"))],
    unknown=NOTED,
    source=[core_config("0.18.2", "2351-2373"), core_config("main", "2931-2976")],
    fixes=[put(fine_grained_activation_offloading=False, gives_up="memory: activations stay on the GPU"), no_graphs()],
)
def offloading_with_graphs(view: View, *, local: tuple[str, ...] = ()) -> Check:
    """What it checks: fine-grained activation offloading with CUDA graphs that cannot carry it.

    Why: the copies must be captured or kept outside. Megatron-Core admits Transformer Engine's graphs and the
    full-iteration graph (with a bound on copies in flight), never `moe` inside the graph, and wants a warm-up step.
    From 0.19 local graphs of named modules may offload the experts' activations.

    Example: `--cuda-graph-impl local --fine-grained-activation-offloading --offload-modules core_attn`

    Fix: drop the offloading or the graph.
    """
    modules, offloaded = view.graph_modules, view["model.offload_modules"]
    flights, warmup = view["model.fine_grained_offloading_max_inflight_offloads"], view["model.cuda_graph_warmup_steps"]
    carried = offloaded.test(lambda named: bool(named) and set(named) <= set(local)) & modules.on
    return violated_by(
        [
            (
                (view[IMPLEMENTATION] == "local") & (~carried if local else TRUE),
                f"local CUDA graphs of {modules} with `offload_modules` {offloaded}",
            ),
            (modules.has("moe"), f"the CUDA graph holds {modules}"),
            (warmup <= 0, f"`cuda_graph_warmup_steps` is {warmup}"),
            (
                (view[IMPLEMENTATION] == "full_iteration") & (flights.unset | (flights < 0)),
                f"`fine_grained_offloading_max_inflight_offloads` is {flights} with a full-iteration graph",
            ),
        ],
        when=graphs_on(view) & view["model.fine_grained_activation_offloading"].on,
        expected="graphs that carry the offloading, or none",
    )


def _has_experts(view: View) -> Truth:
    return view["model.num_moe_experts"] > 1


def _drops_and_pads(view: View) -> Truth:
    return view["model.moe_expert_capacity_factor"].is_set & view["model.moe_pad_expert_input_to_capacity"].on


def _every_layer_moe(pattern: int | list[int] | None) -> bool:
    return pattern == 1 or (isinstance(pattern, list) and 0 not in pattern)


def _again(view: View, *modules: str) -> Truth:
    """Whether any of the modules is recomputed."""
    return any_of(view["model.recompute_modules"].has(module) for module in modules)


def _graphed(view: View, module: str) -> Truth:
    """Whether a module lies in a graph: by name, with its whole layer, or with the whole iteration."""
    return graphs_iteration(view) | view.graph_modules.off | view.graph_modules.has(module)


def _graphed_and_again(view: View) -> Truth:
    """What the 0.16 pre-release compares module by module."""
    modules = view.graph_modules
    experts = modules.has("moe") | modules.has("moe_router")
    return (
        (modules.has("attn") & _again(view, "core_attn", "mla_up_proj"))
        | (modules.has("mlp") & _again(view, "mlp"))
        | (modules.has("moe") & _again(view, "moe_act", "moe", "shared_experts"))
        | (modules.has("moe_router") & _again(view, "moe", "shared_experts"))
        | (modules.has("attn") & modules.has("mlp") & experts & _again(view, "layernorm"))
    )
