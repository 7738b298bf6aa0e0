"""What a smoke run was planned to do, what it is doing, and what it showed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result

Status = Literal["queued", "running", "done", "failed", "cancelled", "lost"]
OverlapVerdict = Literal["yes", "no", "unknown"]
NumericsVerdict = Literal["unchanged", "changed", "unknown"]
SpeedVerdict = Literal["faster", "slower", "no_difference_shown", "not_measured"]


class Reduction(Record):
    """A setting that the run has smaller, or stands in for. `before` is what the configuration asks for."""

    setting: str
    before: Any = Field(description="null: unset, `unknown`: the text does not say")
    to: Any
    why: str | None = None


class Plan(Record):
    """What is kept of the configuration and what is not; known before anything starts."""

    kept: dict[str, Any]
    reduced: list[Reduction]
    not_tested: list[str]
    emulated: list[str]
    variants: list[str]
    steps: int = Field(description="steps whose numbers are compared")
    pairs: int = Field(description="timed pairs a variant; 0: speed is not asked")
    microbatches: int | None = Field(default=None, description="of a step; with one, nothing can overlap")


class SmokePlanResult(Result):
    """A plan that has not been started."""

    plan: Plan
    engine: str
    device: str
    world_size: int
    stack: dict[str, str | None]
    memory_gib: float = Field(description="estimated for all ranks together, or a GPU where ranks are on GPUs")
    limit_s: float
    findings: list[str] = Field(description="what the check holds against the configuration; runs only by force")
    next: str


class OverlapRan(Record):
    """Whether communication and computation were really run by the combined schedule, at the same time."""

    verdict: OverlapVerdict
    evidence: list[str]


class Numerics(Record):
    """Whether losses, gradients and weights are those of the baseline, on equal data from equal weights."""

    verdict: NumericsVerdict
    loss_equal: bool | None
    max_abs_grad_diff: float | None
    steps: int = Field(description="steps compared on every rank")
    evidence: list[str]


class Speed(Record):
    """Baseline time by variant time of interleaved pairs: above 1 the variant is faster."""

    verdict: SpeedVerdict
    ratio: float | None = Field(description="median over the pairs")
    ci95: tuple[float, float] | None = Field(description="bootstrap interval of that median")
    pairs: int
    applies_to: str
    evidence: list[str]


class VariantAnswers(Record):
    """The three answers for one of several variants."""

    overlap_ran: OverlapRan
    numerics: Numerics
    speed: Speed


class Hidden(Record):
    """Communication covered by computation in the timed steps: medians, the rank with least cover."""

    rank: int
    comm_ms: float
    hidden_ms: float
    hidden_pct: float | None
    traces: list[str] = Field(default_factory=list)


class Failure(Record):
    """Why a run did not end well, and the rank that did not do its part."""

    cause: str
    rank: int | None
    evidence: list[str]


class SmokeResult(Result):
    """A smoke run: where it stands, and the three answers, each with its evidence."""

    id: str
    status: Status
    elapsed_s: float
    pending_s: float | None = Field(default=None, description="of elapsed_s: in the queue of a scheduler")
    eta_s: float | None
    progress: str
    plan: Plan
    engine: str
    device: str
    world_size: int
    stack: dict[str, str | None]
    emulated: list[str]
    overlap_ran: OverlapRan
    numerics: Numerics
    speed: Speed
    variants: dict[str, VariantAnswers] = Field(default_factory=dict, description="when there are several")
    hidden: Hidden | None
    failure: Failure | None
    logs: str = Field(description="folder with the log, the request, stacks and result.json")
    next: str


class SmokeReport(Result):
    """A run with all that it left: per-rank rows, pairs, files and the end of the log."""

    run: SmokeResult
    schedule: list[str]
    steps: list[str]
    pairs: dict[str, list[float]] = Field(description="baseline by variant time of each pair")
    files: dict[str, int] = Field(description="bytes by name")
    log_tail: list[str]


class RunLine(Record):
    """One run in a list."""

    id: str
    status: Status
    started: str
    elapsed_s: float
    engine: str
    summary: str


class SmokeList(Result):
    """The runs on this host, the newest first."""

    runs: list[RunLine]


class SweepPoint(Record):
    """One combination of a sweep: a row of its table."""

    settings: dict[str, str]
    run: str | None
    status: Literal["refused", "waiting", "queued", "running", "done", "failed", "cancelled", "lost"]
    overlap_ran: OverlapVerdict = "unknown"
    numerics: NumericsVerdict = "unknown"
    speed: SpeedVerdict = "not_measured"
    ratio: float | None = None
    ci95: tuple[float, float] | None = None
    hidden_pct: float | None = None
    applies_to: str = Field(default="", description="what the speed is a speed of")
    elapsed_s: float | None = None
    world_size: int | None = None
    note: str = Field(default="", description="why it was refused, or failed")


class SweepResult(Result):
    """Several runs of one request, side by side."""

    id: str
    points: list[SweepPoint]
    applies_to: str
    next: str
