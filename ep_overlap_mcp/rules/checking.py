"""Judge a request by every rule: verdict, all findings at once, what is undecided, effective settings."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.check import (
    CheckResult,
    ComponentVersion,
    Finding,
    FixOption,
    NamedSetting,
    OverlapState,
    Place,
    SettingValue,
    Undecided,
    Verdict,
)
from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.engine import Outcome, judge
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_DELAY, MODEL_SWITCH
from ep_overlap_mcp.surface import argument, given

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ep_overlap_mcp.results.check import MegatronJudgement
    from ep_overlap_mcp.rules.engine import Rule
    from ep_overlap_mcp.settings.effective import Effective
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.settings.setting import Origin, Setting
    from ep_overlap_mcp.stack import Release

_SEVERITIES = ("error", "warning", "info")
_NEWER = "EPO813"
_NEWER_NOTE = "newer than every release known here: judged like main"
_ACCEPTED_NOTE = f"{_NEWER_NOTE}, and accepted by the installed Megatron"


def check(request: Request, *, everything: bool = False, rules: Mapping[str, Rule] | None = None) -> CheckResult:
    """The answer for one configuration. `everything` includes settings that no one wrote but a rule read."""
    views = [View(request, release) for release in request.releases()]
    outcomes = outcomes_of(views, rules)
    findings = [_finding(o, views) for o in outcomes if o.state == "violated"]
    findings += _assumed_floors(outcomes)
    findings += _as_written(request, findings)
    findings.sort(key=lambda f: (_SEVERITIES.index(f.severity), f.rule))
    undecided = [_undecided(o) for o in outcomes if o.state == "undecided" and o.rule.unknown != "met"]
    undecided.sort(key=lambda u: (_SEVERITIES.index(u.severity), u.rule))
    verdict = _verdict(findings, undecided)
    return CheckResult(
        summary=_summary(request, views[0], verdict, findings, undecided),
        verdict=verdict,
        assume=request.assume,
        framework=request.framework,
        configuration=request.name,
        stack=_stack(request, views),
        overlap=overlap_state(views),
        findings=findings,
        undecided=undecided,
        settings=_settings(views[0], outcomes, everything=everything),
        rules_checked=len(outcomes),
    )


def outcomes_of(views: Sequence[View], rules: Mapping[str, Rule] | None = None) -> list[Outcome]:
    """How every rule in force came out, in the order of the codes."""
    chosen = all_rules() if rules is None else rules
    return [outcome for rule in chosen.values() if (outcome := judge(rule, views)) is not None]


def with_judgement(result: CheckResult, judgement: MegatronJudgement) -> CheckResult:
    """The result with the installed Megatron's word beside it; a disagreement is said first.

    What the installed Megatron rejects does not start, whatever the rules say: its verdict is `invalid`. What a release
    accepts that is newer than the rules is no longer open for that reason.
    """
    judged = (_accepted_release(result) if judgement.accepted else result).model_copy(update={"megatron": judgement})
    if judgement.agrees is not False:
        return judged
    if judgement.accepted:
        return judged.model_copy(
            update={"summary": f"DISAGREEMENT: the installed Megatron accepts this configuration. {judged.summary}"}
        )
    word = f"rejects this configuration ({judgement.exception} at {judgement.at})"
    summary = f"DISAGREEMENT: the installed Megatron {word}, so it is INVALID. By the rules alone: {result.summary}"
    return judged.model_copy(update={"verdict": "invalid", "summary": summary})


def _accepted_release(result: CheckResult) -> CheckResult:
    """The result where a release that is newer than the rules accepts the configuration: a note instead of a doubt."""
    if not any(u.rule == _NEWER for u in result.undecided):
        return result
    why = "the installed Megatron accepts the configuration; what is new in it at run time is not known to the rules"
    undecided = [
        u.model_copy(update={"severity": "info", "why": why}) if u.rule == _NEWER else u for u in result.undecided
    ]
    verdict = _verdict(result.findings, undecided)
    summary = result.summary.replace(_newer_note(), _ACCEPTED_NOTE).replace(
        f"{result.verdict.upper()} for", f"{verdict.upper()} for", 1
    )
    return result.model_copy(update={"undecided": undecided, "verdict": verdict, "summary": summary})


def overlap_state(views: Sequence[View]) -> OverlapState:
    """Requested and effective switches and dispatcher, as the first candidate release has them."""
    view = views[0]
    dispatcher = view.effective["model.moe_token_dispatcher_type"].value
    backend = view.effective["model.moe_flex_dispatcher_backend"].value
    return OverlapState(
        requested=any(_is_true(view.request.as_written, path) for path in (MODEL_SWITCH, BRIDGE_SWITCH)),
        effective=view.effective[MODEL_SWITCH].value is True,
        delay_wgrad_requested=any(_is_true(view.request.as_written, path) for path in (MODEL_DELAY, BRIDGE_DELAY)),
        delay_wgrad_effective=view.effective[MODEL_DELAY].value is True,
        dispatcher_requested=_text(_dispatcher_requested(view)),
        dispatcher_effective=_text(dispatcher),
        flex_backend=_text(backend) if dispatcher == "flex" else None,
    )


def _dispatcher_requested(view: View) -> Any:
    helper = view.effective.requested("bridge.apply_flex_dispatcher_backend")
    written = view.effective.requested("model.moe_token_dispatcher_type")
    if helper.value in ("deepep", "hybridep") and written.origin.order < helper.origin.order:
        return "flex"
    return written.value


def _is_true(settings: Mapping[str, Setting], path: str) -> bool:
    return path in settings and settings[path].value is True


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _verdict(findings: Iterable[Finding], undecided: Iterable[Undecided]) -> Verdict:
    if any(f.severity == "error" for f in findings):
        return "invalid"
    return "undetermined" if any(u.severity == "error" for u in undecided) else "valid"


def _finding(outcome: Outcome, views: Sequence[View]) -> Finding:
    rule = outcome.rule
    return Finding(
        rule=rule.code,
        name=rule.name,
        severity=outcome.severity,
        message=outcome.message,
        settings=[_named(s) for s in _telling(outcome.reads.values())],
        expected=outcome.expected,
        fix=_fix_options(rule, views[0]),
        applies_to=", ".join(sorted({c for clause in rule.clauses if (c := _range(clause.core, clause.bridge))})),
        enforced_by=list(dict.fromkeys(outcome.layers)),
        source=list(rule.sources),
        doc=f"epo://rules/{rule.code}",
    )


def _fix_options(rule: Rule, view: View) -> list[FixOption]:
    """At most three of each kind; one that two kinds come to is told once, as the first has it."""
    options: list[FixOption] = []
    for fix in rule.fixes:
        for changes in list(fix.options(view))[:3]:
            if all(option.set != changes for option in options):
                options.append(FixOption(set=dict(changes), safe=fix.safe, gives_up=fix.gives_up))
    return options


def _range(core: str, bridge: str) -> str:
    return f"megatron-core {core}" if core else f"megatron-bridge {bridge}" if bridge else ""


def _telling(reads: Iterable[Setting], most: int = 8) -> list[Setting]:
    """The settings worth showing with a finding: written ones first, defaults of no consequence last."""
    known = [s for s in reads if s.known and not (s.origin.kind == "default" and s.value in (None, False, []))]
    return sorted(known, key=lambda s: s.origin.kind == "default")[:most]


def _undecided(outcome: Outcome) -> Undecided:
    severity = "info" if outcome.rule.unknown == "noted" else outcome.severity
    needs = sorted(outcome.needs)
    why = outcome.why or f"{', '.join(needs)} {'is' if len(needs) == 1 else 'are'} not known"
    return Undecided(rule=outcome.rule.code, name=outcome.rule.name, severity=severity, needs=needs, why=why)


def _assumed_floors(outcomes: Iterable[Outcome]) -> list[Finding]:
    """One note for all version floors that every supported stack passes and that were taken as met."""
    taken = [o for o in outcomes if o.state == "undecided" and o.rule.unknown == "met"]
    if not taken:
        return []
    rule = all_rules()["EPO809"]
    needs = sorted(frozenset().union(*(o.needs for o in taken)))
    named = ", ".join(o.rule.name for o in taken)
    return [
        Finding(
            rule=rule.code,
            name=rule.name,
            severity="info",
            message=f"versions not given ({', '.join(needs)}); taken as met: {named}",
            settings=[],
            expected=f"give the versions, such as {given('stack', 'torch==2.9.0,transformer-engine==2.9.0')}",
            fix=[],
            applies_to="",
            enforced_by=[],
            source=list(rule.sources),
            doc=f"epo://rules/{rule.code}",
        )
    ]


_WITHOUT_SWITCH = "as written, without the switch"
# What only makes sense with overlap on: a text that has one of these without the switch fails as it is.
_NEEDS_OVERLAP = (
    MODEL_DELAY,
    BRIDGE_DELAY,
    "model.ep_overlap_early_attn_memory_release",
)


def _as_written(request: Request, found: Sequence[Finding]) -> list[Finding]:
    """What fails in the text as it is, where the question is a what-if that cures it."""
    stated = (request.as_written.get(path) for path in _NEEDS_OVERLAP)
    if request.assume == "as_written" or not any(s is not None and s.value is True for s in stated):
        return []
    plain = replace(request, settings=dict(request.as_written), assume="as_written")
    views = [View(plain, release) for release in plain.releases()]
    known = {finding.rule for finding in found}
    failing = [o for o in outcomes_of(views) if o.state == "violated" and o.severity == "error"]
    return [
        _finding(o, views).model_copy(update={"severity": "warning", "message": f"{_WITHOUT_SWITCH}: {o.message}"})
        for o in failing
        if o.rule.code not in known
    ]


def _settings(view: View, outcomes: Iterable[Outcome], *, everything: bool) -> dict[str, SettingValue]:
    """What was written, assumed or derived from that, as effective; with `everything` all that rules read."""
    paths = {path for path, s in view.request.settings.items() if s.written or s.origin.kind == "explicit"}
    paths |= {path for path, s in view.effective.writes.items() if s.origin.order >= 0 or s.origin.kind == "derived"}
    if everything:
        paths |= {path for outcome in outcomes for path in outcome.reads}
        paths |= set(view.effective.seen)
    relevant = (p for p in sorted(paths) if everything or not p.startswith("args."))
    return {path: _shown(view.effective, path) for path in relevant}


def _shown(effective: Effective, path: str) -> SettingValue:
    setting = effective[path]
    return SettingValue(
        value=setting.value if setting.known else None,
        origin=_place(setting.origin),
        earlier=[_place(s.origin) for s in setting.earlier if s.origin.kind != "default"],
    )


def _named(setting: Setting) -> NamedSetting:
    return NamedSetting(path=setting.path, value=setting.value, origin=_place(setting.origin))


@lru_cache(maxsize=2048)  # what-ifs about one text have its places in common
def _place(origin: Origin) -> Place:
    return Place(kind=origin.kind, file=origin.file, line=origin.line, text=origin.text, note=origin.note)


def _stack(request: Request, views: Sequence[View]) -> dict[str, ComponentVersion]:
    shown = {
        name: ComponentVersion(version=component.version, origin=component.origin)
        for name, component in request.stack.components.items()
    }
    releases = [view.release for view in views]
    if "megatron-core" not in shown:
        origin = "pinned by megatron-bridge" if request.stack.version("megatron-bridge") else "unknown"
        origin = "given" if request.stack.version("megatron-lm") else origin
        if 1 <= len(releases) < len(request.stack.releases(request.framework)):
            origin = "narrowed by a setting"
        shown["megatron-core"] = ComponentVersion(version=_one_core(releases), origin=origin)
    return shown


def _one_core(releases: Sequence[Release]) -> str | None:
    labels = [release.core.label for release in releases]
    return labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"


def _summary(
    request: Request, view: View, verdict: Verdict, findings: Sequence[Finding], undecided: Sequence[Undecided]
) -> str:
    errors = [f for f in findings if f.severity == "error"]
    warnings = sum(f.severity == "warning" for f in findings)
    parts = [_question(request), f"{verdict.upper()} for {_judged_for(request, view)}."]
    if errors:
        parts.append(f"{_count(len(errors), 'error')}: {', '.join(f.name for f in errors[:6])}.")
    open_errors = [u for u in undecided if u.severity == "error" and u.rule != _NEWER]
    if open_errors:
        needs = sorted({need for u in open_errors for need in u.needs})
        parts.append(f"{_count(len(open_errors), 'error rule')} undecided for want of {', '.join(needs[:6])}.")
    if warnings:
        parts.append(f"{_count(warnings, 'warning')}.")
    failing = [f.name for f in findings if f.message.startswith(_WITHOUT_SWITCH)]
    if failing:
        parts.append(f"As written, without the switch, it FAILS: {', '.join(failing)}.")
    if _asks_for_overlap(request) and view.effective[MODEL_SWITCH].value is not True:
        parts.append("Overlap is asked for but will NOT be on.")
    return " ".join(part for part in parts if part)


def _asks_for_overlap(request: Request) -> bool:
    return any(_is_true(request.settings, path) for path in (MODEL_SWITCH, BRIDGE_SWITCH))


def _question(request: Request) -> str:
    if request.assume == "as_written":
        return "Judged as written." if request.overlap_written else "Judged as written; it does not ask for overlap."
    if request.assume == "overlap" and not request.overlap_written:
        return "Overlap is not on in the text; judged as if it were switched on."
    return f"Judged under {given('assume', request.assume)}."


def _newer_note() -> str:
    return f"{_NEWER_NOTE}, which {argument('python')} would verify"


def _judged_for(request: Request, view: View) -> str:
    releases = request.releases()
    core = view.release.core
    newer = f" ({_newer_note()})" if view.release.newer_than_known else ""
    if len(releases) > 1:
        return f"every {_framework_name(request)} release from {_label(releases[0])} to {_label(releases[-1])}"
    if request.framework == "bridge":
        return f"megatron-bridge {view.release.bridge} (core {core.label}){newer}"
    return f"{_framework_name(request)} {core.label}{newer}"


def _framework_name(request: Request) -> str:
    return {"bridge": "megatron-bridge"}.get(request.framework, request.framework)


def _label(release: Release) -> str:
    return release.bridge or release.core.label


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
