"""Three-valued truth, and values that may be unknown: what rules are written in.

`unknown and False` is False, `unknown or True` is True; otherwise an unknown operand makes the outcome unknown, with
exactly the settings that are still needed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NOTHING: Final[frozenset[str]] = frozenset()


class Truth:
    """True, False, or unknown with the settings that would decide it."""

    __slots__ = ("needs", "value")

    def __init__(self, value: bool | None, needs: frozenset[str] = _NOTHING) -> None:  # noqa: FBT001
        self.value = value
        self.needs = needs

    def __and__(self, other: Truth) -> Truth:
        if self.value is False or other.value is False:
            return FALSE
        if self.value is None or other.value is None:
            return Truth(None, self.needs | other.needs)
        return TRUE

    def __or__(self, other: Truth) -> Truth:
        if self.value is True or other.value is True:
            return TRUE
        if self.value is None or other.value is None:
            return Truth(None, self.needs | other.needs)
        return FALSE

    def __invert__(self) -> Truth:
        return self if self.value is None else FALSE if self.value else TRUE

    def __bool__(self) -> bool:
        raise TypeError("a Truth may be unknown: combine with & | ~ and leave the decision to the engine")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Truth) and self.value == other.value and self.needs == other.needs

    def __hash__(self) -> int:
        return hash((self.value, self.needs))

    def __repr__(self) -> str:
        return f"unknown(needs {', '.join(sorted(self.needs))})" if self.value is None else str(self.value)


TRUE: Final = Truth(True)  # noqa: FBT003
FALSE: Final = Truth(False)  # noqa: FBT003


def truth(value: bool) -> Truth:  # noqa: FBT001
    """A plain bool as Truth."""
    return TRUE if value else FALSE


def all_of(conditions: Iterable[Truth]) -> Truth:
    """The conjunction; True when there are none."""
    outcome = TRUE
    for condition in conditions:
        outcome = outcome & condition
    return outcome


def any_of(conditions: Iterable[Truth]) -> Truth:
    """The disjunction; False when there are none."""
    outcome = FALSE
    for condition in conditions:
        outcome = outcome | condition
    return outcome


class Value:
    """A setting's value as a rule sees it; comparing or computing with an unknown one gives an unknown.

    None (a field left unset) is a known value: it equals None, is unequal to everything else, and no order relation
    holds for it; arithmetic with it gives None.
    """

    __slots__ = ("known", "needs", "raw")

    def __init__(self, raw: Any, *, known: bool = True, needs: frozenset[str] = _NOTHING) -> None:
        self.raw = raw
        self.known = known
        self.needs = needs

    def __str__(self) -> str:
        if not self.known:
            return "unknown"
        if isinstance(self.raw, list):
            return "[" + ", ".join(str(item) for item in self.raw) + "]"
        if self.raw is None or isinstance(self.raw, bool):
            return {None: "unset", True: "true", False: "false"}[self.raw]
        return str(self.raw)

    def test(self, predicate: Callable[[Any], bool]) -> Truth:
        """Whether the predicate holds for the known value; unknown otherwise."""
        return truth(predicate(self.raw)) if self.known else Truth(None, self.needs)

    def __eq__(self, other: object) -> Truth:  # type: ignore[override]
        return _compare(self, other, lambda a, b: a == b)

    def __ne__(self, other: object) -> Truth:  # type: ignore[override]
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: object) -> Truth:
        return _compare(self, other, lambda a, b: _ordered(a, b) and a < b)

    def __le__(self, other: object) -> Truth:
        return _compare(self, other, lambda a, b: _ordered(a, b) and a <= b)

    def __gt__(self, other: object) -> Truth:
        return _compare(self, other, lambda a, b: _ordered(a, b) and a > b)

    def __ge__(self, other: object) -> Truth:
        return _compare(self, other, lambda a, b: _ordered(a, b) and a >= b)

    @property
    def unset(self) -> Truth:
        """Whether the field is None."""
        return self.test(lambda v: v is None)

    @property
    def is_set(self) -> Truth:
        """Whether the field is anything but None."""
        return ~self.unset

    @property
    def on(self) -> Truth:
        """Whether the field is truthy, as Megatron's `if config.field` is."""
        return self.test(bool)

    @property
    def off(self) -> Truth:
        """Whether the field is falsy: False, None, 0 or empty."""
        return ~self.on

    def has(self, item: Any) -> Truth:
        """Whether a list holds exactly this item (`moe` is not in `[moe_act]`)."""
        return self.test(lambda v: item in v if isinstance(v, list) else v == item)

    def one_of(self, *options: Any) -> Truth:
        """Whether the value is one of these."""
        return self.test(lambda v: v in options)

    def otherwise(self, default: Any) -> Value:
        """The value, or the default where the field is left unset."""
        return Value(default) if self.known and self.raw is None else self

    def __add__(self, other: Value | int) -> Value:
        return derived(lambda a, b: a + b, self, other)

    def __sub__(self, other: Value | int) -> Value:
        return derived(lambda a, b: a - b, self, other)

    def __mul__(self, other: Value | int) -> Value:
        return derived(lambda a, b: a * b, self, other)

    def __floordiv__(self, other: Value | int) -> Value:
        return derived(lambda a, b: a // b if b else None, self, other)

    def __mod__(self, other: Value | int) -> Value:
        return derived(lambda a, b: a % b if b else None, self, other)


class VersionValue(Value):
    """A component's version: absent counts as older than every release, as the stack's own floors treat it."""

    __slots__ = ()

    def below(self, floor: str) -> Truth:
        """Whether the installed version is older than the floor, or the component absent."""
        return self.test(lambda v: v is None or _version(v) < _version(floor))

    def at_least(self, floor: str) -> Truth:
        """Whether the component is there and not older than the floor."""
        return ~self.below(floor)

    @property
    def absent(self) -> Truth:
        """Whether the component is known not to be installed."""
        return self.unset


@lru_cache(maxsize=256)
def _version(text: str) -> Version:
    return Version(text)


def derived(function: Callable[..., Any], *operands: Value | int) -> Value:
    """A value computed from others: unknown when one is, None when one is None."""
    values = [v if isinstance(v, Value) else Value(v) for v in operands]
    needs = frozenset().union(*(v.needs for v in values if not v.known))
    if any(not v.known for v in values):
        return Value(None, known=False, needs=needs)
    if any(v.raw is None for v in values):
        return Value(None)
    return Value(function(*(v.raw for v in values)))


def _compare(left: Value, other: object, relation: Callable[[Any, Any], bool]) -> Truth:
    right = other if isinstance(other, Value) else None
    if not left.known or (right is not None and not right.known):
        needs = (_NOTHING if left.known else left.needs) | (_NOTHING if right is None or right.known else right.needs)
        return Truth(None, needs)
    return truth(relation(left.raw, other if right is None else right.raw))


def _ordered(left: Any, right: Any) -> bool:
    return isinstance(left, (int, float)) and isinstance(right, (int, float))
