"""Megatron-Bridge's performance harness and recipe runner: their own options, as settings on top of a recipe.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987df scripts/performance/argument_parser.py and utils/overrides.py (the same
effects from v0.3.0), scripts/training/run_recipe.py and setup_experiment.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.flags import Flag, bare, split_flags
from ep_overlap_mcp.sources.names import BRIDGE
from ep_overlap_mcp.sources.overrides import add_overrides, is_override
from ep_overlap_mcp.sources.record import mixed_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ep_overlap_mcp.sources.reading import Reading
    from ep_overlap_mcp.sources.words import Word

_SHORT: Final = {
    "-tp": "--tensor_model_parallel_size",
    "-pp": "--pipeline_model_parallel_size",
    "-cp": "--context_parallel_size",
    "-vp": "--virtual_pipeline_model_parallel_size",
    "-ep": "--expert_model_parallel_size",
    "-et": "--expert_tensor_parallel_size",
    "-etp": "--expert_tensor_parallel_size",
    "-mb": "--micro_batch_size",
    "-gb": "--global_batch_size",
    "-sl": "--seq_length",
    "-g": "--gpu",
    "-ng": "--num_gpus",
    "-gn": "--gpus_per_node",
    "-c": "--compute_dtype",
    "-rl": "--recompute_num_layers",
    "-ol": "--activation_offload_layers",
    "-ce": "--custom_env_vars",
    "-E": "--env",
}
_PLAIN: Final = {
    "--tensor_model_parallel_size": "model.tensor_model_parallel_size",
    "--pipeline_model_parallel_size": "model.pipeline_model_parallel_size",
    "--context_parallel_size": "model.context_parallel_size",
    "--virtual_pipeline_model_parallel_size": "model.virtual_pipeline_model_parallel_size",
    "--expert_model_parallel_size": "model.expert_model_parallel_size",
    "--expert_tensor_parallel_size": "model.expert_tensor_parallel_size",
    "--micro_batch_size": "train.micro_batch_size",
    "--global_batch_size": "train.global_batch_size",
    "--seq_length": "model.seq_length",
    "--hidden_size": "model.hidden_size",
    "--num_layers": "model.num_layers",
    "--num_moe_experts": "model.num_moe_experts",
    "--pipeline_model_parallel_layout": "model.pipeline_model_parallel_layout",
    "--use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "--cuda_graph_impl": "model.cuda_graph_impl",
    "--cuda_graph_scope": "model.cuda_graph_scope",
    "--recompute_num_layers": "model.recompute_num_layers",
    "--recompute_modules": "model.recompute_modules",
    "--activation_offload_layers": "model.cpu_offloading_num_layers",
    "--moe_a2a_overlap": "bridge.moe_a2a_overlap",
    "--gpu": "hardware.gpu",
    "--num_gpus": "hardware.world_size",
    "--gpus_per_node": "hardware.gpus_per_node",
    "--step_func": "bridge.forward_step",
}
_PRECISION: Final = {
    "bf16": "bf16_mixed",
    "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed",
    "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_TRUE: Final = {"true", "1", "t", "yes", "y"}
_FALSE: Final = {"false", "0", "f", "no", "n"}


def read_harness(words: Sequence[Word], reading: Reading) -> None:
    """Options of `scripts/performance/setup_experiment.py`; overrides behind them are applied before them."""
    _read(words, reading)
    if not any(o.path == "model.bf16" for o in reading.assignments) and reading.assignments:
        line = reading.assignments[0].line
        for path, value in mixed_precision(_PRECISION["bf16"]).items():
            reading.add(path, value, line=line, text="", derived_from="the harness's default --compute_dtype bf16")


def read_recipe_run(words: Sequence[Word], reading: Reading) -> None:
    """Options of `run_recipe.py`; an override behind them takes precedence over an option."""
    _read(words, reading, overrides_last=True)


def _read(words: Sequence[Word], reading: Reading, *, overrides_last: bool = False) -> None:
    flags, loose = split_flags([word for word in words if word.text != "--"])
    overrides = [word for word in loose if is_override(word.text)]
    overrides += [word for flag in flags for word in flag.values[1:] if is_override(word.text)]
    overrides.sort(key=words.index)
    if not overrides_last:
        add_overrides(reading, overrides, BRIDGE)
    for flag in flags:
        _option(flag, reading)
    if overrides_last:
        add_overrides(reading, overrides, BRIDGE)
    for word in loose:
        if word.unresolved and word not in overrides:
            reading.left_out(word.text, word.line, "may hold further options", kind="not resolved")


def _option(flag: Flag, reading: Reading) -> None:
    name = _SHORT.get(flag.name, flag.name.replace("-", "_").replace("__", "--", 1))
    path = _PLAIN.get(name)
    if name in ("--env", "--custom_env_vars"):
        _environment(flag, reading)
        return
    if path is None and name not in ("--compute_dtype", "--moe_flex_dispatcher_backend", "--data"):
        return
    word = flag.values[0] if flag.values else None
    value: Any = UNKNOWN if word is None or word.unresolved or flag.head.unresolved else bare(word.text)
    text = flag.text if word is None else f"{flag.name} {word.text}"
    if path is not None and value is UNKNOWN:
        names = ", ".join(f"`{n}`" for n in (word.unresolved if word else ())) or "it"
        reading.unresolved(path, line=flag.head.line, text=text, why=f"the text gives {names} no value")
    elif path is not None:
        known = _boolean(value) if path in ("bridge.moe_a2a_overlap", "ddp.use_megatron_fsdp") else value
        reading.add(path, known, line=flag.head.line, text=text, span=word.span if word else None)
    effect = _EFFECTS.get(name)
    for other, implied in (effect(value) if effect else {}).items():
        reading.add(other, implied, line=flag.head.line, text=text, derived_from=flag.name)


def _environment(flag: Flag, reading: Reading) -> None:
    """`-E NAME=value` and `-ce A=1,B=2`."""
    for word in flag.values:
        parts = word.text.split(",") if flag.name in ("-ce", "--custom_env_vars") else [word.text]
        for part in parts:
            name, equals, value = part.partition("=")
            if equals and name.isidentifier():
                known = UNKNOWN if word.unresolved else value
                reading.add(f"env.{name}", known, line=word.line, text=part)


def _boolean(text: str) -> Any:
    word = text.lower()
    return True if word in _TRUE else False if word in _FALSE else text


def _overlap(value: Any) -> dict[str, Any]:
    """Rule T09: delayed wgrad comes with it; T10: `false` switches nothing off."""
    if value is UNKNOWN:
        return dict.fromkeys(_OVERLAP_EFFECT, UNKNOWN)
    return dict(_OVERLAP_EFFECT) if _boolean(value) is True else {}


_OVERLAP_EFFECT: Final[dict[str, Any]] = {
    "comm_overlap.overlap_moe_expert_parallel_comm": True,
    "comm_overlap.delay_wgrad_compute": True,
    "model.moe_shared_expert_overlap": False,
}


def _tensor_parallel(value: Any) -> dict[str, Any]:
    known = isinstance(value, str) and value.isdigit()
    return {"model.sequence_parallel": int(value) > 1 if known else UNKNOWN}


def _graph_implementation(value: Any) -> dict[str, Any]:
    turned_on = UNKNOWN if value is UNKNOWN else value != "none"
    return {"rng.te_rng_tracker": turned_on, "model.use_te_rng_tracker": turned_on}


def _offload(value: Any) -> dict[str, Any]:
    if value is UNKNOWN or not value.isdigit():
        return {"model.cpu_offloading": UNKNOWN}
    return {"model.cpu_offloading": True, "model.cpu_offloading_weights": False} if int(value) > 0 else {}


def _fsdp(value: Any) -> dict[str, Any]:
    if value is not UNKNOWN and _boolean(value) is not True:
        return {}
    strategy = UNKNOWN if value is UNKNOWN else "optim_grads_params"
    return {
        "ddp.data_parallel_sharding_strategy": strategy,
        "model.gradient_accumulation_fusion": UNKNOWN if value is UNKNOWN else True,
    }


def _flex_backend(value: Any) -> dict[str, Any]:
    if value == "None":
        return {"model.moe_flex_dispatcher_backend": None, "model.moe_token_dispatcher_type": "alltoall"}
    return {"bridge.apply_flex_dispatcher_backend": value}


def _precision(value: Any) -> dict[str, Any]:
    return mixed_precision(UNKNOWN if value is UNKNOWN else _PRECISION.get(value, value))


_EFFECTS: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "--moe_a2a_overlap": _overlap,
    "--tensor_model_parallel_size": _tensor_parallel,
    "--cuda_graph_impl": _graph_implementation,
    "--recompute_num_layers": lambda _value: {
        "model.recompute_granularity": "full",
        "model.recompute_method": "block",
    },
    "--recompute_modules": lambda _value: {"model.recompute_granularity": "selective"},
    "--activation_offload_layers": _offload,
    "--use_megatron_fsdp": _fsdp,
    "--moe_flex_dispatcher_backend": _flex_backend,
    "--compute_dtype": _precision,
    "--data": lambda value: {"dataset.packed_sequences": True} if value == "squad_packed" else {},
}
