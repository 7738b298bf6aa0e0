"""Which decoder layers are MoE: what `moe_layer_freq` says.

Source: `get_gpt_decoder_layer_specs`, NVIDIA/Megatron-LM@core_v0.16.1
megatron/core/models/gpt/gpt_layer_specs.py:579-607, and `moe_freq_type`, megatron/training/arguments.py:231-256.
"""

from __future__ import annotations

import ast
from typing import Any

_MOST_LAYERS = 65536


def moe_layers(freq: Any, num_layers: int) -> tuple[bool, ...] | None:
    """One flag a decoder layer, first layer first; None where Megatron could not build the model.

    An integer N makes every Nth layer MoE, starting with the first; a list names each layer (1 MoE, 0 dense), and so
    does the text of a list expression such as `[0]*1+[1]*23`.
    """
    pattern = layer_pattern(freq)
    if isinstance(pattern, int):
        return tuple(i % pattern == 0 for i in range(num_layers)) if pattern > 0 else None
    if pattern is None or len(pattern) != num_layers or set(pattern) - {0, 1}:
        return None
    return tuple(bool(layer) for layer in pattern)


def layer_pattern(freq: Any) -> int | list[Any] | None:
    """The integer or the list that a frequency means, its text evaluated; None for anything else."""
    if isinstance(freq, str):
        freq = _evaluated(freq)
    if isinstance(freq, bool):
        return None
    return freq if isinstance(freq, (int, list)) else None


def _evaluated(text: str) -> Any:
    """Lists, integers, `+` and `*` only: nothing that could run."""
    try:
        return _value(ast.parse(text.strip().strip("\"'"), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if _size(left) * _size(right) > _MOST_LAYERS:
            raise ValueError("longer than any model")
        return left * right
    raise ValueError("no list expression")


def _size(operand: Any) -> int:
    return len(operand) if isinstance(operand, list) else abs(int(operand))
