"""What several branches of a script agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ep_overlap_mcp.sources.shell_scope import (
    UNKNOWN_ARGUMENTS,
    Array,
    Scalar,
    elements_of,
    text_of,
    unknown,
    unresolved_in,
)
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.shell_scope import Frame, Pieces, Saved, Scope, Value


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
        before.traits.update(scope.traits)
    before.exports = any(scope.exports for scope in after)
    same_arguments = all(scope.arguments == first.arguments for scope in after)
    before.arguments = first.arguments if same_arguments else UNKNOWN_ARGUMENTS
    before.frames = first.frames if all(s.frames == first.frames for s in after) else _merged_frames(after)


def joined(base: Scope, ends: list[Scope], cause: str) -> Scope:
    """One scope out of the several with which some statements can end; they began with `base`."""
    if len(ends) == 1:
        return ends[0]
    base = base.copy()
    merge(base, ends, cause)
    return base


def _merged_frames(scopes: list[Scope]) -> tuple[Frame, ...]:
    """What the locals hide; unknown where only some branches made a variable local."""
    found = []
    for frames in zip(*(scope.frames for scope in scopes), strict=True):
        names = dict.fromkeys(name for frame in frames for name in frame)
        found.append({name: _merged_saved(name, [frame.get(name) for frame in frames]) for name in names})
    return tuple(found)


def _merged_saved(name: str, saved: list[Saved | None]) -> Saved:
    first = next(s for s in saved if s is not None)
    if all(s == first for s in saved) or not first.known:
        return first
    return replace(first, value=Scalar((unknown(name),)))


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
