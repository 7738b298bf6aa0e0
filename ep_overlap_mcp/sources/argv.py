"""Rendered argument lists: one flag a line, or a whole command on one line -> a reading.

No shell reads these, so `|`, `(` and `*` mean themselves; quotes and a backslash at the end of a line are taken off.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.launchers import Launch, kind_of, launch_of, read_launch
from ep_overlap_mcp.sources.reading import CUT_DOWN, MEND, Reading, UnreadableError
from ep_overlap_mcp.sources.words import Piece, Word

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_WORDS: Final = 20_000
_SCRIPTED: Final = re.compile(r"\)$|(?:export|set|source|if|for) |[A-Za-z_]\w*\+?=")
_PART: Final = re.compile(
    r"""(?P<blank>\s+)|(?P<plain>[^\s"']+)|"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<open>["'])"""
)


def read_argv(text: str, file: str) -> Reading:
    """The reading of an argument list, with or without the program's name; what is not written has its default.

    Raises UnreadableError for a quote that its line does not close and for more words than a command has.
    """
    reading = Reading("argv", file, "megatron-lm")
    words = list(islice(argv_words(text, file), _MAX_WORDS + 1))
    if len(words) > _MAX_WORDS:
        raise UnreadableError(f"{file}: too large: more than {_MAX_WORDS} arguments; {CUT_DOWN}")
    line = words[0].line if words else 1
    launch = launch_of(words, {}, line)
    if launch is None or kind_of(launch) is None:
        launch = Launch("", tuple(words), (), {}, line)
    read_launch(launch, kind_of(launch) or "megatron-lm", reading)
    return reading


def is_argv(text: str) -> bool:
    r"""Whether most lines of a text begin with a flag, and none is a script's: an assignment, an array, a last `\`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    flags = sum(line.startswith("--") for line in lines)
    scripted = text.startswith("#!") or any(line.endswith("\\") or _SCRIPTED.match(line) for line in lines)
    return bool(flags) and flags * 2 >= len(lines) - 1 and not scripted


def argv_words(text: str, file: str) -> Iterator[Word]:
    """The arguments of each line; lines that begin with `#` are comments."""
    start = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.lstrip().startswith("#"):
            yield from _line_words(line.rstrip().removesuffix("\\"), start, number, file)
        start += len(line)


def _line_words(line: str, start: int, number: int, file: str) -> Iterator[Word]:
    pieces: list[Piece] = []
    for part in _PART.finditer(line):
        kind = part.lastgroup or ""
        if kind == "open":
            raise UnreadableError(f"{file}:{number}: the quote opened here is never closed; {MEND}")
        if kind == "blank" and pieces:
            yield Word.of(tuple(pieces), number)
            pieces = []
        elif kind != "blank":
            pieces.append(Piece(part[kind], start + part.start(kind), quoted=kind != "plain"))
    if pieces:
        yield Word.of(tuple(pieces), number)
