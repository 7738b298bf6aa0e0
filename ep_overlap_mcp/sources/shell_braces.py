"""Brace expansion: `{a,b}` and `{1..8}` outside quotes make several words of one."""

from __future__ import annotations

import re
from typing import Final

_BRACES: Final = re.compile(r"(?<![\\$])\{([^{}\s]*(?:,|\.\.)[^{}\s]*)\}")
_QUOTED: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_RANGE: Final = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})")
_OPEN: Final = re.compile(r"[\"'`$\\]")
_MAX_WORDS: Final = 1000


def has_braces(text: str) -> bool:
    """Whether the shell would make several words of a text."""
    return "{" in text and _BRACES.search(_QUOTED.sub("", text)) is not None


def expanded_braces(text: str) -> list[str] | None:
    """The words of a text without quotes and variables, in order; None where it has some, or makes too many words."""
    if _OPEN.search(text):
        return None
    words = [text]
    while any(_BRACES.search(word) for word in words):
        words = [made for word in words for made in _first_expanded(word)]
        if len(words) > _MAX_WORDS or any("{}" in word for word in words):
            return None
    return words


def _first_expanded(word: str) -> list[str]:
    found = _BRACES.search(word)
    if found is None:
        return [word]
    before, after = word[: found.start()], word[found.end() :]
    return [before + part + after for part in _parts(found[1])]


def _parts(inner: str) -> list[str]:
    counted = _RANGE.fullmatch(inner)
    if counted is None:
        return inner.split(",") if "," in inner else ["{}"]  # `{a..f}` is left to the caller
    first, last = int(counted[1]), int(counted[2])
    step = 1 if last >= first else -1
    return [str(number) for number in range(first, last + step, step)[: _MAX_WORDS + 1]]
