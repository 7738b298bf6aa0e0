"""A word of a command line after expansion, and where its characters stand in the file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

_PATH: Final = re.compile(r"\$(?:\w+|\{\w+\})/")


class Piece(NamedTuple):
    """A run of characters from one place: copied from the file at `at`, or computed (`at` is None).

    `unresolved` names the variable that decides whether or how the run is there when the text gives that variable no
    value; the run then reads as it is written, such as `${EP}`. `quoted` runs are never split at blanks.
    """

    text: str
    at: int | None = None
    quoted: bool = False
    unresolved: str | None = None

    @property
    def opaque(self) -> bool:
        """Whether the run stands for text that nobody knows, such as `${EP}` or `$(cat extra.txt)`: never split."""
        return self.unresolved is not None and self.text[:1] in ("$", "`")

    def cut(self, start: int, stop: int) -> Piece:
        """The characters from `start` to `stop`."""
        if start == 0 and stop >= len(self.text):
            return self
        at = None if self.at is None else self.at + start
        return Piece(self.text[start:stop], at, self.quoted, self.unresolved)


@dataclass(frozen=True)
class Word:
    """One argument. `span` is the half-open character range of its literal in the file, None when it was composed.

    `unresolved` names the variables without a value in the text that decide about the word: `text` then shows them as
    written, such as `${EP}`, or is a word that a condition on them adds. `quoted` says that some of it stood in
    quotes, where a blank does not end a word. `line` is where its first character is written, be it in a variable.
    """

    text: str
    line: int
    span: tuple[int, int] | None = None
    unresolved: tuple[str, ...] = ()
    quoted: bool = False
    pieces: tuple[Piece, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, pieces: tuple[Piece, ...], line: int) -> Word:
        """The word that these runs make."""
        if len(pieces) == 1:
            text, at, quoted, unresolved = pieces[0]
            span = None if at is None else (at, at + len(text))
            return cls(text, line, span, () if unresolved is None else (unresolved,), quoted, pieces)
        names = dict.fromkeys(p.unresolved for p in pieces if p.unresolved is not None)
        text, quoted = "".join(p.text for p in pieces), any(p.quoted for p in pieces)
        return cls(text, line, _span(pieces), tuple(names), quoted, pieces)

    @property
    def may_hold_options(self) -> bool:
        """Whether unknown text stands where an option would begin: only then can options come out of it.

        `${HOME}/data.jsonl` is a path, whatever the variable holds.
        """
        begins = bool(self.unresolved) and self.text[:1] in ("$", "`", "-", "{") and not self.text.startswith("$((")
        return begins and _PATH.match(self.text) is None

    def tail(self, start: int) -> Word:
        """The rest of the word from a character on, such as the value behind `--flag=`."""
        if not self.pieces:
            exact = self.span is not None and self.span[1] - self.span[0] == len(self.text)
            span = (self.span[0] + start, self.span[1]) if exact and self.span is not None else None
            return Word(self.text[start:], self.line, span, self.unresolved, self.quoted)
        rest: list[Piece] = []
        for piece in self.pieces:
            if start < len(piece.text):
                rest.append(piece.cut(start, len(piece.text)) if start > 0 else piece)
            start = max(0, start - len(piece.text))
        return Word.of(tuple(rest), self.line)


def _span(pieces: tuple[Piece, ...]) -> tuple[int, int] | None:
    """One unbroken range of the file; a backslash or a quote may stand between two runs, nothing else."""
    written = [(p.at, p.at + len(p.text)) for p in pieces if p.at is not None]
    if not written or len(written) != len(pieces):
        return None
    if any(not 0 <= start - stop <= 2 for (_, stop), (start, _) in pairwise(written)):
        return None
    return written[0][0], written[-1][1]
