"""Settings as the arguments of Megatron's configuration classes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import typing
from typing import Any

from .values import LeftOut, converted

Settings = dict[str, Any]
MODEL_AXES = ("tensor_model", "pipeline_model", "context")


def arguments_of(config_class: Any, fields: Settings, result: dict[str, Any], *, strict: bool) -> Settings:
    """Keyword arguments for a configuration class; what it does not know, what was left out and added is noted."""
    hints = field_types(config_class)
    arguments: Settings = {}
    for name, value in fields.items():
        if name not in hints:
            note(result, "unknown_fields", f"model.{name}")
            arguments |= {name: value} if strict else {}
            continue
        try:
            arguments[name] = converted(name, value, hints[name])
        except LeftOut as why:
            note(result, "left_out", {"path": f"model.{name}", "why": str(why)})
    for name, value in core_stand_ins(fields).items():
        if arguments.get(name) is None:
            arguments[name] = converted(name, value, hints[name])
            stand_in(result, f"model.{name}", value)
    return arguments


def known_only(config_class: Any, settings: Settings, head: str, result: dict[str, Any]) -> Any:
    """An object of a configuration class from the settings it knows."""
    hints = field_types(config_class)
    fields = part(settings, head)
    for name in fields.keys() - hints.keys():
        note(result, "unknown_fields", f"{head}.{name}")
    return config_class(**{name: value for name, value in fields.items() if name in hints})


@functools.cache
def field_types(config_class: Any) -> dict[str, Any]:
    """Types of the fields that the constructor takes."""
    hints = typing.get_type_hints(config_class)
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(config_class) if field.init}


def core_stand_ins(model: Settings) -> Settings:
    """Small values for what `TransformerConfig` needs, such that they break no rule themselves."""
    tensor, groups = size(model, "tensor_model_parallel_size"), size(model, "num_query_groups")
    heads = size(model, "num_attention_heads", otherwise=math.lcm(tensor, groups, 8))
    needed: Settings = {"num_layers": layers_of(model), "hidden_size": 64 * heads, "num_attention_heads": heads}
    if size(model, "pipeline_model_parallel_size") > 1:
        # Megatron-LM and Bridge derive it from the precision
        needed["pipeline_dtype"] = next((name for name in ("bf16", "fp16") if model.get(name)), "fp32")
    return needed


def size(model: Settings, name: str, *, otherwise: int = 1) -> int:
    """A size that is set to a whole number above zero; Megatron judges what else stands there."""
    value = model.get(name)
    return value if isinstance(value, int) and value > 0 else otherwise


def layers_of(model: Settings) -> int:
    """The number of layers that the layout, the MoE pattern or the pipeline implies."""
    layout, pipeline = model.get("pipeline_model_parallel_layout"), size(model, "pipeline_model_parallel_size")
    if isinstance(layout, str) and not model.get("num_layers"):
        read = importlib.import_module("megatron.core.transformer.pipeline_parallel_layer_layout")
        with contextlib.suppress(Exception):
            stages = read.PipelineParallelLayerLayout.from_str(layout, pipeline)
            return sum(layer.name == "decoder" for layer in stages.flatten_layout)
    if isinstance(model.get("moe_layer_freq"), list):
        return len(model["moe_layer_freq"])
    return 2 * pipeline * size(model, "virtual_pipeline_model_parallel_size")


def stand_in(result: dict[str, Any], path: str, value: Any) -> None:
    """Note a value that the request did not hold."""
    note(result, "stand_ins", {"path": path, "value": value})


def note(result: dict[str, Any], kind: str, remark: Any) -> None:
    """Keep a remark; once, however many layers make it."""
    if remark not in result[kind]:
        result[kind].append(remark)


def part(settings: Settings, head: str) -> Settings:
    """The fields of one object, without its name."""
    return {path[len(head) + 1 :]: value for path, value in settings.items() if path.startswith(f"{head}.")}
