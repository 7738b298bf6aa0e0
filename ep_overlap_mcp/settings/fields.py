"""The field table: one row a setting, with its type, defaults by release, names in each dialect and aliases.

The rows stand in `fields.json`. Types, defaults and flags were read from the dataclasses and argument parsers of
NVIDIA/Megatron-LM at core_v0.14.0, core_v0.15.3, core_v0.16.1, core_v0.17.1, core_v0.18.2, core_v0.19.0 and main
(d98e8a64dd); `dev` is d48bd6be0a. The test suite holds them to the installed release. Bridge's own fields were read at
NVIDIA-NeMo/Megatron-Bridge v0.2.0 to v0.6.0 and main (067f987df).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ep_overlap_mcp.settings.values import encodable, expected, is_one, says_none, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.stack import Core, Release


class _Absent:
    """The value of a field that a release does not have."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()

_OLDEST: Final = (0, 14)
_PLAIN: Final = ("int", "float", "str")


class ValueNotAllowedError(ValueError):
    """A value that no parser of the stack would take for this field; the text says what it takes.

    `meant` is what the value plainly means, as a command line spells it; None where that is a choice.
    """

    def __init__(self, text: str, meant: str | None = None) -> None:
        super().__init__(text if meant is None else f"{text}; write `{meant}`")
        self.meant = meant


@dataclass(frozen=True)
class Field:
    """One setting. `defaults` holds pairs (first release that has it, as major.minor or "main"; value).

    `bridge_defaults` holds such pairs of Bridge, where it has a default of its own or the field is its own.
    `choices` are those of all releases, checked by core itself where `core_checks` says so, else by argparse alone;
    `choices_since` and `choices_until` name the first release whose parser takes one and the first that does no
    longer, where no rule of its own says it. `cli_choices` are argparse's where it takes fewer, `cli_type` its type
    where it is narrower; `items` is the type of a list's items, `count` how many there must be. `command_line` is
    false where Megatron-LM's own parser has no such flag, though launchers around it use one; `flag_since` and
    `flag_until` are the first release whose parser has it and the first that has it no longer, where these are not
    those of the field.
    """

    path: str
    type: str
    optional: bool = False
    cli_type: str | None = None
    items: str | None = None
    count: int | None = None
    defaults: tuple[tuple[str, Any], ...] = ()
    cli_defaults: tuple[tuple[str, Any], ...] = ()
    bridge_defaults: tuple[tuple[str, Any], ...] = ()
    until: str | None = None
    on_dev: bool | None = None
    choices: tuple[Any, ...] = ()
    cli_choices: tuple[Any, ...] = ()
    choices_since: Mapping[str, str] = dataclasses.field(default_factory=dict)
    choices_until: Mapping[str, str] = dataclasses.field(default_factory=dict)
    core_checks: bool = False
    flags: tuple[str, ...] = ()
    off_flags: tuple[str, ...] = ()
    command_line: bool = True
    flag_since: str | None = None
    flag_until: str | None = None
    aliases: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    deprecated_since: str | None = None
    use: str | None = None
    doc: str = ""

    @property
    def name(self) -> str:
        """The field as Megatron spells it, without its object."""
        return self.path.partition(".")[2]

    def exists_in(self, core: Core, *, command_line: bool = False) -> bool:
        """Whether this release of megatron-core, or its Megatron-LM's parser, knows the field.

        Settings of no release always exist.
        """
        if command_line and (self.flag_since or self.flag_until):
            since, until = self.flag_since or "0.14", self.flag_until
            return max(core.minor, _OLDEST) >= _minor(since) and (until is None or core.minor < _minor(until))
        return not self.defaults or self.default(core) is not ABSENT

    def known_to(self, release: Release, *, command_line: bool = False) -> bool:
        """Whether core knows the field, or Bridge where a release has one; its models have fields before core does."""
        of_bridge = release.bridge is not None and bool(self.bridge_defaults)
        return of_bridge or self.exists_in(release.core, command_line=command_line)

    def default(self, core: Core, *, command_line: bool = False) -> Any:
        """The value when nothing is written, from the dataclass or from Megatron-LM's command line; or ABSENT."""
        if core.is_dev and self.on_dev is not None:
            if not self.on_dev:
                return ABSENT
        elif self.until is not None and core.minor >= _minor(self.until):
            return ABSENT
        minor = max(core.minor, _OLDEST)  # of older releases the table knows nothing: what 0.14 has counts as there
        value: Any = ABSENT
        for since, candidate in self.defaults:
            if minor >= _minor(since):
                value = candidate
        if command_line and value is not ABSENT:
            for since, candidate in self.cli_defaults:
                if minor >= _minor(since):
                    value = candidate
        return [value] if self.type == "list" and isinstance(value, str) else value

    @property
    def of_bridge(self) -> bool:
        """Whether Bridge alone has the field."""
        return bool(self.bridge_defaults) and not self.defaults

    def bridge_default(self, minor: tuple[int, ...]) -> Any:
        """The value when nothing is written, in a release of Bridge given as (major, minor); None before it has one."""
        return next((v for since, v in reversed(self.bridge_defaults) if minor >= _minor(since)), None)

    def refused_choices(self, value: Any, core: Core) -> list[Any]:
        """Of a written value, or of a list's items, those that this release's parser does not know yet, or any more.

        What no release knows is none of them: `parse` refuses it.
        """
        items = value if isinstance(value, list) else [value]
        return [item for item in items if isinstance(item, str) and not self._takes_choice(item, core)]

    def choices_in(self, core: Core) -> tuple[Any, ...]:
        """The values that the parser of this release takes; nothing where it takes any."""
        return tuple(c for c in self.cli_choices or self.choices if self._takes_choice(str(c), core))

    def _takes_choice(self, choice: str, core: Core) -> bool:
        since, until = self.choices_since.get(choice), self.choices_until.get(choice)
        known = since is None or core.minor >= _minor(since)
        return known and (until is None or max(core.minor, _OLDEST) < _minor(until))

    def parse(self, raw: Any, *, command_line: bool = True, strict: bool = False) -> Any:
        """The typed value of what was written.

        Raises ValueNotAllowedError where the stack's own parser would refuse the value: argparse holds a command line
        to the choices, a dataclass only to those that core checks itself. `strict` is for words that Megatron-LM's own
        parser gets, to whose plain types `none` is a word like any other.
        """
        raw = encodable(raw)
        if raw is None or (self.type != "list" and says_none(raw) and not (strict and self._knows_no_none)):
            return self._none(raw)
        choices = (command_line and self.cli_choices) or self.choices
        kinds = (self.type, self.cli_type) if command_line and self.cli_type else (self.type,)
        if refusing := next((kind for kind in kinds if not is_one(kind, raw)), None):
            raise self._refusal(expected(refusing, choices), raw)
        if strict and self.items and isinstance(raw, list):
            self._check_items(raw)
        value = ["none"] if self._names_none(raw) else typed(self.type, raw)
        for item in value if isinstance(value, list) else (value,):
            if choices and (command_line or self.core_checks) and item not in choices and item is not None:
                raise self._refusal(expected(self.type, choices), item, self._meant(value, choices, lists=command_line))
        return value

    def _check_items(self, words: list[Any]) -> None:
        """Hold the words of a list to the type of its items, and to their count where it has one."""
        kind = self.items or "any"
        if wrong := [word for word in words if not is_one(kind, word)]:
            apart = re.findall(r"[^\s,\[\]]+", " ".join(map(str, words)))
            fits = all(is_one(kind, word) for word in apart) and self.count in (None, len(apart))
            raise self._refusal(f"{expected(kind)} each", wrong[0], " ".join(apart) if fits else None)
        if self.count is not None and len(words) != self.count:
            raise self._refusal(f"{self.count} values", " ".join(map(str, words)))

    @property
    def _knows_no_none(self) -> bool:
        """Whether argparse gets the word for a plain type or a choice, to which `none` is a word like any other."""
        return self.type in _PLAIN or bool(self.cli_type or self.cli_choices or self.choices)

    def _refusal(self, takes: str, got: Any, meant: str | None = None) -> ValueNotAllowedError:
        return ValueNotAllowedError(f"`{self.path}` takes {takes}, got {got!r}", meant)

    def _meant(self, value: Any, choices: tuple[Any, ...], *, lists: bool) -> str | None:
        """The choices that a value differs from by commas, case or dashes alone."""
        words = re.findall(r"[^\s,\[\]]+", " ".join(map(str, value if isinstance(value, list) else (value,))))
        by_letters = {_letters(choice): str(choice) for choice in choices}
        found = [by_letters.get(_letters(word)) for word in words]
        if None in found or len(by_letters) < len(choices) or (not lists if self.type == "list" else len(found) != 1):
            return None
        return " ".join(map(str, found)) or None

    def _names_none(self, raw: Any) -> bool:
        """Whether `none` is an item of this list, and not its absence."""
        return self.type == "list" and "none" in self.choices and isinstance(raw, str) and raw.strip() == "none"

    def _none(self, raw: Any) -> Any:
        if self.optional or self.type in ("any", "list") or self.default_anywhere is None:
            return None
        if self.choices and "none" in self.choices and isinstance(raw, str):
            return "none"
        if self.type == "str" and not self.choices and isinstance(raw, str):
            return raw
        raise self._refusal(expected(self.type, self.choices), raw)

    @property
    def default_anywhere(self) -> Any:
        """The newest default, or ABSENT when the field belongs to no release."""
        known = self.defaults or self.bridge_defaults
        return known[-1][1] if known else ABSENT


class FieldTable:
    """All fields, found by path, by Megatron-LM flag or by bare name."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.by_path: dict[str, Field] = {row["path"]: _field(row) for row in rows}

    def __getitem__(self, path: str) -> Field:
        return self.by_path[path]

    def get(self, path: str) -> Field | None:
        """The field of a canonical path, of one of its other object paths, or of any `env.NAME`."""
        found = self.by_path.get(path) or self._by_object.get(path)
        if found is None and path.startswith("env.") and re.fullmatch(r"env\.[A-Za-z_][A-Za-z0-9_]*", path):
            return _free_environment_variable(path)
        return found

    def flag(self, flag: str) -> tuple[Field, bool] | None:
        """The field a Megatron-LM flag sets, and whether it switches it off (`--no-…`, `--disable-…`)."""
        return self._by_flag.get(flag.replace("_", "-").lower())

    def registered(self, flag: str) -> tuple[Field, bool] | None:
        """The same for a flag exactly as Megatron-LM's own parser registers it; None for any other spelling."""
        return self.parser_flags.get(flag)

    def bare(self, name: str) -> Field | None:
        """The field a bare snake-case name means in YAML and JSON dialects, model fields before the rest."""
        return self._by_name.get(name)

    def near(self, path: str, count: int = 3) -> list[str]:
        """Known paths that look like a misspelled one, best first."""
        name = path.rpartition(".")[2]
        close = difflib.get_close_matches(path, self.by_path, n=count, cutoff=0.75)
        close += [self._by_name[n].path for n in difflib.get_close_matches(name, self._by_name, n=count, cutoff=0.8)]
        return list(dict.fromkeys(close))[:count]

    @cached_property
    def _by_object(self) -> dict[str, Field]:
        return {other: field for field in self.by_path.values() for other in field.objects}

    @cached_property
    def _by_flag(self) -> dict[str, tuple[Field, bool]]:
        found: dict[str, tuple[Field, bool]] = {}
        for field in self.by_path.values():
            for flag in field.flags:
                found[flag.replace("_", "-").lower()] = (field, False)
            for flag in field.off_flags:
                found[flag.replace("_", "-").lower()] = (field, True)
        return found

    @cached_property
    def parser_flags(self) -> dict[str, tuple[Field, bool]]:
        """Every flag of Megatron-LM's own parser in any release, as it is registered."""
        known = [field for field in self.by_path.values() if field.command_line]
        switches_on = {flag: (field, False) for field in known for flag in field.flags}
        return switches_on | {flag: (field, True) for field in known for flag in field.off_flags}

    @cached_property
    def environment(self) -> tuple[str, ...]:
        """The environment variables that have a row."""
        return tuple(path for path in self.by_path if path.startswith("env."))

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        found: dict[str, Field] = {}
        for field in sorted(self.by_path.values(), key=lambda f: f.path.startswith("comm_overlap.")):
            if field.path.partition(".")[0] not in ("env", "runtime", "hardware", "bridge") and not field.of_bridge:
                for name in (field.name, *field.aliases):
                    found.setdefault(name, field)
        return found


@lru_cache(maxsize=1)
def field_table() -> FieldTable:
    """The table, read once."""
    return FieldTable(json.loads((Path(__file__).parent / "fields.json").read_text(encoding="utf-8")))


@lru_cache(maxsize=64)
def absent_from(release: Release, *, command_line: bool = False) -> frozenset[str]:
    """The paths that this release of megatron-core and Bridge, or its Megatron-LM's parser, does not know."""
    fields = field_table().by_path.values()
    return frozenset(field.path for field in fields if not field.known_to(release, command_line=command_line))


@lru_cache(maxsize=1)
def fields_with_changing_choices() -> dict[str, Field]:
    """The fields of which Megatron-LM's parser takes other values in other releases, by path."""
    return {path: field for path, field in field_table().by_path.items() if field.choices_since or field.choices_until}


@lru_cache(maxsize=64)
def deprecated_in(core: Core) -> frozenset[str]:
    """The paths that are deprecated in this release."""
    old = [field for field in field_table().by_path.values() if field.deprecated_since]
    return frozenset(field.path for field in old if core.minor >= _minor(field.deprecated_since or ""))


def _field(row: Mapping[str, Any]) -> Field:
    deprecated = row.get("deprecated", {})
    return Field(
        path=row["path"],
        type=row["type"],
        optional=row.get("optional", False),
        cli_type=row.get("cli_type"),
        items=row.get("items"),
        count=row.get("count"),
        defaults=tuple((since, value) for since, value in row.get("default", ())),
        cli_defaults=tuple((since, value) for since, value in row.get("cli_default", ())),
        bridge_defaults=tuple((since, value) for since, value in row.get("bridge_default", ())),
        until=row.get("until"),
        on_dev=row.get("dev"),
        choices=tuple(row.get("choices", ())),
        cli_choices=tuple(row.get("cli_choices", ())),
        choices_since=row.get("choices_since", {}),
        choices_until=row.get("choices_until", {}),
        core_checks=row.get("core_checks", False),
        flags=tuple(row.get("flags", ())),
        off_flags=tuple(row.get("off_flags", ())),
        command_line=row.get("command_line", True),
        flag_since=row.get("flag_since"),
        flag_until=row.get("flag_until"),
        aliases=tuple(row.get("aliases", ())),
        objects=tuple(row.get("objects", ())),
        deprecated_since=deprecated.get("since"),
        use=deprecated.get("use"),
        doc=row.get("doc", ""),
    )


@lru_cache(maxsize=256)
def _free_environment_variable(path: str) -> Field:
    return Field(path=path, type="any", optional=True)


def _letters(word: object) -> str:
    return str(word).lower().replace("-", "_")


@lru_cache(maxsize=64)
def _minor(release: str) -> tuple[int, ...]:
    return (0, 20) if release == "main" else tuple(int(part) for part in release.split("."))
