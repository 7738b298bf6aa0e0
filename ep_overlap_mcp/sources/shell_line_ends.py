r"""Carriage returns at the line ends of a shell text, and what bash makes of them.

Tried with bash 5.2: `\` quotes the carriage return and continues no line; else it belongs to the word that it ends
(`8\r`, `then\r`, `)\r` behind an array, which makes the array a text). In a quoted text of several lines both stay: of
`ARGS="--x 8 \` the program gets `\` and the carriage return as one argument, while `eval` and `bash -c` end the command
there. Comments and here-documents stay sound.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_syntax import Source

_UNHARMED: Final = {"comment", "heredoc_body"}
_QUOTES: Final = {"string", "raw_string"}
_CONTINUED: Final = "bash ends the command there: `\\` before a carriage return continues no line"
_QUOTED: Final = "in quotes `\\` and the carriage return both stay and reach the program as one more argument"
_QUOTED_COMMAND: Final = "the shell that gets this quoted text ends the command there: `\\` continues no line"
_STARTS_SHELL: Final = re.compile(r"(?:^|[\s/])(?:eval|ssh\s.*|(?:ba|da|z|k)?sh\s(?:.*\s)?-\w*c)\s", re.DOTALL)
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
        around = _around(source, last)
        if any(node.type in _UNHARMED for node in around):
            continue
        if line.endswith("\\"):
            return BrokenLine(number, line, _why_continued(source, around))
        broken = broken or BrokenLine(number, line, _OTHERWISE)
    return broken


def _crlf_lines(source: Source) -> Iterator[tuple[int, int, str]]:
    """Number, place of the last character and text of the lines that hold something and end in CRLF."""
    start = 0
    for number, line in enumerate(source.text.split("\n"), 1):
        if line.endswith("\r") and line.strip():
            yield number, start + len(line.rstrip()) - 1, line.strip()
        start += len(line) + 1


def _around(source: Source, place: int) -> list[Node]:
    """The parts of the script that a character stands in, the smallest first."""
    found = []
    node = source.root.descendant_for_byte_range(place, place)
    while node is not None:
        found.append(node)
        node = node.parent
    return found


def _why_continued(source: Source, around: list[Node]) -> str:
    """What a backslash before a carriage return does: in quotes another thing than outside."""
    quoted = next((node for node in around if node.type in _QUOTES), None)
    if quoted is None:
        return _CONTINUED
    command = next((node for node in around if node.type in ("command", "variable_assignment")), None)
    before = source.text[source.start(command) : source.start(quoted)] if command is not None else ""
    return _QUOTED_COMMAND if _STARTS_SHELL.search(before) else _QUOTED
