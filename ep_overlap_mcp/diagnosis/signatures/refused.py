"""What the stack itself says when a rule is broken: a signature a message of `rules.refusals`.

There are many, so that a line is asked only about those that share a word with it. A line that holds a message whole
confirms its rule; one that holds the start of a part of it, as other releases word it or a log cuts it, points to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonprefix
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.signatures.row import Signature
from ep_overlap_mcp.rules.refusals import GAP, refusals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ep_overlap_mcp.rules.refusals import Refusal

START = 40  # characters: no statement of Megatron 0.14 to 0.19 about another subject starts like one of these
LONG = 6  # characters of a word that few lines hold by chance
_CAUSE = ("config-rule-violated",)


@dataclass(frozen=True)
class _Row:
    """A refusal, its message without the values in it, and the signatures of lines that hold all or some of it."""

    refusal: Refusal
    pieces: tuple[str, ...]
    whole: Signature
    start: Signature

    def held(self, text: str, frames: Sequence[str]) -> int:
        """How many characters of the message a line holds, 0 where too few; code counts in its own file alone."""
        if self.refusal.is_bare and not (frames and self.refusal.file in frames[-1]):
            return 0
        if _in_order(self.pieces, text):
            return len(self.refusal.says)
        places = [(text.find(piece[:START]), piece) for piece in self.pieces if len(piece) >= START]
        return max((len(commonprefix((text[at:], piece))) for at, piece in places if at >= 0), default=0)  # noqa: RUF071


def refused(text: str, frames: Sequence[str]) -> list[Signature]:
    """The signatures of the messages that a line holds most of."""
    rows = _by_word()
    asked = {id(row): row for word in rows.keys() & set(text.split()) for row in rows[word]}
    found = [(row.held(text, frames), row) for row in asked.values()]
    most = max((held for held, _ in found), default=0)
    return [row.whole if held == len(row.refusal.says) else row.start for held, row in found if held == most > 0]


@lru_cache(maxsize=1)
def _by_word() -> Mapping[str, Sequence[_Row]]:
    """Each row by the word of each start, else of the message, that fewest others hold; by a long one if it can be."""
    counts = Counter(word for refusal in refusals() for words in _words(refusal.says) for word in words)
    rows = defaultdict(list)
    for refusal in refusals():
        row = _row(refusal)
        for words in _words(refusal.says):
            rows[min(words, key=lambda word: (len(word) < LONG, counts[word], -len(word)))].append(row)
    return rows


def _row(refusal: Refusal) -> _Row:
    pieces = _pieces(refusal.says)
    literal, source = max(pieces, key=len), f"Megatron-LM, Megatron-Bridge: {refusal.file}"
    return _Row(
        refusal,
        pieces,
        Signature(literal, source, confirms=_CAUSE, rules=refusal.rules),
        Signature(literal[:START], source, points_to=_CAUSE, rules=refusal.rules),
    )


def _pieces(says: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in says.split(GAP) if piece.strip())


def _words(says: str) -> Iterator[list[str]]:
    """The words of each start, or of a short message, but for outer ones, which values and quotes may touch."""
    pieces = _pieces(says)
    starts = [piece[:START].split()[1:-1] for piece in pieces if len(piece) >= START]
    inner = [word for piece in pieces for word in piece.split()[1:-1]]
    yield from list(filter(None, starts)) or [inner or says.split()]


def _in_order(pieces: Sequence[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
