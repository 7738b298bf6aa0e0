"""What may write to a configuration in ways that following a recipe's statements does not see.

Such a file leaves every setting that it writes unknown: one that is dropped in silence would read as the value before.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUNS_TEXT: Final = frozenset(("exec", "eval"))
_BY_NAME: Final = frozenset(("vars", "globals", "locals"))
_CALLS_FOR_EACH: Final = frozenset(("map", "filter"))
# Decorators that give the function back as it is to its callers, or leave what it returns alone.
_HARMLESS: Final = frozenset(
    (
        "dataclass",
        "property",
        "staticmethod",
        "classmethod",
        "contextmanager",
        "lru_cache",
        "cache",
        "wraps",
        "override",
    )
)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Unfollowed(NamedTuple):
    """A part of a recipe that may write anything."""

    line: int
    text: str
    why: str


def unfollowed(tree: ast.Module) -> list[Unfollowed]:
    """Every such part of a file, in its order."""
    found = (Unfollowed(line, ast.unparse(node).partition("\n")[0], why) for node, line, why in _parts(tree))
    return sorted(dict.fromkeys(found))


def _parts(tree: ast.Module) -> Iterator[tuple[ast.AST, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (why := _call(node)):
            yield node, node.lineno, why
        elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
            yield node, node.lineno, "it reaches the fields of an object by name"
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield node, node.lineno, "a function changes names outside it"
        elif isinstance(node, ast.Expr) and isinstance(node.value, _COMPREHENSIONS):
            yield node, node.lineno, "a comprehension is run for what it changes"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (
                (d, d.lineno, "a decorator may change what it returns") for d in node.decorator_list if _acts(d)
            )


def _call(node: ast.Call) -> str | None:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _RUNS_TEXT:
        return "it runs a text"
    if name in _BY_NAME:
        return "it reaches names or fields as a dictionary"
    if name in _CALLS_FOR_EACH and node.args and not isinstance(node.args[0], ast.Constant):
        return "it calls a function for what it changes"
    return None


def _acts(decorator: ast.expr) -> bool:
    return _name(decorator.func if isinstance(decorator, ast.Call) else decorator) not in _HARMLESS


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
