"""Known helpers of Megatron-Bridge recipes and what each writes.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987df src/megatron/bridge/perf_recipes/_common.py:31-124,
src/megatron/bridge/utils/cuda_graph.py:77-105, src/megatron/bridge/training/mixed_precision.py:150-460 and the
`set_…_pipeline_model_parallel_layout` functions of src/megatron/bridge/recipes; the same logic in v0.6.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.recipe_expressions import plain_value
from ep_overlap_mcp.sources.recipe_values import Place, Sequence, Slot, Thing
from ep_overlap_mcp.sources.record import mixed_precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.sources.recipe_run import Run

    Helper = Callable[[Run, list[Any], dict[str, Slot], Place], Any]

_PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8_ds": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_RECIPES = (
    "bf16_mixed",
    "fp16_mixed",
    *(
        f"{half}_with_{rest}_mixed"
        for half in ("bf16", "fp16")
        for rest in ("fp8_delayed_scaling", "fp8_current_scaling", "fp8_subchannel_scaling", "mxfp8", "nvfp4")
    ),
)


def _argument(positional: list[Any], named: dict[str, Slot], index: int, *names: str) -> Any:
    """An argument by position or name; None where it is not given."""
    for name in names:
        if name in named:
            return named[name].value
    return positional[index] if len(positional) > index else None


def _write(run: Run, thing: Any, name: str, value: Any, place: Place, helper: str, why: str = "") -> None:
    if isinstance(thing, Thing):
        run.journal.write_slot(thing.cells, name, value, place, why, derived_from=f"{helper}(…)")


def _part(run: Run, config: Any, name: str) -> Any:
    return run.attribute(config, name) if isinstance(config, Thing) else None


def _flex_backend(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> None:
    model = _argument(positional, named, 0, "model_config")
    backend = plain_value(_argument(positional, named, 1, "moe_flex_dispatcher_backend"))
    if isinstance(model, Thing):
        run.journal.write_slot(model.cells, "@apply_flex_dispatcher_backend", backend, place, "its argument")


def _layout(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> None:
    """Without a layout the helper looks one up by PP and VPP, for the models it knows."""
    model, layout = _argument(positional, named, 0, "model_cfg"), _argument(positional, named, 1, "layout")
    value = UNKNOWN if layout is None else layout
    why = "the helper looks the layout up by PP and VPP"
    _write(run, model, "pipeline_model_parallel_layout", value, place, "set_pipeline_model_parallel_layout", why)


def _graph_modules(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> None:
    model, modules = _argument(positional, named, 0, "config"), _argument(positional, named, 1, "modules")
    value = Sequence.of(()) if modules is None else modules
    _write(run, model, "cuda_graph_modules", value, place, "set_cuda_graph_modules")


def _full_iteration(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> None:
    model = _argument(positional, named, 0, "config")
    _write(run, model, "cuda_graph_impl", "full_iteration", place, "set_full_iteration_cuda_graph")
    _write(run, model, "cuda_graph_modules", Sequence.of(()), place, "set_full_iteration_cuda_graph")


def _benchmark_common(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> None:
    config, helper = _argument(positional, named, 0, "cfg"), "_benchmark_common"
    model, ddp, rng = (_part(run, config, name) for name in ("model", "ddp", "rng"))
    for part, name, value in (
        (_part(run, config, "rerun_state_machine"), "check_for_nan_in_loss", False),
        (ddp, "check_for_nan_in_grad", False),
        (ddp, "check_for_large_grads", False),
        (ddp, "grad_reduce_in_fp32", False),
        (model, "apply_rope_fusion", True),
        (model, "use_transformer_engine_op_fuser", False),
    ):
        _write(run, part, name, value, place, helper)
    if not isinstance(model, Thing):
        return
    implementation = _known(model, "cuda_graph_impl")
    scope = _known(model, "cuda_graph_scope")
    graphs: Any = UNKNOWN
    if isinstance(implementation, str) or implementation is None:
        graphs = implementation not in (None, "none") or (isinstance(scope, list) and "full_iteration" in scope)
    if implementation is not None:
        for part, name in ((model, "use_te_rng_tracker"), (rng, "te_rng_tracker")):
            _write(run, part, name, graphs, place, helper, "it follows cuda_graph_impl")
    if implementation == "none":
        _write(run, model, "cuda_graph_scope", Sequence.of(()), place, helper)
    if _known(model, "moe_flex_dispatcher_backend") == "hybridep":
        _write(run, model, "moe_hybridep_num_sms", 32, place, helper)


def _known(thing: Thing, name: str) -> Any:
    slot = thing.cells.get(name)
    return UNKNOWN if slot is None else plain_value(slot.value)


def _overlap_gather_with_step(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> None:
    config, helper = _argument(positional, named, 0, "cfg"), "_enable_overlap_param_gather_with_optimizer_step"
    name = "overlap_param_gather_with_optimizer_step"
    for part in ("optimizer", "comm_overlap"):
        _write(run, _part(run, config, part), name, True, place, helper)  # noqa: FBT003


def _precision(recipe: str | None = None) -> Helper:
    """A precision object: the recipe is the helper's name, or its argument."""

    def helper(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> Any:
        word = recipe or plain_value(_argument(positional, named, 0, "name", "compute_dtype"))
        if isinstance(word, str):
            word = _PRECISIONS.get(word, word)
        thing = Thing("MixedPrecisionConfig", place=place)
        for path, value in mixed_precision(word).items():
            run.journal.write_slot(thing.cells, path.partition(".")[2], value, place)
        return thing

    return helper


def _peft(_run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> Any:
    scheme = plain_value(_argument(positional, named, 0, "peft_scheme"))
    if scheme is None:
        return None
    return Thing(scheme if isinstance(scheme, str) else "", base="default_peft_config", place=place)


HELPERS: dict[str, Helper] = {
    "apply_flex_dispatcher_backend": _flex_backend,
    "set_deepseek_v3_pipeline_model_parallel_layout": _layout,
    "set_deepseek_v4_pipeline_model_parallel_layout": _layout,
    "set_cuda_graph_modules": _graph_modules,
    "clear_cuda_graph_modules": _graph_modules,
    "set_full_iteration_cuda_graph": _full_iteration,
    "_benchmark_common": _benchmark_common,
    "_enable_overlap_param_gather_with_optimizer_step": _overlap_gather_with_step,
    "_perf_precision": _precision(),
    "get_precision_config": _precision(),
    "get_mixed_precision_config": _precision(),
    "default_peft_config": _peft,
    **{name: _precision(name) for name in _RECIPES},
}
