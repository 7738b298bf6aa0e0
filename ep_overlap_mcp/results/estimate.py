"""How much EP overlap could gain at most, before a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result


class Assumption(Record):
    """A value the estimate rests on and where it came from."""

    name: str
    value: float | int | str | bool | None
    origin: str = Field(description="`given`, `default`, `measured`, `derived: …` or `published: …`")


class PublishedAB(Record):
    """A published run with overlap off and on, and what this model says about it."""

    case: str
    source: str
    ceiling: float
    band: tuple[float, float]
    actual: float
    realised: float = Field(description="time saved as a share of the modelled communication")


class EstimateResult(Result):
    """A ceiling and a band of speedups (1.10 is a tenth faster); never a point."""

    verdict: Literal["worth_an_ab", "not_worth_it", "unknown"]
    ceiling: float | None
    band: tuple[float, float] | None
    comm_ms: float | None = Field(description="expert-parallel communication per step and rank")
    overlappable_ms: float | None = Field(description="the part the schedule could cover at best")
    assumptions: list[Assumption]
    error_table: list[PublishedAB]
