"""Registers the server and the skill with a client: plans the text of each file, shows it, then writes."""

from __future__ import annotations

import difflib
import io
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.bundled import bundled
from ep_overlap_mcp.clients import jsonc, toml_text
from ep_overlap_mcp.clients.places import CLIENTS, Client, Launch, Scope, folders
from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.results.setup import FileChange, SetupResult

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVER = "ep-overlap"
CLAUDE_AI = "claude-ai"
NAMES = (*CLIENTS, CLAUDE_AI)
ARCHIVE = f"{SERVER}-skill.zip"


class SetupError(Refusal):
    """A client, scope or file that this cannot be set up with; nothing was written. Exit code 2."""


@dataclass(frozen=True)
class _Edit:
    """A file's content before and after; None where it does not exist."""

    path: Path
    what: Literal["server", "skill", "archive"]
    before: bytes | None
    after: bytes | None


def setup(
    client: str,
    *,
    scope: Scope | None = None,
    command: Sequence[str] = (),
    python: str | None = None,
    dry_run: bool = False,
    remove: bool = False,
    project: Path | None = None,
    home: Path | None = None,
) -> SetupResult:
    """Register the server and the skill with `client`, or take both out again.

    The scope is the project's where the client has one for servers, unless said otherwise. `command` is what the
    client shall start, by default this installation; `python` is the training environment's. All files are read and
    all edits planned before the first one is written. Raises SetupError for an unknown client, a scope that the
    client does not have, or a file that cannot be read; then nothing is written.
    """
    places = {name: str(path) for name, path in folders(project or Path.cwd(), home or Path.home()).items()}
    where = _scope(client, scope)
    launch = Launch(*_program(command, where), env={"EP_OVERLAP_PYTHON": python} if python else {})
    if client == CLAUDE_AI:
        edits = [_edit(Path(places["project"]) / ARCHIVE, "archive", None if remove else _archive())]
    else:
        edits = _edits(CLIENTS[client], where, launch, places, remove=remove)
    return _answer(client, where, edits, launch, dry_run=dry_run, removed=remove)


def _scope(client: str, scope: Scope | None) -> Scope:
    """The scope asked for, or the project's where the client keeps servers in projects."""
    if client == CLAUDE_AI:
        return scope or "project"
    if client not in CLIENTS:
        raise SetupError(f"`{client}` is not a client; known: {', '.join(NAMES)}")
    offered = list(CLIENTS[client].servers)
    if scope is not None and scope not in offered:
        raise SetupError(f"{CLIENTS[client].title} has no {scope} file for servers; use --scope {offered[0]}")
    return scope if scope is not None else offered[0]


def _program(command: Sequence[str], scope: Scope) -> tuple[str, tuple[str, ...]]:
    """What to start: the console script by its name where files are shared, by its place for one user."""
    if command:
        return command[0], tuple(command[1:])
    beside = Path(sys.executable).with_name("ep-overlap-mcp")
    installed = shutil.which("ep-overlap-mcp") or (str(beside) if beside.exists() else None)
    if scope == "user":
        return (installed, ()) if installed else (sys.executable, ("-m", "ep_overlap_mcp"))
    return "ep-overlap-mcp", ()


def _edits(client: Client, scope: Scope, launch: Launch, places: dict[str, str], *, remove: bool) -> list[_Edit]:
    config = _with_comments(Path(client.servers[scope].format(**places)))
    skill = Path(client.skills[scope].format(**places)) / SERVER / "SKILL.md"
    return [
        _server_edit(config, client, launch, remove=remove),
        _edit(skill, "skill", None if remove else _skill()),
    ]


def _with_comments(path: Path) -> Path:
    """The `.jsonc` file that OpenCode also reads, where the user has that one."""
    other = path.with_suffix(".jsonc")
    return other if path.name == "opencode.json" and other.exists() and not path.exists() else path


def _server_edit(path: Path, client: Client, launch: Launch, *, remove: bool) -> _Edit:
    """The client's file with the entry in or out, by the dialect of its name."""
    before = _read(path)
    dialect = toml_text if path.suffix == ".toml" else jsonc
    try:
        text = before.decode("utf-8") if before is not None else None
        table = _table(text, client)
        if remove:
            after = dialect.take(text, (*table, SERVER)) if text is not None else None
        else:
            after = dialect.put(text, (*table, SERVER), client.entry(launch))
    except (jsonc.MalformedError, UnicodeDecodeError) as problem:
        raise SetupError(f"{path}: {problem}; it was left as it is, put it right first") from problem
    return _Edit(path, "server", before, after.encode("utf-8") if after is not None else None)


def _table(text: str | None, client: Client) -> Sequence[str]:
    """Where servers stand: OpenCode 2's own form has one object more, and is kept where the file uses it."""
    nested = ("mcp", "servers")
    if text is not None and client.name == "opencode" and isinstance(jsonc.get(text, nested), dict):
        return nested
    return client.table


def _edit(path: Path, what: Literal["skill", "archive"], after: bytes | None) -> _Edit:
    return _Edit(path, what, _read(path), after)


def _skill() -> bytes:
    return (bundled("skills") / SERVER / "SKILL.md").read_bytes()


def _archive() -> bytes:
    """The skill as Claude.ai takes it: its folder at the top of a zip, the same bytes every time."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(f"{SERVER}/SKILL.md", (1980, 1, 1, 0, 0, 0)), _skill())
    return packed.getvalue()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise SetupError(f"{path}: cannot be read: {problem.strerror}; nothing was written") from problem


def _answer(
    client: str, scope: Scope, edits: Sequence[_Edit], launch: Launch, *, dry_run: bool, removed: bool
) -> SetupResult:
    changes = [_change(edit) for edit in edits]
    if not dry_run:
        for edit in edits:
            _write(edit)
    return SetupResult(
        summary=_summary(client, changes, dry_run=dry_run, removed=removed),
        client=client,
        scope=scope,
        dry_run=dry_run,
        removed=removed,
        files=changes,
        command=[] if removed or client == CLAUDE_AI else [launch.command, *launch.args],
        next=_next(client, launch, dry_run=dry_run, removed=removed),
    )


def _change(edit: _Edit) -> FileChange:
    action: Literal["created", "changed", "unchanged", "removed"] = "changed"
    if edit.before == edit.after:
        action = "unchanged"
    elif edit.before is None:
        action = "created"
    elif edit.after is None:
        action = "removed"
    diff = "" if edit.what == "archive" else _diff(edit)
    return FileChange(path=str(edit.path), action=action, what=edit.what, diff=diff)


def _diff(edit: _Edit) -> str:
    before, after = ((text or b"").decode("utf-8", "replace").splitlines() for text in (edit.before, edit.after))
    name = str(edit.path)
    return "\n".join(difflib.unified_diff(before, after, name, name, lineterm="", n=2))


def _write(edit: _Edit) -> None:
    """Write through links, whole or not at all; a removed file takes the folders along that it leaves empty."""
    path = edit.path.resolve()
    if edit.after is None:
        path.unlink(missing_ok=True)
        if edit.what == "skill":
            _remove_empty(edit.path.parent)
        return
    if edit.after == edit.before:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as written:
        written.write(edit.after)
    if path.exists():
        shutil.copymode(path, written.name)
    else:
        Path(written.name).chmod(0o644)
    Path(written.name).replace(path)


def _remove_empty(folder: Path) -> None:
    """The skill's own folder, when nothing else is in it."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _summary(client: str, changes: Sequence[FileChange], *, dry_run: bool, removed: bool) -> str:
    touched = [f"{change.path} {change.action}" for change in changes if change.action != "unchanged"]
    if not touched:
        return f"{client}: nothing to {'remove' if removed else 'do'}."
    return f"{client}: {'would be ' if dry_run else ''}{', '.join(touched)}."


def _next(client: str, launch: Launch, *, dry_run: bool, removed: bool) -> str:
    if dry_run:
        return "nothing was written; run it again without --dry-run"
    if removed:
        return "start a new session of the client"
    if client == CLAUDE_AI:
        return (
            f"upload {ARCHIVE} under Settings, Capabilities, Skills; Claude.ai starts no local servers, so there the "
            "skill works with what you paste"
        )
    if shutil.which(launch.command) is None:
        return f"`{launch.command}` is not on PATH here: install it there, or name another with --command"
    return CLIENTS[client].then
