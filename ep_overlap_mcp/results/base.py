"""What every answer has in common.

An answer is in the words of whoever asked from the start; no writer rewrites what it is handed.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A part of an answer: immutable, and strict about its own fields so that a writer's slip shows."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Result(Record):
    """An answer, complete in itself: the first field says in a sentence or two what follows from it."""

    summary: str
