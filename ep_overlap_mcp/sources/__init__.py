"""Texts -> readings. One list of dialects; `read` opens a file, `read_text` takes a pasted text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.settings.fields import ValueNotAllowedError, field_table
from ep_overlap_mcp.sources.files import LARGEST, open_text
from ep_overlap_mcp.sources.reading import Assignment, Omission, Reading, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Assignment", "Omission", "Reading", "UnreadableError", "parse_set", "read", "read_text"]


@dataclass(frozen=True)
class Dialect:
    """A kind of text: file suffixes that settle it, how a text without one shows it, and its reader."""

    name: str
    suffixes: tuple[str, ...]
    looks_like: Callable[[str], bool]
    reader: str

    def read(self, text: str, file: str) -> list[Reading]:
        """The readings of a text. The reader's module is loaded here: start-up does not pay for all of them."""
        from importlib import import_module

        module, _, name = self.reader.partition(":")
        found = getattr(import_module(f"{__name__}.{module}"), name)(text, file)
        return found if isinstance(found, list) else [found]


def read(path: str | Path, *, roots: Sequence[Path] | None = None, select: str | None = None) -> list[Reading]:
    """The readings of a file under the allowed roots, one a configuration in it; never empty.

    `select` names one of several configurations. Raises UnreadableError, naming the file, what is wrong and what to do.
    """
    return read_text(open_text(path, roots), str(path), select=select)


def read_text(
    text: str, file: str = "<text>", dialect: str | None = None, *, select: str | None = None
) -> list[Reading]:
    """The readings of a text; `dialect` is one of DIALECTS' names where the text does not show its own."""
    if len(text) > LARGEST:
        raise UnreadableError(f"{file}: too large for a configuration (more than {LARGEST // 2**20} MB)")
    if "\0" in text:
        raise UnreadableError(f"{file}: not text (it holds NUL characters); name the configuration itself")
    if not text.strip():
        raise UnreadableError(f"{file}: empty; name the file that holds the configuration")
    return _selected(list(_recognised(text, file, dialect)), select, file)


@lru_cache(maxsize=32)  # what-ifs ask about the same texts again
def _recognised(text: str, file: str, dialect: str | None) -> tuple[Reading, ...]:
    chosen = _named(dialect) if dialect else _dialect_of(text, file)
    found = tuple(reading for reading in chosen.read(text, file) if reading.recognised())
    if not found:
        raise UnreadableError(
            f"{file}: nothing recognisable of a Megatron run (read as {chosen.name}); name the file that sets the "
            "training arguments, or the file that this one inherits from"
        )
    return found


def parse_set(text: str, file: str = "--set") -> Assignment:
    """`PATH=VALUE` as the caller's own assignment, such as `model.expert_model_parallel_size=8`.

    Raises UnreadableError for a path that is no setting, naming near ones, and for a value that the setting refuses.
    """
    path, separator, raw = (part.strip() for part in text.partition("="))
    if not separator or not path:
        raise UnreadableError(f"{file} {text}: write PATH=VALUE, such as model.expert_model_parallel_size=8")
    setting = field_table().get(path)
    if setting is None:
        near = field_table().near(path)
        hint = f"; did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
        raise UnreadableError(f"{file}: `{path}` is no known setting{hint}")
    if len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'":
        raw = raw[1:-1]
    try:
        value = setting.parse(raw)
    except ValueNotAllowedError as refusal:
        raise UnreadableError(f"{file} {path}: {refusal}") from None
    return Assignment(setting.path, value, None, text, file=file)


def _selected(readings: list[Reading], select: str | None, file: str) -> list[Reading]:
    if select is None:
        return readings
    chosen = [reading for reading in readings if reading.name == select]
    if not chosen:
        names = ", ".join(f"`{r.name}`" for r in readings if r.name) or "one configuration without a name"
        raise UnreadableError(f"{file}: holds no configuration `{select}`; it holds {names}")
    return chosen


def _named(dialect: str) -> Dialect:
    for known in DIALECTS:
        if known.name == dialect:
            return known
    raise UnreadableError(f"unknown dialect `{dialect}`; known: {', '.join(d.name for d in DIALECTS)}")


def _dialect_of(text: str, file: str) -> Dialect:
    suffix = PurePath(file).suffix.lower()
    if not suffix and _SHELL_SCRIPT.match(text):
        return _named("shell")
    by_suffix = (d for d in DIALECTS if suffix and suffix in d.suffixes)
    return next(by_suffix, None) or next(d for d in DIALECTS if d.looks_like(text))


_SHELL_SCRIPT: Final = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")
_CODE: Final = re.compile(r"^\s*(?:import \w|from [\w.]+ import |def \w+\(|[A-Za-z_]\w*\.[\w.]+ = )", re.MULTILINE)
_ENTRY: Final = re.compile(r"""^\s*["']?[\w.<-][\w.-]*["']?:(?:\s|$)""", re.MULTILINE)
_COMMAND: Final = re.compile(r"^#!|^\s*(?:export|set|srun|torchrun|python3?|bash|uv) |^\s*\w+\+?=\(?|\\$", re.MULTILINE)


def _looks_like_argv(text: str) -> bool:
    from ep_overlap_mcp.sources.argv import is_argv

    return is_argv(text)


def _looks_like_overrides(text: str) -> bool:
    from ep_overlap_mcp.sources.overrides import is_override, overrides_of_line

    dotted = False
    for line in text.splitlines():
        for word in overrides_of_line(line):
            if not is_override(word.text):
                return False
            dotted = dotted or "." in word.text.partition("=")[0]
    return dotted


def _looks_like_yaml(text: str) -> bool:
    entries = len(_ENTRY.findall(text))
    return entries > len(_COMMAND.findall(text))


DIALECTS: Final = (
    Dialect("json", (".json",), lambda text: text.lstrip().startswith("{"), "documents:read_json"),
    Dialect("python", (".py",), lambda text: _CODE.search(text) is not None, "recipe:read_recipe"),
    Dialect("argv", (".argv", ".args"), _looks_like_argv, "argv:read_argv"),
    Dialect("overrides", (".overrides",), _looks_like_overrides, "overrides:read_overrides"),
    Dialect("yaml", (".yaml", ".yml"), _looks_like_yaml, "documents:read_yaml"),
    Dialect("shell", (".sh", ".bash", ".slurm", ".sbatch", ".sub"), lambda _text: True, "shell:read_shell"),
)
