"""Shell text as a syntax tree whose every character keeps its place in the file. Nothing is ever executed."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from ep_overlap_mcp.sources.reading import CUT_DOWN, MEND, UnreadableError
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from tree_sitter import Node, Parser

MAX_CHARACTERS: Final = 500_000
_MAX_DEPTH: Final = 150
# `<your path>` in a template: no redirection, which has no blank between a name and `>` on the same word.
_PLACEHOLDER: Final = re.compile(r"(?<=[=\s])<[A-Za-z][^<>\n|;&()$\"'`]{0,200}(?<!\s)>(?=[\s/\"'])")
# A layer pattern or a pipeline layout whose parentheses or bars a shell would take for its own where no quotes stand.
_EXPRESSION: Final = re.compile(
    r"(?P<flag>--[\w-]+[-_](?:freq|layout))(?P<gap>[ \t]+|=)(?P<value>"
    r"\([\[\]()\d,+* \t]*\)(?:[*+][\[\]()\d,+*]*)?|[EtmL\d*()]*[(|][EtmL\d*()|]*)(?=[\s\"')]|\Z)"
)
_NO_CODE: Final = {"string", "raw_string", "ansi_c_string", "comment", "heredoc_body"}
_EXPANSIONS: Final = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
_SIGNS: Final = {"$", "${", "$(", "$((", "`"}
_HEREDOC: Final = re.compile(r"<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")


class Unquoted(NamedTuple):
    """A flag with an expression that lacks its quotes, and where the expression begins in the file."""

    flag: str
    value: str
    place: int | None


@dataclass(frozen=True)
class Source:
    """A shell text and the runs it is made of: one run for a file, several for an expanded `eval`."""

    text: str
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, pieces: tuple[Piece, ...]) -> Source:
        """The text that these runs make."""
        return cls("".join(p.text for p in pieces), pieces)

    @cached_property
    def root(self) -> Node:
        """The syntax tree.

        Every character that is not ASCII is parsed as one `?`, so that bytes are characters, and a placeholder such as
        `<your path>` as one word, as is the expression of a flag that lacks its quotes.
        """
        if len(self.text) > MAX_CHARACTERS:
            raise UnreadableError(f"too large: a script of more than {MAX_CHARACTERS} characters; {CUT_DOWN}")
        plain = _PLACEHOLDER.sub(lambda m: "x" * len(m[0]), self.text) if "<" in self.text else self.text
        plain = _EXPRESSION.sub(lambda m: m["flag"] + m["gap"] + "x" * len(m["value"]), plain)
        return _parser().parse(plain.encode("ascii", "replace")).root_node

    def unquoted(self) -> Iterator[Unquoted]:
        """The expressions that lack their quotes; the tree has each as one word."""
        for match in _EXPRESSION.finditer(self.text):
            start, stop = match.span("value")
            if not _inside(self.root, start, _NO_CODE):
                pieces = self.cut(start, stop, quoted=False)
                yield Unquoted(match["flag"], match["value"], pieces[0].at if len(pieces) == 1 else None)

    @staticmethod
    def start(node: Node) -> int:
        """The first character of a node; the grammar gives the blanks before a `$` inside quotes to its expansion."""
        if node.type in _EXPANSIONS and (sign := node.child(0)) is not None and sign.type in _SIGNS:
            return sign.end_byte - len(sign.type)
        return node.start_byte

    @staticmethod
    def stop(node: Node) -> int:
        """The character behind a node."""
        return node.end_byte

    def written(self, node: Node) -> str:
        """A node's text."""
        return self.text[self.start(node) : self.stop(node)]

    def cut(self, start: int, stop: int, *, quoted: bool) -> list[Piece]:
        """The runs between two characters."""
        if len(self.pieces) == 1 and start < stop:
            text, at, _, unresolved = self.pieces[0]
            return [Piece(text[start:stop], None if at is None else at + start, quoted, unresolved)]
        found: list[Piece] = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            piece, first = self.pieces[index], self._starts[index]
            last = min(stop, first + len(piece.text))
            part = piece.cut(start - first, last - first)
            found.append(Piece(part.text, part.at, quoted, part.unresolved))
            start, index = max(start, last), index + 1
        return found

    def cause(self, at: int) -> str | None:
        """Of a composed text the variable that a character stands for because nobody knows its value."""
        return self.pieces[bisect_right(self._starts, at) - 1].unresolved

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(p.text) for p in self.pieces)][: len(self.pieces)]

    def place(self, node: Node) -> int | None:
        """The character of the file where a node stands."""
        pieces = self.cut(self.start(node), self.start(node) + 1, quoted=False)
        return pieces[0].at if pieces else None


def in_quotes(text: str, at: int) -> bool:
    """Whether a character of a shell text is part of a quoted string that began before it."""
    return _inside(Source.of((Piece(text, 0),)).root, at, {"string", "raw_string", "ansi_c_string"})


def _inside(root: Node, at: int, kinds: AbstractSet[str]) -> bool:
    """Whether a character stands in a node of such a kind that began before it."""
    node = root.descendant_for_byte_range(at, at + 1)
    while node is not None:
        if node.type in kinds and node.start_byte < at:
            return True
        node = node.parent
    return False


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def refuse_unreadable(source: Source, file: str) -> None:
    """Raise UnreadableError where a quote is never closed or the nesting is deeper than any script's."""
    if source.root.has_error:
        line = _open_quote(source.text)
        if line is not None:
            raise UnreadableError(f"{file}:{line}: the quote opened here is never closed; {MEND}")
    if _deep(source.root):
        raise UnreadableError(f"{file}: nested deeper than {_MAX_DEPTH} levels; if this is a shell script, {CUT_DOWN}")


def errors(root: Node) -> Iterator[Node]:
    """The outermost parts that are no shell."""
    stack = [root] if root.has_error else []
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            yield node
        else:
            stack.extend(child for child in node.children if child.has_error or child.is_missing)


def _deep(root: Node) -> bool:
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            return True
        level = [child for node in level for child in node.named_children if child.child_count]
    return False


def _open_quote(text: str) -> int | None:
    """The line of a quote without an end. Quotes nest through `$(…)`; comments and here-documents hold none."""
    stack: list[tuple[str, int]] = []
    at, here = 0, ""
    while at < len(text):
        char = text[at]
        inside = stack[-1][0] if stack else ""
        if char == "\\":
            at += 1
        elif char == '"':
            stack.pop() if inside == '"' else stack.append(('"', at))
        elif text.startswith("$(", at):
            stack.append((")", at))
            at += 1
        elif inside != '"':
            if char == ")" and inside == ")":
                stack.pop()
            elif char == "'":
                end = _single_quote_end(text, at)
                if end < 0:
                    return text.count("\n", 0, at) + 1
                at = end
            elif char == "#" and (at == 0 or text[at - 1] in " \t\n;("):
                at = _end_of_line(text, at) - 1
            elif char == "<" and (found := _HEREDOC.match(text, at)) and text[at - 1 : at] != "<":
                here, at = found["end"], found.end() - 1
            elif char == "\n" and here:
                end_line = re.compile(rf"^[ \t]*{re.escape(here)}[ \t]*$", re.MULTILINE).search(text, at + 1)
                at, here = (end_line.end() - 1 if end_line else len(text)), ""
        at += 1
    quotes = [place for kind, place in stack if kind == '"']
    return text.count("\n", 0, quotes[0]) + 1 if quotes else None


def _single_quote_end(text: str, at: int) -> int:
    """The closing quote; `$'…'` knows backslashes."""
    if text[at - 1 : at] != "$":
        return text.find("'", at + 1)
    found = re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL).match(text, at + 1)
    return found.end() - 1 if found else -1


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
