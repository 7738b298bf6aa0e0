"""What the stack says where it refuses what a rule is about, as fingerprints: `refusals.json` holds none of its words.

The file is file of the stack -> rule -> fingerprints, one a message; `rules.cited` makes it from the sources. A message
is a few runs of words, between which the stack writes values; its fingerprint is how many words each run has and their
checksum, `4:5d41402a` with `+` between runs. A long run is two, the first of `START` words: a line that holds no more
than these, because the log is cut or another release goes on differently, is known as well. An assertion without a
message is known by its line of code, as a traceback shows it: `code:` and the checksum of that.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Run = tuple[int, int]  # how many words, their checksum

PLACE = Path(__file__).parent / "refusals.json"
GAP = "{}"  # in a message, where the stack writes a value
BARE = "assert "  # begins what a traceback shows of an assertion that says nothing
START = 6  # words: of Megatron 0.14 to 0.19, 19 statements in 4000 about another subject hold such a start
_CODE = "code:"


@dataclass(frozen=True)
class Refusal:
    """The fingerprint of a message, or of an assertion without one, the file that raises it, and what it is about."""

    file: str
    fingerprint: str
    rules: tuple[str, ...]

    @property
    def is_bare(self) -> bool:
        """Whether the fingerprint is of code: the exception itself says nothing."""
        return self.fingerprint.startswith(_CODE)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs of a message, in order."""
        parts = (run.split(":") for run in self.fingerprint.split("+"))
        return tuple((int(length), int(checksum, 16)) for length, checksum in parts)


@lru_cache(maxsize=1)
def refusals() -> tuple[Refusal, ...]:
    """Every refusal, by file."""
    rules = defaultdict(list)
    for file, by_rule in json.loads(PLACE.read_text(encoding="utf-8")).items():
        for rule, fingerprints in by_rule.items():
            for fingerprint in fingerprints.split():
                rules[file, fingerprint].append(rule)
    return tuple(Refusal(file, fingerprint, tuple(names)) for (file, fingerprint), names in rules.items())


def fingerprint_of(says: str) -> str:
    """The fingerprint of a message with `GAP` for each value, or of the code of an assertion without one."""
    if says.startswith(BARE):
        return f"{_CODE}{checksum_of(word.encode() for word in says.split()):08x}"
    pieces = filter(
        None, map(words_of, re.split(rf"\w*{re.escape(GAP)}\w*", says))
    )  # a word that a value touches varies
    return "+".join(f"{len(run)}:{checksum_of(run):08x}" for piece in pieces for run in _cut(piece))


def words_of(text: str) -> list[bytes]:
    """The words, names and numbers of a text without what stands between them."""
    return [word.encode() for word in re.findall(r"\w+", text)]


def checksum_of(words: Iterable[bytes], before: int = 0) -> int:
    """The checksum of words that follow those with the checksum `before`."""
    for word in words:
        before = crc32(b" " + word, before)
    return before


def _cut(words: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The start of a run and what is left; nothing of an empty one."""
    yield from filter(None, (words[:START], words[START:]))
