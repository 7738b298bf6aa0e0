"""Integer arithmetic of `$(( … ))` and `(( … ))` on known values."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT: Final = 2**63
_MAX_TEXT: Final = 500
_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEP: Final = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")


class UndecidedError(ValueError):
    """An expression that the text does not settle. `names` are the variables that would."""

    def __init__(self, *names: str) -> None:
        super().__init__(", ".join(names))
        self.names = names


def arithmetic(text: str, value_of: Callable[[str], str]) -> int:
    """The value of an expression; `value_of` gives a variable's text or raises UndecidedError."""
    if len(text) > _MAX_TEXT:
        raise UndecidedError
    python = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).strip()
    try:
        return _value(ast.parse(python or "0", mode="eval").body, value_of, 0)
    except (SyntaxError, ValueError, MemoryError, RecursionError, ArithmeticError) as error:
        raise error if isinstance(error, UndecidedError) else UndecidedError() from error


def assignment(text: str) -> tuple[str, str] | None:
    """The variable that `X=…`, `X+=…`, `X++` or `--X` writes, and the expression it gets."""
    if found := _STEP.fullmatch(text):
        name, sign = found[1] or found[4], (found[2] or found[3])[0]
        return name, f"{name} {sign} 1"
    if found := _ASSIGNMENT.fullmatch(text):
        name, sign, expression = found.groups()
        return name, f"{name} {sign} ({expression})" if sign else expression
    return None


def _value(node: ast.expr, value_of: Callable[[str], str], depth: int) -> int:
    if depth > 50:
        raise UndecidedError
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        written = value_of(node.id).strip() or "0"
        return int(written) if re.fullmatch(r"[-+]?\d{1,18}", written) else _named(written, value_of)
    if isinstance(node, ast.UnaryOp):
        return int(_UNARY[type(node.op)](_value(node.operand, value_of, depth + 1)))
    if isinstance(node, ast.BoolOp):
        return _logical(node, value_of, depth)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        left, right = (_value(n, value_of, depth + 1) for n in (node.left, node.comparators[0]))
        return int(_COMPARE[type(node.ops[0])](left, right))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = (_value(n, value_of, depth + 1) for n in (node.left, node.right))
        return _bounded(type(node.op), left, right)
    raise UndecidedError


def _named(written: str, value_of: Callable[[str], str]) -> int:
    """A variable may hold the name of another one, one level deep here."""
    if not re.fullmatch(r"[A-Za-z_]\w*", written):
        raise UndecidedError
    return int(value_of(written).strip() or "0")


def _logical(node: ast.BoolOp, value_of: Callable[[str], str], depth: int) -> int:
    stops_at = isinstance(node.op, ast.Or)
    for operand in node.values:
        if bool(_value(operand, value_of, depth + 1)) is stops_at:
            return int(stops_at)
    return int(not stops_at)


def _bounded(kind: type[ast.operator], left: int, right: int) -> int:
    if kind is ast.Pow and not 0 <= right <= 62:
        raise UndecidedError
    if kind in (ast.LShift, ast.RShift) and not 0 <= right <= 62:
        raise UndecidedError
    value = _BINARY[kind](left, right)
    if abs(value) >= _LIMIT:
        raise UndecidedError
    return int(value)


def _quotient(left: int, right: int) -> int:
    """Division towards zero, as the shell has it."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) is (right < 0) else -quotient


_BINARY: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
