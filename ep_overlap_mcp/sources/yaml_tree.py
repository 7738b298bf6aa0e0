"""YAML text -> trees, from the parser's events: nothing is constructed, depth and alias expansion are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.reading import CUT_DOWN, MEND, UnreadableError
from ep_overlap_mcp.sources.tree import DEEPEST, LARGEST, Entry, Items, Leaf, Lines, Node, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml


def yaml_trees(text: str, file: str) -> list[Node]:
    """The documents of a text. Raises UnreadableError with the line of a syntax error, or the bound that was hit."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(text, file).documents(yaml.parse(text, loader))
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark or failure.context_mark
        where = f"line {mark.line + 1}" if mark else "unknown line"
        what = f"not valid YAML at {where}: {failure.problem or 'syntax error'}"
        raise UnreadableError(f"{file}: {what}; {MEND}") from None
    except yaml.YAMLError as failure:
        what = f"not valid YAML: {str(failure).splitlines()[0]} (line unknown)"
        raise UnreadableError(f"{file}: {what}; {MEND}") from None


class _Builder:
    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._lines = Lines(text)
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._open: set[str] = set()
        self._count = 0
        self._scalars = _Scalars()

    def documents(self, events: Iterator[yaml.Event]) -> list[Node]:
        import yaml

        self._events = events
        found = []
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                found.append(self._node(next(events), 0))
        return found

    def _node(self, event: yaml.Event, depth: int) -> Node:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._count
        anchor = getattr(event, "anchor", None)
        if anchor:
            self._open.add(anchor)
        self._counted(1)
        if depth > DEEPEST:
            raise UnreadableError(f"{self._file}: line {_line(event)}: nested deeper than {DEEPEST} levels; {CUT_DOWN}")
        if isinstance(event, yaml.ScalarEvent):
            node: Node = Leaf(self._scalars.value(event), _line(event), _span(event, event))
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._items(event, depth)
        else:
            node = self._table(event, depth)
        if anchor:
            self._open.discard(anchor)
            self._anchors[anchor] = (node, self._count - before)
        return node

    def _alias(self, event: yaml.AliasEvent) -> Node:
        if event.anchor not in self._anchors:
            raise UnreadableError(f"{self._file}: line {_line(event)}: {self._alias_fault(event.anchor)}")
        node, size = self._anchors[event.anchor]
        self._counted(size, alias=event.anchor)
        return node

    def _alias_fault(self, anchor: str | None) -> str:
        if anchor in self._open:
            return (
                f"alias `*{anchor}` refers to itself: it stands inside its own anchor `&{anchor}`; write the value out"
            )
        return f"alias `*{anchor}` has no anchor before it; define `&{anchor}` above it, or write the value out"

    def _counted(self, size: int, alias: str | None = None) -> None:
        self._count += size
        if self._count > LARGEST:
            what = f"alias `*{alias}` expands it" if alias else "it grows"
            raise UnreadableError(f"{self._file}: too large: {what} beyond {LARGEST} values; {CUT_DOWN}")

    def _items(self, start: yaml.Event, depth: int) -> Items:
        import yaml

        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        last = items[-1].span[1] if items and not getattr(start, "flow_style", False) else None
        return Items(tuple(items), _line(start), _span(start, event, last))

    def _table(self, start: yaml.Event, depth: int) -> Node:
        import yaml

        entries: list[Entry] = []
        template = False
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key, line = self._node(event, depth + 1), _line(event)
            value = self._node(next(self._events), depth + 1)
            if not isinstance(key, Leaf):
                template = True
            elif isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                entries[:0] = _merged(value)
            else:
                entries.append(Entry(self._scalars.key(event), value, line, self._lines[line]))
        last = entries[-1].node.span[1] if entries and not getattr(start, "flow_style", False) else None
        span, line = _span(start, event, last), _line(start)
        # `{{ name }}` without quotes is a mapping with a mapping as its key: a template, not a value.
        return Leaf(UNKNOWN, line, span) if template else Table(tuple(entries), line, span)


def _merged(value: Node) -> list[Entry]:
    """What `<<: *base` brings: it stands before the mapping's own entries, which count."""
    if isinstance(value, Table):
        return list(value.entries)
    if isinstance(value, Items):
        return [entry for item in reversed(value.items) if isinstance(item, Table) for entry in item.entries]
    return []


def _span(start: yaml.Event, end: yaml.Event, last: int | None = None) -> tuple[int, int]:
    """From start to end; a block collection ends with its last value, not where the next token stands."""
    first, final = getattr(start.start_mark, "index", 0), getattr(end.end_mark, "index", 0)
    return first, max(first, final if last is None else last)


def _line(event: yaml.Event) -> int:
    return getattr(event.start_mark, "line", 0) + 1


class _Scalars:
    """The value of a scalar by YAML 1.1's rules for plain words; quoted and tagged words are text."""

    def __init__(self) -> None:
        import yaml

        self._resolver = yaml.SafeLoader("")
        self._kinds = {
            "tag:yaml.org,2002:null": lambda _node: None,
            "tag:yaml.org,2002:bool": self._resolver.construct_yaml_bool,
            "tag:yaml.org,2002:int": self._resolver.construct_yaml_int,
            "tag:yaml.org,2002:float": self._resolver.construct_yaml_float,
        }

    def value(self, event: yaml.ScalarEvent) -> Any:
        import yaml

        tag = event.tag
        if tag is None or tag == "!":
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        elif not tag.startswith("tag:yaml.org,2002:"):
            return UNKNOWN
        construct = self._kinds.get(tag)
        if construct is None:
            return event.value
        try:
            return construct(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, IndexError, OverflowError):
            return event.value

    def key(self, event: yaml.Event) -> str:
        return str(getattr(event, "value", ""))
