"""Edits of a user's files: planned as a file's content before and after, then written, with nothing lost."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ep_overlap_mcp.refusal import Refusal


class SetupError(Refusal):
    """A client, scope or file that this cannot be set up with. Exit code 2."""


@dataclass(frozen=True)
class Edit:
    """A file's content before and after, None where it does not exist; `backup` keeps what was not ours."""

    path: Path
    what: Literal["server", "skill", "archive"]
    before: bytes | None
    after: bytes | None
    backup: Path | None = None


def write(edit: Edit) -> None:
    """Write through links, whole or not at all. Of a link that is removed the far end stays; a removed skill takes its
    folder along when nothing else is in it. Raises SetupError.
    """
    try:
        if edit.after is None:
            _remove(edit)
        elif edit.after != edit.before:
            if edit.backup is not None and edit.before is not None:
                _write_whole(edit.backup, edit.before)
            _write_whole(edit.path.resolve(), edit.after)
    except OSError as problem:
        raise SetupError(f"{edit.path}: cannot be written: {problem.strerror}; it was left as it is") from problem


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as written:
        written.write(content)
    if path.exists():
        shutil.copymode(path, written.name)
    else:
        Path(written.name).chmod(0o644)
    Path(written.name).replace(path)


def refuse_dangling(edit: Edit) -> None:
    """Nothing is made at the far end of a link that leads nowhere: what should be there is not known."""
    for place in (edit.path, *edit.path.parents):
        if edit.after is not None and place.is_symlink() and not place.exists():
            raise SetupError(f"{place} is a link to {place.readlink()}, which does not exist; make that, or unlink it")


def backup(path: Path, content: bytes | None) -> Path:
    """The first name beside `path` that is free, or that holds the same already."""
    names = (path.with_name(f"{path.name}.bak{number or ''}") for number in itertools.count())
    return next(name for name in names if read(name) in (None, content))


def read(path: Path) -> bytes | None:
    """What the file holds, None where there is none; SetupError where it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise SetupError(f"{path}: cannot be read: {problem.strerror}; nothing was written") from problem


def _remove(edit: Edit) -> None:
    edit.path.unlink(missing_ok=True)
    folder = edit.path.parent
    if edit.what == "skill" and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
