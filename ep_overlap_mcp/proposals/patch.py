"""Changes in the user's own dialect: edits of the file where its places are known, else what to add.

Edits leave comments, order and formatting alone. A value with a known span is replaced there; a setting that must go
is taken out; a new one is written beside a setting of the same object, in the same style.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.settings.fields import Field, field_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.settings.setting import Setting

Syntax = Literal["flags", "flag keys", "overrides", "yaml", "json", "python"]
Format = Literal["diff", "overrides", "flags", "python", "yaml"]

VPP = "model.virtual_pipeline_model_parallel_size"


@dataclass(frozen=True)
class Edit:
    """Characters `start` to `stop` of a file become `text`."""

    start: int
    stop: int
    text: str


class NoPlaceError(ValueError):
    """A change has no place in the file that an edit could reach."""


def edited(request: Request, changes: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, str]:
    """The files with the changes made; raises NoPlaceError where one has no place in them."""
    edits: dict[str, list[Edit]] = {}
    for path, value in changes.items():
        file, made = _edits(request, path, value, texts)
        edits.setdefault(file, []).extend(made)
    return {file: _applied(texts[file], made) for file, made in edits.items()}


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A diff of all files that differ, as `patch -p1` takes it."""
    parts = []
    for file, text in after.items():
        old = before[file].splitlines(keepends=True)
        new = text.splitlines(keepends=True)
        diff = difflib.unified_diff(old, new, f"a/{file}", f"b/{file}")
        parts.append(
            "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in diff)
        )
    return "".join(parts)


def to_add(request: Request, changes: Mapping[str, Any]) -> tuple[Format, str]:
    """What to add where no file can be edited: overrides for Bridge, flags for Megatron-LM, fields otherwise."""
    if request.framework == "bridge":
        return "overrides", "\n".join(f"{path}={_override(value)}" for path, value in changes.items())
    if request.framework == "megatron-lm":
        return "flags", "\n".join(filter(None, (_flag_to_add(path, value) for path, value in changes.items())))
    return "yaml", "\n".join(f"{field_table()[path].name}: {_yaml(value)}" for path, value in changes.items())


def _edits(request: Request, path: str, value: Any, texts: Mapping[str, str]) -> tuple[str, list[Edit]]:
    written = request.as_written.get(path) or _written_otherwise(request, path)
    if written is not None and written.origin.file is not None and written.origin.file in texts:
        if written.origin.span is None or written.origin.note:
            raise NoPlaceError(f"{path} is computed at {written.origin}")
        return written.origin.file, _change(texts[written.origin.file], written, path, value)
    anchor = _anchor(request, path, texts)
    assert anchor.origin.file is not None  # noqa: S101 - anchors are chosen among places in files
    return anchor.origin.file, [_insertion(texts[anchor.origin.file], anchor, path, value)]


def _written_otherwise(request: Request, path: str) -> Setting | None:
    """Virtual stages may be written through one of the flags that imply them."""
    if path != VPP:
        return None
    names = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")
    return next((s for name in names if (s := request.as_written.get(f"model.{name}"))), None)


def _change(text: str, written: Setting, path: str, value: Any) -> list[Edit]:
    """Replace the value in place, or take the statement out."""
    syntax = syntax_of(text, written)
    span = written.origin.span
    assert span is not None  # noqa: S101 - the caller has seen to it
    field = field_table()[path]
    if syntax in ("flags", "flag keys"):
        return _change_flag(text, written, field, value, syntax)
    return [Edit(*span, _rendered(syntax, value, text[slice(*span)]))]


def _change_flag(text: str, written: Setting, field: Field, value: Any, syntax: Syntax) -> list[Edit]:
    span = written.origin.span
    assert span is not None  # noqa: S101 - the caller has seen to it
    head = _flag_start(text, written, span)
    name = _name_at(text, head)
    if written.path != field.path:  # virtual stages, written through another flag
        new = f"{field_table()['model.num_virtual_stages_per_pipeline_rank'].flags[0]}"
        return (
            [Edit(head, head + len(name), new), Edit(*span, str(value))] if value else [_removed(text, head, span[1])]
        )
    if field.type == "bool" or value is None or value == []:
        return [_removed(text, head, max(span[1], head + len(name)))]
    return [Edit(*span, _rendered(syntax, value, text[slice(*span)]))]


def _flag_start(text: str, written: Setting, span: tuple[int, int]) -> int:
    """Where the flag itself stands: at the span for a bare flag, else shortly before its value."""
    name = (written.origin.text or "").split()[0].split("=")[0].rstrip(":")
    if text.startswith(name, span[0]):
        return span[0]
    start = text.rfind(name, max(0, span[0] - 300), span[0])
    if start < 0 or not name.startswith("-"):
        raise NoPlaceError(f"the flag of {written.path} is not beside its value")
    return start


def _name_at(text: str, start: int) -> str:
    found = re.match(r"--?[A-Za-z][\w-]*", text[start : start + 120])
    if found is None:
        raise NoPlaceError("no flag stands there")
    return found[0]


def _removed(text: str, start: int, stop: int) -> Edit:
    """Without a statement, and without its line where nothing else stands on it."""
    while stop < len(text) and text[stop] in "\"'":
        stop += 1
    line_start = text.rfind("\n", 0, start) + 1
    line_stop = text.find("\n", stop)
    line_stop = len(text) if line_stop < 0 else line_stop
    if not text[line_start:start].strip() and text[stop:line_stop].strip() in ("", "\\"):
        return Edit(line_start, min(line_stop + 1, len(text)), "")
    while start > line_start and text[start - 1] == " " and text[stop : stop + 1] in (" ", "\n", ""):
        start -= 1
    return Edit(start, stop, "")


def _anchor(request: Request, path: str, texts: Mapping[str, str]) -> Setting:
    """A written setting of the same object beside which a new one can stand: the last one of the last file."""
    top = path.partition(".")[0]
    places = [
        s
        for s in request.as_written.values()
        if s.origin.file in texts and s.origin.span and not s.origin.note and s.origin.kind == "explicit"
    ]
    same = [s for s in places if s.path.partition(".")[0] == top]
    flags = [s for s in places if syntax_of(texts[str(s.origin.file)], s) in ("flags", "flag keys", "overrides")]
    chosen = same or flags
    if not chosen:
        raise NoPlaceError(f"nothing of `{top}` is written in the files")
    return max(chosen, key=lambda s: s.origin.order)


def _insertion(text: str, anchor: Setting, path: str, value: Any) -> Edit:
    syntax = syntax_of(text, anchor)
    span = anchor.origin.span
    assert span is not None  # noqa: S101 - anchors have one
    field = field_table()[path]
    if syntax == "flags":
        return _before(text, _flag_start(text, anchor, span), _flag_to_add(path, value))
    if syntax == "flag keys":
        return _before(text, _flag_start(text, anchor, span), _flag_key_to_add(path, value))
    if syntax == "overrides":
        start = text.rfind(_first_word(anchor), 0, span[0])
        return _before(text, _word_start(text, start), f"{path}={_override(value)}")
    statement = _statement(syntax, anchor, field, value)
    start = text.rfind(_first_word(anchor), 0, span[0] + 1)
    if start < 0:
        raise NoPlaceError(f"the statement of {anchor.path} is not beside its value")
    return _before(text, start - (syntax == "json" and text[start - 1 : start] == '"'), statement)


def _statement(syntax: Syntax, anchor: Setting, field: Field, value: Any) -> str:
    if syntax == "json":
        return f'"{field.name}": {json.dumps(value)},'
    if syntax == "yaml":
        return f"{field.name}: {_yaml(value)}"
    prefix = re.match(r"[\w.\[\]\"']*\.", anchor.origin.text or "")
    if prefix is None:
        raise NoPlaceError(f"{anchor.path} is an argument of a call")
    return f"{prefix[0]}{field.name} = {value!r}"


def _before(text: str, start: int, statement: str) -> Edit:
    """A new statement before another: on a line of its own where the other has one, with its line ending's style."""
    line_start = text.rfind("\n", 0, start) + 1
    indent = text[line_start:start]
    if indent.strip():
        return Edit(start, start, statement + " ")
    line_stop = text.find("\n", start)
    continued = text[start : line_stop if line_stop >= 0 else len(text)].rstrip().endswith("\\")
    ending = " \\" if continued else ""
    return Edit(start, start, f"{statement}{ending}\n{indent}")


def _first_word(setting: Setting) -> str:
    words = re.split(r"[\s:=]", (setting.origin.text or "").strip().strip("\"'"))
    return words[0].strip("\"'")


def _word_start(text: str, start: int) -> int:
    while start > 0 and text[start - 1] in "+\"'":
        start -= 1
    return start


def syntax_of(text: str, setting: Setting) -> Syntax:
    """How the statement of a setting is written."""
    statement = (setting.origin.text or "").strip()
    span = setting.origin.span or (0, 0)
    line = text[text.rfind("\n", 0, span[0]) + 1 : span[0]]
    if re.match(r"--?[A-Za-z]", statement):
        return "flag keys" if re.match(r"\s*[\"']?--?[\w-]+[\"']?:", line) else "flags"
    if re.match(r"[+~]*[\w.]+=(?!=)", statement) and not re.search(r"\s=\s", statement):
        return "overrides"
    if text.lstrip().startswith(("{", "[")) and re.search(r"\"\s*:\s*$", line.rstrip() + (" " if line else "")):
        return "json"
    if re.match(r"\s*[\"']?[\w.-]+[\"']?\s*:", line):
        return "json" if text.lstrip().startswith("{") else "yaml"
    return "python"


def _rendered(syntax: Syntax, value: Any, old: str) -> str:
    if syntax in ("flags", "flag keys"):
        return _flag_value(value, old)
    if syntax == "overrides":
        return _override(value)
    if syntax == "json":
        return json.dumps(value)
    if syntax == "yaml":
        return _yaml(value, old)
    return repr(value)


def _flag_value(value: Any, old: str) -> str:
    if not isinstance(value, list):
        return str(value)
    words = " ".join(str(item) for item in value)
    return f"[{words}]" if old.strip("\"'").startswith("[") else ",".join(words.split()) if "," in old else words


def _flag_to_add(path: str, value: Any) -> str:
    field = field_table()["model.num_virtual_stages_per_pipeline_rank"] if path == VPP else field_table()[path]
    if field.type == "bool" or value is None:
        names = field.flags if value else field.off_flags
        if not names:
            if value:
                raise NoPlaceError(f"{path} has no flag that turns it on; remove the one that turns it off")
            return ""
        return names[0]
    if not field.flags:
        raise NoPlaceError(f"{path} has no Megatron-LM flag")
    return f"{field.flags[0]} {_flag_value(value, '')}"


def _flag_key_to_add(path: str, value: Any) -> str:
    flag, _, rest = _flag_to_add(path, value).partition(" ")
    shown = f'"[{rest}]"' if isinstance(value, list) else rest or "true"
    return f"{flag}: {shown}"


def _override(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(str(item) for item in value) + "]"
    return _yaml(value)


def _yaml(value: Any, old: str = "") -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        if old[:1] in ("'", '"'):
            return old[0] + ",".join(str(item) for item in value) + old[0]
        return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value)


def _applied(text: str, edits: Iterable[Edit]) -> str:
    ordered: Sequence[Edit] = sorted(edits, key=lambda edit: (edit.start, edit.stop), reverse=True)
    for edit in ordered:
        text = text[: edit.start] + edit.text + text[edit.stop :]
    return text
