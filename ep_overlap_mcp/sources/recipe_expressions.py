"""The value of an expression of a recipe, where the text settles it; nothing is executed."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.recipe_mappings import united
from ep_overlap_mcp.sources.recipe_values import (
    Imported,
    Mapping,
    Place,
    Scope,
    Sequence,
    Slot,
    Template,
    Thing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.sources.recipe_run import Run

_LONGEST = 100_000
_LARGEST = 10**15

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def evaluate(run: Run, node: ast.expr | None, scope: Scope) -> Any:
    """The value: a constant, a list, an object of the recipe, or UNKNOWN."""
    run.step()
    if node is None:
        return None
    handler = _HANDLERS.get(type(node))
    return handler(run, node, scope) if handler else UNKNOWN


def plain_value(value: Any) -> Any:
    """A value as a setting takes it: constants and lists of them; members of enumerations by name."""
    if isinstance(value, Sequence):
        items = [plain_value(item) for item in value.items]
        return UNKNOWN if UNKNOWN in items else items
    if isinstance(value, tuple):
        return plain_value(Sequence.of(value))
    if isinstance(value, Imported):
        parent = value.path.rpartition(".")[0].rpartition(".")[2]
        return value.name if parent == "torch" or parent[:1].isupper() else UNKNOWN
    if isinstance(value, Template) or not isinstance(value, (str, int, float, bool, type(None))):
        return UNKNOWN
    return value


def truth(value: Any) -> bool | None:
    """Whether a condition holds, or None where that is not settled."""
    if isinstance(value, Sequence):
        return bool(value.items)
    if isinstance(value, Mapping):
        return None if value.open else bool(value.cells)
    if isinstance(value, Template):
        return True
    if isinstance(value, (str, int, float, bool, type(None), tuple)):
        return bool(value)
    return True if isinstance(value, Thing) and value.kind else None


def _constant(_run: Run, node: ast.Constant, _scope: Scope) -> Any:
    return node.value if isinstance(node.value, (str, int, float, bool, type(None))) else UNKNOWN


def _name(_run: Run, node: ast.Name, scope: Scope) -> Any:
    found = scope.find(node.id, Imported(f"builtins.{node.id}"))
    return found.value if isinstance(found, Slot) else found


def _attribute(run: Run, node: ast.Attribute, scope: Scope) -> Any:
    base = evaluate(run, node.value, scope)
    if isinstance(base, Thing):
        return run.attribute(base, node.attr)
    if isinstance(base, Imported):
        return Imported(f"{base.path}.{node.attr}")
    return UNKNOWN


def _subscript(run: Run, node: ast.Subscript, scope: Scope) -> Any:
    base, key = evaluate(run, node.value, scope), evaluate(run, node.slice, scope)
    if isinstance(base, Mapping):
        slot = base.cells.get(key) if _hashable(key) else None
        return slot.value if slot else UNKNOWN
    if isinstance(base, Sequence):
        base = base.items
    if isinstance(base, (str, tuple)) and type(key) is int and -len(base) <= key < len(base):
        return base[key]
    return UNKNOWN


def _binary(run: Run, node: ast.BinOp, scope: Scope) -> Any:
    left, right = evaluate(run, node.left, scope), evaluate(run, node.right, scope)
    if isinstance(node.op, ast.BitOr):
        return united(left, right)
    if isinstance(left, Sequence) and isinstance(right, (Sequence, int)):
        items = right.items if isinstance(right, Sequence) else right
        return _sequence(type(node.op), left.items, items)
    if isinstance(right, Sequence) and type(left) is int:
        return _sequence(type(node.op), right.items, left)
    if isinstance(node.op, ast.Add) and (isinstance(left, str) or isinstance(right, str)):
        return _joined([_piece(left, node.left), _piece(right, node.right)])
    if not (isinstance(left, (int, float, str)) and isinstance(right, (int, float, str))):
        return UNKNOWN
    return _bounded(_ARITHMETIC.get(type(node.op)), left, right)


def _sequence(operation: type[ast.operator], items: tuple[Any, ...], other: Any) -> Any:
    if operation is ast.Add and isinstance(other, tuple):
        return Sequence.of((*items, *other))
    if operation is ast.Mult and type(other) is int and len(items) * max(other, 0) <= _LONGEST:
        return Sequence.of(items * other)
    return UNKNOWN


def _bounded(operation: Callable[[Any, Any], Any] | None, left: Any, right: Any) -> Any:
    numbers = [v for v in (left, right) if isinstance(v, (int, float))]
    texts = [v for v in (left, right) if isinstance(v, str)]
    if operation is None or any(abs(n) > _LARGEST for n in numbers) or (operation is operator.mod and texts):
        return UNKNOWN
    if texts and numbers and len(texts[0]) * abs(numbers[0]) > _LONGEST:
        return UNKNOWN
    try:
        return operation(left, right)
    except (TypeError, ArithmeticError, ValueError):
        return UNKNOWN


def _unary(run: Run, node: ast.UnaryOp, scope: Scope) -> Any:
    value = evaluate(run, node.operand, scope)
    if isinstance(node.op, ast.Not):
        settled = truth(value)
        return UNKNOWN if settled is None else not settled
    if isinstance(value, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return -value if isinstance(node.op, ast.USub) else +value
    return UNKNOWN


def _boolean(run: Run, node: ast.BoolOp, scope: Scope) -> Any:
    decisive = isinstance(node.op, ast.Or)
    value: Any = UNKNOWN
    unsettled = False
    for part in node.values:
        value = evaluate(run, part, scope)
        settled = truth(value)
        if settled is decisive:
            # A later decisive operand settles the truth of the whole, not its value.
            return value if not unsettled else (decisive if isinstance(value, bool) else UNKNOWN)
        unsettled = unsettled or settled is None
    return UNKNOWN if unsettled else value


def _compare(run: Run, node: ast.Compare, scope: Scope) -> Any:
    left = evaluate(run, node.left, scope)
    for operation, operand in zip(node.ops, node.comparators, strict=True):
        right = evaluate(run, operand, scope)
        result = _compared(operation, left, right)
        if result is not True:
            return result
        left = right
    return True


def _compared(operation: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(operation, (ast.Is, ast.IsNot)) and isinstance(left, Thing) and left.kind and right is None:
        return isinstance(operation, ast.IsNot)
    values = [
        tuple(v.items) if isinstance(v, Sequence) else tuple(v.cells) if isinstance(v, Mapping) else v
        for v in (left, right)
    ]
    if any(isinstance(v, Template) or not isinstance(v, (str, int, float, bool, tuple, type(None))) for v in values):
        return UNKNOWN
    if any(isinstance(v, tuple) and any(isinstance(i, (Thing, Imported)) or i is UNKNOWN for i in v) for v in values):
        return UNKNOWN
    if isinstance(right, Mapping) and right.open:
        return UNKNOWN
    try:
        return bool(_COMPARISONS[type(operation)](*values))
    except TypeError:
        return UNKNOWN


def _conditional(run: Run, node: ast.IfExp, scope: Scope) -> Any:
    settled = truth(evaluate(run, node.test, scope))
    if settled is None:
        one, other = evaluate(run, node.body, scope), evaluate(run, node.orelse, scope)
        same = isinstance(one, (str, int, float, bool, type(None))) and type(one) is type(other) and one == other
        return one if same else UNKNOWN
    return evaluate(run, node.body if settled else node.orelse, scope)


def _list(run: Run, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
    items: list[Any] = []
    for part in node.elts:
        value = evaluate(run, part.value if isinstance(part, ast.Starred) else part, scope)
        if not isinstance(part, ast.Starred):
            items.append(value)
        elif isinstance(value, (Sequence, tuple)):
            items.extend(value.items if isinstance(value, Sequence) else value)
        else:
            items.append(Template(f"${{{ast.unparse(part.value)}}}"))
    return tuple(items) if isinstance(node, ast.Tuple) else Sequence.of(items)


def _dict(run: Run, node: ast.Dict, scope: Scope) -> Any:
    made = Mapping()
    for key_node, value_node in zip(node.keys, node.values, strict=True):
        value = evaluate(run, value_node, scope)
        if key_node is None:
            _spread(made, value)
            continue
        key = evaluate(run, key_node, scope)
        if _hashable(key):
            run.journal.write_slot(made.cells, key, value, run.place(key_node, value_node))
        else:
            made.open = True
    return made


def _spread(made: Mapping, value: Any) -> None:
    if isinstance(value, Mapping):
        made.cells.update(value.cells)
    made.open = made.open or not isinstance(value, Mapping) or value.open


def _formatted(run: Run, node: ast.JoinedStr, scope: Scope) -> Any:
    pieces = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = evaluate(run, part.value, scope) if part.format_spec is None else UNKNOWN
            pieces.append(_piece(value, part.value))
        elif isinstance(part, ast.Constant):
            pieces.append(str(part.value))
    return _joined(pieces)


def _piece(value: Any, node: ast.expr) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float, bool, type(None))):
        return str(value)
    return Template(f"${{{ast.unparse(node)[:80]}}}")


def _joined(pieces: list[str]) -> Any:
    text = "".join(pieces)
    if len(text) > _LONGEST:
        return UNKNOWN
    return Template(text) if any(isinstance(piece, Template) for piece in pieces) else text


def _comprehension(run: Run, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Any:
    if len(node.generators) != 1:
        return UNKNOWN
    generator = node.generators[0]
    items = run.items_of(evaluate(run, generator.iter, scope))
    if items is None or not isinstance(generator.target, ast.Name):
        return UNKNOWN
    made = []
    for item in items:
        inner = Scope({generator.target.id: item}, scope)
        kept = [truth(evaluate(run, test, inner)) for test in generator.ifs]
        if None in kept:
            return UNKNOWN
        if all(kept):
            made.append(evaluate(run, node.elt, inner))
    return Sequence.of(made)


def _dict_comprehension(run: Run, node: ast.DictComp, scope: Scope) -> Any:
    """A dictionary over what is known; else one that may hold anything."""
    items = run.items_of(evaluate(run, node.generators[0].iter, scope)) if len(node.generators) == 1 else None
    made = Mapping(open=items is None)
    for item in items or ():
        names = _unpacked(node.generators[0].target, item)
        inner = Scope(names or {}, scope)
        kept = [truth(evaluate(run, test, inner)) for test in node.generators[0].ifs]
        key = evaluate(run, node.key, inner)
        if names is None or None in kept or not _hashable(key):
            return Mapping(open=True)
        if all(kept):
            run.journal.write_slot(made.cells, key, evaluate(run, node.value, inner), run.place(node))
    return made


def _unpacked(target: ast.expr, item: Any) -> dict[str, Any] | None:
    """The names of a loop's target with their parts of an item; None where they do not fit."""
    if isinstance(target, ast.Name):
        return {target.id: item}
    parts = target.elts if isinstance(target, ast.Tuple) else []
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    fits = names and isinstance(item, tuple) and len(names) == len(parts) == len(item)
    return dict(zip(names, item, strict=True)) if fits else None


def _walrus(run: Run, node: ast.NamedExpr, scope: Scope) -> Any:
    value = evaluate(run, node.value, scope)
    run.journal.write(scope.cells, node.target.id, value)
    return value


def _call(run: Run, node: ast.Call, scope: Scope) -> Any:
    return run.call(node, scope)


def _hashable(key: Any) -> bool:
    return isinstance(key, (str, int, float, bool, type(None)))


_HANDLERS: dict[type[ast.expr], Callable[[Run, Any, Scope], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.List: _list,
    ast.Tuple: _list,
    ast.Set: _list,
    ast.Dict: _dict,
    ast.JoinedStr: _formatted,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _dict_comprehension,
    ast.NamedExpr: _walrus,
    ast.Call: _call,
}


__all__ = ["Place", "evaluate", "plain_value", "truth"]
