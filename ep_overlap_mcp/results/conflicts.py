"""The answer of `detect_wgrad_conflicts` and of `conflicts --format json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result
from ep_overlap_mcp.results.check import Finding, Undecided, Verdict


class Cell(Record):
    """Delayed wgrad with one CUDA-graph implementation, scope and Transformer Engine version."""

    cuda_graph_impl: str
    scope: list[str]
    transformer_engine: str
    allowed: Literal["yes", "no", "unknown"]
    rules: list[str]
    why: str


class Row(Record):
    """One graph implementation and scope: from which Transformer Engine on delayed wgrad is allowed, null if none.

    `rules` are those that say no to some version, or are open.
    """

    cuda_graph_impl: str
    scope: list[str]
    allowed_from: str | None
    verdict: Literal["yes", "no", "unknown", "depends on the version"]
    rules: list[str]


class WayOut(Record):
    """Changes that end the conflicts, what they keep and what they give up."""

    changes: dict[str, Any]
    keeps: list[str]
    gives_up: list[str]


class ConflictsResult(Result):
    """Delayed weight gradients against Transformer Engine, CUDA graphs, fusion, bias and gradient reduction."""

    configuration: str | None = None
    verdict: Verdict
    findings: list[Finding]
    undecided: list[Undecided]
    rows: list[Row] = Field(default_factory=list)
    matrix: list[Cell]
    way_out: list[WayOut]
