"""What every refusal of bad input has in common."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

_LONGEST = 2000  # characters: a refusal may quote what it was given, which has no end


class Refusal(ValueError):  # noqa: N818 - a refusal is an answer, and each kind names what is refused
    """The tool could not do its work; the text says what is wrong, where, and what to do. Exit code 2.

    Of a long text the middle is left out: what is refused stands first, the remedy last.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def no_file(status: os.stat_result) -> str | None:
    """What is wrong with a path that is to be read as a file: a pipe, a device or a socket may have no end."""
    if stat.S_ISDIR(status.st_mode):
        return "a directory"
    return None if stat.S_ISREG(status.st_mode) else "not a regular file"
