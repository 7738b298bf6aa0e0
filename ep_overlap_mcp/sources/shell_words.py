"""Expansion of shell words on the values that a text assigns: parameters, arrays, defaults, arithmetic, quoting.

A variable that the text never assigns stays unresolved, except where the text itself gives a default
(`${X:-8}`). `"$@"` of the script itself is empty: without arguments it adds nothing.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.reading import CUT_DOWN, UnreadableError
from ep_overlap_mcp.sources.shell_arithmetic import UndecidedError, arithmetic
from ep_overlap_mcp.sources.shell_braces import expanded_braces, has_braces
from ep_overlap_mcp.sources.shell_scope import (
    UNKNOWN_ARGUMENTS,
    Atoms,
    Pieces,
    Scalar,
    Scope,
    fields,
    text_of,
    unresolved_in,
)
from ep_overlap_mcp.sources.shell_syntax import Source
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tree_sitter import Node

_MAX_DEPTH: Final = 60
_MAX_COUNT: Final = 1000
_EXPANDED: Final = re.compile(r"[\\<{\s]")  # a bare word without these is what it says
_REFERENCES: Final = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
_BRACED: Final = {"concatenation", "word", "brace_expression"}
_ANSI: Final = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


class Expander:
    """Expands nodes of one source in one scope.

    `strict` is for conditions: there an empty default such as `${X:-}` says only that X may be absent.
    """

    def __init__(self, source: Source, scope: Scope, *, strict: bool = False, depth: int = 0) -> None:
        self.source = source
        self.scope = scope
        self.strict = strict
        self.depth = depth

    def words(self, nodes: Sequence[Node]) -> list[Pieces]:
        """The words that some argument nodes become."""
        found: list[Pieces] = []
        at = 0
        while at < len(nodes):
            node, following = nodes[at], nodes[at + 1] if at + 1 < len(nodes) else None
            if following is not None and following.start_byte == node.end_byte == self.source.start(following):
                found += self._glued(node, following)
                at += 2
            else:
                found += self._plain(node)
                at += 1
        self.scope.spend(piece for word in found for piece in word)
        return found

    def _plain(self, node: Node) -> list[Pieces]:
        kind, start, stop = node.type, node.start_byte, node.end_byte
        if kind == "word" and not _EXPANDED.search(self.source.text, start, stop):
            return [tuple(self.source.cut(start, stop, quoted=False))]
        written = self.source.written(node) if kind in _BRACED else ""
        if not has_braces(written):
            return fields(self.atoms(node, quoted=False))
        expanded = expanded_braces(written)
        if expanded is None:
            return [(self._unresolved(node, written, quoted=False),)]
        return [(Piece(word),) for word in expanded]

    def _glued(self, node: Node, following: Node) -> list[Pieces]:
        """One word that the grammar cuts in two behind a `$`, such as `[0]*$N+1`: read again inside quotes."""
        start, stop = self.source.start(node), self.source.stop(following)
        written = self.source.text[start:stop]
        if has_braces(written) or re.search(r"[\"'`\\]", written):
            return [(Piece(written, self.source.place(node), unresolved=written[:80]),)]
        text = Source.of((Piece('"'), *self.source.cut(start, stop, quoted=False), Piece('"')))
        strings = [n for n in _descendants(text.root) if n.type == "string"]
        again = Expander(text, self.scope, strict=self.strict, depth=self.depth)
        return fields(again.atoms(strings[0], quoted=False)) if strings else []

    def value(self, node: Node | None) -> Pieces:
        """What an assignment, a here-document or a pattern makes of a node: never split."""
        if node is None:
            return ()
        pieces = _joined(self.atoms(node, quoted=False))
        self.scope.spend(pieces)
        return pieces

    def atoms(self, node: Node, *, quoted: bool) -> Atoms:
        """One node's expansion."""
        self.depth += 1
        try:
            if self.depth > _MAX_DEPTH:
                raise UnreadableError(f"nested deeper than {_MAX_DEPTH} expansions; {CUT_DOWN}")
            return self._atoms(node, quoted=quoted)
        finally:
            self.depth -= 1

    def _atoms(self, node: Node, *, quoted: bool) -> Atoms:
        kind = node.type
        start, stop = self.source.start(node), self.source.stop(node)
        if kind in _REFERENCES and (cause := self.source.cause(start)) is not None:
            return [Piece(self.source.text[start:stop], self.source.place(node), quoted, cause)]
        if kind in ("word", "number", "string_content"):
            return self._literal(start, stop, quoted=quoted)
        if kind == "string":
            return self._string(node)
        if kind == "raw_string":
            return [*self.source.cut(start + 1, stop - 1, quoted=True)] or [Piece("", quoted=True)]
        if kind == "ansi_c_string":
            return self._ansi(start + 2, stop - 1)
        if kind == "simple_expansion":
            return self._parameter(node, node.children[1:], quoted=quoted)
        if kind == "expansion":
            return self._parameter(node, node.children[1:-1], quoted=quoted)
        if kind == "arithmetic_expansion" or self.source.text.startswith("$((", start):
            return self._arithmetic(node, self.source.text[start + 3 : stop - 2], quoted=quoted)
        if kind == "command_substitution":
            return self._substitution(node, quoted=quoted)
        if kind == "process_substitution":
            return [self._unresolved(node, self.source.written(node), quoted=True)]
        if node.child_count and kind in ("concatenation", "translated_string", "heredoc_body"):
            return self.between(node.children, start, stop, quoted=quoted)
        return self._literal(start, stop, quoted=quoted)

    def between(self, nodes: Sequence[Node], start: int, stop: int, *, quoted: bool) -> Atoms:
        """Some nodes in order, and the text between them, which the grammar leaves out."""
        found: Atoms = []
        for node in nodes:
            found += self._literal(start, self.source.start(node), quoted=quoted)
            found += self.atoms(node, quoted=quoted)
            start = self.source.stop(node)
        return found + self._literal(start, stop, quoted=quoted)

    def _string(self, node: Node) -> Atoms:
        start, stop = self.source.start(node), self.source.stop(node)
        inner = [child for child in node.children if child.type not in ('"', '$"')]
        found = self.between(inner, start + 1, stop - 1, quoted=True)
        lists = any("@" in self.source.written(child) for child in inner if child.type != "string_content")
        return found if found or lists else [Piece("", quoted=True)]

    def _ansi(self, start: int, stop: int) -> Atoms:
        if "\\" not in self.source.text[start:stop]:
            return [*self.source.cut(start, stop, quoted=True)] or [Piece("", quoted=True)]
        text = re.sub(r"\\(.)", lambda m: _ANSI.get(m[1], m[0]), self.source.text[start:stop])
        return [Piece(text, quoted=True)]

    def _literal(self, start: int, stop: int, *, quoted: bool) -> Atoms:
        """Text as written, without the backslashes that quote a character or continue a line."""
        if start >= stop:
            return []
        text = self.source.text
        if not quoted and "<" in text[start:stop]:
            written = text[start:stop]
            return [Piece(written, quoted=True, unresolved=written[:80])]
        if "\\" not in text[start:stop]:
            return [*self.source.cut(start, stop, quoted=quoted)]
        found: Atoms = []
        escaped = re.compile(r"\\(?:\r?\n|[$`\"\\])" if quoted else r"\\(?:\r?\n|.)", re.DOTALL)
        for match in escaped.finditer(text, start, stop):
            found += self.source.cut(start, match.start(), quoted=quoted)
            if not match[0].endswith("\n"):
                found += self.source.cut(match.start() + 1, match.end(), quoted=True)
            start = match.end()
        return found + self.source.cut(start, stop, quoted=quoted)

    def _parameter(self, node: Node, parts: list[Node], *, quoted: bool) -> Atoms:
        prefix = parts[0].type if parts and parts[0].type in ("#", "!") and len(parts) > 1 else ""
        parts = parts[1:] if prefix else parts
        if [part.type for part in parts] == ["#"]:
            elements = self._elements("#", "")
            return (
                [self._unresolved(node, "#", quoted=quoted)]
                if elements is None
                else _spread(elements, "", quoted=quoted)
            )
        if not parts or parts[0].type not in ("variable_name", "special_variable_name", "subscript"):
            return [self._unresolved(node, self.source.written(node), quoted=quoted)]
        name, index = self._subject(parts[0])
        if prefix:
            return self._prefixed(node, prefix, name, index, quoted=quoted)
        operation = parts[1].type if len(parts) > 1 else ""
        elements = self._elements(name, index)
        if operation in (":-", "-", ":=", "="):
            return self._default(node, name, elements, operation, parts, quoted=quoted)
        if operation in (":+", "+"):
            return self._alternative(name, elements, operation, parts, quoted=quoted)
        if elements is None:
            return [] if name in "@*" else [self._unresolved(node, name, quoted=quoted)]
        if operation and operation not in (":?", "?"):
            elements = self._changed(name, elements, operation, parts)
            if elements is None:
                return [self._unresolved(node, name, quoted=quoted)]
        if quoted and index == "*":
            return [p and p._replace(quoted=True) for p in _lined_up(elements, self._separator())]
        return _spread(elements, index, quoted=quoted)

    def _separator(self) -> str:
        """What `"${A[*]}"` puts between elements: the first character of IFS."""
        value = self.scope.variables.get("IFS")
        return value.text[:1] if isinstance(value, Scalar) else " "

    def _subject(self, node: Node) -> tuple[str, str]:
        """The variable and, for `A[i]`, its index; `@` and `*` are their own index."""
        if node.type != "subscript":
            name = self.source.written(node)
            return name, name if name in "@*" else ""
        name = self.source.written(node.children[0])
        index = [child for child in node.named_children[1:] if child.type != "]"]
        return name, text_of(self.value(index[0])) if index else ""

    def _elements(self, name: str, index: str) -> list[Pieces] | None:
        """The values a reference means, or None where the text sets none."""
        if name in "@*#" or name.isdigit():
            return self._arguments(name)
        name = self.scope.target(name)
        value = self.scope.variables.get(name)
        if value is not None:
            self.scope.used.add(name)
        if value is None:
            return [] if name in self.scope.variables else None
        if isinstance(value, Scalar):
            return [value.pieces] if index in ("", "@", "*", "0") else []
        if index in ("@", "*"):
            return list(value.elements)
        try:
            return [value.elements[int(index or "0")]]
        except ValueError:
            return None
        except IndexError:
            return []

    def _arguments(self, name: str) -> list[Pieces] | None:
        """`$@`, `$#` or `$1`, or None where nobody knows."""
        arguments = self.scope.arguments
        if arguments is None or name == "0":
            return None
        if name in "@*":
            return list(arguments)
        before = arguments if name == "#" else arguments[: int(name)]
        if any(argument in UNKNOWN_ARGUMENTS for argument in before):
            return None
        if name == "#":
            return [(Piece(str(len(arguments))),)]
        return list(arguments[int(name) - 1 : int(name)])

    def _operand(self, parts: list[Node], *, quoted: bool) -> Atoms:
        """The words behind an operator."""
        return self.between(parts[2:], self.source.stop(parts[1]), self.source.stop(parts[-1]), quoted=quoted)

    def _default(
        self,
        node: Node,
        name: str,
        elements: list[Pieces] | None,
        operation: str,
        parts: list[Node],
        *,
        quoted: bool,
    ) -> Atoms:
        if elements and (text_of(p for e in elements for p in e) or ":" not in operation):
            return _spread(elements, "@" if len(elements) > 1 else "", quoted=quoted)
        default = self._operand(parts, quoted=quoted)
        if self.strict and elements is None and not text_of(default):
            return [self._unresolved(node, name, quoted=quoted)]
        if "=" in operation:
            self.scope.variables[name] = Scalar(_joined(default))
        return default

    def _alternative(
        self, name: str, elements: list[Pieces] | None, operation: str, parts: list[Node], *, quoted: bool
    ) -> Atoms:
        if elements is None and (name in "@*" or name.isdigit()):
            return []
        if elements is not None and not elements:
            return []
        if elements and ":" in operation and not text_of(p for e in elements for p in e):
            return []
        operand = self._operand(parts, quoted=quoted)
        if elements is None:
            return [p and p._replace(unresolved=p.unresolved or name) for p in operand]
        return operand

    def _prefixed(self, node: Node, prefix: str, name: str, index: str, *, quoted: bool) -> Atoms:
        """`${#X}` and `${!X}`."""
        elements = self._elements(name, index)
        if elements is None or any(unresolved_in(e) for e in elements):
            return [self._unresolved(node, name, quoted=quoted)]
        if prefix == "#":
            size = len(elements) if index in ("@", "*") else len(text_of(p for e in elements for p in e))
            return [Piece(str(size), quoted=quoted)]
        other = text_of(elements[0]) if elements else ""
        found = None if index or not other.isidentifier() else self._elements(other, "")
        return [self._unresolved(node, name, quoted=quoted)] if found is None else _spread(found, "", quoted=quoted)

    def _changed(self, name: str, elements: list[Pieces], operation: str, parts: list[Node]) -> list[Pieces] | None:
        """Slices, cut affixes, replacements and changed case; None where the text does not settle the result."""
        if operation == ":":
            return self._slice(name, elements, parts)
        if any(unresolved_in(e) for e in elements):
            return None
        operand = self._operand(parts, quoted=False)
        if unresolved_in(operand):
            return None
        pattern = text_of(operand)
        changed = [_edited(text_of(e), operation, pattern) for e in elements]
        return None if None in changed else [(Piece(text),) for text in changed if text is not None]

    def _slice(self, name: str, elements: list[Pieces], parts: list[Node]) -> list[Pieces] | None:
        named = [n for n in parts[2:] if n.is_named]
        if len(named) != 1 + sum(n.type == ":" for n in parts[2:]):
            return None  # bounds that are to be calculated
        try:
            bounds = [int(text_of(self.value(n))) for n in named]
        except ValueError:
            return None
        subscript = parts[0].type == "subscript" or name in "@*"
        start = bounds[0] if bounds else 0
        if subscript and any("@" in p.text for e in elements for p in e if p.opaque):
            return None  # nobody knows how many there are
        if subscript:
            start -= name in "@*" and start > 0
            return elements[start:][: bounds[1] if len(bounds) > 1 else None]
        if any(unresolved_in(e) for e in elements):
            return None
        text = text_of(p for e in elements for p in e)[start:]
        return [(Piece(text[: bounds[1]] if len(bounds) > 1 else text),)]

    def _arithmetic(self, node: Node, text: str, *, quoted: bool) -> Atoms:
        inner = [child for child in node.named_children if child.type != "subshell"]
        try:
            value = arithmetic(self.expanded(text, inner, self.source.start(node) + 3), self.integer)
        except UndecidedError as undecided:
            name = undecided.names[0] if undecided.names else text.strip()
            return [self._unresolved(node, name, quoted=True)]
        return [Piece(str(value), quoted=quoted)]

    def expanded(self, text: str, nodes: Sequence[Node], start: int) -> str:
        """An arithmetic text with its `$` references replaced; raises UndecidedError on an unresolved one."""
        found = text
        for node in sorted(_expansions(nodes), key=self.source.start, reverse=True):
            pieces = _joined(self.atoms(node, quoted=True))
            if names := unresolved_in(pieces):
                raise UndecidedError(*names)
            first, last = self.source.start(node) - start, self.source.stop(node) - start
            found = found[:first] + text_of(pieces) + found[last:]
        return found

    def integer(self, name: str) -> str:
        """The text of a variable inside arithmetic; raises UndecidedError where it has no value."""
        elements = self._elements(name, "")
        if elements is None or any(unresolved_in(e) for e in elements):
            raise UndecidedError(name)
        return text_of(elements[0]) if elements else "0"

    def _substitution(self, node: Node, *, quoted: bool) -> Atoms:
        """`$(echo …)`, `$(seq …)` and `$(cat <<EOF …)` say what they print; any other command's output is unknown."""
        statements = node.named_children
        before, inner = statements[:-1], statements[-1] if statements else None
        if inner is not None and inner.type == "command" and _only_ifs(before):
            outer = self.scope
            self.scope = outer.branch()
            for assignment in before:
                self.scope.variables["IFS"] = Scalar(self.value(assignment.named_children[-1]))
            words = self.words([n for n in inner.named_children if n.type != "variable_assignment"])
            self.scope = outer
            printed = _printed(words)
            if printed is not None:
                return [p and p._replace(quoted=quoted) for p in _lined_up(printed)]
        if inner is not None and inner.type == "redirected_statement" and not before:
            body = heredoc(inner)
            if body is not None and self.source.written(inner).split(maxsplit=1)[0] == "cat":
                return [p._replace(quoted=quoted) for p in self.heredoc_text(inner)]
        return [self._unresolved(node, self.source.written(node), quoted=quoted)]

    def heredoc_text(self, statement: Node) -> Pieces:
        """The text of a statement's here-document; a quoted end word keeps it as written."""
        body = heredoc(statement)
        if body is None:
            return ()
        start, stop = self.source.start(body), self.source.stop(body)
        redirect = body.parent
        end = next((c for c in redirect.children if c.type == "heredoc_start"), None) if redirect else None
        if end is not None and self.source.written(end)[:1] in "'\"\\":
            return tuple(self.source.cut(start, stop, quoted=False))
        return _joined(self.between(body.children, start, stop, quoted=True))

    def _unresolved(self, node: Node, name: str, *, quoted: bool) -> Piece:
        shown = f"${name}" if name.isdigit() else name[:80]
        return Piece(self.source.written(node), self.source.place(node), quoted, unresolved=shown)


def heredoc(statement: Node) -> Node | None:
    """The body of a statement's here-document."""
    for child in statement.children:
        if child.type == "heredoc_redirect":
            return next((c for c in child.children if c.type == "heredoc_body"), None)
    return None


def _printed(words: Sequence[Pieces]) -> Sequence[Pieces] | None:
    """What `echo` and `seq` with whole numbers print; None for anything else."""
    name, *arguments = [text_of(word) for word in words] or [""]
    if name == "echo" and not "".join(arguments[:1]).startswith("-"):
        return words[1:]
    numbers = [int(a) for a in arguments if re.fullmatch(r"-?\d{1,6}", a)]
    if name != "seq" or len(numbers) != len(arguments) or not 0 < len(numbers) < 4:
        return None
    first, step, last = numbers[0] if numbers[1:] else 1, numbers[1] if numbers[2:] else 1, numbers[-1]
    counted = range(first, last + (1 if step > 0 else -1), step) if step else ()
    return [(Piece(str(number)),) for number in counted] if 0 < len(counted) <= _MAX_COUNT else None


def _only_ifs(nodes: Sequence[Node]) -> bool:
    """Whether all statements are `IFS=…`, as in `$(IFS=,; echo "${A[*]}")`."""
    return all(n.type == "variable_assignment" and (n.text or b"").startswith(b"IFS=") for n in nodes)


def _descendants(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _descendants(child)


def _expansions(nodes: Sequence[Node]) -> list[Node]:
    found: list[Node] = []
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.type in _REFERENCES:
            found.append(node)
        else:
            stack += node.named_children
    return found


def _joined(atoms: Atoms, separator: str = " ") -> Pieces:
    """Atoms as one value: elements of an array are joined by a blank."""
    return tuple(Piece(separator) if atom is None else atom for atom in atoms)


def _lined_up(words: Sequence[Pieces], separator: str = " ") -> Atoms:
    return list(_joined(_between_elements(words), separator))


def _between_elements(elements: Sequence[Pieces]) -> Atoms:
    found: Atoms = []
    for number, pieces in enumerate(elements):
        found += [None, *pieces] if number else pieces
    return found


def _spread(elements: Sequence[Pieces], index: str, *, quoted: bool) -> Atoms:
    """The expansion of some values in or out of quotes."""
    kept = [tuple([p if p.quoted is quoted else p._replace(quoted=quoted) for p in pieces]) for pieces in elements]
    if quoted and index == "@":
        return _between_elements([pieces or (Piece("", quoted=True),) for pieces in kept])
    if quoted:
        return [p and p._replace(quoted=True) for p in _lined_up(kept)]
    return _between_elements(kept)


def _edited(text: str, operation: str, pattern: str) -> str | None:
    if operation in ("^^", ",,") and not pattern:
        return text.upper() if operation == "^^" else text.lower()
    if len(text) > 500 or len(pattern) > 100 or pattern.count("*") > 4:
        return None
    if operation in ("#", "##", "%", "%%"):
        return _without_affix(text, operation, pattern)
    if operation in ("/", "//") and not re.search(r"[*?\[]", pattern):
        old, _, new = pattern.partition("/")
        return text.replace(old, new, -1 if operation == "//" else 1) if old else text
    return None


def _without_affix(text: str, operation: str, pattern: str) -> str:
    places: Iterable[int] = range(len(text) + 1)
    if operation in ("##", "%"):
        places = reversed(range(len(text) + 1))
    if operation.startswith("#"):
        return next((text[i:] for i in places if fnmatchcase(text[:i], pattern)), text)
    return next((text[:i] for i in places if fnmatchcase(text[i:], pattern)), text)
