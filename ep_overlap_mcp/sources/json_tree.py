"""JSON text -> a tree with lines and spans, which the standard decoder does not keep."""

from __future__ import annotations

import re
from bisect import bisect_right
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any

from ep_overlap_mcp.sources.reading import CUT_DOWN, MEND, UnreadableError
from ep_overlap_mcp.sources.tree import DEEPEST, LARGEST, Entry, Items, Leaf, Lines, Node, Table

_BLANK = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?")
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
}
_WORD = re.compile(r"true|false|null|NaN|-?Infinity")


def json_tree(text: str, file: str) -> Node:
    """The document. Raises UnreadableError with the line of a syntax error, or the bound that was hit."""
    return _Scanner(text, file).document()


class _Scanner:
    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._starts = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text))]
        self._lines = Lines(text)
        self._count = 0

    def document(self) -> Node:
        node, at = self._node(self._blank(0), 0)
        at = self._blank(at)
        if at != len(self._text):
            raise self._error(at, "text after the end of the document")
        return node

    def _node(self, at: int, depth: int) -> tuple[Node, int]:
        self._count += 1
        if self._count > LARGEST:
            raise UnreadableError(f"{self._file}: too large: more than {LARGEST} values; {CUT_DOWN}")
        if depth > DEEPEST:
            where = f"{self._file}: line {self._line(at)}"
            raise UnreadableError(f"{where}: nested deeper than {DEEPEST} levels; {CUT_DOWN}")
        start = self._text[at : at + 1]
        if start == "{":
            return self._table(at, depth)
        if start == "[":
            return self._items(at, depth)
        if start == '"':
            value, end = self._string(at)
            return Leaf(value, self._line(at), (at, end)), end
        return self._word(at)

    def _word(self, at: int) -> tuple[Node, int]:
        if word := _WORD.match(self._text, at):
            return Leaf(_WORDS[word[0]], self._line(at), word.span()), word.end()
        number = _NUMBER.match(self._text, at)
        if number is None:
            raise self._error(at, "a value is missing")
        whole = not (number[2] or number[3]) and len(number[1]) < 20
        value = int(number[1]) if whole else float(number[0])
        return Leaf(value, self._line(at), number.span()), number.end()

    def _string(self, at: int) -> tuple[str, int]:
        try:
            value, end = scanstring(self._text, at + 1, True)  # noqa: FBT003
        except JSONDecodeError as failure:
            raise self._error(failure.pos, failure.msg) from None
        return value, end

    def _items(self, at: int, depth: int) -> tuple[Node, int]:
        items: list[Node] = []
        end = self._blank(at + 1)
        while self._text[end : end + 1] != "]":
            if items:
                end = self._expect(",", end)
            item, end = self._node(end, depth + 1)
            items.append(item)
            end = self._blank(end)
        return Items(tuple(items), self._line(at), (at, end + 1)), end + 1

    def _table(self, at: int, depth: int) -> tuple[Node, int]:
        entries: list[Entry] = []
        end = self._blank(at + 1)
        while self._text[end : end + 1] != "}":
            if entries:
                end = self._expect(",", end)
            if self._text[end : end + 1] != '"':
                raise self._error(end, "a name in double quotes is missing")
            line = self._line(end)
            key, end = self._string(end)
            value, end = self._node(self._expect(":", self._blank(end)), depth + 1)
            entries.append(Entry(key, value, line, self._lines[line]))
            end = self._blank(end)
        return Table(tuple(entries), self._line(at), (at, end + 1)), end + 1

    def _expect(self, mark: str, at: int) -> int:
        if self._text[at : at + 1] != mark:
            raise self._error(at, f"`{mark}` is missing")
        return self._blank(at + 1)

    def _blank(self, at: int) -> int:
        found = _BLANK.match(self._text, at)
        return found.end() if found else at

    def _line(self, at: int) -> int:
        return bisect_right(self._starts, at)

    def _error(self, at: int, problem: str) -> UnreadableError:
        return UnreadableError(f"{self._file}: not valid JSON at line {self._line(at)}: {problem}; {MEND}")
