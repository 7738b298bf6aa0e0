"""Registers the server and the skill with a client: plans the text of each file, shows it, then writes."""

from __future__ import annotations

import difflib
import io
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.bundled import bundled
from ep_overlap_mcp.clients import jsonc, toml_text
from ep_overlap_mcp.clients.edits import Edit, SetupError, backup, read, refuse_dangling, write
from ep_overlap_mcp.clients.places import CLIENTS, Client, Launch, Scope, folders
from ep_overlap_mcp.results.setup import Action, FileChange, SetupResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER = "ep-overlap"
CLAUDE_AI = "claude-ai"
NAMES = (*CLIENTS, CLAUDE_AI)
ARCHIVE = f"{SERVER}-skill.zip"
_PYTHON = "EP_OVERLAP_PYTHON"
_STARTS = frozenset({"type", "command", "args"})  # what a client starts is ours in an entry of our name
_ADDRESSES = ("url", "httpUrl", "serverUrl")


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
    client does not have, or a file that cannot be read; then nothing is written. An entry that is there keeps what
    the user added to it. A skill that is not byte for byte ours is kept: beside the new one, and when ours goes.
    """
    places = {name: str(path) for name, path in folders(project or Path.cwd(), home or Path.home()).items()}
    where = _scope(client, scope)
    if python and where == "user" and not remove and _missing(python):
        raise SetupError(f"{_missing(python)}; give the Python of the training environment, or @NAME")
    launch = Launch(*_program(command, where), env={_PYTHON: python} if python else {})
    if client == CLAUDE_AI:
        edits = [_skill_edit(Path(places["project"]) / ARCHIVE, "archive", _archive(), remove=remove)]
    else:
        edits = _edits(CLIENTS[client], where, launch, places, remove=remove)
    for edit in edits:
        refuse_dangling(edit)
    return _answer(client, where, edits, launch, dry_run=dry_run, removed=remove)


def _missing(program: str) -> str:
    """What to say of a program that is not on this machine; a named environment is no program."""
    return "" if program.startswith("@") or shutil.which(program) else f"`{program}` is no program on this machine"


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


def _edits(client: Client, scope: Scope, launch: Launch, places: dict[str, str], *, remove: bool) -> list[Edit]:
    config = _with_comments(Path(client.servers[scope].format(**places)))
    skill = Path(client.skills[scope].format(**places)) / SERVER / "SKILL.md"
    return [
        _server_edit(config, client, launch, remove=remove),
        _skill_edit(skill, "skill", _skill(), remove=remove),
    ]


def _with_comments(path: Path) -> Path:
    """The `.jsonc` file that OpenCode also reads, where the user has that one."""
    other = path.with_suffix(".jsonc")
    return other if path.name == "opencode.json" and other.exists() and not path.exists() else path


def _server_edit(path: Path, client: Client, launch: Launch, *, remove: bool) -> Edit:
    """The client's file with the entry in or out, by the dialect of its name."""
    before = read(path)
    dialect = toml_text if path.suffix == ".toml" else jsonc
    try:
        text = before.decode("utf-8") if before is not None else None
        at = (*_table(text, client), SERVER)
        if remove:
            after = dialect.take(text, at) if text is not None else None
        elif text is not None and (there := dialect.get(text, at)) is not None:
            after = dialect.amend(text, at, _due(there, client.entry(launch)))
        else:
            after = dialect.put(text, at, client.entry(launch))
    except (jsonc.MalformedError, UnicodeDecodeError) as problem:
        raise SetupError(f"{path}: {problem}; it was left as it is, put it right first") from problem
    if after is None and path.is_symlink():
        after = "" if dialect is toml_text else "{}\n"  # the file at the far end is the user's
    return Edit(path, "server", before, after.encode("utf-8") if after is not None else None)


def _due(there: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What must change in an entry that is there: what it starts and our own variables; the rest is the user's."""
    if not isinstance(there, dict):
        raise jsonc.MalformedError(f"`{SERVER}` is not an object")
    if address := next((there[key] for key in _ADDRESSES if key in there), None):
        raise jsonc.MalformedError(f"`{SERVER}` is a server at {address}")
    due: dict[str, Any] = {}
    for key, value in entry.items():
        old = there.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            due[key] = {name: to for name, to in value.items() if old.get(name) != to}
        elif key not in there or (key in _STARTS and old != value):
            due[key] = value
    return due


def _table(text: str | None, client: Client) -> Sequence[str]:
    """Where servers stand: OpenCode 2's own form has one object more, and is kept where the file uses it."""
    nested = ("mcp", "servers")
    if text is not None and client.name == "opencode" and isinstance(jsonc.get(text, nested), dict):
        return nested
    return client.table


def _skill_edit(path: Path, what: Literal["skill", "archive"], ours: bytes, *, remove: bool) -> Edit:
    """Ours in or out; what is not byte for byte ours gets a name of its own, or stays when ours would go."""
    before = read(path)
    foreign = before not in (None, ours)
    if remove:
        return Edit(path, what, before, before if foreign else None)
    return Edit(path, what, before, ours, backup(path, before) if foreign else None)


def _skill() -> bytes:
    return (bundled("skills") / SERVER / "SKILL.md").read_bytes()


def _archive() -> bytes:
    """The skill as Claude.ai takes it: its folder at the top of a zip, the same bytes every time."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(f"{SERVER}/SKILL.md", (1980, 1, 1, 0, 0, 0)), _skill())
    return packed.getvalue()


def _answer(
    client: str, scope: Scope, edits: Sequence[Edit], launch: Launch, *, dry_run: bool, removed: bool
) -> SetupResult:
    changes = [_change(edit, removed=removed) for edit in edits]
    if not dry_run:
        for edit in edits:
            write(edit)
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


def _change(edit: Edit, *, removed: bool) -> FileChange:
    action: Action = "changed"
    if edit.before == edit.after:
        action = "kept" if removed and edit.what != "server" and edit.after is not None else "unchanged"
    elif edit.before is None:
        action = "created"
    elif edit.after is None:
        action = "removed"
    diff = "" if edit.what == "archive" else _diff(edit)
    backup = str(edit.backup) if edit.backup else None
    return FileChange(path=str(edit.path), action=action, what=edit.what, diff=diff, backup=backup)


def _diff(edit: Edit) -> str:
    before, after = ((text or b"").decode("utf-8", "replace").splitlines() for text in (edit.before, edit.after))
    name = str(edit.path)
    return "\n".join(difflib.unified_diff(before, after, name, name, lineterm="", n=2))


def _summary(client: str, changes: Sequence[FileChange], *, dry_run: bool, removed: bool) -> str:
    nothing = f"nothing to {'remove' if removed else 'do'}"
    touched = [f"{change.path} {change.action}" for change in changes if change.action not in ("unchanged", "kept")]
    done = f"{'would be ' if dry_run else ''}{', '.join(touched)}" if touched else ""
    kept = [f"{change.path} is not what this wrote, and stays" for change in changes if change.action == "kept"]
    moved = [f"what was in {c.path} is not ours: kept as {c.backup}" for c in changes if c.backup]
    return f"{client}: {'; '.join(filter(None, [done, *kept, *moved])) or nothing}."


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
    if missing := _missing(launch.env.get(_PYTHON, "@")):
        return f"{missing}: where the server starts it must be one, or name another with --python"
    return CLIENTS[client].then
