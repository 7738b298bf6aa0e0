"""Values of shell variables, the scope that holds them, and what several branches agree on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ep_overlap_mcp.sources.reading import CUT_DOWN, UnreadableError
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_syntax import Source

Pieces = tuple[Piece, ...]
Atoms = list["Piece | None"]  # None ends a word, as between the elements of an array

_BUDGET: Final = 2_000_000
_V = TypeVar("_V")
UNKNOWN_ARGUMENTS: Final[tuple[Pieces, ...]] = ((Piece("$@", unresolved="@"),),)


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


class Trait(NamedTuple):
    """What `declare -i`, `-l`, `-u` and `-n` say of a variable; `refers` is the one that it stands for."""

    letters: str = ""
    refers: str | None = None


@dataclass(frozen=True)
class Saved:
    """A variable of the caller behind a local one of the same name; `known` is false where the text sets none."""

    known: bool
    value: Value | None
    exported: bool
    place: int | None
    trait: Trait | None


Frame = dict[str, Saved]


@dataclass
class Scope:
    """What is known at one point of a script. A variable that maps to None is unset by the text itself.

    `exported` maps the names that commands inherit, or that the text unsets, to where it says so; `exports` says that
    `set -a` exports all that is assigned, `inherited` are names that the environment of the job has. `arguments` are
    those of the function that runs or of `set --`; None stands for the script's own, which nobody knows. `frames` are
    the functions that run, the innermost last, each with what its locals hide. `used` are the variables that went into
    a word or into the value of another one.
    """

    variables: dict[str, Value | None] = field(default_factory=dict)
    exported: dict[str, int | None] = field(default_factory=dict)
    functions: dict[str, tuple[Source, Node]] = field(default_factory=dict)
    traits: dict[str, Trait] = field(default_factory=dict)
    exports: bool = False
    inherited: frozenset[str] = frozenset()
    arguments: tuple[Pieces, ...] | None = None
    frames: tuple[Frame, ...] = ()
    used: set[str] = field(default_factory=set)
    spent: list[int] = field(default_factory=lambda: [0])

    def branch(self) -> Scope:
        """A copy for a branch that may or may not run."""
        self._charge(len(self.variables))
        return self.copy()

    def copy(self) -> Scope:
        """A copy; what it uses and spends counts for this one too."""
        return replace(
            self,
            variables=dict(self.variables),
            exported=dict(self.exported),
            functions=dict(self.functions),
            traits=dict(self.traits),
        )

    def become(self, other: Scope) -> None:
        """Take over what another scope knows."""
        for name in ("variables", "exported", "functions", "traits", "exports", "arguments", "frames"):
            setattr(self, name, getattr(other, name))

    def child(self, *, closed: bool) -> Scope:
        """What a program of its own, such as `bash -c`, starts with: the exported variables.

        The others are unset in it, or where the script is not `closed`, for a file that it sources may export them,
        unknown.
        """
        seen = self.exported.keys() | self.inherited
        kept = {n: v if n in seen else None for n, v in self.variables.items() if closed or n in seen}
        return replace(self.copy(), variables=kept, traits={}, exports=False, arguments=None, frames=())

    def enter(self, arguments: tuple[Pieces, ...]) -> None:
        """Begin a function."""
        self.arguments = arguments
        self.frames = (*self.frames, {})

    def leave(self, arguments: tuple[Pieces, ...] | None) -> None:
        """End it: what its locals hid is there again, and the caller's arguments."""
        self.arguments = arguments
        for name, saved in self.frames[-1].items():
            _put(self.variables, name, saved.value, there=saved.known)
            _put(self.exported, name, saved.place, there=saved.exported)
            _put(self.traits, name, saved.trait or Trait(), there=saved.trait is not None)
        self.frames = self.frames[:-1]

    def own(self, name: str) -> None:
        """Make a variable local to the function that runs, unset at first; the functions that it calls see it too."""
        if not self.frames or name in self.frames[-1]:
            return
        saved = Saved(
            name in self.variables,
            self.variables.get(name),
            name in self.exported,
            self.exported.get(name),
            self.traits.pop(name, None),
        )
        self.frames = (*self.frames[:-1], {**self.frames[-1], name: saved})
        self.variables[name] = None

    def set_global(self, name: str, value: Value) -> None:
        """`declare -g`: the variable behind all locals of that name."""
        hidden = next((number for number, frame in enumerate(self.frames) if name in frame), None)
        if hidden is None:
            self.variables[name] = value
            return
        frame = self.frames[hidden]
        changed = {**frame, name: replace(frame[name], known=True, value=value)}
        self.frames = (*self.frames[:hidden], changed, *self.frames[hidden + 1 :])

    def target(self, name: str) -> str:
        """The variable that a name means: of a `declare -n` the other one."""
        trait = self.traits.get(name)
        return trait.refers if trait is not None and trait.refers is not None else name

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


def unknown(name: str) -> Piece:
    """What stands for the value of a variable that nobody knows."""
    return Piece(f"${{{name}}}", unresolved=name)


def unknown_array(name: str) -> Array:
    """The same for an array, which may have any number of elements."""
    return Array(((Piece(f"${{{name}[@]}}", unresolved=name),),))


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


def _put(table: dict[str, _V], name: str, value: _V, *, there: bool) -> None:
    """Set a name's entry, or take it away."""
    if there:
        table[name] = value
    else:
        table.pop(name, None)
