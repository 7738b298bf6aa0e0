"""Answers as JSON: one object for one answer, a list for several."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.results.base import Result


def as_json(results: Sequence[Result]) -> str:
    """The same object that the tool returns, indented for reading."""
    objects = [result.model_dump(mode="json") for result in results]
    return json.dumps(objects[0] if len(objects) == 1 else objects, indent=2, ensure_ascii=False) + "\n"
