"""Values and new statements as each syntax writes them, in the style of what already stands there."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.proposals.statements import NoPlaceError, Statement, Syntax
from ep_overlap_mcp.settings.fields import field_table

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.fields import Field

VPP = "model.virtual_pipeline_model_parallel_size"
STAGES = "model.num_virtual_stages_per_pipeline_rank"


def rendered(syntax: Syntax, value: Any, old: str = "") -> str:
    """A value in place of `old`, which shows the quotes and the spelling in use."""
    if syntax in ("flags", "flag keys"):
        return _flag_value(value, old)
    if syntax == "overrides":
        return _override(value, old)
    if syntax == "json":
        return json.dumps(value)
    return _yaml(value, old) if syntax == "yaml" else _python(value, old)


def new_statement(anchor: Statement, path: str, value: Any) -> str:
    """The statement of a setting in the style of another one near it."""
    field = field_table()[path]
    if anchor.syntax == "flags":
        return flag_like(anchor, path, shell_word(anchor.text, anchor.start, value))
    if anchor.syntax == "flag keys":
        flag, _, rest = flag_to_add(path, value).partition(" ")
        return f"{flag}: " + (f'"[{rest}]"' if isinstance(value, list) else rest or "true")
    if anchor.syntax == "overrides":
        value = shell_word(anchor.text, anchor.start, value)
        return f"{_override_key(anchor, path)}={rendered('overrides', value, anchor.text[slice(*anchor.value)])}"
    if anchor.syntax == "json":
        return f'"{field.name}": {json.dumps(value)}'
    if anchor.syntax == "yaml":
        return f"{field.name}: {_yaml(value)}"
    prefix, dot, _ = anchor.key.rpartition(".")
    return f"{prefix}{dot}{field.name} = {value!r}" if dot else f"{field.name}={value!r}"


def shell_word(text: str, at: int, value: Any) -> Any:
    """A value as it stands in shell text at a place: quoted where the shell would take it apart.

    What is part of a longer quoted string is not; Ray hands its command to a shell of its own, which needs quotes too.
    """
    if not isinstance(value, str) or re.search(r"[|()*;&<>\s]", value) is None:
        return value
    from ep_overlap_mcp.sources.shell_syntax import in_quotes

    if in_quotes(text, at):
        return value
    return f"\"'{value}'\"" if "ray job submit" in text else f'"{value}"'


def flag_like(anchor: Statement, path: str, value: Any) -> str:
    """A command-line flag; with underscores and a value for switches where its neighbour is written so."""
    if "_" not in anchor.key:
        return flag_to_add(path, value)
    name = field_table()[path].name
    return f"--{name} {_flag_value(value, '')}"


def flag_to_add(path: str, value: Any) -> str:
    """The Megatron-LM flag that gives a setting this value; raises NoPlaceError where there is none."""
    field: Field = field_table()[STAGES if path == VPP else path]
    if field.type == "bool" or value is None:
        names = field.flags if value else field.off_flags
        if not names:
            raise NoPlaceError(f"{path} has no flag for {value}")
        return names[0]
    if not field.flags:
        raise NoPlaceError(f"{path} has no Megatron-LM flag")
    return f"{field.flags[0]} {_flag_value(value, '')}"


def override(path: str, value: Any) -> str:
    """`path=value` as Bridge takes it."""
    return f"{path}={_override(value)}"


def _override_key(anchor: Statement, path: str) -> str:
    """The key of another setting of the same program, as a command line that may add keys takes it."""
    top, _, name = path.partition(".")
    prefix = anchor.key.removesuffix(anchor.setting.path.partition(".")[2])
    if anchor.key == anchor.setting.path or prefix.rstrip(".") in (
        "model",
        "comm_overlap",
        "ddp",
        "train",
        "optimizer",
    ):
        return path
    if not prefix.endswith(".") or anchor.setting.path.partition(".")[0] != top:
        raise NoPlaceError(f"{path} has no key beside {anchor.key}")
    if prefix.endswith("actor.megatron."):
        prefix += "override_transformer_config."
    plus = re.match(r"[\"']?(\+*)", anchor.text[anchor.start : anchor.start + 4])
    return f"{(plus[1] if plus else '') or '++'}{prefix}{name}"


def _flag_value(value: Any, old: str) -> str:
    if isinstance(value, bool):
        return str(value) if old[:1].isupper() else str(value).lower()
    if value is None:
        return "none"
    if not isinstance(value, list):
        return str(value)
    words = " ".join(str(item) for item in value)
    return f"[{words}]" if old.strip("\"'").startswith("[") else ",".join(words.split()) if "," in old else words


def _override(value: Any, old: str = "") -> str:
    if isinstance(value, list):
        return "[" + ",".join(str(item) for item in value) + "]"
    if isinstance(value, bool) and old[:1].isupper():
        return str(value)
    return _yaml(value)


def _yaml(value: Any, old: str = "") -> str:
    if value is None or isinstance(value, bool):
        word = {None: "null", True: "true", False: "false"}[value]
        return word.capitalize() if old in ("True", "False") and value is not None else word
    if isinstance(value, list):
        if old[:1] in ("'", '"'):
            return old[0] + ",".join(str(item) for item in value) + old[0]
        return _block_list(value, old) if old.startswith("- ") else "[" + ", ".join(str(item) for item in value) + "]"
    return str(value)


def _block_list(items: list[Any], old: str) -> str:
    """One item a line, with the indent of the old ones; an empty list has no such form."""
    if not items:
        raise NoPlaceError("an empty list is not written as a block")
    indent = re.search(r"\n([ \t]*)- ", old)
    return f"\n{indent[1] if indent else ''}".join(f"- {item}" for item in items)


def _python(value: Any, old: str) -> str:
    text = repr(value)
    return text.replace("'", '"') if '"' in old or "'" not in old else text
