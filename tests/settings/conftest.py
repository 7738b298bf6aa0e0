"""Requests and effective settings from plain mappings, each input visible in its test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.settings.effective import Effective
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import parse_stack

if TYPE_CHECKING:
    from collections.abc import Callable


def reading(settings: dict[str, Any], *, file: str = "job.json", partial: bool = False) -> Reading:
    """A text that states these settings; bare names are fields of `model`, `...` is a value it leaves open."""
    made = Reading("json", file, framework="megatron-core")
    for line, (name, value) in enumerate(settings.items(), start=1):
        path = name if "." in name else f"model.{name}"
        made.add(path, UNKNOWN if value is ... else value, line=line, text=f"{name}={value}")
    if partial:
        made.partial.append("the recipe is imported")
    return made


@pytest.fixture
def text() -> Callable[..., Reading]:
    """`text({"num_layers": 4}, file="a.json", partial=True)`."""
    return reading


@pytest.fixture
def effective() -> Callable[..., Effective]:
    """`effective({...}, stack="megatron-lm==0.18.2", gpu="GB200")`: what the first release judged runs with."""

    def of(
        settings: dict[str, Any], *, stack: str = "megatron-core==0.16.1", partial: bool = False, **given: Any
    ) -> Effective:
        given.setdefault("assume", "as_written")
        request = build_request([reading(settings, partial=partial)], stack=parse_stack(stack), **given)
        return Effective(request, request.releases()[0])

    return of
