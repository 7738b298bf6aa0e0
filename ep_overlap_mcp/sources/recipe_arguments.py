"""Command-line arguments that a Python file puts together, as text or as a list -> a reading."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.sources.flags import field_of, read_flags
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.sources.recipe_values import Scope, Sequence, Template
from ep_overlap_mcp.sources.words import Word

if TYPE_CHECKING:
    from collections.abc import Iterable

_FEWEST = 3
_HOLE = re.compile(r"\$\{([^}]*)\}")
_WORD = re.compile(r"""(?:\$\{[^}]*\}|"[^"]*"|'[^']*'|[^\s"'])+""")


def arguments_reading(scopes: Iterable[Scope], text: str, file: str) -> Reading | None:
    """The longest list of Megatron flags that some name of the file holds, as one command; None without any."""
    candidates = [_words(value) for scope in scopes for value in scope.cells.values()]
    best = max(candidates, key=_flags, default=[])
    if _flags(best) < _FEWEST:
        return None
    reading = Reading("Python argument list", file, "megatron-lm")
    read_flags([_located(word, text) for word in best], reading)
    return reading


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [_unquoted(word) for word in _WORD.findall(value)] if "--" in value else []
    items = value.items if isinstance(value, Sequence) else value if isinstance(value, tuple) else ()
    words: list[str] = []
    for item in items:
        if isinstance(item, str):
            words += _words(item) if " --" in item or (item.startswith("--") and " " in item) else [item]
        elif isinstance(item, (int, float)):
            words.append(str(item))
        else:
            words.append(Template("${…}"))
    return words


def _flags(words: list[str]) -> int:
    names = {word.partition("=")[0] for word in words if word.startswith("--")}
    return sum(field_of(name) is not None for name in names)


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word


def _located(word: str, text: str) -> Word:
    """The word with the last line that holds it, and its characters where it stands once."""
    holes = tuple(_HOLE.findall(word))
    found = list(re.finditer(rf"(?<![\w-]){re.escape(word.partition('=')[0])}(?![\w-])", text)) if word else []
    line = text.count("\n", 0, found[-1].start()) + 1 if found else 1
    once = len(found) == 1 and word.startswith("--") and "=" not in word
    return Word(word, line, found[0].span() if once else None, unresolved=holes)
