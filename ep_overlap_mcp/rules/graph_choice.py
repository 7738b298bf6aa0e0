"""EPO302, 310, 312, 315, 317 to 319, 321 to 323, 327, 329: which CUDA graphs are chosen, by which fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    WARNING,
    bridge,
    core,
    megatron_lm,
    put,
    rule,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.graphs import IMPLEMENTATION, graphs_iteration, graphs_on
from ep_overlap_mcp.rules.remedies import graph_only, no_graphs
from ep_overlap_mcp.rules.sources import arguments, core_config, megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, any_of

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

_MODULES, _SCOPE = "model.cuda_graph_modules", "model.cuda_graph_scope"
_INFERENCE = "model.inference_cuda_graph_scope"
_LEGACY = ("model.enable_cuda_graph", "model.external_cuda_graph")


@rule(
    "EPO302",
    "graph-impl-te-only-with-overlap",
    ERROR,
    enforced=[core(">=0.16,<0.18")],
    source=core_config("0.16.1", "1898-1907"),
    fixes=[no_graphs(), put(cuda_graph_impl="transformer_engine", gives_up="local CUDA graphs")],
)
def graph_impl_te_only_with_overlap(view: View) -> Check:
    """What it checks: EP overlap is on with CUDA graphs other than Transformer Engine's, on 0.16 and 0.17: `local`,
    the old `enable_cuda_graph`, and the full-iteration graph.

    Why: these releases assert Transformer Engine's; 0.18 on accepts the others.

    Example: `--cuda-graph-impl local --overlap-moe-expert-parallel-comm` on 0.16.1

    Fix: no CUDA graphs, or Transformer Engine's with named modules.
    """
    implementation = view[IMPLEMENTATION]
    return violated(
        view.overlap & ~implementation.one_of(None, "none", "transformer_engine"),
        f"`cuda_graph_impl` is {implementation}; EP overlap takes transformer_engine or none on this release",
        expected="cuda_graph_impl in (none, transformer_engine)",
    )


@rule(
    "EPO310",
    "graph-scope-or-modules-not-both",
    ERROR,
    enforced=[core(">=0.18"), megatron_lm(">=0.18")],
    source=[core_config("0.18.2", "2159-2164"), arguments("main", "633-636")],
    fixes=[put(cuda_graph_scope=None)],
)
def graph_scope_or_modules_not_both(view: View) -> Check:
    """What it checks: the old `cuda_graph_scope` and the new `cuda_graph_modules` are both given.

    Why: one is the other's new name; Megatron-Core asserts that only one is used.

    Example: `cuda_graph_scope: [attn]` beside `cuda_graph_modules: [attn, moe_router]`

    Fix: drop `cuda_graph_scope`.
    """
    scope, modules = view.requested(_SCOPE), view.requested(_MODULES)
    return violated(
        scope.is_set & modules.on & modules.test(lambda named: named != ["full"]),
        f"`cuda_graph_scope` is {scope} and `cuda_graph_modules` is {modules}",
        expected="cuda_graph_modules alone",
    )


@rule(
    "EPO312",
    "bridge-local-graph-is-full-iteration",
    ERROR,
    enforced=[bridge(">=0.6")],
    source=megatron_bridge("main", "utils/cuda_graph.py", "134-153"),
    fixes=[put(cuda_graph_impl="transformer_engine", gives_up="local CUDA graphs"), no_graphs()],
)
def bridge_local_graph_is_full_iteration(view: View) -> Check:
    """What it checks: in Bridge, `cuda_graph_impl=local` for something else than the full iteration or inference.

    Why: Bridge captures parts of layers with Transformer Engine's graphs only; validation raises ValueError.

    Example: `model.cuda_graph_impl=local model.cuda_graph_modules=[attn]`

    Fix: `model.cuda_graph_impl=transformer_engine`.
    """
    implementation, inference = view.requested(IMPLEMENTATION), view.requested(_INFERENCE)
    named = any_of(view.requested(path).test(_names_modules) for path in (_MODULES, _SCOPE))
    inference_only = ~named & inference.one_of("layer", "block")
    return violated(
        (implementation == "local") & ~_asks_for(view, "full_iteration") & ~inference_only,
        "`cuda_graph_impl` is local without a full-iteration graph",
        expected="cuda_graph_impl=transformer_engine for modules of a layer",
    )


@rule(
    "EPO315",
    "graph-modules-left-with-impl-none",
    WARNING,
    enforced=[bridge(">=0.4")],
    source=[
        megatron_bridge("main", "training/comm_overlap.py", "537-557"),
        megatron_bridge("main", "utils/cuda_graph.py", "134-138"),
    ],
    fixes=[put(cuda_graph_modules=[])],
)
def graph_modules_left_with_impl_none(view: View) -> Check:
    """What it checks: in Bridge, modules are named for a graph while `cuda_graph_impl` is none.

    Why: nothing is captured, yet the checks of delayed weight gradients look at the names before they are cleared
    (EPO209 to EPO211).

    Example: `model.cuda_graph_impl=none model.cuda_graph_modules=[attn]`

    Fix: empty the list, or choose an implementation.
    """
    named = {path: view.requested(path) for path in (_MODULES, _SCOPE)}
    shown = ", ".join(f"`{path.partition('.')[2]}` {value}" for path, value in named.items() if value.raw)
    return violated(
        any_of(value.test(_names_modules) for value in named.values()) & ~graphs_on(view),
        f"{shown} with `cuda_graph_impl` none",
        expected="no modules without CUDA graphs",
    )


@rule(
    "EPO317",
    "graph-excludes-full-recompute",
    ERROR,
    enforced=[
        core("<0.15", of=("local",)),
        megatron_lm("<0.15", of=("transformer_engine",)),
        core(">=0.15,<=0.16.0rc0"),
        core(">=0.16", but_iteration=True),
    ],
    source=[
        core_config("0.14.0", "1267-1271"),
        arguments("0.14.0", "1109-1116"),
        core_config("0.15.3", "1397-1403"),
        core_config("0.16.1", "1780-1784"),
        core_config("main", "2855-2858"),
    ],
    fixes=[put(recompute_granularity=None, gives_up="activation memory: nothing is recomputed"), no_graphs()],
)
def graph_excludes_full_recompute(
    view: View, *, of: tuple[str, ...] = ("local", "transformer_engine", "full_iteration"), but_iteration: bool = False
) -> Check:
    """What it checks: CUDA graphs with `recompute_granularity=full`, unless one graph holds the whole iteration.

    Why: a recomputed layer would have to be captured inside its own backward; Megatron-Core and Megatron-LM refuse it.

    Example: `--cuda-graph-impl transformer_engine --recompute-granularity full`

    Fix: drop one; EP overlap excludes full recompute anyway.
    """
    granularity = view["model.recompute_granularity"]
    chosen = view[IMPLEMENTATION].one_of(*of) & ~(graphs_iteration(view) if but_iteration else FALSE)
    return violated(
        chosen & (granularity == "full"),
        f"`recompute_granularity` is {granularity} with `cuda_graph_impl` {view[IMPLEMENTATION]}",
        expected="recompute_granularity unset or selective with CUDA graphs",
    )


@rule(
    "EPO318",
    "graph-excludes-cpu-offloading",
    ERROR,
    enforced=[
        core("<0.15", of=("local",)),
        core(">=0.15,<0.18"),
        core(">=0.18", of=("local", "transformer_engine")),
    ],
    source=[core_config("0.14.0", "1267-1269"), core_config("0.16.1", "1722-1723"), core_config("main", "2800-2801")],
    fixes=[put(cpu_offloading=False, gives_up="memory: activations stay on the GPU"), no_graphs()],
)
def graph_excludes_cpu_offloading(
    view: View, *, of: tuple[str, ...] = ("local", "transformer_engine", "full_iteration")
) -> Check:
    """What it checks: CUDA graphs with `cpu_offloading`; from 0.18 the full-iteration graph is exempt.

    Why: the copies to the host are not captured; Megatron-Core raises ValueError.

    Example: `--cuda-graph-impl transformer_engine --cpu-offloading --cpu-offloading-num-layers 2`

    Fix: drop one of the two.
    """
    implementation = view[IMPLEMENTATION]
    return violated(
        implementation.one_of(*of) & view["model.cpu_offloading"].on,
        f"`cpu_offloading` is on with `cuda_graph_impl` {implementation}",
        expected="cpu_offloading=false with CUDA graphs",
    )


@rule(
    "EPO319",
    "graph-implementation-known",
    ERROR,
    enforced=[core(">=0.15,<0.18")],
    unknown=NOTED,
    source=core_config("0.16.1", "1716-1720"),
    fixes=[no_graphs()],
)
def graph_implementation_known(view: View) -> Check:
    """What it checks: `cuda_graph_impl=full_iteration` on a release that does not know it.

    Why: the value came with 0.18; before, `local` with `cuda_graph_scope=full_iteration` meant the same, and
    Megatron-Core asserts `local` or `transformer_engine`.

    Example: `--cuda-graph-impl full_iteration` on 0.17

    Fix: `cuda_graph_impl=local` with `cuda_graph_scope=full_iteration`, without EP overlap.
    """
    implementation = view[IMPLEMENTATION]
    return violated(
        implementation == "full_iteration",
        f"`cuda_graph_impl` is {implementation}, which came with 0.18",
        expected="cuda_graph_impl in (none, local, transformer_engine)",
    )


@rule(
    "EPO321",
    "one-way-to-choose-graphs",
    ERROR,
    enforced=[megatron_lm("<0.15"), core(">=0.15", with_implementation=True)],
    unknown=NOTED,
    source=[arguments("0.14.0", "1101-1104"), core_config("0.16.1", "1670-1676")],
    fixes=[put(enable_cuda_graph=False, external_cuda_graph=False)],
)
def one_way_to_choose_graphs(view: View, *, with_implementation: bool = False) -> Check:
    """What it checks: the old flags `enable_cuda_graph` and `external_cuda_graph` together, or with `cuda_graph_impl`.

    Why: they are old spellings of `local` and `transformer_engine`; Megatron-Core asserts that one way is used.

    Example: `--external-cuda-graph --cuda-graph-impl transformer_engine`

    Fix: use `cuda_graph_impl` alone.
    """
    local, external = (view[path].on for path in _LEGACY)
    implementation = view.requested(IMPLEMENTATION)
    chosen = ~implementation.one_of(None, "none") if with_implementation else FALSE
    return violated_by(
        [
            (local & external, "`enable_cuda_graph` and `external_cuda_graph` are both on"),
            ((local | external) & chosen, f"an old CUDA-graph flag with `cuda_graph_impl` {implementation}"),
        ],
        expected="cuda_graph_impl alone",
    )


@rule(
    "EPO322",
    "whole-layer-graph-stands-alone",
    ERROR,
    enforced=[core(">=0.16")],
    unknown=NOTED,
    source=[core_config("0.16.1", "1700-1708"), megatron("0.18.2", "core/transformer/cuda_graph_config.py", "39-41")],
    fixes=[graph_only("attn")],
)
def whole_layer_graph_stands_alone(view: View) -> Check:
    """What it checks: `full` among other modules of the CUDA graph, whether graphs are on or not.

    Why: `full` means the whole layer; Megatron-Core asserts that nothing else is named.

    Example: `--cuda-graph-scope full attn`

    Fix: name the modules without `full`.
    """
    both = any_of(view.requested(path).test(_full_and_more) for path in (_MODULES, _SCOPE))
    return violated(both, "`full` is named beside other modules of the CUDA graph", expected="modules without full")


@rule(
    "EPO323",
    "full-iteration-graph-stands-alone",
    ERROR,
    enforced=[core(">=0.16.0rc0,<0.18"), core(">=0.18", alone=True)],
    unknown=NOTED,
    source=[
        core_config("0.16.1", "1737-1742"),
        core_config("0.18.2", "2237-2239"),
        megatron("0.18.2", "core/transformer/cuda_graph_config.py", "83-124"),
    ],
    fixes=[no_graphs()],
)
def full_iteration_graph_stands_alone(view: View, *, alone: bool = False) -> Check:
    """What it checks: `full_iteration` with Transformer Engine's graphs; from 0.18 also with modules of a layer or
    with inference graphs.

    Why: only the local implementation captures an iteration; from 0.18 it is an implementation of its own without
    modules, and the old names for it must not contradict the new fields.

    Example: `--cuda-graph-impl transformer_engine --cuda-graph-scope full_iteration`

    Fix: `cuda_graph_impl=full_iteration` without modules from 0.18, `local` before.
    """
    whole, inference = _asks_for(view, "full_iteration"), _asks_for(view, "full_iteration_inference")
    chosen = view[IMPLEMENTATION]
    parts = [(whole & (chosen == "transformer_engine"), "`full_iteration` with Transformer Engine's graphs")]
    if alone:
        parts += [
            ((chosen == "full_iteration") & view.graph_modules.on, f"`full_iteration` beside {view.graph_modules}"),
            (whole & inference, "both old names of whole graphs"),
            (whole & view.requested(_INFERENCE).is_set, "`full_iteration` with `inference_cuda_graph_scope`"),
            (inference & ~chosen.one_of("none", "local"), f"`full_iteration_inference` with {chosen} graphs"),
            (inference & (view.requested(_INFERENCE) == "layer"), "`full_iteration_inference` with layer graphs"),
        ]
    return violated_by(parts, expected="a full-iteration graph alone")


@rule(
    "EPO327",
    "inference-graph-scope-fits-implementation",
    ERROR,
    enforced=[core(">=0.18")],
    unknown=NOTED,
    source=[core_config("0.18.2", "2228-2236"), megatron("0.18.2", "core/transformer/cuda_graph_config.py", "17-22")],
    fixes=[put(inference_cuda_graph_scope=None)],
)
def inference_graph_scope_fits_implementation(view: View) -> Check:
    """What it checks: `inference_cuda_graph_scope` is `layer` or `block` without local CUDA graphs.

    Why: only the local implementation captures inference; Megatron-Core asserts it.

    Example: `--inference-cuda-graph-scope block --cuda-graph-impl transformer_engine`

    Fix: leave `inference_cuda_graph_scope` unset.
    """
    scope, implementation = view[_INFERENCE], view[IMPLEMENTATION]
    return violated(
        scope.one_of("layer", "block") & (implementation != "local"),
        f"`inference_cuda_graph_scope` is {scope} with `cuda_graph_impl` {implementation}",
        expected="inference_cuda_graph_scope unset",
    )


@rule(
    "EPO329",
    "inference-graph-scope-needs-0-17",
    ERROR,
    enforced=[core(">=0.16,<0.17")],
    unknown=NOTED,
    source=[megatron("0.16.1", "core/transformer/enums.py", "70-79"), core_config("0.16.1", "1711")],
    fixes=[put(cuda_graph_scope=["full_iteration"])],
)
def inference_graph_scope_needs_0_17(view: View) -> Check:
    """What it checks: `full_iteration_inference` among the graph's modules on 0.16.

    Why: the name came with 0.17; the configuration class raises KeyError for it, whether graphs are on or not.

    Example: `cuda_graph_scope: [full_iteration_inference]` on 0.16.1

    Fix: `full_iteration`, which 0.16 uses for training and inference.
    """
    return violated(
        _asks_for(view, "full_iteration_inference"),
        "`full_iteration_inference` is named for the CUDA graph, which 0.16 does not know",
        expected="full_iteration",
    )


def _asks_for(view: View, module: str) -> Truth:
    """Whether the text names a module, under the old field or the new one."""
    return any_of(view.requested(path).has(module) for path in (_MODULES, _SCOPE))


def _names_modules(modules: Any) -> bool:
    return bool(set(modules or ()) - {"full", "full_iteration", "full_iteration_inference"})


def _full_and_more(modules: Any) -> bool:
    return isinstance(modules, list) and "full" in modules and len(modules) > 1
