"""Following the statements of a recipe without running it: bounded, and unknown wherever a run would have to decide."""

from __future__ import annotations

import ast
import re
from typing import Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.recipe_calls import call
from ep_overlap_mcp.sources.recipe_expressions import evaluate, truth
from ep_overlap_mcp.sources.recipe_values import (
    Blueprint,
    Function,
    Imported,
    Journal,
    Mapping,
    Place,
    Scope,
    Sequence,
    Slot,
    Thing,
    merged_mapping,
)
from ep_overlap_mcp.sources.tree import Lines

_STEPS = 60_000
_DEEPEST = 24
_MOST_ROUNDS = 256


class TooLongError(Exception):
    """The text takes more steps to follow than a configuration should."""


class Ended:
    """How a block ended early: `return` with a value, `raise`, `break` or `continue`.

    `held` is what a returned dictionary held then: taking the branch back empties one that was made in it.
    """

    def __init__(self, kind: str, value: Any = None) -> None:
        self.kind, self.value = kind, value
        self.held = Mapping(dict(value.cells), value.open) if isinstance(value, Mapping) else None


class Run:
    """One pass over the file or one of its functions."""

    def __init__(self, text: str) -> None:
        self.journal = Journal()
        self.remarks: list[tuple[int, str, str]] = []
        self.made: list[Thing] = []
        self.finals: list[Scope] = []
        self.called: set[str] = set()
        self._steps = 0
        self._following: list[ast.AST] = []
        self._text = text
        self._lines = Lines(text)
        self._starts = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text))]

    def step(self) -> None:
        """Count one step; raises TooLongError beyond the bound."""
        self._steps += 1
        if self._steps > _STEPS:
            raise TooLongError

    def forget(self) -> None:
        """Start anew for one function: what the file's own body made and called is not its doing."""
        self.remarks.clear()
        self.made.clear()
        self.finals.clear()
        self.called.clear()

    def block(self, body: list[ast.stmt], scope: Scope) -> Ended | None:
        """Follow statements in order."""
        for index, statement in enumerate(body):
            self.step()
            if isinstance(statement, (ast.If, ast.Try)):
                ended, rest_done = self._branching(statement, body[index + 1 :], scope)
                if ended or rest_done:
                    return ended
                continue
            ended = self._statement(statement, scope)
            if ended:
                return ended
        return None

    def invoke(self, function: Function, arguments: dict[str, Any], scope: Scope) -> Any:
        """The value that a function of the file returns."""
        if function.node in self._following or len(self._following) >= _DEEPEST:
            for thing in arguments.values():
                if isinstance(thing, Thing):
                    self.unsettle(thing, self.place(function.node), f"`{function.node.name}` calls itself")
            return UNKNOWN
        self._following.append(function.node)
        self.called.add(function.node.name)
        inner = Scope(dict(self._defaults(function, scope), **arguments), function.outer or scope)
        try:
            ended = self.block(function.node.body, inner)
        finally:
            self._following.pop()
        self.finals.append(inner)
        return ended.value if ended and ended.kind == "return" else None

    def attribute(self, thing: Thing, name: str) -> Any:
        """An attribute; one that the text has not written is an object of its own, with attributes to write."""
        slot = thing.cells.get(name)
        if slot is not None:
            return slot.value
        if thing.kind == "CommOverlapConfig":
            return None
        child = Thing(base=f"{thing.base}.{name}" if thing.base else name)
        thing.cells[name] = Slot(child)  # an empty object changes nothing, so no branch takes it back
        return child

    def items_of(self, value: Any) -> tuple[Any, ...] | None:
        """What a loop over the value goes through, where that is settled."""
        if isinstance(value, Sequence):
            value = value.items
        if isinstance(value, Mapping) and not value.open:
            value = tuple(value.cells)
        return value if isinstance(value, tuple) and len(value) <= _MOST_ROUNDS else None

    def call(self, node: ast.Call, scope: Scope) -> Any:
        """The value of a call."""
        return call(self, node, scope)

    def place(self, statement: ast.AST, value: ast.AST | None = None) -> Place:
        """Where a statement stands, and the characters of its value."""
        line = getattr(statement, "lineno", 0)
        return Place(line, self._lines[line], self._span(value) if value is not None else None)

    def unsettle(self, thing: Thing, place: Place, why: str, seen: set[int] | None = None) -> int:
        """Make every attribute unknown, after a call that could change any; returns how many were known."""
        seen = seen if seen is not None else set()
        if id(thing) in seen:
            return 0
        seen.add(id(thing))
        changed = 0
        for name, slot in list(thing.cells.items()):
            if isinstance(slot.value, Thing) and not name.startswith("@"):
                changed += self.unsettle(slot.value, place, why, seen)
            elif slot.value is not UNKNOWN:
                self.journal.write_slot(thing.cells, name, UNKNOWN, place, why, quiet=True)
                changed += 1
        if thing.kind == "CommOverlapConfig":
            thing.kind = ""
        return changed

    def _span(self, node: ast.AST) -> tuple[int, int]:
        ends = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        start, end = (self._offset(line, column) for line, column in ends)
        return start, end

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        row = self._text[start : self._starts[line] if line < len(self._starts) else None]
        return start + len(row.encode()[:column].decode(errors="ignore"))

    def _defaults(self, function: Function, scope: Scope) -> dict[str, Any]:
        arguments = function.node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        outer = function.outer or scope
        found: dict[str, Any] = {name: Thing(base=name) for name in (*names, *(a.arg for a in arguments.kwonlyargs))}
        for name, node in zip(reversed(names), reversed(arguments.defaults), strict=False):
            found[name] = evaluate(self, node, outer)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                found[argument.arg] = evaluate(self, default, outer)
        if arguments.vararg:
            found[arguments.vararg.arg] = ()
        if arguments.kwarg:
            found[arguments.kwarg.arg] = Mapping()
        return found

    def _statement(self, node: ast.stmt, scope: Scope) -> Ended | None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assignment(node, scope)
        elif isinstance(node, ast.Expr):
            evaluate(self, node.value, scope)
        elif isinstance(node, ast.Return):
            return Ended("return", evaluate(self, node.value, scope))
        elif isinstance(node, (ast.Raise, ast.Break, ast.Continue)):
            return Ended(type(node).__name__.lower())
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.journal.write(scope.cells, node.name, Function(node, scope))
        elif isinstance(node, ast.ClassDef):
            self.journal.write(scope.cells, node.name, Blueprint(node))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._imports(node, scope)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            return self.block(node.body, scope)
        elif isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            return self._loop(node, scope)
        elif isinstance(node, ast.Match):
            self._either([case.body for case in node.cases], scope, f"`match` in line {node.lineno}")
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._delete(target, self.place(node), scope)
        return None

    def _delete(self, target: ast.expr, place: Place, scope: Scope) -> None:
        """A key that is known goes; whatever else is deleted is unknown afterwards."""
        if isinstance(target, ast.Subscript):
            owner, key = evaluate(self, target.value, scope), evaluate(self, target.slice, scope)
            if isinstance(owner, Mapping) and isinstance(key, (str, int)) and key in owner.cells:
                self.journal.drop(owner.cells, key)
                return
        self._assign(target, UNKNOWN, place, scope)

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        if isinstance(node, ast.AugAssign):
            left = ast.copy_location(ast.BinOp(_as_value(node.target), node.op, node.value), node)
            value = evaluate(self, ast.fix_missing_locations(left), scope)
        elif node.value is None:
            return
        else:
            value = evaluate(self, node.value, scope)
        place = self.place(node, node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._assign(target, value, place, scope)

    def _assign(self, target: ast.expr, value: Any, place: Place, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self.journal.write(scope.cells, target.id, value)
        elif isinstance(target, ast.Attribute):
            owner = evaluate(self, target.value, scope)
            if isinstance(owner, Thing):
                self.journal.write_slot(owner.cells, target.attr, value, place)
        elif isinstance(target, ast.Subscript):
            owner, key = evaluate(self, target.value, scope), evaluate(self, target.slice, scope)
            if isinstance(owner, (Mapping, Thing)) and isinstance(key, (str, int)):
                self.journal.write_slot(owner.cells, key if isinstance(owner, Mapping) else str(key), value, place)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = self.items_of(value)
            fits = items is not None and len(items) == len(target.elts)
            for index, part in enumerate(target.elts):
                self._assign(part, items[index] if fits and items else UNKNOWN, place, scope)

    def _imports(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if alias.asname:
                self.journal.write(scope.cells, alias.asname, Imported(f"{module}{alias.name}"))
            else:
                first = alias.name if module else alias.name.partition(".")[0]
                self.journal.write(scope.cells, first, Imported(f"{module}{first}"))

    def _branching(self, node: ast.If | ast.Try, rest: list[ast.stmt], scope: Scope) -> tuple[Ended | None, bool]:
        """How an `if` or `try` ends, and whether the rest of the block was followed inside its branches."""
        if isinstance(node, ast.Try):
            ended = self.block([*node.body, *node.orelse], scope)
            handlers = [handler.body for handler in node.handlers]
            if not ended and handlers:
                self._either([[], *handlers], scope, f"`try` in line {node.lineno}")
            return self.block(node.finalbody, scope) or ended, False
        settled = truth(evaluate(self, node.test, scope))
        if settled is not None:
            return self.block(node.body if settled else node.orelse, scope), False
        return self._both(node, rest, scope)

    def _both(self, node: ast.If, rest: list[ast.stmt], scope: Scope) -> tuple[Ended | None, bool]:
        """Follow both branches; where one leaves the block, the rest of it belongs to the other."""
        why = f"it hangs on `if {ast.unparse(node.test)[:60]}` in line {node.lineno}"
        mark = self.journal.mark()
        ends = [self.block(node.body, scope)]
        changes = [self.journal.rewind(mark)]
        ends.append(self.block(node.orelse, scope))
        changes.append(self.journal.rewind(mark))
        raised = [end is not None and end.kind == "raise" for end in ends]
        if raised[0] != raised[1]:
            return self.block(node.orelse if raised[0] else node.body, scope), False
        if (ends[0] is None) == (ends[1] is None):
            self.journal.merge(changes, why)
            return (_merged(ends, why) if ends[0] else None), False
        staying = node.orelse if ends[0] else node.body
        ended = self.block([*staying, *rest], scope)
        changes[1 if ends[0] else 0] = self.journal.rewind(mark)
        ends[1 if ends[0] else 0] = ended or Ended("return")
        self.journal.merge(changes, why)
        return _merged(ends, why), True

    def _either(self, bodies: list[list[ast.stmt]], scope: Scope, why: str) -> None:
        mark = self.journal.mark()
        changes = []
        for body in bodies:
            self.block(body, scope)
            changes.append(self.journal.rewind(mark))
        self.journal.merge(changes, f"it hangs on {why}")

    def _loop(self, node: ast.For | ast.While | ast.AsyncFor, scope: Scope) -> Ended | None:
        items = None if isinstance(node, ast.While) else self.items_of(evaluate(self, node.iter, scope))
        if items is None:
            if not isinstance(node, ast.While):
                self._assign(node.target, UNKNOWN, self.place(node), scope)
            self._either([[], node.body], scope, f"the loop in line {node.lineno}")
            return None
        for item in items:
            self._assign(node.target, item, self.place(node), scope)  # type: ignore[union-attr]
            ended = self.block(node.body, scope)
            if ended and ended.kind == "break":
                return None
            if ended and ended.kind in ("return", "raise"):
                return ended
        return self.block(node.orelse, scope)


def _merged(ends: list[Ended | None], why: str) -> Ended:
    values = [end.value if end else None for end in ends]
    if all(value is values[0] for value in values):
        return Ended("return", values[0])
    held = [end.held for end in ends if end and end.held]
    return Ended("return", merged_mapping(held, why) if len(held) == len(ends) else UNKNOWN)


def _as_value(target: ast.expr) -> ast.expr:
    """The target of `+=` read as an expression."""
    return ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)
