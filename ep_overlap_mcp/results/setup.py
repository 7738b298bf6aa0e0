"""The answer of `setup`: which files were, or with `--dry-run` would be, written for a client."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result

Action = Literal["created", "changed", "unchanged", "removed", "kept"]


class FileChange(Record):
    """One file and what becomes of it; everything that is not in the diff stays byte for byte.

    `kept` is a file that would be removed if it were ours; `backup` is where what was not ours went.
    """

    path: str
    action: Action
    what: Literal["server", "skill", "archive"]
    diff: str = Field(default="", description="unified diff; empty for an archive and where nothing changes")
    backup: str | None = None


class SetupResult(Result):
    """What `setup CLIENT` did, or would do."""

    client: str
    scope: Literal["project", "user"]
    dry_run: bool
    removed: bool
    files: list[FileChange]
    command: list[str] = Field(description="what the client will start")
    next: str
