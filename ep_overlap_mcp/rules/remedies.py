"""Fixes whose values depend on the configuration at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.hardware import find_gpu
from ep_overlap_mcp.rules.engine import Fix
from ep_overlap_mcp.rules.virtual_stages import EMBEDDING, FIRST, LAST, LOSS, fitting_virtual_stages
from ep_overlap_mcp.settings.layout import parse_layout
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, MODEL_DELAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ep_overlap_mcp.rules.view import View

    Options = Iterator[Mapping[str, Any]]

_LAYOUT = "model.pipeline_model_parallel_layout"
_PP = "model.pipeline_model_parallel_size"
_VPP = "model.virtual_pipeline_model_parallel_size"
_STAGES = "model.num_virtual_stages_per_pipeline_rank"
RESHARDED = "the layout of experts over GPUs: checkpoints must be resharded"
_LARGEST_GROUP = 64
_MOST_VIRTUAL_STAGES = 8  # more make stages of so few layers that pipeline traffic eats the gain
_MODULES, _SCOPE = "model.cuda_graph_modules", "model.cuda_graph_scope"


def drop_shared_expert_overlap() -> Fix:
    """Shared experts after the dispatch instead of beside it: neither numerics nor memory change."""
    changes = {"model.moe_shared_expert_overlap": False}
    return Fix(lambda _view: [changes], safe=True, gives_up="the overlap of shared experts with the dispatch")


def unfuse_bias_activation() -> Fix:
    """Bias and activation one after the other; Megatron-LM has a flag for each kernel and writes the field from it."""

    def options(view: View) -> Options:
        kernel = "swiglu" if view.effective.value("args.swiglu") is True else "gelu"
        field = f"args.bias_{kernel}_fusion" if view.framework == "megatron-lm" else "model.bias_activation_fusion"
        yield {field: False}

    return Fix(options)


def spread_experts() -> Fix:
    """Expert-parallel sizes that divide the experts and the GPUs, small ones first; one that does not, if none does."""

    def options(view: View) -> Options:
        experts = view.effective["model.num_moe_experts"].value
        count = experts if isinstance(experts, int) else 8
        sizes = [size for size in range(2, min(count, _LARGEST_GROUP) + 1) if count % size == 0]
        fitting = [size for size in sizes if _fits_world(view, size)]
        yield from ({"model.expert_model_parallel_size": size} for size in (fitting or sizes)[:3])

    return Fix(options, safe=False, gives_up=RESHARDED)


def _fits_world(view: View, size: int) -> bool:
    """Whether the GPUs, where their number is known, are a multiple of expert TP x EP x PP."""
    paths = ("hardware.world_size", "model.expert_tensor_parallel_size", _PP)
    world, expert_tp, pp = (view.effective[path].value for path in paths)
    known = all(isinstance(value, int) for value in (world, expert_tp, pp))
    return not known or world % (expert_tp * size * pp) == 0


def add_virtual_stages() -> Fix:
    """VPP as the layout has it, else divisors of a stage's layers, small ones first."""

    def options(view: View) -> Options:
        pp, layout = view.effective[_PP].value, view.effective[_LAYOUT].value
        if not isinstance(pp, int) or pp < 2:
            return
        if layout is None:
            yield from ({_VPP: number} for number in _divisors(view, pp) if number <= _MOST_VIRTUAL_STAGES)
        elif (parsed := parse_layout(layout)) and len(parsed.stages) > pp and len(parsed.stages) % pp == 0:
            yield {_VPP: len(parsed.stages) // pp}

    return Fix(options)


def many_virtual_stages() -> Fix:
    """Divisors of a stage's layers that are large, as where its layers are a prime number."""

    def options(view: View) -> Options:
        pp = view.effective[_PP].value
        if isinstance(pp, int) and pp > 1 and view.effective[_LAYOUT].value is None:
            numbers = _divisors(view, pp)
            yield from ({_VPP: number} for number in numbers if min(numbers) > _MOST_VIRTUAL_STAGES)

    return Fix(options, safe=False, gives_up="pipeline traffic: activations are sent after every few layers")


def split_stages() -> Fix:
    """Two virtual stages a rank by a layout that leaves each rank its layers, where few virtual stages divide them.

    Layers that do not divide over the ranks are spread over them, the ranks between having one more.
    """

    def options(view: View) -> Options:
        pp, layers = view.effective[_PP].value, view.effective["model.num_layers"].value
        if not isinstance(pp, int) or not isinstance(layers, int) or pp < 2 or view.effective[_LAYOUT].value:
            return
        counts = _layers_of_stages(view, layers, pp)
        few = min(fitting_virtual_stages(view) or [layers]) <= _MOST_VIRTUAL_STAGES
        if few or min(counts) < 2 or sum(counts) != layers or _is_accounted(view):
            return
        replaced = (FIRST, LAST, "model.num_layers_per_virtual_pipeline_stage", _STAGES)
        unset = {path: None for path in replaced if view.effective.requested(path).value is not None}
        written = {_VPP: 2} if view.request.framework == "bridge" else {}
        yield {_LAYOUT: _halved(counts, view.effective["model.mtp_num_layers"].value or 0), **unset, **written}

    return Fix(options)


def _layers_of_stages(view: View, layers: int, pp: int) -> list[int]:
    """How many layers each pipeline rank has: at the ends as given, else as even as can be, more of them between."""
    ends = {0: view.effective[FIRST].value, pp - 1: view.effective[LAST].value}
    given = {stage: count for stage, count in ends.items() if isinstance(count, int)}
    free = sorted((stage for stage in range(pp) if stage not in given), key=lambda stage: stage in (0, pp - 1))
    each, over = divmod(layers - sum(given.values()), max(len(free), 1))
    spread = {stage: each + (number < over) for number, stage in enumerate(free)}
    return [{**given, **spread}[stage] for stage in range(pp)]


def _is_accounted(view: View) -> bool:
    return any(view.effective[path].value for path in (EMBEDDING, LOSS))


def _halved(counts: Sequence[int], mtp: object) -> str:
    """The layout of two virtual stages a rank: the larger halves of all ranks first, in pipeline order."""
    halves = [count - count // 2 for count in counts] + [count // 2 for count in counts]
    stages = ["t" * half for half in halves]
    prediction = "m" * mtp if isinstance(mtp, int) else ""
    return "E" + "|".join(stages) + prediction + "L"


def even_virtual_stages() -> Fix:
    """A layout of exactly PP stages leaves no virtual ones; even stages without a layout do."""

    def options(view: View) -> Options:
        pp = view.effective[_PP].value
        if view.effective[_LAYOUT].value is not None and isinstance(pp, int) and pp > 1:
            yield from ({_LAYOUT: None, _VPP: number} for number in _divisors(view, pp))

    return Fix(options, safe=False, gives_up="the hand-made pipeline layout")


def no_pipeline() -> Fix:
    """One stage, and nothing said about what the first and the last of several hold."""

    def options(view: View) -> Options:
        unset = {path: None for path in (FIRST, LAST, _LAYOUT) if view.effective[path].value is not None}
        yield {_PP: 1, **unset}

    return Fix(options, safe=False, gives_up="pipeline parallelism: every GPU then holds all layers")


def hybridep_where_it_runs() -> Fix:
    """The other flex backend, on the GPU generations that it runs on."""

    def options(view: View) -> Options:
        gpu = view.effective["hardware.gpu"].value
        known = find_gpu(gpu) if isinstance(gpu, str) else None
        if known is None or known.capability[0] in (8, 9, 10):
            yield {"model.moe_flex_dispatcher_backend": "hybridep"}

    return Fix(options)


def drop_moe_recompute() -> Fix:
    """`recompute_modules` without `moe`, and without the old flag that adds it."""

    def options(view: View) -> Options:
        modules = view.effective["model.recompute_modules"].value
        if isinstance(modules, list):
            old = {"model.moe_layer_recompute": False} if view.effective["model.moe_layer_recompute"].value else {}
            yield {"model.recompute_modules": [m for m in modules if m != "moe"], **old}

    return Fix(options, safe=False, gives_up="activation memory: the MoE layer is kept (moe_act may be recomputed)")


def no_delayed_wgrad() -> Fix:
    """Delayed weight gradients off, by whichever field asks for them."""

    def options(view: View) -> Options:
        asked = [path for path in (BRIDGE_DELAY, MODEL_DELAY) if view.effective.requested(path).value is True]
        yield dict.fromkeys(asked or [MODEL_DELAY], False)

    return Fix(options, gives_up="delayed weight gradients, and the compute they add to hide communication under")


def one_mtp_layer() -> Fix:
    """The first prediction layer only."""

    def options(view: View) -> Options:
        if view.effective["model.mtp_num_layers"].value not in (None, 0, 1):
            yield {"model.mtp_num_layers": 1}

    return Fix(options, safe=False, gives_up="the deeper prediction layers")


def unset_zero_mtp() -> Fix:
    """Unset for zero, which means the same."""

    def options(view: View) -> Options:
        if view.effective["model.mtp_num_layers"].value == 0:
            yield {"model.mtp_num_layers": None}

    return Fix(options)


def no_graphs(gives_up: str = "CUDA graphs, and the launch overhead that they save") -> Fix:
    """No CUDA graphs, by whichever field asks for them."""
    return Fix(lambda view: [_no_graphs(view)], safe=False, gives_up=gives_up)


def graph_only(*modules: str) -> Fix:
    """Exactly these modules inside the graph."""
    return Fix(
        lambda view: [_graph_modules(view, list(modules))], safe=False, gives_up="graphs of the layer's other parts"
    )


def graph_without(*modules: str, adding: str | None = None) -> Fix:
    """The graph's modules without some, which then run outside it, and with one more."""

    def options(view: View) -> Options:
        path = _MODULES if view.release.core.minor >= (0, 18) else _SCOPE
        current = view.effective[path].value
        if isinstance(current, list):
            kept = [module for module in current if module not in modules]
            kept += [adding] if adding and adding not in kept else []
            yield _graph_modules(view, kept) if kept else _no_graphs(view)  # no modules would mean the whole layer

    return Fix(options, safe=False, gives_up=f"graphs of {' or '.join(modules)}" if modules else "memory for the graph")


def _no_graphs(view: View) -> Mapping[str, Any]:
    old = [f"model.{flag}" for flag in ("enable_cuda_graph", "external_cuda_graph")]
    return {path: False for path in old if view.effective[path].value is True} or {"model.cuda_graph_impl": "none"}


def _graph_modules(view: View, modules: list[str]) -> Mapping[str, Any]:
    if view.release.core.minor < (0, 18):
        return {_SCOPE: modules}
    written = view.effective.requested(_SCOPE)
    old = {_SCOPE: None} if written.written and written.value is not None else {}
    return {_MODULES: modules, **old}


def _divisors(view: View, pp: int) -> list[int]:
    """Virtual stages that divide a stage's layers: those with which every rank overlaps something first, then small."""
    counts = fitting_virtual_stages(view)
    if counts is None:
        return [2]
    return sorted(counts, key=lambda count: not _all_overlap(view, pp, count))[:3]


def _all_overlap(view: View, pp: int, count: int) -> bool:
    """Whether every pipeline rank pairs a forward with a backward, or the microbatches are not known."""
    from ep_overlap_mcp.rules.pipeline import overlapped_pairs

    microbatches = view.microbatches
    return not (microbatches.known and microbatches.raw) or 0 not in overlapped_pairs(microbatches.raw, pp, count, pp)
