"""Which decoder layers are MoE: `moe_layer_freq` as a number, a list, or the expression Megatron-LM's flag takes.

Grammar as in `moe_freq_type`, NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py: a number N makes every
N-th layer MoE, beginning with the first; `([0]*3+[1]*27)` and lists say 1 for MoE and 0 for dense.
"""

from __future__ import annotations

import ast
from typing import Any

_LONGEST = 4096  # characters
_MOST_LAYERS = 10_000


def layer_pattern(value: Any) -> int | list[int] | None:
    """The number or the pattern; None where it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, list):
        return value if all(isinstance(layer, int) for layer in value) else None
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    try:
        return layer_pattern(_evaluated(ast.parse(value.replace("\\", "").strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def has_dense_layers(value: Any) -> bool:
    """Whether the frequency or the pattern leaves layers that are not MoE."""
    pattern = layer_pattern(value)
    return 0 in pattern if isinstance(pattern, list) else pattern is not None and pattern > 1


def moe_layers(value: Any, layers: int) -> tuple[bool, ...] | None:
    """One flag a decoder layer, first layer first; None where the model could not be built from it.

    Source: `get_gpt_decoder_layer_specs`, megatron/core/models/gpt/gpt_layer_specs.py:579-607 at the same revision.
    """
    pattern = layer_pattern(value)
    if isinstance(pattern, int):
        return tuple(layer % pattern == 0 for layer in range(layers)) if pattern > 0 else None
    if pattern is None or len(pattern) != layers or set(pattern) - {0, 1}:
        return None
    return tuple(bool(layer) for layer in pattern)


def _evaluated(node: ast.expr) -> Any:
    """Integers and lists of them under `+` and `*` only, bounded in size; nothing is executed."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= _MOST_LAYERS:
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_evaluated(element) for element in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        return _combined(node.op, _evaluated(node.left), _evaluated(node.right))
    raise ValueError("no layer pattern")


def _combined(sign: ast.operator, left: Any, right: Any) -> Any:
    lists = [isinstance(side, list) for side in (left, right)]
    size = (len(left) if lists[0] else abs(left)), (len(right) if lists[1] else abs(right))
    if isinstance(sign, ast.Add):
        if lists[0] is not lists[1] or sum(size) > _MOST_LAYERS:
            raise ValueError("no layer pattern")
        return left + right
    if all(lists) or size[0] * size[1] > _MOST_LAYERS:
        raise ValueError("no layer pattern")
    return left * right
