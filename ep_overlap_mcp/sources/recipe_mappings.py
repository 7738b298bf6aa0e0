"""Dictionaries of a recipe: what `dict(…)`, `|` and methods make of them, and keys that the text does not show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.recipe_values import Mapping, Sequence, Slot

if TYPE_CHECKING:
    import ast

    from ep_overlap_mcp.sources.recipe_run import Run


def made_by_dict(run: Run, node: ast.Call, positional: list[Any], named: dict[str, Slot]) -> Mapping:
    """`dict(pairs_or_mapping, key=value)`, which a spread of unknown keys leaves open."""
    made = Mapping()
    for other in positional:
        _absorb(run, node, made, other)
    made.cells.update(named)
    return made


def united(left: Any, right: Any) -> Any:
    """`left | right` of dictionaries; what is none may hold anything."""
    known = [side for side in (left, right) if isinstance(side, Mapping)]
    if not known:
        return UNKNOWN
    made = Mapping({key: slot for side in known for key, slot in side.cells.items()})
    made.open = len(known) == 1 or any(side.open for side in known)
    if not isinstance(right, Mapping) or right.open:
        kept = right.cells if isinstance(right, Mapping) else {}
        made.cells = {k: slot if k in kept else _doubtful(slot) for k, slot in made.cells.items()}
    return made


def dict_method(
    run: Run, node: ast.Call, owner: Mapping, name: str, positional: list[Any], named: dict[str, Slot]
) -> Any:
    """The value of a method of a dictionary, and its effect."""
    key = positional[0] if positional and isinstance(positional[0], (str, int)) else None
    slot = owner.cells.get(key) if key is not None else None
    if name in ("get", "pop", "setdefault"):
        default = positional[1] if len(positional) > 1 else None
        value = slot.value if slot else (UNKNOWN if owner.open or key is None else default)
        if name == "setdefault" and not slot and key is not None:
            run.journal.write_slot(owner.cells, key, value, run.place(node))
        if name == "pop":
            _take_out(run, node, owner, key)
        return value
    if name == "update":
        for other in positional:
            _absorb(run, node, owner, other)
        for other_key, other_slot in named.items():
            run.journal.write_slot(owner.cells, other_key, other_slot.value, other_slot.place)
        return None
    if name in ("clear", "popitem"):
        for known in list(owner.cells):
            _take_out(run, node, owner, known if name == "clear" else None)
        return None if name == "clear" else UNKNOWN
    return _copy_or_view(owner, name)


def _copy_or_view(owner: Mapping, name: str) -> Any:
    if name == "copy":
        return Mapping(dict(owner.cells), owner.open)
    if owner.open or name not in ("items", "keys", "values"):
        return UNKNOWN
    if name == "items":
        return tuple((k, s.value) for k, s in owner.cells.items())
    return tuple(k if name == "keys" else s.value for k, s in owner.cells.items())


def _absorb(run: Run, node: ast.Call, owner: Mapping, other: Any) -> None:
    """The keys of a dictionary, or of a list of pairs; of anything else they are unknown, and may be any."""
    if isinstance(other, Mapping):
        if other.open:
            _unsettle(run, node, owner)
        for key, slot in other.cells.items():
            run.journal.write_slot(owner.cells, key, slot.value, slot.place)
        return
    pairs = other.items if isinstance(other, Sequence) else other
    if isinstance(pairs, tuple) and all(isinstance(p, tuple) and len(p) == 2 and _is_key(p[0]) for p in pairs):
        for key, value in pairs:
            run.journal.write_slot(owner.cells, key, value, run.place(node))
    else:
        _unsettle(run, node, owner)


def _take_out(run: Run, node: ast.Call, owner: Mapping, key: str | int | None) -> None:
    """Remove a key; one that is not known may be any."""
    if key is None:
        _unsettle(run, node, owner)
    elif key in owner.cells:
        run.journal.drop(owner.cells, key)


def _unsettle(run: Run, node: ast.Call, owner: Mapping) -> None:
    owner.open = True
    for key, slot in list(owner.cells.items()):
        run.journal.write_slot(owner.cells, key, UNKNOWN, slot.place, f"line {node.lineno} may change it")


def _doubtful(slot: Slot) -> Slot:
    return Slot(UNKNOWN, slot.place, slot.order, "what is merged into it is not known", slot.before)


def _is_key(key: Any) -> bool:
    return isinstance(key, (str, int))
