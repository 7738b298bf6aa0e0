"""The answer of `detect_wgrad_conflicts` and of `conflicts --format json`."""

from __future__ import annotations

from typing import Any, Literal

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
    matrix: list[Cell]
    way_out: list[WayOut]
