"""What a recipe's names stand for while it is followed without running it: objects, lists, functions, unknowns.

Everything that can change is a cell in a dictionary, so that a branch can be followed, taken back and compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN

if TYPE_CHECKING:
    import ast


@dataclass(frozen=True)
class Place:
    """Where a statement stands: its line and text, and the characters of the value."""

    line: int
    text: str
    span: tuple[int, int] | None = None


NOWHERE = Place(0, "")


@dataclass(frozen=True)
class Slot:
    """A value with the place it was written at; `before` is what it replaced. `why` explains an UNKNOWN.

    `quiet` slots were made unknown by a call that is reported once, not by a statement of their own.
    """

    value: Any
    place: Place = NOWHERE
    order: int = 0
    why: str = ""
    before: Slot | None = None
    quiet: bool = False
    derived_from: str | None = None


@dataclass(eq=False)
class Thing:
    """An object with attributes. `kind` is its class where the text names it, `base` the call that it came from."""

    kind: str = ""
    base: str = ""
    place: Place = NOWHERE
    cells: dict[str, Slot] = field(default_factory=dict)

    @property
    def opaque(self) -> bool:
        """Whether it may have attributes that the text does not show."""
        return not self.kind


@dataclass(eq=False)
class Sequence:
    """A list that can grow; the items are one cell."""

    cells: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Any) -> Sequence:
        """A new list."""
        return cls({"items": tuple(items)})

    @property
    def items(self) -> tuple[Any, ...]:
        """What it holds now."""
        return self.cells["items"]  # type: ignore[no-any-return]


@dataclass(eq=False)
class Mapping:
    """A dictionary with plain keys; `open` ones may hold keys that the text does not show."""

    cells: dict[Any, Slot] = field(default_factory=dict)
    open: bool = False


@dataclass(frozen=True)
class Function:
    """A function of the file, with the names around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    outer: Scope | None = None


@dataclass(frozen=True)
class Blueprint:
    """A class of the file."""

    node: ast.ClassDef


@dataclass(frozen=True)
class Imported:
    """A name from elsewhere, by its dotted path."""

    path: str

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.rpartition(".")[2]


class Template(str):
    """Text with parts that are not known, which read `${name}`."""

    __slots__ = ()


@dataclass(eq=False)
class Scope:
    """The names of a function or of the file."""

    cells: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None

    def find(self, name: str, otherwise: Any) -> Any:
        """What a name stands for here."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.cells:
                return scope.cells[name]
            scope = scope.outer
        return otherwise


_MISSING = object()
_orders = count(1)


class Journal:
    """Every change, so that the changes of a branch can be taken back."""

    def __init__(self) -> None:
        self._changes: list[tuple[dict[Any, Any], Any, Any]] = []

    def write(self, cells: dict[Any, Any], key: Any, value: Any) -> None:
        """Set a cell."""
        self._changes.append((cells, key, cells.get(key, _MISSING)))
        cells[key] = value

    def write_slot(
        self, cells: dict[Any, Slot], key: Any, value: Any, place: Place, why: str = "", **more: Any
    ) -> None:
        """Set a cell that remembers where it was written and what it replaced."""
        self.write(cells, key, Slot(value, place, next(_orders), why, cells.get(key), **more))

    def drop(self, cells: dict[Any, Any], key: Any) -> None:
        """Take a cell out."""
        self._changes.append((cells, key, cells.get(key, _MISSING)))
        cells.pop(key, None)

    def mark(self) -> int:
        """The present moment."""
        return len(self._changes)

    def rewind(self, mark: int) -> dict[tuple[int, Any], tuple[dict[Any, Any], Any]]:
        """Take back what happened since; returns it by cell: (cells, value)."""
        undone: dict[tuple[int, Any], tuple[dict[Any, Any], Any]] = {}
        for cells, key, _ in self._changes[mark:]:
            undone[id(cells), key] = (cells, cells.get(key, _MISSING))
        for cells, key, before in reversed(self._changes[mark:]):
            if before is _MISSING:
                cells.pop(key, None)
            else:
                cells[key] = before
        del self._changes[mark:]
        return undone

    def merge(self, branches: list[dict[tuple[int, Any], tuple[dict[Any, Any], Any]]], why: str) -> None:
        """Write what all branches agree on; where they differ, the cell is unknown because of `why`."""
        for (identity, key), (cells, _) in {k: v for branch in branches for k, v in branch.items()}.items():
            present = cells.get(key, _MISSING)
            ends = [branch.get((identity, key), (cells, present))[1] for branch in branches]
            agreed = all(_same(ends[0], end) for end in ends[1:])
            if agreed and ends[0] is _MISSING:
                self.drop(cells, key)
            else:
                self.write(cells, key, ends[0] if agreed else _unsettled(ends, why))


def merged_mapping(mappings: list[Mapping], why: str) -> Mapping:
    """One dictionary for several that a condition chooses from: what they agree on, and unknowns."""
    made = Mapping(open=any(mapping.open for mapping in mappings))
    for key in {key: None for mapping in mappings for key in mapping.cells}:
        ends: list[Any] = [mapping.cells.get(key, _MISSING) for mapping in mappings]
        made.cells[key] = ends[0] if all(_same(ends[0], end) for end in ends) else _unsettled(ends, why)
    return made


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Slot) and isinstance(right, Slot):
        left, right = left.value, right.value
    if isinstance(left, (Thing, Sequence, Mapping)) or isinstance(right, (Thing, Sequence, Mapping)):
        return left is right
    return type(left) is type(right) and bool(left == right)


def _unsettled(ends: list[Any], why: str) -> Any:
    values = [end.value if isinstance(end, Slot) else end for end in ends]
    if all(isinstance(value, Thing) for value in values):
        thing = _common(values, why)
        slots = [end for end in ends if isinstance(end, Slot)]
        return Slot(thing, slots[-1].place, next(_orders), why, slots[-1].before) if slots else thing
    last = next((end for end in reversed(ends) if isinstance(end, Slot)), None)
    if last is not None:
        return Slot(UNKNOWN, last.place, next(_orders), why, last.before)
    return (UNKNOWN,) if any(isinstance(end, tuple) for end in ends) else UNKNOWN


def _common(things: list[Thing], why: str) -> Thing:
    """One object for several that a condition chooses from: what they agree on, and unknowns."""
    made = Thing(base=why, place=things[-1].place)
    for name in {name: None for thing in things for name in thing.cells}:
        ends: list[Any] = [thing.cells.get(name, _MISSING) for thing in things]
        made.cells[name] = ends[0] if all(_same(ends[0], end) for end in ends) else _unsettled(ends, why)
    return made
