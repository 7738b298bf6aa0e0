"""What assignments, `export`, `unset` and `printf -v` make of a scope."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ep_overlap_mcp.sources.shell_arithmetic import UndecidedError, arithmetic, assignment
from ep_overlap_mcp.sources.shell_scope import (
    Array,
    Pieces,
    Scalar,
    Scope,
    Trait,
    Value,
    elements_of,
    text_of,
    unknown,
    unknown_array,
    unresolved_in,
)
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_words import Expander


def assign(node: Node, expander: Expander) -> str:
    """`X=…`, `X+=…`, `X=( … )`, `X[i]=…`; gives the name."""
    name, value = evaluated(node, expander)
    expander.scope.variables[name] = value
    if expander.scope.exports:
        expander.scope.exported[name] = expander.source.place(node)
    return name


def evaluated(node: Node, expander: Expander, letters: str = "") -> tuple[str, Value]:
    """The variable of an assignment and what it gets; `letters` are the options of the `declare` around it."""
    source, scope = expander.source, expander.scope
    target = node.children[0]
    adds = any(child.type == "+=" for child in node.children)
    value_node = node.children[-1] if node.children[-1].type not in ("=", "+=") else None
    name = scope.target(source.written(target if target.type != "subscript" else target.children[0]))
    old = scope.variables.get(name)
    if value_node is not None and value_node.type == "array":
        elements = tuple(expander.words([n for n in value_node.named_children if n.type != "comment"]))
        if any(re.match(r"\[.*\]=", text_of(element)) for element in elements):
            return name, unknown_array(name)  # `([key]=value …)`
        return name, Array(elements_of(old) + elements if adds else elements)
    pieces = (unknown(name),) if node.has_error else expander.value(value_node)
    if target.type == "subscript" and not isinstance(old, Scalar):
        index = source.text[source.stop(target.children[1]) : source.stop(target) - 1]
        return name, _placed(name, elements_of(old), _index(index, target, expander), pieces, adds=adds)
    letters += scope.traits.get(name, Trait()).letters
    if "i" in letters:
        return name, Scalar((_counted(name, old if adds else None, pieces, expander),))
    if adds:
        return name, _added(name, old, pieces, known=name in scope.variables)
    return name, Scalar(_in_case(name, pieces, letters))


def _counted(name: str, old: Value | None, pieces: Pieces, expander: Expander) -> Piece:
    """What a variable of `declare -i` gets: the value of the text as a number."""
    text = text_of(pieces)
    if isinstance(old, Scalar) and old.text:
        text = f"({old.text})+({text})"
    if unresolved_in(pieces) or (isinstance(old, Scalar) and unresolved_in(old.pieces)):
        return unknown(name)
    try:
        return Piece(str(arithmetic(text, expander.integer)))
    except UndecidedError:
        return unknown(name)


def _in_case(name: str, pieces: Pieces, letters: str) -> Pieces:
    """`declare -l` and `-u` change the case of what is assigned."""
    if not ("l" in letters or "u" in letters):
        return pieces
    if unresolved_in(pieces):
        return (unknown(name),)
    text = text_of(pieces)
    return (Piece(text.lower() if "l" in letters else text.upper()),)


def declare(node: Node, expander: Expander) -> None:
    """`export`, `declare`, `local`, `readonly`: assignments, of which each sees what was there before all of them."""
    source, scope = expander.source, expander.scope
    options = [source.written(n) for n in node.named_children if n.type == "word"]
    keyword = node.children[0].type
    letters = "".join(option[1:] for option in options if option.startswith("-"))
    local = keyword in ("declare", "typeset", "local") and not set("gfFp") & set(letters)
    exports = keyword == "export" or "x" in letters
    found: list[tuple[Node, str, Value | None]] = []
    for child in node.named_children:
        if child.type == "variable_assignment":
            found.append((child, *evaluated(child, expander, letters)))
        elif child.type == "variable_name" and not node.has_error:
            found.append((child, source.written(child), None))
    for child, name, value in found:
        known = Scalar((unknown(name),)) if node.has_error else value
        _declared(name, known, "" if keyword == "export" else letters, scope, local=local)
        if (exports and "n" not in letters) or (scope.exports and value is not None):
            scope.exported[name] = source.place(child)


def _declared(name: str, value: Value | None, letters: str, scope: Scope, *, local: bool) -> None:
    if local:
        scope.own(name)
    if "n" in letters:
        refers = value.text if isinstance(value, Scalar) else ""
        scope.traits[name] = Trait(refers=refers)
    elif set("ilu") & set(letters):
        scope.traits[name] = Trait(letters)
    if value is not None and "g" in letters:
        scope.set_global(name, value)
    elif value is not None:
        scope.variables[name] = value


def unset(node: Node, expander: Expander) -> None:
    """`unset X`: the variable is known to be absent; `unset 'A[-1]'` takes an element off an array."""
    scope = expander.scope
    for name in re.findall(r"[^\s]+", _unquoted(node, expander)):
        array, bracket, index = name.partition("[")
        if bracket:
            scope.variables[array] = _shortened(array, scope.variables.get(array), index.rstrip("]"))
        elif not name.startswith("-"):
            scope.variables[name] = None
            scope.exported[name] = expander.source.place(node)


def read_in(words: Sequence[Pieces], node: Node, expander: Expander) -> None:
    """`read X Y`, `read -a A`, `mapfile A`: a here-string is split where IFS says, other input is unknown."""
    texts = [text_of(word) for word in words]
    names = [text for text in texts[1:] if text.isidentifier()]
    options = {letter for text in texts[1:] if text.startswith("-") for letter in text[1:]}
    fills = texts[0] != "read" or "a" in options
    given = _here_string(node, expander)
    variables = expander.scope.variables
    if given is None or unresolved_in(given) or texts[0] != "read" or not options <= {"r", "a"}:
        own = unresolved_in(given or ())  # `read -a A <<< "$A"` only splits what the caller gave
        variables.update({n: unknown_array(n) if fills else Scalar((unknown(n),)) for n in names if n not in own})
        return
    separators = _separators(node, expander)
    parts = [
        part for part in re.split(f"[{re.escape(separators)}]", text_of(given).strip()) if part or separators.strip()
    ]
    for number, name in enumerate(names):
        rest = parts[number:] if number == len(names) - 1 else parts[number : number + 1]
        filled = Array(tuple((Piece(part),) for part in parts))
        variables[name] = filled if fills else Scalar((Piece(separators[0].join(rest)),))


def _here_string(node: Node, expander: Expander) -> Pieces | None:
    """What stands behind `<<<`."""
    redirects = [child for child in node.children if child.type == "herestring_redirect"]
    return expander.value(redirects[0].named_children[-1]) if redirects else None


def _separators(node: Node, expander: Expander) -> str:
    """Where `read` splits: at the characters of the IFS of its own command, or of the script."""
    own = [child for child in node.children if child.type == "variable_assignment"]
    own = [child for child in own if expander.source.written(child).startswith("IFS=")]
    if own:
        return text_of(expander.value(own[0].children[-1])) or " "
    value = expander.scope.variables.get("IFS")
    return value.text if isinstance(value, Scalar) and value.text else " \t\n"


def assign_number(text: str, expander: Expander) -> None:
    """`X=…`, `X+=…` or `X++` between double parentheses or behind `let`."""
    written = assignment(text)
    if written is None:
        return
    name, expression = written
    try:
        piece = Piece(str(arithmetic(expression.replace("$", ""), expander.integer)))
    except UndecidedError:
        piece = unknown(name)
    expander.scope.variables[name] = Scalar((piece,))


def _added(name: str, old: Value | None, pieces: Pieces, *, known: bool) -> Value:
    if isinstance(old, Array):
        first = old.elements[0] if old.elements else ()
        return Array(((*first, *pieces), *old.elements[1:]))
    if old is None and not known:
        return Scalar((unknown(name), *pieces))
    return Scalar((*(old.pieces if old else ()), *pieces))


def _placed(name: str, elements: tuple[Pieces, ...], index: int | None, pieces: Pieces, *, adds: bool) -> Array:
    """An array with one element written; at an index that nobody knows, the whole is unknown."""
    if index is None or not -len(elements) <= index <= len(elements):
        return unknown_array(name)
    if index == len(elements):
        return Array((*elements, pieces))
    index %= len(elements)
    written = (*elements[index], *pieces) if adds else pieces
    return Array((*elements[:index], written, *elements[index + 1 :]))


def _shortened(name: str, old: Value | None, index: str) -> Value | None:
    """Without the last element; any other hole would move the elements behind it."""
    elements = elements_of(old)
    if isinstance(old, Array) and elements and index in ("-1", str(len(elements) - 1)):
        return Array(elements[:-1])
    return unknown_array(name)


def _index(text: str, target: Node, expander: Expander) -> int | None:
    try:
        nodes = target.named_children[1:]
        start = expander.source.stop(target.children[1])
        return arithmetic(expander.expanded(text, nodes, start), expander.integer)
    except UndecidedError:
        return None


def _unquoted(node: Node, expander: Expander) -> str:
    """The arguments of `unset`, whose subscripts the grammar takes apart."""
    found, stop = "", -1
    for child in node.named_children:
        start = expander.source.start(child)
        found += ("" if start == stop else " ") + text_of(expander.value(child))
        stop = expander.source.stop(child)
    return found


def formatted(template: Pieces, values: Sequence[Pieces]) -> Pieces:
    """`printf` with `%s` and `%d` only; a value keeps its place."""
    parts = re.split("(%[sd])", text_of(template))
    found: list[Piece] = []
    rest = list(values)
    for part in parts:
        if part in ("%s", "%d"):
            found += rest.pop(0) if rest else ()
        elif part:
            found.append(Piece(part.replace("\\n", "\n")))
    return tuple(found)
