"""Changes as edits of the user's own files, comments, order and formatting untouched, or else as what to add.

A value is replaced where its literal stands; a setting that must go is taken out with its line; a new one is written
beside a setting of the same object, in the same style.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.proposals.rendering import STAGES, VPP, new_statement, rendered
from ep_overlap_mcp.proposals.statements import NoPlaceError, Place, Statement, statement_of
from ep_overlap_mcp.settings.fields import field_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.settings.setting import Setting

_MOST_ATTEMPTS = 4
_FLAG_OBJECTS = ("model", "train", "ddp", "optimizer", "dist", "args", "rng")


@dataclass(frozen=True)
class Edit:
    """Characters `start` to `stop` of a file become `text`."""

    start: int
    stop: int
    text: str


def attempts(request: Request, changes: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The files with the changes made, for one place of new statements after another, likeliest first.

    Nothing comes where a change has no place that an edit could reach.
    """
    try:
        edits, new = _changes_in_place(request, changes, texts)
        exports = {path: new.pop(path) for path in list(new) if path.startswith("env.")}
        _add(edits, _exports(request, exports, texts))
    except NoPlaceError:
        return
    if not new:
        yield applied(texts, edits)
        return
    for added in _places_of_new(request, changes, new, texts):
        more = {file: [*edits.get(file, []), *made] for file, made in added.items()}
        yield applied(texts, {**edits, **more})
    for file, edit in _new_section(request, new, texts):
        yield applied(texts, {**edits, file: [*edits.get(file, []), edit]})


def _changes_in_place(
    request: Request, changes: Mapping[str, Any], texts: Mapping[str, str]
) -> tuple[dict[str, list[Edit]], dict[str, Any]]:
    """Edits of what the files state, by file, and the changes that they do not state."""
    edits: dict[str, list[Edit]] = {}
    new: dict[str, Any] = {}
    for path, value in changes.items():
        written = _written(request, path)
        if written is None or written.origin.file not in texts or _is_default(written):
            new[path] = value
            continue
        file = str(written.origin.file)
        if written.origin.note:
            made = _switch_off(request, written, changes, texts[file])
        else:
            made = _change(texts[file], written, path, value)
        _add(edits, {file: [edit for edit in made if edit not in edits.get(file, [])]})
    return edits, new


def _is_default(written: Setting) -> bool:
    """Whether a field is only implied unset by the object that it belongs to."""
    return written.origin.note is not None and written.value in (None, False)


def _add(edits: dict[str, list[Edit]], more: Mapping[str, Sequence[Edit]]) -> None:
    for file, made in more.items():
        edits.setdefault(file, []).extend(made)


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A diff of all files that differ, as `patch -p1` takes it."""
    parts = []
    for file, text in after.items():
        old, new = _lines(before[file]), _lines(text)
        name = file.lstrip("/")
        diff = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        parts += [line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in diff]
    return "".join(parts)


def _lines(text: str) -> list[str]:
    """Lines as `patch` counts them: a form feed or a line separator of Unicode ends none."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _written(request: Request, path: str) -> Setting | None:
    """The setting as the text states it; virtual stages may stand there through one of the flags that imply them."""
    if path == VPP:
        implying = (STAGES, "model.num_layers_per_virtual_pipeline_stage")
        found = next((s for name in implying if (s := request.as_written.get(name))), None)
        return found or request.as_written.get(path)
    return request.as_written.get(path)


def _change(text: str, written: Setting, path: str, value: Any) -> list[Edit]:
    """Replace the value where its literal stands, or take the statement out."""
    place = statement_of(text, written)
    if place.syntax in ("flags", "flag keys"):
        if written.path != path:  # virtual stages, written through another flag
            return _change_stages(place, value)
        if _goes(place, path, value):
            return [removal(place)]
    if place.bare:
        raise NoPlaceError(f"{path} is a bare switch; it takes no value")
    return [_replacement(place, value)]


def _goes(place: Statement, path: str, value: Any) -> bool:
    """Whether a flag is taken out rather than given a value."""
    if value is None:
        return not ("_" in place.key and path == "model.recompute_granularity")  # ms-swift's own default is selective
    return value == [] or place.bare or (place.syntax == "flag keys" and value is False)


def _switch_off(request: Request, written: Setting, changes: Mapping[str, Any], text: str) -> list[Edit]:
    """Turn off a switch of the dialect, such as `activation_checkpointing`, where all that it brings must go."""
    line = written.origin.line
    brought = [p for p, s in request.as_written.items() if s.origin.note and s.origin.line == line and s.value]
    start = _start_of(text, line or 1)
    switch = re.compile(r"([^\n#]*?[:=]\s*)(true)\b", re.IGNORECASE).match(text, start)
    if switch is None or any(path not in changes or changes[path] for path in brought):
        raise NoPlaceError(f"{written.path} is computed at {written.origin}")
    return [Edit(*switch.span(2), "False" if switch[2][0].isupper() else "false")]


def _exports(request: Request, variables: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, list[Edit]]:
    """Environment variables, each behind a shell's own `export` of another one."""
    made: dict[str, list[Edit]] = {}
    for path, value in variables.items():
        places = [found for s in request.as_written.values() if (found := _export(s, texts)) is not None]
        if not places:
            raise NoPlaceError(f"no export stands beside {path}")
        file, end, indent = max(places, key=lambda place: place[1])
        made.setdefault(file, []).append(Edit(end, end, f"\n{indent}export {path[4:]}={value}"))
    return made


def _export(setting: Setting, texts: Mapping[str, str]) -> tuple[str, int, str] | None:
    """The file, end and indent of a line that exports a variable of the stack, and nothing else."""
    file, line = setting.origin.file, setting.origin.line
    if (
        file not in texts
        or line is None
        or not re.match(r"env\.(?:NCCL|CUDA|PYTORCH|NVTE|TORCH|NVSHMEM)", setting.path)
    ):
        return None
    text = texts[str(file)]
    found = re.compile(r"([ \t]*)export \w+=\S*(?:[ \t]+#.*)?$", re.MULTILINE).match(text, _start_of(text, line))
    return None if found is None or found[0].endswith("\\") else (str(file), found.end(), found[1])


def _start_of(text: str, line: int) -> int:
    return sum(len(part) for part in _lines(text)[: line - 1])


def _new_section(request: Request, new: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[tuple[str, Edit]]:
    """A section `comm_overlap` at the end of a Bridge override file that has none; the recipe has the rest of it."""
    dialects = {reading.file: reading.dialect for reading in request.readings}
    if any(not path.startswith("comm_overlap.") for path in new):
        return
    for file, text in texts.items():
        if dialects.get(file) == "Bridge override file" and not re.search(r"^comm_overlap:", text, re.MULTILINE):
            fields = "".join(f"  {path.partition('.')[2]}: {rendered('yaml', v)}\n" for path, v in new.items())
            gap = "" if not text or text.endswith("\n") else "\n"
            yield file, Edit(len(text), len(text), f"{gap}\ncomm_overlap:\n{fields}")


def _change_stages(place: Statement, value: Any) -> list[Edit]:
    if not value:
        return [removal(place)]
    key = place.text.index(place.key, place.start)
    if place.setting.path == STAGES:
        return [_replacement(place, value)]
    flag = field_table()[STAGES].flags[0]
    return [Edit(key, key + len(place.key), flag), _replacement(place, value)]


def _replacement(place: Statement, value: Any) -> Edit:
    """The new value at the literal: the variable's, where it serves this statement alone, else the statement's own."""
    if place.far is not None and _used_once(place):
        old = place.text[slice(*place.far)]
        return Edit(*place.far, rendered(place.syntax, value, old))
    old = place.text[slice(*place.value)]
    return Edit(*place.value, rendered(place.syntax, value, old))


def _used_once(place: Statement) -> bool:
    use = place.text[slice(*place.value)]
    names = set(re.findall(r"\$\{?(\w+)", use))
    return len(names) == 1 and len(re.findall(rf"\$\{{?{names.pop()}\b", place.text)) == 1


def removal(place: Place) -> Edit:
    """Without the characters of a place, and without its line where nothing else stands on it.

    In a command over several lines the backslash of the line before goes and the statement's own stays.
    """
    text, rest = place.text, place.rest
    alone = place.indent is not None and re.fullmatch(r"[\"']?[ \t]*\\?", rest) is not None
    if alone and place.continues:
        before = re.search(r"[ \t]*\\\n[ \t]*\Z", text[: place.start])
        own = place.stop + len(rest) - len(rest[re.search(r"[ \t]*\\?\Z", rest).start() :])  # type: ignore[union-attr]
        if before is not None:
            return Edit(before.start(), place.stop if rest[:1] in ('"', "'") else own, "")
    if place.indent is not None and re.fullmatch(r"[ \t]*\\?(?:[ \t]#.*)?", rest):
        return Edit(place.line[0], place.next_line, "")
    if place.indent is not None:  # the first of several on its line: what follows takes its place
        following = re.match(r"[ \t]*", rest)
        return Edit(place.start, place.stop + (following.end() if following else 0), "")
    start, last = place.start, text[place.stop : place.stop + 1] in ("", *" \r\n\"'")
    while start > place.line[0] and text[start - 1] == " " and last:
        start -= 1
    return Edit(start, place.stop, "")


def _places_of_new(
    request: Request, changes: Mapping[str, Any], new: Mapping[str, Any], texts: Mapping[str, str]
) -> Iterator[dict[str, list[Edit]]]:
    """New statements, those of each object beside one of its own; the likeliest places first."""
    objects: dict[str, dict[str, Any]] = {}
    for path, value in new.items():
        objects.setdefault(path.partition(".")[0], {})[path] = value
    found = []
    for top, part in objects.items():
        places = [(a, made) for a in _anchors(request, changes, top, texts) if (made := _insertions(a, part))]
        if not places:
            return
        found.append(places[:_MOST_ATTEMPTS])
    for attempt in range(max(map(len, found))):
        edits: dict[str, list[Edit]] = {}
        for places in found:
            anchor, made = places[min(attempt, len(places) - 1)]
            _add(edits, {str(anchor.setting.origin.file): made})
        yield edits


def _anchors(request: Request, changes: Mapping[str, Any], top: str, texts: Mapping[str, str]) -> list[Statement]:
    """Statements beside which new ones of an object can stand: those about experts first, then the last ones."""
    found = []
    for setting in request.as_written.values():
        origin = setting.origin
        if origin.kind != "explicit" or origin.file not in texts or setting.path in changes:
            continue
        try:
            place = statement_of(texts[str(origin.file)], setting)
        except NoPlaceError:
            continue
        if _fits(place, top):
            found.append(place)
    return sorted(found, key=_likeliness, reverse=True)


def _fits(place: Statement, wanted: str) -> bool:
    top = place.setting.path.partition(".")[0]
    if place.syntax in ("flags", "flag keys"):
        opening = place.text[place.start - 1 : place.start]
        alone = opening in ("'", '"') and place.text.startswith(opening, place.start + len(place.key))
        return top in _FLAG_OBJECTS and place.key.startswith("-") and not alone
    if place.syntax == "overrides":
        return "." in place.key
    return top == wanted and place.far is None


def _likeliness(place: Statement) -> tuple[bool, bool, int]:
    """Related settings before others; whole lines before parts; late before early."""
    related = re.search(r"moe|expert|overlap", place.setting.path) is not None
    return (place.indent is not None, related, place.setting.origin.order)


def _insertions(anchor: Statement, new: Mapping[str, Any]) -> list[Edit]:
    """The new statements behind the anchor, or none where it is no place for one of them."""
    try:
        statements = [new_statement(anchor, path, value) for path, value in new.items()]
    except NoPlaceError:
        return []
    return [_behind(anchor, [s for s in statements if s])]


def _behind(anchor: Statement, statements: Sequence[str]) -> Edit:
    """Statements behind another: on lines of their own where it has one, in the style of its line's end."""
    indent, at = anchor.indent, anchor.stop
    if anchor.syntax in ("json", "python") and (anchor.syntax == "json" or "." not in anchor.key):
        return _in_a_list(anchor, statements)
    whole = indent is not None and re.fullmatch(r"[\"']?[ \t]*(?:\\|(?:[ \t]#.*))?", anchor.rest) is not None
    if not whole:
        if anchor.syntax == "yaml":
            return _in_a_list(anchor, statements)
        return Edit(at, at, "".join(f" {statement}" for statement in statements))
    if anchor.continues or anchor.rest.rstrip().endswith("\\"):
        return Edit(at, at, "".join(f" \\\n{indent}{statement}" for statement in statements))
    if anchor.syntax in ("flags", "overrides") and anchor.rest[:1] in ("'", '"'):
        return Edit(at, at, "".join(f"\n{indent}{statement}" for statement in statements))
    at += len(anchor.rest)
    return Edit(at, at, "".join(f"\n{indent}{statement}" for statement in statements))


def _in_a_list(anchor: Statement, statements: Sequence[str]) -> Edit:
    """Entries behind another one of a comma-separated list, on lines of their own where it has one."""
    if anchor.indent is not None and re.fullmatch(r",[ \t]*#.*", anchor.rest):
        at = anchor.stop + len(anchor.rest)
        return Edit(at, at, "".join(f"\n{anchor.indent}{statement}," for statement in statements))
    gap = " " if anchor.indent is None else f"\n{anchor.indent}"
    return Edit(anchor.stop, anchor.stop, "".join(f",{gap}{statement}" for statement in statements))


def applied(texts: Mapping[str, str], edits: Mapping[str, Iterable[Edit]]) -> dict[str, str]:
    """The files that have edits, with these made; new lines end as most lines of the file do."""
    changed = {}
    for file, made in edits.items():
        text = texts[file]
        end = _line_end(text)
        for edit in sorted(_whole_lines(text, list(made)), key=lambda edit: (edit.start, edit.stop), reverse=True):
            whole = edit.stop - edit.start == len(text)  # a text of its own, with its own line ends
            text = text[: edit.start] + (edit.text if whole else edit.text.replace("\n", end)) + text[edit.stop :]
        changed[file] = text
    return changed


def _whole_lines(text: str, edits: list[Edit]) -> list[Edit]:
    """The edits, those that leave nothing of a line but blanks and its backslash made one that removes the line."""
    removals: dict[int, list[Edit]] = {}
    for edit in edits:
        if not edit.text and "\n" not in text[edit.start : edit.stop]:
            removals.setdefault(text.rfind("\n", 0, edit.start) + 1, []).append(edit)
    for start, made in removals.items():
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        kept = [not any(edit.start <= at < edit.stop for edit in made) for at in range(start, stop)]
        rest = "".join(text[start + at] for at, keep in enumerate(kept) if keep)
        touched = any(start <= edit.start <= stop for edit in edits if edit not in made)
        if len(made) < 2 or touched or not re.fullmatch(r"[ \t]*\\?\r?", rest):
            continue
        before = None if "\\" in rest else re.search(r"[ \t]*\\\r?\n\Z", text[:start])
        whole = Edit(before.start(), stop, "") if before else Edit(start, min(stop + 1, len(text)), "")
        edits = [edit for edit in edits if edit not in made] + [whole]
    return edits


def _line_end(text: str) -> str:
    """How the lines of a text end, most of them."""
    return "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"
