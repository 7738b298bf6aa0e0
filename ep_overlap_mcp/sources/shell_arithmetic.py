"""Integer arithmetic of `$(( … ))` and `(( … ))` on known values, with the precedence and the numbers of the shell."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Value = Callable[[], int]  # computed only where `&&`, `||` and `?:` get to it

_LIMIT: Final = 2**63
_MAX_TEXT: Final = 500
_MAX_DEPTH: Final = 50
_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEP: Final = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d[\w#@]*)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\*\*|<<(?!=)|>>(?!=)|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%<>&|^!~?:()]))"
)
_NUMBER: Final = re.compile(
    r"0[xX](?P<hex>[\da-fA-F]+)|0(?P<octal>[0-7]*)|(?P<base>\d{1,2})#(?P<digits>[^\W_]+)|(?P<plain>[1-9]\d*)"
)


class UndecidedError(ValueError):
    """An expression that the text does not settle. `names` are the variables that would."""

    def __init__(self, *names: str) -> None:
        super().__init__(", ".join(names))
        self.names = names


def arithmetic(text: str, value_of: Callable[[str], str]) -> int:
    """The value of an expression; `value_of` gives a variable's text or raises UndecidedError."""
    return _arithmetic(text, value_of, 0)


def assignment(text: str) -> tuple[str, str] | None:
    """The variable that `X=…`, `X+=…`, `X++` or `--X` writes, and the expression it gets."""
    if found := _STEP.fullmatch(text):
        name, sign = found[1] or found[4], (found[2] or found[3])[0]
        return name, f"{name} {sign} 1"
    if found := _ASSIGNMENT.fullmatch(text):
        name, sign, expression = found.groups()
        return name, f"{name} {sign} ({expression})" if sign else expression
    return None


def _arithmetic(text: str, value_of: Callable[[str], str], depth: int) -> int:
    if len(text) > _MAX_TEXT or depth > _MAX_DEPTH:
        raise UndecidedError
    if not text.strip():
        return 0
    try:
        return _Expression(_tokens(text), value_of, depth).value()
    except (ArithmeticError, RecursionError) as error:
        raise UndecidedError from error


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UndecidedError
        found.append(match[0].strip())
        at = match.end()
    return found


class _Expression:
    """One expression, read by precedence. A variable's text is an expression of its own, `depth` levels deep."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], str], depth: int) -> None:
        self.tokens = tokens
        self.value_of = value_of
        self.depth = depth
        self.at = 0

    def value(self) -> int:
        found = self._choice()
        if self.at != len(self.tokens):
            raise UndecidedError
        return found()

    def _next(self, *expected: str) -> str | None:
        if self.at < len(self.tokens) and self.tokens[self.at] in expected:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def _choice(self) -> Value:
        condition = self._binary(0)
        if not self._next("?"):
            return condition
        yes = self._choice()
        if not self._next(":"):
            raise UndecidedError
        no = self._choice()
        return lambda: yes() if condition() else no()

    def _binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self._power()
        found = self._binary(level + 1)
        while sign := self._next(*_LEVELS[level]):
            found = _combined(sign, found, self._binary(level + 1))
        return found

    def _power(self) -> Value:
        base = self._unary()
        if not self._next("**"):
            return base
        return _combined("**", base, self._power())

    def _unary(self) -> Value:
        sign = self._next(*_UNARY)
        if sign is None:
            return self._operand()
        operand = self._unary()
        return lambda: int(_UNARY[sign](operand()))

    def _operand(self) -> Value:
        if self._next("("):
            inner = self._choice()
            if not self._next(")"):
                raise UndecidedError
            return inner
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        self.at += 1
        if token[:1].isdigit():
            return lambda: _number(token)
        if not token.isidentifier():
            raise UndecidedError
        return lambda: _arithmetic(self.value_of(token), self.value_of, self.depth + 1)


def _number(token: str) -> int:
    """`12`, the octal `014`, `0xC` and `16#C`."""
    found = _NUMBER.fullmatch(token)
    if found is None:
        raise UndecidedError
    try:
        if found["digits"] is not None:
            return int(found["digits"], int(found["base"]))
        value = int(found["hex"] or "0", 16) or int(found["octal"] or "0", 8) or int(found["plain"] or "0")
    except ValueError as error:
        raise UndecidedError from error
    return _bounded(value)


def _combined(sign: str, left: Value, right: Value) -> Value:
    if sign == "&&":
        return lambda: int(bool(left()) and bool(right()))
    if sign == "||":
        return lambda: int(bool(left()) or bool(right()))
    return lambda: _bounded(_BINARY[sign](left(), right()))


def _bounded(value: int) -> int:
    if abs(value) >= _LIMIT:
        raise UndecidedError
    return int(value)


def _quotient(left: int, right: int) -> int:
    """Division towards zero, as the shell has it."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) is (right < 0) else -quotient


def _few(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """Powers and shifts by what the shell's integers have room for."""

    def bounded(left: int, right: int) -> int:
        if not 0 <= right <= 62:
            raise UndecidedError
        return function(left, right)

    return bounded


_LEVELS: Final = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_BINARY: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
    "**": _few(operator.pow),
    "<<": _few(operator.lshift),
    ">>": _few(operator.rshift),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNARY: Final[dict[str, Callable[[int], int]]] = {
    "+": operator.pos,
    "-": operator.neg,
    "!": operator.not_,
    "~": operator.invert,
}
