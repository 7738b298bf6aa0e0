"""Where a written setting stands in its file: the statement around its value, and the syntax of that statement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.setting import Setting

Syntax = Literal["flags", "flag keys", "overrides", "yaml", "json", "python"]


class NoPlaceError(ValueError):
    """A change has no place in the file that an edit could reach."""


@dataclass(frozen=True)
class Place:
    """Characters `start` to `stop` of a text, and what stands around them."""

    text: str
    start: int
    stop: int

    @property
    def line(self) -> tuple[int, int]:
        """The line that the characters start on, without its end."""
        stop = self.text.find("\n", self.start)
        return self.text.rfind("\n", 0, self.start) + 1, len(self.text) if stop < 0 else stop

    @property
    def indent(self) -> str | None:
        """The blanks before them, or None where something else stands on their line before them."""
        before = self.text[self.line[0] : self.start]
        return None if before.strip() else before

    @property
    def rest(self) -> str:
        """What follows them on their last line, without the line's end."""
        stop = self.text.find("\n", self.stop)
        return self.text[self.stop : len(self.text) if stop < 0 else stop].removesuffix("\r")

    @property
    def next_line(self) -> int:
        """Where the line behind their last one starts."""
        stop = self.text.find("\n", self.stop)
        return len(self.text) if stop < 0 else stop + 1

    @property
    def continues(self) -> bool:
        """Whether the line before goes on into this one by a backslash."""
        return self.text[: self.line[0]].rstrip("\n").endswith("\\")


@dataclass(frozen=True)
class Statement(Place):
    """The characters state a setting, by a key and, unless it is bare, a value at `value`.

    `far` is the place of the literal where a variable brings the value; `value` is then the variable's use.
    """

    setting: Setting
    syntax: Syntax
    key: str
    value: tuple[int, int]
    far: tuple[int, int] | None = None

    @property
    def bare(self) -> bool:
        """Whether the key stands alone, as a switch does."""
        return self.value[0] == self.value[1]


def statement_of(text: str, setting: Setting) -> Statement:
    """The statement of a setting; raises NoPlaceError where it does not stand on the line of its origin."""
    origin = setting.origin
    if origin.note or origin.line is None:
        raise NoPlaceError(f"{setting.path} is computed at {origin}")
    if origin.span is None:
        return _computed(text, setting)
    span, syntax = origin.span, syntax_of(text, setting)
    key = _key(origin.text or "", syntax)
    line = _line_start(text, origin.line)
    line_stop = text.find("\n", line)
    found = [m.start() for m in re.finditer(_pattern(key, syntax), text[line : line_stop if line_stop >= 0 else None])]
    if not found:
        raise NoPlaceError(f"{setting.path} is not spelled out at {origin}")
    near = [line + at for at in found if line + at <= span[0]]
    start = near[-1] if near else line + found[0]
    return _statement(text, setting, syntax, key, start)


def _computed(text: str, setting: Setting) -> Statement:
    """The flag whose word brings a computed value, such as `--pipeline-model-parallel-size ${WORLD_SIZE}`."""
    origin, syntax = setting.origin, syntax_of(text, setting)
    key = _key(origin.text or "", syntax)
    line = _line_start(text, origin.line or 1)
    stop = text.find("\n", line)
    found = list(re.finditer(_pattern(key, syntax), text[line : stop if stop >= 0 else None]))
    word = _word_after(text, line + found[0].end()) if len(found) == 1 else (0, 0)
    if syntax != "flags" or word[0] == word[1]:
        raise NoPlaceError(f"{setting.path} is computed at {origin}")
    return Statement(text, line + found[0].start(), word[1], setting, syntax, key, word)


def _statement(text: str, setting: Setting, syntax: Syntax, key: str, start: int) -> Statement:
    span = setting.origin.span
    assert span is not None  # noqa: S101 - the caller has seen to it
    end = start + len(key)
    if syntax == "flags" and span[0] == start:
        value, far = (end, end), None
    elif syntax in ("flags", "overrides"):
        word = _word_after(text, end)
        far = None if end <= span[0] and text[end : span[0]].count("\n") <= _line_breaks(text, end) else span
        value = word if far is not None else span
        if far is None and syntax == "overrides" and word[0] != word[1]:
            value = min(value[0], word[0]), max(value[1], word[1])  # with quotes around the value alone
    else:
        value, far = span, None
    outer, stop = start, value[1]
    while outer and text[outer - 1] in ("+~" if syntax == "overrides" else ""):
        outer -= 1
    quote = text[outer - 1 : outer]
    if syntax in ("overrides", "flag keys", "json", "yaml") and quote in ("'", '"') and quote:
        outer -= 1
        stop += syntax == "overrides" and text[stop : stop + 1] == quote
    elif far is None and value[0] != value[1]:
        opening = text[value[0] - 1 : value[0]]
        stop += opening in ("'", '"') and text[stop : stop + 1] == opening and syntax in ("flags", "overrides")
    return Statement(text, outer, stop, setting, syntax, key, value, far)


def syntax_of(text: str, setting: Setting) -> Syntax:
    """How the statement of a setting is written."""
    statement = (setting.origin.text or "").strip()
    span = setting.origin.span or (0, 0)
    line = text[text.rfind("\n", 0, span[0]) + 1 : span[0]]
    if re.match(r"--?[A-Za-z]", statement) and not (setting.origin.file or "").endswith(".py"):
        return "flag keys" if re.match(r"\s*[\"']?--?[\w-]+[\"']?:", line) else "flags"
    if (setting.origin.file or "").endswith(".py"):
        return "python"
    if re.match(r"[+~]*[\w.]+=(?!=)", statement) and not re.search(r"\s=\s", statement):
        return "overrides" if _is_word(text, setting) else "python"
    if text.lstrip().startswith("{"):
        return "json"
    if re.match(r"\s*(?:-\s+)?(?:\{.*)?[\"']?[\w.-]+[\"']?\s*:", _line_at(text, setting)):
        return "yaml"
    return "python"


def _is_word(text: str, setting: Setting) -> bool:
    """Whether `key=value` is an argument of a command, not a keyword argument of Python."""
    return not re.match(r"\s*\w+=.*,\s*$", _line_at(text, setting)) or "." in (setting.origin.text or "").split("=")[0]


def _line_at(text: str, setting: Setting) -> str:
    start = _line_start(text, setting.origin.line or 1)
    return text[start:].partition("\n")[0]


def _key(statement: str, syntax: Syntax) -> str:
    word = re.split(r"[\s:=]", statement.strip().strip("\"'"))[0].strip("\"'")
    if syntax == "overrides":
        return word.lstrip("+~")
    if syntax == "python":
        return word
    return word.rstrip(":")


def _pattern(key: str, syntax: Syntax) -> str:
    if syntax == "overrides":
        return rf"(?<![\w.]){re.escape(key)}="
    if syntax == "flags":
        return rf"(?<![\w-]){re.escape(key)}(?![\w-])"
    return rf"(?<![\w.-]){re.escape(key)}(?![\w-])"


def _word_after(text: str, end: int) -> tuple[int, int]:
    """The shell word that follows a flag or an equals sign, with its quotes."""
    found = re.compile(r"(?:[ \t]+|=)((?:\"[^\"\n]*\"|'[^'\n]*'|\$\{[^}\n]*\}|[^\s\"'\\)])+)").match(text, end)
    return found.span(1) if found else (end, end)


def _line_breaks(text: str, end: int) -> int:
    """Lines that may end between a flag and its value: those that a backslash carries on."""
    return 1 if re.compile(r"[ \t]*\\\n").match(text, end) else 0


def _line_start(text: str, line: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
        if not start:
            raise NoPlaceError("the line is not in the file")
    return start
