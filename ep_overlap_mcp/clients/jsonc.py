"""JSON with comments, edited in place: an entry is put in or taken out, every other byte stays."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GAP = re.compile(r"(?:[ \t\r\n]|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\r\n]*?\*/)?")
_LINE_BEFORE = re.compile(r"(?:(?:\r?\n)?[ \t]*)\Z")
_NEW_LINE = re.compile(r"[ \t]*\r?\n")
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")


class MalformedError(Refusal):
    """The file cannot be read as what it should be; it was left as it is."""


@dataclass(frozen=True)
class Node:
    """A value and where it stands; an object also knows its members."""

    start: int
    end: int
    value: Any
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Member:
    """A name and its value; `start` is where the name begins."""

    key: str
    start: int
    node: Node


def put(text: str | None, path: Sequence[str], value: Any) -> str:
    """The text with `value` at `path`; None is a file that does not exist. Raises MalformedError."""
    if text is None:
        return json.dumps(_nested(path, value), indent=2, ensure_ascii=False) + "\n"
    node, depth = _document(text), 0
    while (member := _member(node, path[depth])) is not None:
        node, depth = member.node, depth + 1
        if depth == len(path):
            return text if node.value == value else _replaced(text, member, value, depth)
        if not isinstance(node.value, dict):
            raise MalformedError(f"`{'.'.join(path[:depth])}` at line {_line(text, node.start)} is not an object")
    at, added = _insertion(text, node, path[depth], _nested(path[depth + 1 :], value), depth + 1)
    return text[:at] + added + text[at:]


def amend(text: str, path: Sequence[str], changes: Mapping[str, Any]) -> str:
    """The text with the changes in the object at `path`, and in objects within it; all else in them stays."""
    for key, value in reversed(list(changes.items())):  # each new one becomes the first
        at = (*path, key)
        inner = isinstance(value, dict) and isinstance(get(text, at), dict)
        text = amend(text, at, value) if inner else put(text, at, value)
    return text


def take(text: str, path: Sequence[str]) -> str | None:
    """The text without what stands at `path`, so that `put` would give this text again where that is possible.

    Enclosing objects that `put` made go as well; None says that the whole file is `put`'s. Raises MalformedError.
    """
    entry = get(text, path)
    if entry is None:
        return text
    shorter = [_without(text, path[: depth + 1]) for depth in range(len(path))]
    for before in (None, *shorter):
        if put(before, path, entry) == text:
            return before
    return shorter[-1]


def get(text: str, path: Sequence[str]) -> Any:
    """What stands at `path`, or None."""
    node: Node | None = _document(text)
    for key in path:
        member = _member(node, key) if node else None
        node = member.node if member else None
    return node.value if node else None


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _member(node: Node, key: str) -> Member | None:
    """The last of that name, as JSON readers take it."""
    return next((member for member in reversed(node.members) if member.key == key), None)


def _insertion(text: str, node: Node, key: str, value: Any, depth: int) -> tuple[int, str]:
    """Where and what to insert into an object: as its first member, after a comment beside its brace.

    An object without members shows no layout to follow, so the entry goes on its line.
    """
    after_brace = node.start + 1
    if not node.members:
        return after_brace, f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)} "
    first = node.members[0]
    gap = _line_before(text, first.start)
    if "\n" not in gap:
        return after_brace, f"{gap}{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},"
    comment = _REST_OF_LINE.match(text, after_brace)
    at = comment.end() if comment and comment[0].strip() else after_brace
    return at, f"{gap}{json.dumps(key)}: {_laid_out(value, gap, depth)},"


def _laid_out(value: Any, gap: str, depth: int) -> str:
    """The value over several lines, indented as the file is."""
    newline, _, indent = gap.rpartition("\n")
    unit = indent[: len(indent) // depth] or "  "
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return f"{newline}\n{indent}".join(lines)


def _replaced(text: str, member: Member, value: Any, depth: int) -> str:
    gap = _line_before(text, member.start)
    new = _laid_out(value, gap, depth) if "\n" in gap else json.dumps(value, ensure_ascii=False)
    return text[: member.node.start] + new + text[member.node.end :]


def _without(text: str, path: Sequence[str]) -> str:
    """The text without one member: the line it began, its value, and one comma."""
    node = _document(text)
    for key in path[:-1]:
        node = found.node if (found := _member(node, key)) else node
    member = _member(node, path[-1])
    if member is None:
        return text
    end, gap = member.node.end, _line_before(text, member.start)
    comma = _gap(text, end)
    followed = text[comma] == ","
    rest = text[end:comma] + text[comma + 1 :] if followed else text[end:]
    # a line break that ends a comment is needed where the rest does not bring one
    start = member.start if "\n" in gap and not _NEW_LINE.match(rest) else member.start - len(gap)
    place = node.members.index(member)
    if followed:
        return text[:start] + rest
    if place == 0:
        padded = text[start:end] == f" {text[member.start : end]}" and text[end] == " "
        return text[:start] + rest[padded:]
    previous = _gap(text, node.members[place - 1].node.end)
    return text[:previous] + text[previous + 1 : start] + rest


def _line_before(text: str, at: int) -> str:
    found = _LINE_BEFORE.search(text, max(0, at - 200), at)
    return found[0] if found else ""


def _document(text: str) -> Node:
    at = _gap(text, 1 if text.startswith("\ufeff") else 0)
    if text[at : at + 1] != "{":
        raise MalformedError("it does not hold a JSON object" if text.strip() else "it is empty, which is not JSON")
    node = _node(text, at)
    if (end := _gap(text, node.end)) != len(text):
        raise MalformedError(f"line {_line(text, end)}: text after the end of the object")
    return node


def _node(text: str, at: int) -> Node:
    start = text[at : at + 1]
    if start == "{":
        return _object(text, at)
    if start == "[":
        return _array(text, at)
    if start == '"':
        value, end = _string(text, at)
        return Node(at, end, value)
    word = _WORD.match(text, at)
    if word is None:
        raise MalformedError(f"line {_line(text, at)}: a value is missing")
    return Node(at, word.end(), json.loads(word[0]))


def _object(text: str, start: int) -> Node:
    members: list[Member] = []
    at = _gap(text, start + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise MalformedError(f"line {_line(text, at)}: a name in double quotes or `}}` is missing")
        key, end = _string(text, at)
        colon = _gap(text, end)
        if text[colon : colon + 1] != ":":
            raise MalformedError(f"line {_line(text, colon)}: `:` is missing")
        node = _node(text, _gap(text, colon + 1))
        members.append(Member(key, at, node))
        at = _after_item(text, node.end, "}")
    return Node(start, at + 1, {m.key: m.node.value for m in members}, tuple(members))


def _array(text: str, start: int) -> Node:
    items: list[Any] = []
    at = _gap(text, start + 1)
    while text[at : at + 1] != "]":
        node = _node(text, at)
        items.append(node.value)
        at = _after_item(text, node.end, "]")
    return Node(start, at + 1, items)


def _after_item(text: str, end: int, close: str) -> int:
    """The next item, or the closing bracket; a comma before it is fine, as editors' own readers have it."""
    at = _gap(text, end)
    if text[at : at + 1] == ",":
        return _gap(text, at + 1)
    if text[at : at + 1] != close:
        raise MalformedError(f"line {_line(text, at)}: `,` or `{close}` is missing")
    return at


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        value, end = scanstring(text, at + 1, True)  # noqa: FBT003 - its strictness has no name
    except JSONDecodeError as failure:
        raise MalformedError(f"line {_line(text, failure.pos)}: {failure.msg}") from None
    return value, end


def _gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found else at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
