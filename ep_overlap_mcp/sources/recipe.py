"""Python recipes -> readings, read as syntax trees and never executed.

A function that returns a configuration is one reading; so is a script that builds one at its top level. Values that
need running, or that another file may change, are unknown.
"""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.names import BRIDGE, NEMO, Vocabulary
from ep_overlap_mcp.sources.reading import CUT_DOWN, MEND, Reading, UnreadableError
from ep_overlap_mcp.sources.recipe_arguments import arguments_reading
from ep_overlap_mcp.sources.recipe_run import Run, TooLongError
from ep_overlap_mcp.sources.recipe_settings import add_callbacks, add_settings, history
from ep_overlap_mcp.sources.recipe_unfollowed import unfollowed
from ep_overlap_mcp.sources.recipe_values import Function, Scope, Thing

if TYPE_CHECKING:
    from ep_overlap_mcp.stack import Framework


def read_recipe(text: str, file: str) -> list[Reading]:
    """One reading a configuration that the file builds, in the order of the file.

    Raises UnreadableError for a syntax error, with its line, and for nesting beyond what Python itself takes.
    """
    recipe = _Recipe(text, file, _parsed(text, file))
    try:
        readings = recipe.returned() or recipe.built() or recipe.changed() or recipe.arguments()
    except (TooLongError, RecursionError):
        raise UnreadableError(f"{file}: takes too many steps to follow; name a smaller file") from None
    if len(readings) == 1 and len(recipe.functions) <= 1:
        readings[0].name = None
    return readings


def _parsed(text: str, file: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as failure:
        what = f"not valid Python at line {failure.lineno or 1}: {failure.msg}"
        raise UnreadableError(f"{file}: {what}; {MEND}") from None
    except (ValueError, RecursionError, MemoryError):
        raise UnreadableError(f"{file}: nested too deep for a recipe, or not Python; {CUT_DOWN}") from None


class _Recipe:
    """A file, and the ways in which it may build configurations, the likeliest first."""

    def __init__(self, text: str, file: str, tree: ast.Module) -> None:
        self._text, self._file = text, file
        self._framework, self._vocabulary = _framework(tree)
        self._unfollowed = unfollowed(tree)
        self._module = [statement for statement in tree.body if not _is_main(statement)]
        self._main = [s for statement in tree.body if _is_main(statement) for s in getattr(statement, "body", [])]
        self.functions = [node for node in self._module if isinstance(node, ast.FunctionDef)]

    def returned(self) -> list[Reading]:
        """Public functions that return a configuration, but for those that others call with arguments."""
        readings: list[Reading] = []
        called: set[str] = set()
        for function in self.functions:
            run, _, value = self._followed(function)
            called |= run.called - {function.name}
            things = value if isinstance(value, tuple) else (value,)
            readings += [self._reading(run, t, function.name) for t in things if isinstance(t, Thing)]
        helpers = {f.name for f in self.functions if f.name in called and len(f.args.args) > len(f.args.defaults)}
        public = [r for r in readings if _says_something(r) and not (r.name or "_").startswith("_")]
        return [reading for reading in public if reading.name not in helpers] or public

    def built(self) -> list[Reading]:
        """Objects that running the file builds and nothing else holds."""
        run, scope = Run(self._text), Scope()
        run.block([*self._module, *self._main], scope)
        things = _everything(run, scope)
        held = {id(past.value) for thing in things for slot in thing.cells.values() for past in history(slot)}
        roots = [t for t in things if t.cells and (id(t) not in held or t.kind == "ConfigContainer")]
        named = {id(value): name for name, value in scope.cells.items() if isinstance(value, Thing)}
        readings = [self._reading(run, thing, named.get(id(thing), f"line {thing.place.line}")) for thing in roots]
        readings = [reading for reading in readings if _says_something(reading)]
        if len(readings) == 1:
            readings[0].name = None
        return readings

    def changed(self) -> list[Reading]:
        """Functions that change a configuration they are given, and private ones that return one."""
        readings = []
        for function in self.functions:
            run, given, value = self._followed(function)
            things = [value] if isinstance(value, Thing) else [thing for thing in given.values() if thing.cells]
            readings += [self._reading(run, thing, function.name) for thing in things]
        return [reading for reading in readings if _says_something(reading)]

    def arguments(self) -> list[Reading]:
        """A command line that the file puts together, in its body or in a function that nothing calls."""
        run, scope = Run(self._text), Scope()
        run.block([*self._module, *self._main], scope)
        for function in self.functions:
            entry = scope.cells.get(function.name)
            if isinstance(entry, Function) and function.name not in run.called:
                run.invoke(entry, {}, scope)
        reading = arguments_reading([scope, *run.finals], self._text, self._file)
        return [reading] if reading else []

    def _followed(self, function: ast.FunctionDef) -> tuple[Run, dict[str, Thing], Any]:
        """The run of one function, the objects it was given for arguments without a default, and what it returns."""
        run, scope = Run(self._text), Scope()
        run.block(self._module, scope)
        entry = scope.cells.get(function.name)
        if not isinstance(entry, Function):
            return run, {}, None
        run.forget()
        required = function.args.args[: len(function.args.args) - len(function.args.defaults)]
        given = {argument.arg: Thing(base=argument.arg) for argument in required}
        return run, given, run.invoke(entry, given, scope)

    def _reading(self, run: Run, thing: Thing, name: str | None) -> Reading:
        reading = Reading("Python recipe", self._file, self._framework, name)
        add_settings(reading, thing, self._vocabulary)
        add_callbacks(reading, run.made)
        for line, text, why in run.remarks:
            reading.left_out(text, line, why, kind="not resolved")
        reading.partial.append(_partial(thing))
        for part in self._unfollowed:
            why = f"{part.why}, which is not followed: what the recipe writes is not certain"
            reading.left_out(part.text, part.line, why, kind="not resolved")
        if self._unfollowed:
            for path in dict.fromkeys(a.path for a in reading.assignments):
                reading.add(path, UNKNOWN, line=self._unfollowed[0].line, text=self._unfollowed[0].text)
        return reading


def _everything(run: Run, scope: Scope) -> list[Thing]:
    """All objects in sight, once each."""
    named = [v for s in (scope, *run.finals) for v in s.cells.values()]
    things = [*run.made, *(v for v in named if isinstance(v, Thing))]
    return list({id(thing): thing for thing in things}.values())


def _partial(thing: Thing) -> str:
    """Why unwritten settings are unknown: the base that the text does not hold, or a class with its own defaults."""
    model = thing.cells.get("model")
    for part in (thing, model.value if model else None):
        if isinstance(part, Thing) and part.base and not part.kind:
            return f"starts from `{part.base}`, which the text does not hold"
    kinds = [p.kind for p in (model.value if model else None, thing) if isinstance(p, Thing) and p.kind]
    return f"`{kinds[0] if kinds else 'the configuration'}` carries defaults that the text does not show"


def _says_something(reading: Reading) -> bool:
    """Whether any of it is Megatron's own; loops over files and plots return objects too."""
    tops = {a.path.partition(".")[0] for a in reading.assignments} - {"peft", "dataset", "optimizer"}
    return bool(tops if reading.framework == "bridge" else tops - {"env"})


def _framework(tree: ast.Module) -> tuple[Framework, Vocabulary]:
    modules = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    if any(name.startswith("megatron.bridge") for name in modules):
        return "bridge", BRIDGE
    if any(name.partition(".")[0] in ("nemo", "nemo_run") for name in modules):
        return "megatron-core", NEMO
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return ("bridge" if names & {"CommOverlapConfig", "WorkloadBaseConfig"} else "megatron-core"), BRIDGE


def _is_main(statement: ast.stmt) -> bool:
    """`if __name__ == "__main__":`."""
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Compare)
        and isinstance(statement.test.left, ast.Name)
        and statement.test.left.id == "__name__"
    )
