"""What the stack itself says when a rule is broken: a signature a message of `rules.refusals`.

There are many, so that a line is asked only about those of which it holds a run of words. A line that holds a message
whole confirms its rule; one that holds no more than its start, as other releases go on differently or a log cuts it,
points to it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.signatures.row import Signature
from ep_overlap_mcp.rules.refusals import BARE, START, checksum_of, fingerprint_of, refusals, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ep_overlap_mcp.rules.refusals import Refusal, Run

_CAUSE = ("config-rule-violated",)
_FAILED = re.compile("rror|RROR|xception|ssert")  # a message may stand anywhere in such a line, else only at its start


@dataclass(frozen=True)
class _Row:
    """A refusal, and the signatures of lines that hold the whole of it or no more than its start."""

    refusal: Refusal
    whole: Signature
    cut: Signature

    @property
    def start(self) -> Run | None:
        """The first run that tells the message from others by itself."""
        return next((run for run in self.refusal.runs if run[0] == START), None)

    @property
    def keys(self) -> set[Run]:
        """The runs of which a line holds one if it holds the message or its start."""
        return {self.refusal.runs[0], self.start or self.refusal.runs[0]}

    def held(self, words: Sequence[bytes]) -> tuple[int, bool]:
        """How many words of the message a line holds, 0 where too few, and whether these are all."""
        if _in_order(self.refusal.runs, words):
            return sum(length for length, _ in self.refusal.runs), True
        return (START if self.start and _in_order([self.start], words) else 0), False


def refused(text: str, frames: Sequence[str]) -> list[Signature]:
    """The signatures of the messages that a line holds most of, or of the code that the innermost frame ran."""
    words = words_of(text)
    rows = _rows_by_run()
    keys = (rows[run] for run in _runs(words, len(words) if _FAILED.search(text) else 1) if run in rows)
    held = [(row.held(words), row) for row in {id(row): row for of in keys for row in of}.values()]
    most = max((much for much, _ in held), default=(0, False))
    said = [row.whole if all(much) else row.cut for much, row in held if much == most > (0, False)]
    return said or [*_refused_by_code(text, frames)]


def _refused_by_code(text: str, frames: Sequence[str]) -> Iterator[Signature]:
    """Of an assertion without words; the same code in another file checks something else."""
    _, assertion, condition = text.partition(BARE)
    if assertion and frames:
        rows = _rows_by_code().get(fingerprint_of(assertion + condition), ())
        yield from (row.whole for row in rows if row.refusal.file in frames[-1])


@lru_cache(maxsize=1)
def _rows_by_run() -> Mapping[Run, Sequence[_Row]]:
    rows = defaultdict(list)
    for row in (_row(refusal) for refusal in refusals() if not refusal.is_bare):
        for key in row.keys:
            rows[key].append(row)
    return rows


@lru_cache(maxsize=1)
def _rows_by_code() -> Mapping[str, Sequence[_Row]]:
    rows = defaultdict(list)
    for row in (_row(refusal) for refusal in refusals() if refusal.is_bare):
        rows[row.refusal.fingerprint].append(row)
    return rows


def _row(refusal: Refusal) -> _Row:
    source = f"Megatron-LM, Megatron-Bridge: {refusal.file}"
    return _Row(
        refusal,
        Signature(refusal.fingerprint, source, confirms=_CAUSE, rules=refusal.rules),
        Signature(refusal.fingerprint, source, points_to=_CAUSE, rules=refusal.rules),
    )


def _runs(words: Sequence[bytes], starts: int) -> Iterator[Run]:
    """Runs of at most `START` words that begin with one of the first words."""
    for at in range(min(starts, len(words))):
        checksum = 0
        for length, word in enumerate(words[at : at + START], 1):
            checksum = checksum_of((word,), checksum)
            yield length, checksum


def _in_order(runs: Sequence[Run], words: Sequence[bytes]) -> bool:
    """Whether all runs stand in the words, one after the other."""
    at = 0
    for length, checksum in runs:
        places = range(at, len(words) - length + 1)
        found = next((place for place in places if checksum_of(words[place : place + length]) == checksum), None)
        if found is None:
            return False
        at = found + length
    return True
