"""Patterns of `case` and of `[[ … == … ]]`, and expressions of `=~`: what stands in quotes means itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.shell_scope import text_of, unknown, unresolved_in
from ep_overlap_mcp.sources.shell_syntax import Source
from ep_overlap_mcp.sources.shell_words import Expander
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_scope import Pieces

_RAW: Final = {"extglob_pattern", "regex"}  # the grammar leaves quotes and references in them as text
_EXPANDS: Final = re.compile(r"[\"'$`]")
_PARTS: Final = re.compile(
    r"(?P<extended>[?*+@!]\()|(?P<any>\*)|(?P<one>\?)|\[(?P<not>[!^]?)(?P<set>[\w.,-]+)\]|(?P<open>\[)"
)
_PLAIN_EXPRESSION: Final = re.compile(r"[\w ^$|.()-]*")
_MOST_STARS: Final = 4
_LONGEST: Final = 1000


def pattern(nodes: Sequence[Node], expander: Expander) -> Pieces:
    """The runs of a pattern that the grammar may cut into several nodes, such as `*"$X"*`."""
    source = expander.source
    start, stop = source.start(nodes[0]), source.stop(nodes[-1])
    written = source.text[start:stop]
    if not any(node.type in _RAW for node in nodes) or _EXPANDS.search(written.rstrip("$")) is None:
        return tuple(p or Piece(" ") for p in expander.between(nodes, start, stop, quoted=False))
    again = Source.of((Piece("X="), *source.cut(start, stop, quoted=False)))
    statement = next(iter(again.root.children), None)
    if statement is None or statement.type != "variable_assignment" or again.root.has_error:
        return (unknown(written[:80]),)
    return Expander(again, expander.scope, strict=expander.strict).value(statement.children[-1])


def glued(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes in groups without a blank between them, each of which is one pattern."""
    groups: list[list[Node]] = []
    for node in nodes:
        if groups and groups[-1][-1].end_byte == node.start_byte:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def matches(text: str, found: Pieces) -> bool | None:
    """Whether a pattern matches a whole text; None where nobody knows, or the pattern is not followed."""
    stars = sum(piece.text.count("*") for piece in found if not piece.quoted)
    if unresolved_in(found) or stars > _MOST_STARS:
        return None
    parts = [re.escape(piece.text) if piece.quoted else _translated(piece.text) for piece in found]
    if any(part is None for part in parts):
        return None
    return re.fullmatch("".join(part or "" for part in parts), text, re.DOTALL) is not None


def holds_expression(text: str, found: Pieces) -> bool | None:
    """Whether an expression of plain characters, anchors, groups and `|` is in a text; None for any other.

    Others are not worth the risk of a runaway match.
    """
    if unresolved_in(found) or len(text_of(found)) > 100:
        return None
    if not all(piece.quoted or _PLAIN_EXPRESSION.fullmatch(piece.text) for piece in found):
        return None
    expression = "".join(re.escape(piece.text) if piece.quoted else piece.text for piece in found)
    try:
        return re.search(expression, text[:_LONGEST]) is not None
    except re.error:
        return None


def _translated(text: str) -> str | None:
    """A pattern without quotes as a regular expression; None where it has more than `*`, `?` and simple sets."""
    made, at = "", 0
    for part in _PARTS.finditer(text):
        if part.lastgroup in ("extended", "open"):
            return None
        made += re.escape(text[at : part.start()]) + _regular(part)
        at = part.end()
    return made + re.escape(text[at:])


def _regular(part: re.Match[str]) -> str:
    if part["any"]:
        return ".*"
    return "." if part["one"] else f"[{'^' if part['not'] else ''}{part['set']}]"
