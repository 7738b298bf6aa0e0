"""JSON values as the types of Megatron's fields."""

from __future__ import annotations

import collections.abc
import enum
import functools
import importlib
import sys
import types
import typing
from typing import Any

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
ACTIVATIONS = {
    "gelu": "torch.nn.functional",
    "silu": "torch.nn.functional",
    "relu": "torch.nn.functional",
    "squared_relu": "megatron.core.activations",
    "quick_gelu": "megatron.core.fusions.fused_bias_geglu",  # another of that name is not the one that is validated
    "fast_gelu": "megatron.core.activations",
}


class LeftOut(Exception):  # noqa: N818
    """A value that text cannot carry; the text says why."""


def converted(name: str, value: Any, hint: Any, *, choose_enum: bool = False) -> Any:
    """A JSON value as the field's type: functions, dtypes and enumerations by name, as Megatron's readers do.

    Where a field takes both names and members, `TransformerConfig` reads the names itself; the command line's
    namespace (`choose_enum`) holds members already.
    """
    if value is None:
        return None
    kinds = alternatives(hint)
    if isinstance(value, dict) and isinstance(value.get("_target_"), str):
        value = value["_target_"]  # how saved Bridge configurations write functions, enumerations and dtypes
    torch = sys.modules["torch"]
    if torch.dtype in kinds:
        return dtype(value)
    if collections.abc.Callable in kinds:
        return function(name, value)
    members = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)), None)
    if members and (choose_enum or str not in kinds):
        return [member(members, one) for one in value] if isinstance(value, list) else member(members, value)
    if tuple in kinds and isinstance(value, list):
        return tuple(value)
    if str not in kinds and any(str(getattr(kind, "__module__", "")).startswith("megatron.") for kind in kinds):
        raise LeftOut("an object that the configuration's text does not hold")
    return value


@functools.cache
def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, also inside lists, with generic ones reduced to their origin."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for one in inner for kind in alternatives(one))
    if origin is list:
        return (list, *(kind for one in inner for kind in alternatives(one)))
    return (origin or hint,)


def dtype(value: Any) -> Any:
    """`bfloat16`, `torch.bfloat16` and `bf16` alike."""
    torch = sys.modules["torch"]
    name = str(value).rpartition(".")[2]
    found = getattr(torch, DTYPES.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise LeftOut(f"{value!r} is not the name of a torch dtype")
    return found


def function(name: str, value: Any) -> Any:
    """The activation function of that name; other functions cannot be written in text."""
    last = str(value).rpartition(".")[2]
    if name != "activation_func" or last not in ACTIVATIONS:
        raise LeftOut(f"{value!r} stands for a function that text does not carry")
    found = getattr(importlib.import_module(ACTIVATIONS[last]), last, None)
    if found is None:
        raise LeftOut(f"this Megatron has no {last} that it validates")
    return found


def member(members: Any, value: Any) -> Any:
    """`flash`, `AttnBackend.flash` and the member's value alike; Megatron's own KeyError for other names."""
    if isinstance(value, int) and not isinstance(value, bool):
        return members(value)
    return members[str(value).rpartition(".")[2]]
