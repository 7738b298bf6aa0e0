"""What an exception says: of the configuration, or of the library."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path

TEXT_LIMIT = 2_000  # characters of an exception's text


class NotJudged(Exception):  # noqa: N818
    """A layer that cannot judge here; the text says why."""


def library_fault(problem: BaseException) -> str | None:
    """Why an exception says nothing about the configuration; None when it is Megatron's verdict on it.

    Recognised by type and by the frame that raised. Seen: a missing Transformer Engine's version (None) compared
    in `is_te_min_version` of Megatron-Core 0.14 to 0.16.1; `warnings` used without its import in
    model_parallel_config.py of 0.15; names of fused operations that do not exist without Transformer Engine in
    0.14 to 0.16.1; CUDA asked for its device in a build of torch without it.
    """
    function_name, file = frames(problem)[-1][:2]
    if isinstance(problem, TypeError) and function_name == "is_te_min_version":
        return "Transformer Engine is not installed, and this Megatron compares its missing version"
    if isinstance(problem, NameError):
        return f"Megatron uses the name {problem.name!r} without importing it"
    if isinstance(problem, ImportError):
        return f"Megatron imports what is not installed here: {problem}"
    if file.startswith(str(Path(sys.modules["torch"].__file__ or "").parent) + os.sep):
        return f"torch failed, not Megatron's validation: {told(problem)}"
    return None


def frames(problem: BaseException) -> list[tuple[str, str, int]]:
    """Function, file and line of each frame, outermost first."""
    found = []
    trace = problem.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append((code.co_name, code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found or [("", "", 0)]


def place(problem: BaseException) -> str | None:
    """`megatron/core/...py:line` of the innermost frame that is Megatron's."""
    roots = [str(Path(folder).parent) + os.sep for folder in getattr(sys.modules.get("megatron"), "__path__", [])]
    for _, file, line in reversed(frames(problem)):
        for root in roots:
            if file.startswith(f"{root}megatron{os.sep}"):
                return f"{file[len(root) :]}:{line}"
    return None


def told(problem: BaseException) -> str:
    """Type and text on one line; a bare assertion is told by its source line."""
    text = " ".join(str(problem).split())
    if not text:
        _, file, line = frames(problem)[-1]
        text = linecache.getline(file, line).strip() or "no text"
    return f"{type(problem).__name__}: {text}"[:TEXT_LIMIT]
