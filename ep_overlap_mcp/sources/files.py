"""Opening a source: under the allowed roots, a regular file, small, text. What a refused file holds is never shown."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ep_overlap_mcp.refusal import no_file
from ep_overlap_mcp.sources.reading import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST = 2 * 1024 * 1024

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig"))


def open_text(path: str | Path, roots: Sequence[Path] | None = None) -> str:
    """The text of a file; links are resolved before the place is judged.

    `roots` are the directories that may be read, the working directory when none are given. Raises UnreadableError
    with the file's name, what is wrong and what to do.
    """
    return decoded(_bytes(allowed(Path(path), roots), str(path)), str(path))


def decoded(content: bytes, name: str) -> str:
    """Text of UTF-8 or, with a byte-order mark, UTF-16; comments in another encoding are taken as Latin-1."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _strictly(content, encoding, name)
    if b"\0" in content:
        raise UnreadableError(f"{name}: not text (it holds NUL bytes); name the configuration itself")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _with_foreign_comments(content, name)


def allowed(path: Path, roots: Sequence[Path] | None) -> Path:
    """The real path behind all links, when it lies under one of the roots; else UnreadableError."""
    try:
        real = path.expanduser().resolve()
        permitted = [Path(root).expanduser().resolve() for root in roots or [Path.cwd()]]
    except (OSError, RuntimeError, ValueError):
        raise UnreadableError(f"{path}: not found (the path cannot be resolved); name an existing file") from None
    if not any(real == root or root in real.parents for root in permitted):
        raise UnreadableError(
            f"{path}: outside the allowed directories ({', '.join(map(str, permitted))}); move it there, paste "
            "its text, or start the server with that directory allowed"
        )
    return real


def _bytes(path: Path, name: str) -> bytes:
    try:
        # A pipe would block the open itself, hence O_NONBLOCK before the kind of file is known.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            _refuse_what_is_no_small_file(os.fstat(file.fileno()), name)
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise UnreadableError(f"{name}: not found; check the path") from None
    except IsADirectoryError:
        raise UnreadableError(f"{name}: a directory; name a file in it") from None
    except OSError as failure:
        raise UnreadableError(f"{name}: cannot be read ({failure.strerror or 'system error'})") from None
    if len(content) > LARGEST:
        raise UnreadableError(_too_large(name))
    return content


def _refuse_what_is_no_small_file(status: os.stat_result, name: str) -> None:
    if wrong := no_file(status):
        remedy = "name a file in it" if wrong == "a directory" else "name a configuration file"
        raise UnreadableError(f"{name}: {wrong}; {remedy}")
    if status.st_size > LARGEST:
        raise UnreadableError(_too_large(name))


def _too_large(name: str) -> str:
    return (
        f"{name}: too large for a configuration (more than {LARGEST // 2**20} MB); "
        "name the configuration, not a log, trace or checkpoint"
    )


def _strictly(content: bytes, encoding: str, name: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise UnreadableError(f"{name}: not text (broken {encoding}); save it as UTF-8") from None


def _with_foreign_comments(content: bytes, name: str) -> str:
    """Bytes outside UTF-8 are taken as Latin-1 where they stand in comments, and are refused anywhere else."""
    return "\n".join(_line(line, number, name) for number, line in enumerate(content.split(b"\n"), 1))


def _line(line: bytes, number: int, name: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as failure:
        if b"#" in line[: failure.start]:
            return line.decode("latin-1")
        raise UnreadableError(f"{name}: not text (line {number} is not UTF-8); save it as UTF-8") from None
