"""TOML edited in place: a table is put at the end or taken out, every other byte stays; tomlkit judges the outcome."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.clients.jsonc import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REMARKS = re.compile(r"^(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(?:#[^\n]*)?\Z", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[\[?(?P<name>[^\[\]\r\n]+)\]", re.MULTILINE)


def put(text: str | None, path: Sequence[str], value: Mapping[str, Any]) -> str:
    """The text with the table `path` on a new line at its end; None is a file that does not exist.

    Raises MalformedError.
    """
    if text is None:
        return _block(path, value, "\n")
    there = get(text, path)
    if there == value:
        return text
    rest = text if there is None else _cut(text, path)
    newline = "\r\n" if "\r\n" in text else "\n"
    return _judged(rest + newline + _block(path, value, newline), text, path, value)


def amend(text: str, path: Sequence[str], changes: Mapping[str, Any]) -> str:
    """The text with the changes in the table `path`, and in tables within it; all else in them stays.

    Raises MalformedError.
    """
    import tomlkit

    document = tomlkit.parse(text)
    table: Any = document
    for key in path:
        table = table[key]
    _set(table, changes)
    expected = get(text, path)
    _set(expected, changes)
    return _judged(document.as_string(), text, path, expected)


def take(text: str, path: Sequence[str]) -> str | None:
    """The text without the table `path`, so that `put` would give this text again where that is possible.

    None says that the whole file is `put`'s. Raises MalformedError.
    """
    entry = get(text, path)
    if entry is None:
        return text
    cut = _judged(_cut(text, path), text, path, None)
    endings = [cut.removesuffix(end) for end in ("\r\n", "\n") if cut.endswith(end)]
    for before in (None, *endings):
        if put(before, path, entry) == text:
            return before
    return cut


def get(text: str, path: Sequence[str]) -> Any:
    """What stands at `path`, or None."""
    value: Any = _parsed(text)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _set(table: Any, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _set(table[key], value)
        else:
            table[key] = _item(value)


def _block(path: Sequence[str], value: Mapping[str, Any], newline: str) -> str:
    lines = [f"{key} = {_item(item).as_string()}" for key, item in value.items()]
    return newline.join([f"[{'.'.join(path)}]", *lines, ""])


def _item(value: Any) -> Any:
    """The value as TOML has it, an object on one line."""
    import tomlkit

    if not isinstance(value, dict):
        return tomlkit.item(value)
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _cut(text: str, path: Sequence[str]) -> str:
    """The text without the table `path` and its sub-tables, found by their header lines.

    Blank lines and comments at the end of a table belong to what follows; they stay.
    """
    headers = [*((m.start(), _names(m["name"])) for m in _HEADER.finditer(text)), (len(text), [])]
    kept, at = [], 0
    for (start, names), (end, _) in itertools.pairwise(headers):
        if names[: len(path)] == list(path):
            kept.append(text[at:start])
            last_line = text.index("\n", start) + 1 if "\n" in text[start:end] else end
            remarks = _REMARKS.search(text, last_line, end)
            at = remarks.start() if remarks else end
    return "".join(kept) + text[at:]


def _names(header: str) -> list[str]:
    return [part.strip().strip("\"'") for part in header.split(".")]


def _judged(new: str, old: str, path: Sequence[str], value: Mapping[str, Any] | None) -> str:
    """The new text when it says what the old one says, with `value` (or nothing) at `path`."""
    expected = _parsed(old)
    servers = expected.setdefault(path[0], {})
    try:
        servers.pop(path[1], None)
        if value is not None:
            servers[path[1]] = dict(value)
        same = _without_empty(_parsed(new)) == _without_empty(expected)
    except (AttributeError, TypeError, MalformedError):
        same = False
    if not same:
        raise MalformedError(f"`{path[0]}` is not written as tables `[{path[0]}.NAME]`; change {path[1]} by hand")
    return new


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    """A document for comparison: a table that only holds others may be gone with them."""
    return {key: value for key, value in document.items() if value != {}}


def _parsed(text: str) -> dict[str, Any]:
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        return dict(tomlkit.parse(text).unwrap())
    except (ParseError, ValueError) as problem:
        raise MalformedError(str(problem)) from problem
