"""Hydra overrides (`a.b=1`, `+a.b=[x,y]`, `++a.b='…'`, `~a.b`) -> assignments, by Hydra's own grammar.

Most overrides are a plain scalar or a list of them. Loading Hydra's parser takes longer than checking the rest, so
these are read here, exactly as its grammar does (a test holds them to it); anything else goes to the grammar.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.names import Vocabulary, vocabulary_of
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.sources.record import record
from ep_overlap_mcp.sources.words import Word

if TYPE_CHECKING:
    from collections.abc import Iterable

_OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<name>[A-Za-z_][\w-]*(?:[./@][\w-]+)*)(?:=(?P<value>.*))?\Z", re.DOTALL)
_SCALAR = re.compile(r"[A-Za-z_][\w./-]*\Z|[+-]?(?:0|[1-9]\d*)\Z")
_LIST = re.compile(r"\[(?:[A-Za-z_][\w./-]*|[+-]?(?:0|[1-9]\d*))(?:,(?:[A-Za-z_][\w./-]*|[+-]?(?:0|[1-9]\d*)))*\]\Z")
_QUOTED = re.compile(r"""(?P<mark>['"])(?P<text>[^'"\\$]*)(?P=mark)\Z""")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_SHELL_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")
_QUOTES = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<plain>(?:[^'"\\]|\\.)+)""")
_OTHERS = re.compile(r"(?:inf|nan)\Z", re.IGNORECASE)


class NotHydraError(ValueError):
    """Hydra's grammar refuses an override; the text says why."""


def is_override(text: str) -> bool:
    """Whether a word has the form of an override, `name=value` or `~name`."""
    found = _OVERRIDE.match(text)
    return found is not None and (found["value"] is not None or found["sign"] == "~")


def override_name(text: str) -> str:
    """The dotted name of an override, without `+`, `++` or `~`."""
    return text.lstrip("+~").partition("=")[0]


def read_overrides(text: str, file: str) -> Reading:
    """Overrides one a line, or several as a command line has them; blank lines and `#` comments aside; one reading."""
    words: list[Word] = []
    start = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        words += overrides_of_line(line, number, start)
        start += len(line)
    vocabulary = vocabulary_of(override_name(w.text) for w in words)
    reading = Reading("overrides", file, vocabulary.framework)
    if vocabulary.partial:
        reading.partial.append(vocabulary.partial)
    add_overrides(reading, words, vocabulary)
    return reading


def overrides_of_line(line: str, number: int = 1, start: int = 0) -> list[Word]:
    """The overrides of a line that begins at character `start`; what is no override is one word as it is written.

    A line is one override where Hydra takes it whole, blanks and quotes included. Else, and where a backslash shows a
    command line, it is split and unquoted as a shell does, if overrides are all that this gives.
    """
    written = line.strip().removesuffix("\\").rstrip()
    if not written or written.startswith("#"):
        return []
    at = start + line.index(written)
    split = [] if _plainly_one(written) else _shell_words(written, number, at)
    if split and all(is_override(word.text) for word in split) and (_continues(line) or not _taken_whole(written)):
        return split
    return [Word(written, number, (at, at + len(written)))]


def _plainly_one(written: str) -> bool:
    return is_override(written) and not re.search(r"[\s'\"\\]", written)


def _continues(line: str) -> bool:
    return line.rstrip().endswith("\\")


def _taken_whole(written: str) -> bool:
    try:
        parse_override(written)
    except NotHydraError:
        return False
    return True


def _shell_words(written: str, number: int, start: int) -> list[Word]:
    """The words up to a comment, without their quotes; none where a quote is not closed."""
    words: list[Word] = []
    at = 0
    for found in _SHELL_WORD.finditer(written):
        if written[at : found.start()].strip():
            return []
        at = found.end()
        if found[0].startswith("#"):
            return words
        text = _QUOTES.sub(_unquoted, found[0])
        begin = start + found.start() + (text != found[0])
        whole = text in (found[0], found[0][1:-1])
        words.append(Word(text, number, (begin, begin + len(text)) if whole else None, quoted=text != found[0]))
    return [] if written[at:].strip() else words


def _unquoted(part: re.Match[str]) -> str:
    if part["double"] is not None:
        return re.sub(r"\\([$`\"\\])", r"\1", part["double"])
    return part["single"] if part["single"] is not None else re.sub(r"\\(.)", r"\1", part["plain"])


def add_overrides(reading: Reading, words: Iterable[Word], vocabulary: Vocabulary | None = None) -> None:
    """Record overrides, in order, in the names of the program that takes them; without one, it is found by names."""
    words = list(words)
    vocabulary = vocabulary or vocabulary_of(override_name(word.text) for word in words)
    for word in words:
        _add(reading, word, vocabulary)


def _add(reading: Reading, word: Word, vocabulary: Vocabulary) -> None:
    name, separator, _ = word.text.partition("=")
    name = name.lstrip("+~")
    span = word.tail(len(word.text.partition("=")[0]) + 1).span if separator else None
    value: Any = UNKNOWN
    why = "the value hangs on " + ", ".join(word.unresolved)
    if not word.unresolved:
        try:
            name, value = parse_override(word.text)
        except NotHydraError as refusal:
            if vocabulary.setting(name) is not None:
                kind = "not allowed" if separator else "not read"
                reading.left_out(word.text, word.line, str(refusal), kind=kind)  # type: ignore[arg-type]
            why = str(refusal)
    if word.text.startswith("~"):
        value, why = UNKNOWN, "`~` removes the override; the value is the one of the base"
    if isinstance(value, dict):
        for key, part in _flattened(value, name):
            record(reading, vocabulary, key, part, line=word.line, text=word.text, derived_from=word.text)
        return
    record(reading, vocabulary, name, value, line=word.line, text=word.text, span=span, why=why)


def parse_override(text: str) -> tuple[str, Any]:
    """The name and the Python value of one override. Raises ValueError where Hydra's grammar refuses it."""
    found = _OVERRIDE.match(text)
    if found and found["value"] is not None:
        value = _plain(found["value"])
        if value is not UNKNOWN:
            return found["name"], value
    return _by_grammar(text)


def _plain(raw: str) -> Any:
    """The value of a plain scalar or list, or UNKNOWN for the grammar to decide."""
    if _SCALAR.match(raw):
        return _scalar(raw)
    if quoted := _QUOTED.match(raw):
        return quoted["text"]
    if _LIST.match(raw):
        values = [_scalar(part) for part in raw[1:-1].split(",")]
        return UNKNOWN if UNKNOWN in values else values
    return UNKNOWN


def _scalar(raw: str) -> Any:
    if raw[0].isdigit() or raw[0] in "+-":
        return int(raw)
    if _OTHERS.match(raw):
        return UNKNOWN
    return _WORDS.get(raw.lower(), raw)


def _by_grammar(text: str) -> tuple[str, Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
        value = override.value() if not override.is_sweep_override() else UNKNOWN
    except (HydraException, RecursionError, ValueError) as failure:
        reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        hint = "; give each override a line of its own, or a word of the command" if " " in text else ""
        raise NotHydraError(f"Hydra does not take this override: {reason}{hint}") from None
    return override.key_or_group, _python(value)


def _python(value: Any) -> Any:
    """The grammar's value as plain Python; sweeps, casts and interpolations are not settled by the text."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return _python(value.text)
    if isinstance(value, list):
        items = [_python(item) for item in value]
        return UNKNOWN if UNKNOWN in items else items
    if isinstance(value, dict):
        return {str(key): _python(part) for key, part in value.items()}
    if isinstance(value, str) and "${" in value:
        return UNKNOWN
    return value if isinstance(value, (str, int, float, bool, type(None))) else UNKNOWN


def _flattened(value: dict[Any, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, part in value.items():
        name = f"{prefix}.{key}"
        if isinstance(part, dict):
            yield from _flattened(part, name)
        else:
            yield name, part
