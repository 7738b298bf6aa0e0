"""Calls in a recipe: functions and classes of the file, the known helpers of Megatron-Bridge, and everything else.

A call that receives a configuration object, and is none of the first two, may change any of it.
"""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING, Any, Final

from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.recipe_expressions import evaluate, plain_value
from ep_overlap_mcp.sources.recipe_helpers import HELPERS
from ep_overlap_mcp.sources.recipe_mappings import dict_method, made_by_dict
from ep_overlap_mcp.sources.recipe_values import (
    Blueprint,
    Function,
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
    from ep_overlap_mcp.sources.recipe_run import Run

# Calls that read a configuration, start the run with it, or print it, and change none of its settings.
_HARMLESS: Final = frozenset(
    (
        *("append", "bool", "copy", "debug", "deepcopy", "dict", "error", "extend", "finetune", "fit", "float"),
        *("getattr", "hasattr", "id", "info", "int", "isinstance", "items", "keys", "len", "list", "log"),
        *("log_config", "pretrain", "print", "print_yaml", "repr", "run", "set_seed", "sorted", "str", "to_dict"),
        *("to_yaml", "tuple", "type", "validate", "values", "vars", "warning"),
    )
)
_MAKERS = ("Config", "Partial")
_TEXT_METHODS = ("lower", "upper", "strip", "lstrip", "rstrip", "replace", "split", "startswith", "endswith", "join")


def call(run: Run, node: ast.Call, scope: Scope) -> Any:
    """The value of a call, and its effect on the objects it receives."""
    owner = evaluate(run, node.func.value, scope) if isinstance(node.func, ast.Attribute) else None
    positional = _positional(run, node, scope)
    named, spread = _named(run, node, scope)
    if isinstance(node.func, ast.Attribute) and owner is not None:
        done, value = _method(run, node, owner, node.func.attr, [*positional, *spread], named)
        if done:
            return value
    callee = evaluate(run, node.func, scope) if owner is None else _member(owner, node.func)
    if isinstance(callee, Function):
        return run.invoke(callee, _bound(callee, positional, named, more=bool(spread)), scope)
    if isinstance(callee, Blueprint):
        return _open(run, _instance(run, callee, named, scope, run.place(node)), named, spread)
    name = callee.name if isinstance(callee, Imported) else _last_name(node.func)
    if name in HELPERS:
        return HELPERS[name](run, positional, named, run.place(node))
    if name in _MAKERS and positional:
        first = positional[0]
        made = first.name if isinstance(first, Imported) else first.node.name if isinstance(first, Blueprint) else ""
        return _open(run, _made(run, made, named, run.place(node)), named, spread)
    if name[:1].isupper():
        return _open(run, _made(run, name, named, run.place(node)), named, spread)
    if name in ("replace", "copy", "deepcopy") and positional and isinstance(positional[0], Thing):
        return _open(run, _copied(run, positional[0], named, run.place(node)), named, spread)
    if name == "setattr" and len(positional) == 3 and isinstance(positional[0], Thing):
        return _set_attribute(run, positional, run.place(node, node.args[-1]))
    if isinstance(callee, Imported) and callee.path == "builtins.dict":
        return made_by_dict(run, node, [*positional, *spread], named)
    builtin = _builtin(run, name, positional) if isinstance(callee, Imported) else UNKNOWN
    return _elsewhere(run, node, name, callee, [*positional, *spread], named) if builtin is UNKNOWN else builtin


def _copied(run: Run, original: Thing, named: dict[str, Slot], place: Place) -> Thing:
    """`dataclasses.replace(config, field=value)` and copies: the original stays as it is."""
    thing = copy.deepcopy(original)
    thing.place = place
    for name, slot in named.items():
        run.journal.write_slot(thing.cells, name, slot.value, slot.place)
    run.made.append(thing)
    return thing


def _set_attribute(run: Run, positional: list[Any], place: Place) -> None:
    thing, name, value = positional
    if isinstance(name, str) and not isinstance(name, Template):
        run.journal.write_slot(thing.cells, name, value, place)
    else:
        run.unsettle(thing, place, "`setattr` with a name that is not known may change it")


def _positional(run: Run, node: ast.Call, scope: Scope) -> list[Any]:
    values: list[Any] = []
    for argument in node.args:
        value = evaluate(run, argument.value if isinstance(argument, ast.Starred) else argument, scope)
        if isinstance(argument, ast.Starred) and isinstance(value, (Sequence, tuple)):
            values.extend(value.items if isinstance(value, Sequence) else value)
        else:
            values.append(value)
    return values


def _named(run: Run, node: ast.Call, scope: Scope) -> tuple[dict[str, Slot], list[Any]]:
    """Keyword arguments with their places, and what is spread into them without being known."""
    named: dict[str, Slot] = {}
    spread: list[Any] = []
    for keyword in node.keywords:
        value = evaluate(run, keyword.value, scope)
        if keyword.arg is not None:
            run.journal.write_slot(named, keyword.arg, value, run.place(keyword.value, keyword.value))
        elif isinstance(value, Mapping):
            named.update({str(key): slot for key, slot in value.cells.items()})
        if keyword.arg is None and not (isinstance(value, Mapping) and not value.open):
            spread.append(value)
    return named, spread


def _bound(function: Function, positional: list[Any], named: dict[str, Slot], *, more: bool) -> dict[str, Any]:
    """The arguments by name; with `more` that is not known, those with a default may have been given as well."""
    arguments = function.node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    known = {*names, *(a.arg for a in arguments.kwonlyargs)}
    bound: dict[str, Any] = dict(zip(names, positional, strict=False))
    bound |= {name: slot.value for name, slot in named.items() if name in known}
    if arguments.vararg:
        bound[arguments.vararg.arg] = tuple(positional[len(names) :])
    if arguments.kwarg:
        bound[arguments.kwarg.arg] = Mapping({n: s for n, s in named.items() if n not in known}, open=more)
    return {**dict.fromkeys(known, UNKNOWN), **bound} if more else bound


def _open(run: Run, thing: Thing, named: dict[str, Slot], spread: list[Any]) -> Thing:
    """The object, of which a spread of unknown keys may set every field that its call does not name."""
    if spread:
        thing.kind = "" if thing.kind == "CommOverlapConfig" else thing.kind
        for name, slot in list(thing.cells.items()):
            if name not in named:
                run.journal.write_slot(thing.cells, name, UNKNOWN, slot.place, "the call may set it")
    return thing


def _made(run: Run, kind: str, named: dict[str, Slot], place: Place) -> Thing:
    """A new object of a class from elsewhere, with the fields that its call names."""
    thing = Thing(kind, place=place)
    for name, slot in named.items():
        run.journal.write_slot(thing.cells, name, slot.value, slot.place)
    run.made.append(thing)
    return thing


def _instance(run: Run, blueprint: Blueprint, named: dict[str, Slot], scope: Scope, place: Place) -> Thing:
    """A new object of a class of the file, with the values in the class's body."""
    thing = Thing(blueprint.node.name, place=place)
    for statement in blueprint.node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and value is not None:
            for target in targets:
                if isinstance(target, ast.Name):
                    known = evaluate(run, value, scope)
                    run.journal.write_slot(thing.cells, target.id, known, run.place(statement, value))
    for name, slot in named.items():
        run.journal.write_slot(thing.cells, name, slot.value, slot.place)
    run.made.append(thing)
    return thing


def _method(
    run: Run, node: ast.Call, owner: Any, name: str, positional: list[Any], named: dict[str, Slot]
) -> tuple[bool, Any]:
    """Methods of lists, dictionaries and texts; whether it was one."""
    if isinstance(owner, Sequence):
        return True, _list_method(run, owner, name, positional)
    if isinstance(owner, Mapping):
        return True, dict_method(run, node, owner, name, positional, named)
    if isinstance(owner, str):
        return True, _text_method(owner, name, positional)
    if isinstance(owner, Imported) and owner.path.startswith("os"):
        return True, _environment(name, positional)
    return False, None


def _list_method(run: Run, owner: Sequence, name: str, positional: list[Any]) -> Any:
    if name == "append" and positional:
        run.journal.write(owner.cells, "items", (*owner.items, positional[0]))
    elif name in ("extend", "insert", "remove", "pop", "clear", "sort", "reverse"):
        items = run.items_of(positional[0]) if name == "extend" and positional else None
        known = (*owner.items, *items) if items is not None else (*owner.items, Template("${…}"))
        run.journal.write(owner.cells, "items", known)
    return None if name != "copy" else Sequence.of(owner.items)


def _text_method(owner: str, name: str, positional: list[Any]) -> Any:
    if name == "join" and positional:
        return _joined_text(owner, positional[0])
    if isinstance(owner, Template) or name not in _TEXT_METHODS or len(owner) > 100_000:
        return owner if name in ("strip", "lstrip", "rstrip") else UNKNOWN
    if not all(isinstance(p, str) and not isinstance(p, Template) for p in positional):
        return UNKNOWN
    try:
        result = getattr(owner, name)(*positional)
    except (TypeError, ValueError):
        return UNKNOWN
    return Sequence.of(result) if isinstance(result, list) else result


def _joined_text(separator: str, parts: Any) -> Any:
    items = parts.items if isinstance(parts, Sequence) else parts
    if not isinstance(items, tuple):
        return UNKNOWN
    texts = [item if isinstance(item, str) else Template("${…}") for item in items]
    joined = separator.join(texts)
    return Template(joined) if any(isinstance(text, Template) for text in texts) else joined


def _environment(name: str, positional: list[Any]) -> Any:
    """`os.environ.get("EP", 8)` has the default that the text gives it; this machine's environment is not read."""
    if name in ("get", "getenv") and len(positional) == 2:
        return positional[1]
    return UNKNOWN


def _builtin(run: Run, name: str, positional: list[Any]) -> Any:
    first = positional[0] if positional else None
    if name == "deepcopy" and isinstance(first, (Mapping, Sequence)):
        return copy.deepcopy(first)
    if name in ("list", "tuple", "sorted"):
        items = run.items_of(first) if positional else ()
        return UNKNOWN if items is None else (Sequence.of(items) if name != "tuple" else items)
    if name == "isinstance" and len(positional) == 2:
        return _is_instance(*positional)
    if name == "len":
        items = run.items_of(first)
        return len(first) if isinstance(first, str) else UNKNOWN if items is None else len(items)
    if name == "range" and positional and all(type(p) is int for p in positional):
        numbers = range(*positional[:3]) if 0 not in positional[2:3] else range(0)
        return tuple(numbers) if len(numbers) <= 10_000 else UNKNOWN
    if name in ("int", "str", "bool", "float", "abs", "round", "max", "min", "sum"):
        return _converted(name, [plain_value(p) for p in positional])
    return UNKNOWN


def _is_instance(value: Any, kinds: Any) -> Any:
    """Of constants and of lists, against classes of the language itself."""
    names = {kind.path for kind in (kinds if isinstance(kinds, tuple) else (kinds,)) if isinstance(kind, Imported)}
    if isinstance(value, Sequence):
        value = []
    known = value is None or isinstance(value, (str, int, float, bool, tuple, list))
    return f"builtins.{type(value).__name__}" in names if known else UNKNOWN


def _converted(name: str, values: list[Any]) -> Any:
    if UNKNOWN in values or any(isinstance(v, str) and len(v) > 4096 for v in values):
        return UNKNOWN
    functions: dict[str, Any] = {f.__name__: f for f in (int, str, bool, float, abs, round, max, min, sum)}
    try:
        result = functions[name](*values)
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN
    return result if isinstance(result, (int, float, str, bool)) else UNKNOWN


def _elsewhere(run: Run, node: ast.Call, name: str, callee: Any, positional: list[Any], named: dict[str, Slot]) -> Any:
    """A call that the text does not show: what it receives may change, what it returns is not known."""
    received = [v for v in [*positional, *(s.value for s in named.values())] if isinstance(v, (Thing, Mapping))]
    place = run.place(node)
    why = f"`{name}(…)` in line {node.lineno} receives the configuration and may change it"
    if name not in _HARMLESS and name != "forward_step":
        changed = sum(run.unsettle(v, place, why) for v in received if isinstance(v, Thing) and _is_tracked(v))
        if changed:
            run.remarks.append((node.lineno, place.text, f"{why}: {changed} earlier assignments are unknown"))
    if name in ("pretrain", "finetune"):
        _forward_step(run, positional, named, place)
    path = callee.path if isinstance(callee, Imported) else name
    thing = Thing(base=path, place=place)
    if received and all(isinstance(v, Thing) for v in received) and _returns_its_argument(node, name):
        return received[0]
    if name.endswith("_config"):
        _arguments_of_a_recipe(run, thing, named)
    return thing


def _returns_its_argument(node: ast.Call, name: str) -> bool:
    """`cfg = apply(cfg)`: the object goes on under the same name."""
    return name.startswith(("set_", "apply_", "update_", "override_", "configure_", "merge_")) and bool(node.args)


def _is_tracked(thing: Thing) -> bool:
    return bool(thing.cells)


def _arguments_of_a_recipe(run: Run, thing: Thing, named: dict[str, Slot]) -> None:
    """Keyword arguments of a Bridge recipe function are its settings, up to Bridge 0.3 by documented name."""
    for name, slot in named.items():
        if name == "comm_overlap_config" and isinstance(slot.value, Thing):
            run.journal.write_slot(thing.cells, "comm_overlap", slot.value, slot.place)
        elif name == "precision_config":
            run.journal.write_slot(thing.cells, "mixed_precision", slot.value, slot.place)
        elif name in ("micro_batch_size", "global_batch_size"):
            run.journal.write_slot(run.attribute(thing, "train").cells, name, slot.value, slot.place)
        elif field_table().get(f"model.{name}"):
            run.journal.write_slot(run.attribute(thing, "model").cells, name, slot.value, slot.place)


def _forward_step(run: Run, positional: list[Any], named: dict[str, Slot], place: Place) -> None:
    """`pretrain(cfg, forward_step)`: the module that the step comes from names it."""
    values = [*positional, *(slot.value for slot in named.values())]
    step = next((v for v in values if isinstance(v, Imported) and "step" in v.path), None)
    config = next((v for v in values if isinstance(v, Thing)), None)
    if step is None or config is None:
        return
    parent = step.path.rpartition(".")[0].rpartition(".")[2]
    name = parent if step.name == "forward_step" and parent else step.name
    run.journal.write_slot(config.cells, "@forward_step", name, place)


def _member(owner: Any, func: ast.expr) -> Any:
    name = func.attr if isinstance(func, ast.Attribute) else ""
    if isinstance(owner, Imported):
        return Imported(f"{owner.path}.{name}")
    if isinstance(owner, Thing) and name in owner.cells:
        return owner.cells[name].value
    return UNKNOWN


def _last_name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
