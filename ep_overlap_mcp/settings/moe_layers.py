"""Which decoder layers are MoE: `moe_layer_freq` as a number, a list, or the expression Megatron-LM's flag takes.

Grammar as in `moe_freq_type`, NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py: a number N makes every
N-th layer MoE, beginning with the first; `([0]*3+[1]*27)` and lists say 1 for MoE and 0 for dense.
"""

from __future__ import annotations

import ast
from typing import Any

_MOST_LAYERS = 65536


def layer_pattern(value: Any) -> int | list[int] | None:
    """The number or the pattern; None where it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, list):
        return value if all(isinstance(layer, int) for layer in value) else None
    if not isinstance(value, str) or len(value) > 4096:
        return None
    try:
        return layer_pattern(_evaluated(ast.parse(value.strip(), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


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
    """Numbers, lists, and their sums and products; nothing is executed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [_evaluated(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if _size(left) * _size(right) > _MOST_LAYERS:
            raise ValueError("longer than any model")
        return left * right
    raise ValueError("not a pattern")


def _size(operand: Any) -> int:
    return len(operand) if isinstance(operand, list) else abs(int(operand))
