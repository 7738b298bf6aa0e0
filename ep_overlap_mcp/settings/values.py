"""What a written value is as each type of the field table: flags and shells give words, YAML and JSON typed values."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BRACKETED: Final = re.compile(r"\[.*\]|\(.*\)", re.DOTALL)
_LISTS: Final = re.compile(r"[\[(][,\d\[\]()+*]*")
_NONE: Final = {"none", "null", "~", ""}
_TRUE: Final = {"true", "yes", "on", "1"}
_FALSE: Final = {"false", "no", "off", "0"}
_LONGEST_LITERAL: Final = 4096
_NAMES: Final = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "list": "a list",
    "integers": "integers between commas",
    "pattern": "an integer or a pattern without spaces such as ([0]*3+[1]*58)",
}


def typed(kind: str, raw: Any) -> Any:
    """The value of what was written; raises ValueError or TypeError where the type has none such."""
    return _TYPES[kind](raw)


def is_one(kind: str, raw: Any) -> bool:
    """Whether what was written is a value of the type."""
    try:
        typed(kind, raw)
    except (ValueError, TypeError):
        return False
    return True


def says_none(raw: Any) -> bool:
    """Whether a word stands for no value, as YAML and OmegaConf spell it."""
    return isinstance(raw, str) and raw.strip().lower() in _NONE


def expected(kind: str, choices: tuple[Any, ...] = ()) -> str:
    """What a field takes, for a message."""
    return "one of " + ", ".join(map(str, choices)) if choices else _NAMES.get(kind, "a value")


def encodable(raw: Any) -> Any:
    """The same without lone surrogates, which JSON and YAML can escape and no answer could carry."""
    if isinstance(raw, list):
        return [encodable(item) for item in raw]
    if isinstance(raw, str) and raw.isascii():
        return raw
    return raw.encode("utf-8", "backslashreplace").decode() if isinstance(raw, str) else raw


def _bool(raw: Any) -> bool:
    word = str(raw).strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(word)
    return word in _TRUE


def _int(raw: Any) -> int:
    if isinstance(raw, float) and raw.is_integer() and abs(raw) < 1e18:
        return int(raw)
    text = str(raw).strip().replace("_", "")
    if isinstance(raw, bool) or not re.fullmatch(r"[+-]?\d{1,18}", text):
        raise ValueError(text)
    return int(text)


def _float(raw: Any) -> float:
    if isinstance(raw, bool):
        raise TypeError(raw)
    value = float(str(raw).strip())
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _str(raw: Any) -> str:
    if isinstance(raw, (list, dict)):
        raise TypeError(raw)
    return str(raw).strip() if not isinstance(raw, bool) else str(raw).lower()


def _list(raw: Any) -> list[Any]:
    """`[a b c]`, `a,b`, `a b`, `"a"` and real lists are all lists; so are `null` and the empty text."""
    if isinstance(raw, (list, tuple)):
        return [_scalar(item) for item in raw]
    if not isinstance(raw, str):
        return [raw]
    if says_none(raw):
        return []
    words = re.split(r"[\s,]+", raw.strip().strip("[](){}").strip())
    return [_scalar(word.strip("\"'")) for word in words if word.strip("\"'")]


def _scalar(word: Any) -> Any:
    if not isinstance(word, str) or not re.match(r"[+-]?[\d.]", word):
        return word
    return _float(word) if is_one("float", word) else word


def _any(raw: Any) -> Any:
    """Literals become themselves; anything else stays the text."""
    if not isinstance(raw, str):
        return raw
    text = raw.strip()
    if text in ("True", "False"):
        return text == "True"
    if not _BRACKETED.fullmatch(text) or len(text) > _LONGEST_LITERAL:
        return _scalar(text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return list(value) if isinstance(value, tuple) else value


def _integers(raw: Any) -> list[int]:
    """What `--window-size` takes, such as `(128,0)`."""
    items = raw.strip("()").split(",") if isinstance(raw, str) else raw
    return [_int(item) for item in items]


def _pattern(raw: Any) -> Any:
    """A frequency of layers: an integer, a list of them, or an expression of lists that is not evaluated yet."""
    if isinstance(raw, str) and _LISTS.fullmatch(raw):
        return raw
    return [_int(item) for item in raw] if isinstance(raw, list) else _int(raw)


_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _str,
    "list": _list,
    "any": _any,
    "integers": _integers,
    "pattern": _pattern,
}
