"""The answer of `propose_overlap_config` and of `propose --format json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result
from ep_overlap_mcp.results.check import MegatronJudgement, Verdict


class Change(Record):
    """One setting that must differ from the text; `to` null removes it."""

    path: str
    before: Any = None
    to: Any = None
    rules: list[str]
    safe: bool
    gives_up: str | None = None


class Mended(Record):
    """An edit of the text itself that leaves no choice, part of the patch; `line` null stands for the whole file.

    `path` is the setting that it is about.
    """

    file: str
    line: int | None = None
    before: str
    to: str
    path: str | None = None
    rule: str


class Patch(Record):
    """The changes in the user's own dialect: a unified diff where the places are known, else what to add."""

    format: Literal["diff", "overrides", "flags", "python", "yaml"]
    text: str
    verified: bool


class Advice(Record):
    """A warning that stays after the changes: legal, but it costs the benefit or is known to go wrong.

    `path` and `value` are what to set about it, null where no setting helps; never part of `changes`.
    """

    path: str | None = None
    value: Any = None
    why: str
    rule: str


class DispatcherCandidate(Record):
    """A dispatcher for this hardware and stack: what speaks for it, what it needs, the A/B that would decide."""

    dispatcher: str
    backend: str | None = None
    supported: Literal["yes", "no", "unknown"]
    why: str
    evidence: list[str]
    needs: list[str]
    ab_test: str


class Step(Record):
    """One A/B of the order of work: everything but these settings stays fixed."""

    name: str
    settings: dict[str, Any]
    compare_with: str | None = None
    why: str


class ProposeResult(Result):
    """The smallest change that makes overlap legal, as a patch, with alternatives and dispatcher candidates."""

    assume: Literal["as_written", "overlap", "overlap_delay_wgrad"]
    configuration: str | None = None
    verdict_before: Verdict
    verdict_after: Verdict
    changes: list[Change]
    mends: list[Mended] = Field(default_factory=list)
    alternatives: list[list[Change]]
    blocked_by: list[str]
    patch: Patch | None
    advice: list[Advice] = Field(default_factory=list)
    dispatchers: list[DispatcherCandidate]
    plan: list[Step]
    megatron: MegatronJudgement | None = None
    next: str
