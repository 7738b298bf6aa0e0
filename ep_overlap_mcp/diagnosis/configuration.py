"""A configuration as evidence: what it asks for, what the stack makes of it, what the rules hold against it.

It comes from the caller's files (`of_request`) or from what a run printed about itself (`as_printed`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.evidence import parsed
from ep_overlap_mcp.diagnosis.naming import PACKED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ep_overlap_mcp.diagnosis.evidence import Evidence, Printed
    from ep_overlap_mcp.results.check import Finding
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.sources.reading import Reading
    from ep_overlap_mcp.stack import Framework, Stack

WHOLE_TABLE = 150  # rows: Megatron-LM prints every argument, so what such a table lacks has its default
_DUMPS = ("table", "yaml")
_ASKED = ("override", "flag")
_STARTED = re.compile(r"schedules|combined_1f1b|train_step|forward_step|forward_backward|backward|dispatch|permut")
_READING = "EPO8"  # codes of rules about texts
_AT_START = {"megatron-core", "megatron-lm", "bridge"}
# arguments whose effect the same dump prints under the setting they set
_CONSUMED = {"model.num_layers_per_virtual_pipeline_stage", "model.num_virtual_stages_per_pipeline_rank"}


@dataclass(frozen=True)
class Configuration:
    """Settings `{canonical path: value}` and findings; a path that is missing is not known.

    `effective` may hold defaults as well: `stated` are the paths that a text, the caller or the stack itself wrote.
    `holds` names the rules that are known to be satisfied.
    """

    effective: Mapping[str, object]
    requested: Mapping[str, object] = field(default_factory=dict)
    stated: frozenset[str] = frozenset()
    framework: Framework | None = None
    findings: tuple[Finding, ...] = ()
    holds: frozenset[str] = frozenset()

    def errors(self) -> Iterator[Finding]:
        """Violated rules that raise, hang or corrupt."""
        return (finding for finding in self.findings if finding.severity == "error")


def of_request(request: Request) -> Configuration:
    """The configuration as the rules judge it."""
    from ep_overlap_mcp.rules import all_rules
    from ep_overlap_mcp.rules.checking import check
    from ep_overlap_mcp.settings.effective import Effective
    from ep_overlap_mcp.settings.fields import field_table

    result = check(request)
    stacks = [Effective(request, release) for release in request.releases()]
    paths = [path for path in {**field_table().by_path, **request.settings} if not path.startswith("args.")]
    found = {path: [effective[path] for effective in stacks] for path in paths}
    unsettled = {*(finding.name for finding in result.findings), *(rule.name for rule in result.undecided)}
    return Configuration(
        effective={path: s[0].value for path, s in found.items() if _agreed([one.value for one in s])},
        requested={path: s.value for path, s in request.settings.items() if s.known and not path.startswith("args.")},
        stated=frozenset(result.settings),
        framework=request.framework,
        findings=tuple(result.findings),
        holds=frozenset(rule.name for rule in all_rules().values() if rule.name not in unsettled),
    )


def as_printed(evidence: Evidence, file: str | None = None) -> Configuration | None:
    """What a run (or one file of it) printed of its settings, judged where a version of the stack is known.

    Dumps are effective, overrides and flags are what was asked for. None when nothing was printed.
    """
    rows = [row for row in evidence.printed if file in (None, row.line.file)]
    if not rows:
        return None
    dumped, asked = ({row.path: row.value for row in rows if row.form in forms} for forms in (_DUMPS, _ASKED))
    effective = dumped or asked
    framework = _framework(evidence, rows)
    stack = _stack(evidence)
    if not stack.version("megatron-core") and not stack.version("megatron-bridge"):
        return Configuration(effective, asked, frozenset(effective), framework)
    judged = of_request(_request(evidence, rows, stack, framework or "megatron-core"))
    return Configuration(
        effective={**effective, **judged.effective},
        requested=asked,
        stated=frozenset(effective),
        framework=framework,
        findings=tuple(_of_a_run(judged.findings, started=_has_started(evidence))),
        holds=judged.holds,
    )


def _of_a_run(findings: tuple[Finding, ...], *, started: bool) -> Iterator[Finding]:
    """Without those about how a text is written, and those that a run which trains has passed."""
    return (f for f in findings if not f.rule.startswith(_READING) and not (started and stops_at_start(f)))


def stops_at_start(finding: Finding) -> bool:
    """Whether only the checks at a run's start enforce the rule: a run that trains has passed them."""
    return finding.severity == "error" and set(finding.enforced_by) <= _AT_START


def _agreed(values: list[object]) -> bool:
    """Whether all releases that the stack may be know one and the same value."""
    from ep_overlap_mcp.settings.setting import UNKNOWN

    return values[0] is not UNKNOWN and all(value == values[0] for value in values)


def _framework(evidence: Evidence, rows: list[Printed]) -> Framework | None:
    """Bridge prints its version or a `comm_overlap` section, Megatron-LM a table of arguments."""
    if evidence.version("megatron-bridge") or any(row.section == "comm_overlap" for row in rows):
        return "bridge"
    if any(row.form == "table" for row in rows) or "megatron-lm" in evidence.stack:
        return "megatron-lm"
    return None


def _stack(evidence: Evidence) -> Stack:
    """The caller's versions, then those that the log prints."""
    from ep_overlap_mcp.stack import COMPONENTS, Component, Stack

    printed = {v.component: v.version.split("+")[0] for v in evidence.versions if parsed(v.version)}
    given = {**printed, **evidence.stack}
    known = {name: Component(None if text == "none" else text) for name, text in given.items() if name in COMPONENTS}
    if "megatron-lm" in known:
        known.setdefault("megatron-core", known["megatron-lm"])
    return Stack(known)


def _request(evidence: Evidence, rows: list[Printed], stack: Stack, framework: Framework) -> Request:
    from ep_overlap_mcp.hardware import find_gpu
    from ep_overlap_mcp.settings.request import build_request

    names = (evidence.stack.get("gpu"), *(v.version for v in evidence.versions if v.component == "gpu"))
    gpu = next((name for name in names if name and find_gpu(name)), None)
    return build_request([_reading(rows, framework)], stack=stack, assume="as_written", gpu=gpu)


def _reading(rows: list[Printed], framework: Framework) -> Reading:
    """What was printed, as a reader hands it over: dumps after what was asked for, so that they win.

    A run prints what its parser made of a text, so that a form no text would have is unknown, and never refused.
    """
    from ep_overlap_mcp.settings.fields import ValueNotAllowedError, field_table
    from ep_overlap_mcp.settings.setting import UNKNOWN
    from ep_overlap_mcp.sources.reading import Assignment, Reading

    reading = Reading("printed", rows[0].line.file, framework)
    if sum(row.form == "table" for row in rows) < WHOLE_TABLE:
        reading.partial.append("a log prints some settings only")
    for row in sorted(rows, key=lambda row: row.form in _DUMPS):
        known = field_table().get(row.path)
        if known is None or known.path in _CONSUMED or (known.path == PACKED and row.value is not True):
            continue
        try:
            value = known.parse(_plain(row.raw), command_line=False)
        except ValueNotAllowedError:
            value = UNKNOWN
        reading.assignments.append(Assignment(known.path, value, row.line.number, row.line.text, file=row.line.file))
    return reading


def _plain(raw: str) -> str:
    """The value as a text would write it: without quotes around it, members of enumerations by their names."""
    return re.sub(r"<\w{1,40}\.(\w{1,40}): [^>\n]{1,40}>", r"'\1'", raw.strip()).strip("'\"")


def _has_started(evidence: Evidence) -> bool:
    """Whether the run came past the checks at its start: it logged steps, or failed inside one."""
    frames = (frame for failure in evidence.failures for frame in failure.frames)
    return bool(evidence.iterations) or any(_STARTED.search(frame) for frame in frames)
