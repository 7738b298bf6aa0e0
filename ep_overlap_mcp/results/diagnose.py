"""What `diagnose_run` and `diagnose` answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result

Confidence = Literal["confirmed", "likely", "possible"]
Ended = Literal["completed", "went on", "failed", "not said"]


class EvidenceLine(Record):
    """What points to a cause: a line of a log (from 1), the place of a setting, or null for a run or a profile."""

    file: str
    line: int | None
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
    """A setting that differs between two configurations; None stands for not set or not known."""

    path: str
    before: Any
    after: Any


class ChangedTogether(Record):
    """Settings that changed for one reason, with the values after."""

    settings: dict[str, Any]
    why: str


class Experiment(Record):
    """One A/B run: a configuration with some settings of the other, and what either outcome says."""

    base: Literal["before", "after"]
    settings: dict[str, Any]
    compares: str


class StepTime(Record):
    """Median step time after by before, with its 95 % interval; within one run `since` is where it changed."""

    ratio: float
    low: float
    high: float
    verdict: Literal["slower", "faster", "no difference shown"]
    steps_before: int
    steps_after: int
    since: str | None = None


class FirstFailure(Record):
    """The failure the others followed; `rank` is None where the log does not say."""

    rank: int | None
    file: str
    line: int | None


class SymptomChoice(Record):
    """A symptom that can be named (`--symptom`, the tool's `symptom`), and what tells its causes apart."""

    symptom: str
    evidence: str
    causes: list[str]


class DiagnoseResult(Result):
    """Causes, most probable first; `confirmed` needs a line that only this cause explains.

    `ended` is what the logs say of the run; a failure that it went on after is `possible` at most. `seen` are facts,
    whatever the cause: how it ended, what it went on after, what smoke runs showed.
    `symptoms` are there where nothing is recognised and no symptom is named: those that can be, the likeliest first.
    Between two configurations or runs also the intended change, its confounders, and the A/Bs that tell them apart.
    """

    ended: Ended = "not said"
    seen: list[EvidenceLine] = Field(default_factory=list)
    causes: list[Cause]
    ruled_out: list[RuledOut]
    changed: list[ChangedSetting]
    intended: ChangedTogether | None = None
    confounders: list[ChangedTogether] = Field(default_factory=list)
    experiments: list[Experiment] = Field(default_factory=list)
    step_time: StepTime | None = None
    first_failure: FirstFailure | None
    symptoms: list[SymptomChoice] = Field(default_factory=list)
