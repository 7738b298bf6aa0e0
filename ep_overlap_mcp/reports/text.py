"""Answers for people: short, the worst first, in colour where the caller asks for it."""

from __future__ import annotations

import io
from importlib import import_module
from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.results.base import Result


def as_text(results: Sequence[Result], *, color: bool = False, width: int = 110) -> str:
    """All answers as text, a blank line between two."""
    blocks = [_lines(result) for result in results]
    spaced = [line for block in blocks for line in (*block, Line(""))][:-1]
    return _colored(spaced, width) if color else "\n".join(line.text for line in spaced) + "\n"


def _lines(result: Result) -> list[Line]:
    """By the module of `text_of` that is named as the answer's own, loaded when it is wanted."""
    kind = type(result).__module__.rpartition(".")[2]
    return list(import_module(f"ep_overlap_mcp.reports.text_of.{kind}").lines(result))


def _colored(spaced: Sequence[Line], width: int) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    with console.capture() as capture:
        for line in spaced:
            console.print(Text(line.text, style=line.style), soft_wrap=True)
    return capture.get()
