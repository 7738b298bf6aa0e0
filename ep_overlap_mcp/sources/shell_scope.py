"""Values of shell variables, the scope that holds them, and what several branches agree on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.reading import CUT_DOWN, UnreadableError
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_syntax import Source

Pieces = tuple[Piece, ...]
Atoms = list["Piece | None"]  # None ends a word, as between the elements of an array

_BUDGET: Final = 2_000_000


@dataclass(frozen=True)
class Scalar:
    """The value of a plain variable."""

    pieces: Pieces

    @property
    def text(self) -> str:
        """The value as text; unresolved parts as written."""
        return "".join(p.text for p in self.pieces)


@dataclass(frozen=True)
class Array:
    """The value of an array variable, one entry a word."""

    elements: tuple[Pieces, ...]


Value = Scalar | Array


@dataclass
class Scope:
    """What is known at one point of a script. A variable that maps to None is unset by the text itself.

    `exported` maps the names that commands inherit, or that the text unsets, to where it says so. `arguments` are
    those of the function that runs; None stands for the script's own, which nobody knows. `used` are the variables
    that went into a word or into the value of another one.
    """

    variables: dict[str, Value | None] = field(default_factory=dict)
    exported: dict[str, int | None] = field(default_factory=dict)
    functions: dict[str, tuple[Source, Node]] = field(default_factory=dict)
    arguments: tuple[Pieces, ...] | None = None
    used: set[str] = field(default_factory=set)
    spent: list[int] = field(default_factory=lambda: [0])

    def branch(self) -> Scope:
        """A copy for a branch that may or may not run."""
        self._charge(len(self.variables))
        return replace(
            self, variables=dict(self.variables), exported=dict(self.exported), functions=dict(self.functions)
        )

    def spend(self, pieces: Iterable[Piece]) -> None:
        """Bound the work: a few doubling assignments can ask for more text than any memory holds."""
        self._charge(sum(len(p.text) + 8 for p in pieces))

    def _charge(self, cost: int) -> None:
        self.spent[0] += cost
        if self.spent[0] > _BUDGET:
            raise UnreadableError(f"too large: its variables expand to more than {_BUDGET} characters; {CUT_DOWN}")


def fields(atoms: Atoms) -> list[Pieces]:
    """Atoms split into words: at blanks outside quotes and between array elements."""
    found: list[Pieces] = []
    word: list[Piece] = []
    for atom in atoms:
        if atom is None or not (atom.quoted or atom.text.strip()):
            if word and (atom is None or atom.text):
                found.append(tuple(word))
                word = []
        elif atom.quoted or atom.opaque:
            word.append(atom)
        else:
            for match in re.finditer(r"\s+|\S+", atom.text):
                if not match[0].isspace():
                    word.append(atom.cut(match.start(), match.end()))
                elif word:
                    found.append(tuple(word))
                    word = []
    return [*found, tuple(word)] if word else found


def text_of(pieces: Iterable[Piece | None]) -> str:
    """The characters of some runs."""
    return "".join(p.text for p in pieces if p is not None)


def unresolved_in(pieces: Iterable[Piece | None]) -> list[str]:
    """The variables without a value among some runs."""
    return [p.unresolved for p in pieces if p is not None and p.unresolved is not None]


def elements_of(value: Value | None) -> tuple[Pieces, ...]:
    """The elements of an array; a plain value is an array of one."""
    if isinstance(value, Scalar):
        return (value.pieces,) if value.pieces else ()
    return value.elements if value else ()


def scalar_of(value: Value | None) -> Pieces | None:
    """What a plain reference gives, of an array the first element; None for an unset variable."""
    if isinstance(value, Array):
        return value.elements[0] if value.elements else ()
    return value.pieces if value else None


def merge(before: Scope, after: list[Scope], cause: str) -> None:
    """One scope out of several: equal values stay, options of some branches are marked, the rest is unresolved."""
    first = after[0]
    for name in dict.fromkeys(n for scope in after for n in scope.variables):
        same = first.variables.get(name)
        if same is not None and all(scope.variables.get(name) is same for scope in after):
            before.variables[name] = same
            continue
        values = [scope.variables.get(name) for scope in after]
        if any(value != values[0] for value in values) or any(name not in s.variables for s in after):
            old = before.variables.get(name)
            before.variables[name] = _agreed(values) or _merged(name, old, values, cause)
        else:
            before.variables[name] = values[0]
    for scope in after:
        before.exported.update(scope.exported)
        before.functions.update(scope.functions)
    before.arguments = first.arguments


def _merged(name: str, base: Value | None, values: list[Value | None], cause: str) -> Value:
    if any(isinstance(value, Array) for value in values):
        shared = elements_of(base)
        if any(elements_of(value)[: len(shared)] != shared for value in values):
            shared = ()
        added = [element for value in values for element in elements_of(value)[len(shared) :]]
        return Array((*shared, *(_marked(element, cause) for element in added)))
    pieces = [value.pieces if isinstance(value, Scalar) else () for value in values]
    start = base.pieces if isinstance(base, Scalar) else ()
    if any(p[: len(start)] != start for p in pieces):
        start = ()
    tails = [p[len(start) :] for p in pieces]
    if all(_is_options(tail) for tail in tails):
        marked = [piece for tail in tails for piece in (Piece(" "), *_marked(tail, cause))]
        return Scalar((*start, *marked))
    return Scalar((Piece(f"${{{name}}}", unresolved=cause if cause.isidentifier() else name),))


def _agreed(values: list[Value | None]) -> Value | None:
    """The value that all branches give, without a place when it is written in several."""
    found = [value for value in values if value is not None]
    texts = [[text_of(p) for p in elements_of(value)] for value in found]
    if len(found) < len(values) or any(text != texts[0] for text in texts):
        return None
    if len({type(value) for value in found}) > 1 or any(
        unresolved_in(p) for value in found for p in elements_of(value)
    ):
        return None
    pieces = tuple((Piece(text),) for text in texts[0])
    return Array(pieces) if isinstance(found[0], Array) else Scalar(pieces[0] if pieces else ())


def _is_options(pieces: Pieces) -> bool:
    text = text_of(pieces).strip()
    return not text or text.startswith("--")


def _marked(pieces: Pieces, cause: str) -> Pieces:
    return tuple(piece._replace(unresolved=piece.unresolved or cause) for piece in pieces if piece.text)
