"""What megatron-core's own configuration writes over its fields.

Source: `TransformerConfig.__post_init__` and `ModelParallelConfig.__post_init__`, NVIDIA/Megatron-LM@core_v0.16.1
megatron/core/transformer/transformer_config.py:1063-1072, 1193-1194, 1255-1266, 1307-1352, 1670-1698 and
megatron/core/model_parallel_config.py; at core_v0.18.2 `cuda_graph_scope` moves to `cuda_graph_modules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.settings.layout import parse_layout
from ep_overlap_mcp.settings.setting import UNKNOWN

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.effective import Effective

PP = "model.pipeline_model_parallel_size"
VPP = "model.virtual_pipeline_model_parallel_size"
LAYOUT = "model.pipeline_model_parallel_layout"
IMPLEMENTATION = "model.cuda_graph_impl"
MODULES = "model.cuda_graph_modules"


def core_writes(settings: Effective) -> None:
    """Apply all of them, in the order of the real code."""
    _expert_tensor_parallel_size(settings)
    _deepep_backend(settings)
    _virtual_stages_of_layout(settings)
    _capacity_factor(settings)
    _recompute_modules(settings)
    _graph_implementation(settings)
    _graph_modules(settings)
    _deprecated_graph_modules(settings)
    _local_graph_modules(settings)
    _grouped_tensor(settings)


def virtual_stages(settings: Effective) -> tuple[object, tuple[str, ...]]:
    """VPP as the layout gives it: (value, needs); a layout of exactly PP stages gives None."""
    layout, pp = settings[LAYOUT], settings[PP]
    if not (layout.known and pp.known):
        return UNKNOWN, tuple(layout.needs | pp.needs)
    parsed = parse_layout(layout.value)
    if parsed is None or not pp.value or len(parsed.stages) % pp.value:
        return None, ()
    stages = len(parsed.stages) // pp.value
    return (stages if stages > 1 else None), ()


def _expert_tensor_parallel_size(settings: Effective) -> None:
    if settings.value("model.expert_tensor_parallel_size") is None:
        tp = settings["model.tensor_model_parallel_size"]
        settings.write("model.expert_tensor_parallel_size", tp.value, "TP, as none is set", *tp.needs)


def _deepep_backend(settings: Effective) -> None:
    """`moe_enable_deepep` chooses DeepEP over all but HybridEP; before 0.16 there is no other backend to choose."""
    flag, backend = settings["model.moe_enable_deepep"], settings["model.moe_flex_dispatcher_backend"]
    if settings.release.core.minor < (0, 16):
        settings.write(backend.path, "deepep" if flag.value is True else None, "moe_enable_deepep", *flag.needs)
    elif flag.value is True and backend.value != "hybridep":
        settings.write(backend.path, "deepep", "moe_enable_deepep")


def _virtual_stages_of_layout(settings: Effective) -> None:
    if settings.value(LAYOUT) is None or settings.value(VPP) not in (None, UNKNOWN):
        return
    if settings.value(VPP) is UNKNOWN and settings[VPP].written:
        return
    if settings.value(LAYOUT) is UNKNOWN and not settings[LAYOUT].written:
        return
    stages, needs = virtual_stages(settings)
    settings.write(VPP, stages, f"stages of {LAYOUT} / PP", *needs)


def _capacity_factor(settings: Effective) -> None:
    factor = settings.value("model.moe_expert_capacity_factor")
    if isinstance(factor, (int, float)) and factor < 0:
        settings.write("model.moe_expert_capacity_factor", None, "negative is none")


def _recompute_modules(settings: Effective) -> None:
    path = "model.recompute_modules"
    if settings.value(path) is None:
        settings.write(path, ["core_attn"], "default where none are named")
    if settings.value("model.moe_layer_recompute") is not True:
        return
    if settings.value("model.recompute_granularity") not in ("full", UNKNOWN):
        settings.write("model.recompute_granularity", "selective", "moe_layer_recompute")
    modules = settings.value(path)
    if isinstance(modules, list) and "moe" not in modules:
        settings.write(path, [*modules, "moe"], "moe_layer_recompute")


def _graph_implementation(settings: Effective) -> None:
    for flag, implementation in (
        ("external_cuda_graph", "transformer_engine"),
        ("enable_cuda_graph", "local"),
    ):
        if settings.value(f"model.{flag}") is True:
            settings.write(IMPLEMENTATION, implementation, flag)


def _graph_modules(settings: Effective) -> None:
    """Whole-layer graphs (`full`, unset) become the empty list; the old name's value moves to the new one."""
    old, new = "model.cuda_graph_scope", MODULES
    renamed = settings.release.core.minor >= (0, 18)
    scope = settings[old]
    if renamed and scope.written and scope.value not in (None, []):
        settings.write(new, scope.value, "cuda_graph_scope", *scope.needs)
        settings.write(old, None, "moved to cuda_graph_modules")
    path = new if renamed else old
    if settings.value(path) in (None, ["full"]):
        settings.write(path, [], "the whole layer")


def _deprecated_graph_modules(settings: Effective) -> None:
    """`full_iteration` and `full_iteration_inference` are no modules since 0.18: they choose another field."""
    modules = settings.value(MODULES)
    if settings.release.core.minor < (0, 18) or not isinstance(modules, list):
        return
    implementation = settings.value(IMPLEMENTATION)
    if "full_iteration" in modules and implementation in ("none", "local", "full_iteration"):
        settings.write(IMPLEMENTATION, "full_iteration", f"full_iteration in {MODULES}")
    if "full_iteration_inference" in modules and implementation == "local":
        settings.write("model.inference_cuda_graph_scope", "block", f"full_iteration_inference in {MODULES}")
    rest = [module for module in modules if not module.startswith("full_iteration")]
    settings.write(MODULES, rest, "modules of a layer")


def _local_graph_modules(settings: Effective) -> None:
    """The local implementation captures router and preprocessing together."""
    path = MODULES if settings.release.core.minor >= (0, 18) else "model.cuda_graph_scope"
    modules = settings.value(path)
    if settings.release.core.minor < (0, 16) or settings.value(IMPLEMENTATION) != "local":
        return
    pair = ("moe_router", "moe_preprocess")
    if isinstance(modules, list) and any(module in modules for module in pair):
        missing = [module for module in pair if module not in modules]
        settings.write(path, [*modules, *missing], "the local implementation captures both")


def _grouped_tensor(settings: Effective) -> None:
    """On main, the operation fuser with grouped GEMM takes the grouped tensor path."""
    fuser, grouped = settings["model.use_transformer_engine_op_fuser"], settings["model.moe_grouped_gemm"]
    if settings.release.core.within(">=0.20,!dev") and fuser.value is True and grouped.value is True:
        settings.write("model.moe_use_grouped_tensor", value=True, why="op fuser with grouped GEMM")
