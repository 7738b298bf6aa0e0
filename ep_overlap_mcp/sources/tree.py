"""A document as a tree whose every value knows its line and its characters; YAML and JSON both become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPEST = 64
LARGEST = 100_000


@dataclass(frozen=True)
class Leaf:
    """A scalar: a JSON value, or UNKNOWN where a tag or a template stands for it. `span` includes its quotes."""

    value: Any
    line: int
    span: tuple[int, int]


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    line: int
    span: tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """A key with its value; `line` and `text` are the key's line, where a reader looks for the statement."""

    key: str
    node: Node
    line: int
    text: str


@dataclass(frozen=True)
class Table:
    """A mapping as it is written: duplicate keys are kept, in order, and the last one counts."""

    entries: tuple[Entry, ...]
    line: int
    span: tuple[int, int]

    def entry(self, key: str) -> Entry | None:
        """The entry that counts for a key."""
        return next((e for e in reversed(self.entries) if e.key == key), None)

    def get(self, key: str) -> Node | None:
        """The value that counts for a key."""
        found = self.entry(key)
        return found.node if found else None

    def table(self, *keys: str) -> Table | None:
        """The mapping at a path of keys."""
        node: Node | None = self
        for key in keys:
            node = node.get(key) if isinstance(node, Table) else None
        return node if isinstance(node, Table) else None

    def scalar(self, key: str) -> Any:
        """The plain scalar of a key, or None."""
        node = self.get(key)
        return node.value if isinstance(node, Leaf) else None

    def __contains__(self, key: str) -> bool:
        return any(e.key == key for e in self.entries)


Node = Leaf | Items | Table


def plain(node: Node) -> Any:
    """The node as plain Python values."""
    if isinstance(node, Leaf):
        return node.value
    if isinstance(node, Items):
        return [plain(item) for item in node.items]
    return {entry.key: plain(entry.node) for entry in node.entries}


def statements(table: Table, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Every entry with its dotted name, in order: mappings before what they hold."""
    for entry in table.entries:
        name = f"{prefix}{entry.key}"
        yield name, entry
        if isinstance(entry.node, Table):
            yield from statements(entry.node, f"{name}.")


class Lines:
    """The lines of a text, for showing a statement as it is written."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines() or [""]

    def __getitem__(self, line: int) -> str:
        return self._lines[line - 1].strip()[:200] if 0 < line <= len(self._lines) else ""
