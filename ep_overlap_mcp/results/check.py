"""The answer of `check_overlap_config` and of `check --format json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result

Severity = Literal["error", "warning", "info"]
Verdict = Literal["valid", "invalid", "undetermined"]


class Place(Record):
    """Where a value came from: explicit with file and line, default, derived, assumed or unknown."""

    kind: Literal["explicit", "default", "derived", "assumed", "unknown"]
    file: str | None = None
    line: int | None = None
    text: str | None = None
    note: str | None = None


class SettingValue(Record):
    """A setting's effective value; an unknown one is null with an origin of kind unknown."""

    value: Any
    origin: Place
    earlier: list[Place] = Field(default_factory=list)


class NamedSetting(SettingValue):
    """A setting shown with a finding."""

    path: str


class FixOption(Record):
    """One set of changes that satisfies the rule; null removes a setting."""

    set: dict[str, Any]
    safe: bool
    gives_up: str | None = None


class Finding(Record):
    """A rule that is violated."""

    rule: str
    name: str
    severity: Severity
    message: str
    settings: list[NamedSetting]
    expected: str
    fix: list[FixOption]
    applies_to: str
    enforced_by: list[str]
    source: list[str]
    doc: str


class Undecided(Record):
    """A rule that cannot be decided, with the settings that would decide it. Never a pass."""

    rule: str
    name: str
    severity: Severity
    needs: list[str]
    why: str


class ComponentVersion(Record):
    """A version judged against; null is unknown or, with origin `given`, known to be absent."""

    version: str | None
    origin: str


class OverlapState(Record):
    """What the text asks for and what the stack will really do."""

    requested: bool
    effective: bool
    delay_wgrad_requested: bool
    delay_wgrad_effective: bool
    dispatcher_requested: str | None
    dispatcher_effective: str | None
    flex_backend: str | None


class MegatronJudgement(Record):
    """What the installed Megatron itself said, and whether the rules agree with it.

    `stand_ins` names what was not the configuration's: packages that an empty one stood in for, settings that are
    unknown and were judged both ways or with a value of the judge's own.
    """

    judged: bool
    accepted: bool | None
    exception: str | None = None
    at: str | None = None
    agrees: bool | None = None
    why: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    stand_ins: list[str] = Field(default_factory=list)


class CheckResult(Result):
    """Verdict, all findings, undecided rules and effective settings of one configuration."""

    verdict: Verdict
    assume: Literal["as_written", "overlap", "overlap_delay_wgrad"]
    framework: Literal["megatron-core", "megatron-lm", "bridge"]
    configuration: str | None = None
    stack: dict[str, ComponentVersion]
    overlap: OverlapState
    findings: list[Finding]
    undecided: list[Undecided]
    settings: dict[str, SettingValue]
    megatron: MegatronJudgement | None = None
    rules_checked: int = Field(ge=0)
