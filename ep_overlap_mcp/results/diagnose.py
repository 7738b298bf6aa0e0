"""What `diagnose_run` and `diagnose` answer."""

from __future__ import annotations

from typing import Any, Literal

from ep_overlap_mcp.results.base import Record, Result

Confidence = Literal["confirmed", "likely", "possible"]


class EvidenceLine(Record):
    """A line of the log that points to a cause; `line` counts from 1."""

    file: str
    line: int
    text: str


class Cause(Record):
    """One cause of the registry, with the test that confirms it and the rules (by name) it concerns."""

    cause: str
    title: str
    confidence: Confidence
    evidence: list[EvidenceLine]
    test: str
    fix: str
    rules: list[str]


class RuledOut(Record):
    """A cause that was considered and does not hold, and why."""

    cause: str
    why: str


class ChangedSetting(Record):
    """A setting that differs between two configurations; None stands for not set."""

    path: str
    before: Any
    after: Any


class FirstFailure(Record):
    """The failure the others followed; `rank` is None where the log does not say."""

    rank: int | None
    file: str
    line: int


class DiagnoseResult(Result):
    """Causes, most probable first; `confirmed` needs a line that only this cause explains."""

    causes: list[Cause]
    ruled_out: list[RuledOut]
    changed: list[ChangedSetting]
    first_failure: FirstFailure | None
