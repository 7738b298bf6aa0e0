r"""Carriage returns at the line ends of a shell text, and what bash makes of them.

Tried with bash 5.2: `\` quotes the carriage return and continues no line; else it belongs to the word that it ends
(`8\r`, `then\r`, `)\r` behind an array, which makes the array a text). Comments and here-documents stay sound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.sources.shell_syntax import Source

_UNHARMED: Final = {"comment", "heredoc_body"}
_CONTINUED: Final = "bash ends the command there: `\\` before a carriage return continues no line"
_OTHERWISE: Final = "to bash the carriage return is a part of the last word of the line"


class BrokenLine(NamedTuple):
    """A line that carriage returns break for bash: its number from 1, its text, and what bash does."""

    number: int
    text: str
    why: str


def line_broken_by_crlf(source: Source) -> BrokenLine | None:
    """The first continued line that ends in CRLF, else the first line of code that does; None without any."""
    if "\r\n" not in source.text:
        return None
    broken: BrokenLine | None = None
    for number, last, line in _crlf_lines(source):
        if _unharmed(source, last):
            continue
        if line.endswith("\\"):
            return BrokenLine(number, line, _CONTINUED)
        broken = broken or BrokenLine(number, line, _OTHERWISE)
    return broken


def _crlf_lines(source: Source) -> Iterator[tuple[int, int, str]]:
    """Number, place of the last character and text of the lines that hold something and end in CRLF."""
    start = 0
    for number, line in enumerate(source.text.split("\n"), 1):
        if line.endswith("\r") and line.strip():
            yield number, start + len(line.rstrip()) - 1, line.strip()
        start += len(line) + 1


def _unharmed(source: Source, place: int) -> bool:
    """Whether a character stands in a comment or in a here-document."""
    node = source.root.descendant_for_byte_range(place, place)
    while node is not None and node.type not in _UNHARMED:
        node = node.parent
    return node is not None
