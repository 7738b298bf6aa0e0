"""`case`: which of its branches run, with their patterns and the signs that end them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ep_overlap_mcp.sources.shell_patterns import glued, matches, pattern
from ep_overlap_mcp.sources.shell_scope import text_of, unresolved_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_run import Walker
    from ep_overlap_mcp.sources.shell_scope import Pieces
    from ep_overlap_mcp.sources.shell_words import Expander


def case(walker: Walker, node: Node) -> None:
    """The first branch whose pattern matches; `;&` runs the next one too, `;;&` goes on with its patterns."""
    items = [_Item.of(child, walker.expander) for child in node.named_children if child.type == "case_item"]
    subject = walker.expander.value(next(iter(node.named_children), None))
    causes = tuple(unresolved_in(subject)) or ("a condition",)
    maybe: list[Sequence[Node]] = []
    for number, item in enumerate(items):
        fits = item.fits(subject)
        if fits is False:
            continue
        body = _through(items, number)
        if item.end == ";;&":
            walker.branches([body, []], causes, None) if fits is None else walker.decided(body)
        elif fits is None:
            maybe.append(body)
        else:
            maybe = [*maybe, body]
            break
    else:
        maybe = [*maybe, []]
    if len(maybe) == 1:
        walker.decided(maybe[0])
    else:
        walker.branches(maybe, causes, None)


@dataclass(frozen=True)
class _Item:
    """A branch of a `case`: its patterns, its statements and the sign that ends it."""

    patterns: list[Pieces]
    body: list[Node]
    end: str

    @classmethod
    def of(cls, item: Node, expander: Expander) -> _Item:
        at = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
        values = [child for child in item.children[:at] if child.type not in ("|", "(")]
        end = item.children[-1].type
        return cls([pattern(group, expander) for group in glued(values)], item.children[at + 1 :], end)

    def fits(self, subject: Pieces) -> bool | None:
        """Whether one of the patterns matches; `*` matches whatever the subject is."""
        if any([(piece.text, piece.quoted) for piece in found] == [("*", False)] for found in self.patterns):
            return True
        if unresolved_in(subject):
            return None
        found = [matches(text_of(subject), one) for one in self.patterns]
        return True if True in found else None if None in found else False


def _through(items: Sequence[_Item], number: int) -> list[Node]:
    """The statements of a branch and of those that it falls through to."""
    body = list(items[number].body)
    while items[number].end == ";&" and number + 1 < len(items):
        number += 1
        body += items[number].body
    return body
