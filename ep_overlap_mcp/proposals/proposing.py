"""One answer to "what is the smallest change": search, patch, alternatives, dispatchers and the order of work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.proposals.additions import LF_COMMAND, mend_by_hand, to_add
from ep_overlap_mcp.proposals.dispatchers import candidates
from ep_overlap_mcp.proposals.judging import Judge, undecided_error, verdict_of
from ep_overlap_mcp.proposals.patch import attempts, unified_diff
from ep_overlap_mcp.proposals.plan import order_of_work
from ep_overlap_mcp.proposals.search import REQUESTED, Found, Proposal, is_switch, judge_of, search, switched_on
from ep_overlap_mcp.proposals.verifying import verified
from ep_overlap_mcp.results.propose import Advice, Change, Patch, ProposeResult
from ep_overlap_mcp.rules import engine, find_rule
from ep_overlap_mcp.rules.checking import check
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.stack import Stack
from ep_overlap_mcp.surface import argument, tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ep_overlap_mcp.proposals.mending import Case
    from ep_overlap_mcp.proposals.verifying import Reread
    from ep_overlap_mcp.results.check import Verdict
    from ep_overlap_mcp.results.propose import Mended
    from ep_overlap_mcp.rules.engine import Outcome
    from ep_overlap_mcp.settings.request import Request

_MOST_ALTERNATIVES = 3
_UNKNOWN_TO_VERSION = "setting-unknown-to-version"
_UNREAD_RELEASE = "patch-release-known-to-the-rules"
_THE_REST = "the patch makes the other changes"
_HARDWARE = frozenset({"world-divides-parallelism", "experts-divide-by-ep", "layers-divide-into-stages"})


def proposal(case: Case, *, texts: Mapping[str, str], reread: Reread) -> ProposeResult:
    """The proposal for one configuration of a question, its text mended where that leaves no choice.

    `texts` are the files by name as they are; `reread` reads edited ones, to verify the patch.
    """
    request = case.request
    judge = judge_of(request)
    before: Verdict = "invalid" if case.mends else verdict_of(judge.outcomes(request))
    found = search(request, alternatives=_MOST_ALTERNATIVES, judge=judge)
    chosen = found.best or found.partial
    if chosen is None or not (found.best or chosen.changes or case.mends):
        return _nothing_found(request, before, found, judge)
    changed, outcomes = judge.changed(chosen.changes), judge.after(chosen.changes)
    after = verdict_of(outcomes)
    notes = [*([] if found.best else [_THE_REST]), *(_of_carriage_returns(m) for m in case.mends if m.line is None)]
    return ProposeResult(
        summary=_summary(case, before, after, chosen, outcomes),
        assume=request.assume,
        configuration=request.name,
        verdict_before=before,
        verdict_after=after,
        changes=_changes(request, chosen, case.mends),
        mends=_beside(case, chosen),
        alternatives=[_changes(request, other) for other in _choices(request, found)],
        blocked_by=list(found.blocked_by),
        patch=_patch(case, chosen.changes, texts, reread, judge),
        advice=_advice(changed, outcomes),
        dispatchers=candidates(changed, judge),
        plan=order_of_work(request, chosen) if found.best else [],
        next="; ".join(
            [_next(after, outcomes) if found.best else _next_when_blocked(request, found), *notes],
        ),
    )


def _nothing_found(request: Request, before: Verdict, found: Found, judge: Judge) -> ProposeResult:
    """Why nothing helps; where only delayed weight gradients stand in the way, plain overlap as the way out."""
    plain = None
    if request.assume == "overlap_delay_wgrad":
        plain = search(replace(request, assume="overlap"), alternatives=0, judge=judge).best
    others = [_without_delay(request, plain)] if plain is not None else []
    return ProposeResult(
        summary=_why_nothing(request, found, judge, others),
        assume=request.assume,
        configuration=request.name,
        verdict_before=before,
        verdict_after=before,
        changes=[],
        alternatives=[_changes(request, other) for other in others],
        blocked_by=list(found.blocked_by),
        patch=None,
        advice=[],
        dispatchers=[],
        plan=[],
        next=_next_when_blocked(request, found, others=others),
    )


def _why_nothing(request: Request, found: Found, judge: Judge, others: Sequence[Proposal]) -> str:
    what = "EP overlap with delayed weight gradients" if request.assume == "overlap_delay_wgrad" else "EP overlap"
    said = {o.rule.name: o.message for o in judge.after(switched_on(request).changes)}
    why = [f"{name} ({said[name]})" if said.get(name) else name for name in found.blocked_by]
    text = f"None of the changes that the rules know makes {what} legal: {'; '.join(why) or 'none of them does'}."
    return text + (" Plain overlap is legal: see alternatives." if others else "")


def _next_when_blocked(request: Request, found: Found, *, others: Sequence[Proposal] = ()) -> str:
    if _UNKNOWN_TO_VERSION in found.blocked_by and (knowing := _releases_that_know(request)):
        return f"every setting is known to {knowing}: name the release that runs this with {argument('stack')}"
    if others:
        return "run plain overlap first (alternatives); delayed weight gradients are a separate A/B once they are legal"
    if _HARDWARE & set(found.blocked_by):
        gpus = f"{argument('nodes')}, {argument('gpus_per_node')}"
        return f"choose sizes that fit, or give the GPUs of the run ({gpus}), if it has others"
    names = ", ".join(found.blocked_by) or "the rules"
    return f"{tool('explain_rule')} {names}; mend by hand what the message names, or take another model, version or GPU"


def _releases_that_know(request: Request) -> str:
    """The releases of the framework that have every setting of the text; empty where none has."""
    rule = find_rule(_UNKNOWN_TO_VERSION)
    assert rule is not None  # noqa: S101 - the engine registers it
    name = "megatron-bridge" if request.framework == "bridge" else "megatron-core"
    known = [
        release.bridge or release.core.label
        for release in Stack().releases(request.framework)
        if (outcome := engine.judge(rule, [View(request, release)])) is None or outcome.state != "violated"
    ]
    return f"{name} {', '.join(known)}" if known else ""


def _choices(request: Request, found: Found) -> list[Proposal]:
    """Other choices, and leaving overlap off where a feature in use would be given up for it."""
    if found.best is None:
        return []
    others = [*found.alternatives]
    dropped = {path for path in found.best.gives_up if _now(request, path) not in (None, False)}
    if dropped and REQUESTED not in _rules_of(found.best) and found.best.changes:
        others = [*others[: _MOST_ALTERNATIVES - 1], _overlap_off(request, found.best)]
    return others[:_MOST_ALTERNATIVES]


def _rules_of(proposal: Proposal) -> set[str]:
    return {name for names in proposal.rules.values() for name in names}


def _overlap_off(request: Request, best: Proposal) -> Proposal:
    """The text asks for overlap already: keep the features that exclude it and turn overlap off instead."""
    paths = [p for p, s in request.as_written.items() if is_switch(p) and s.value is True]
    changes = dict.fromkeys(paths, False)
    return Proposal(
        changes, dict.fromkeys(changes, tuple(sorted(_rules_of(best)))), dict.fromkeys(paths[:1], "EP overlap")
    )


def _without_delay(request: Request, plain: Proposal) -> Proposal:
    written = [p for p, s in request.as_written.items() if p.endswith(".delay_wgrad_compute") and s.value is True]
    missing = dict.fromkeys((p for p in written if p not in plain.changes and not p.startswith("ddp.")), False)
    lost = dict.fromkeys(missing, "delayed weight gradients")
    return replace(plain, changes={**plain.changes, **missing}, gives_up={**plain.gives_up, **lost})


def _beside(case: Case, proposal: Proposal) -> list[Mended]:
    """The edits of the text but those of settings that change anyway."""
    return [mend for mend in case.mends if mend.path not in proposal.changes]


def _changes(request: Request, proposal: Proposal, mends: Sequence[Mended] = ()) -> list[Change]:
    """The changes; one of a setting whose text was mended first serves the rule behind that as well."""
    mended = {mend.path: (mend.rule,) for mend in mends}
    return [
        Change(
            path=path,
            before=_now(request, path),
            to=value,
            rules=[*proposal.rules.get(path, ()), *mended.get(path, ())],
            safe=path not in proposal.unsafe,
            gives_up=proposal.gives_up.get(path),
        )
        for path, value in proposal.changes.items()
    ]


def _now(request: Request, path: str) -> Any:
    setting = request.as_written.get(path)
    return None if setting is None or setting.value is UNKNOWN else setting.value


def _patch(
    case: Case, changes: Mapping[str, Any], texts: Mapping[str, str], reread: Reread, judge: Judge
) -> Patch | None:
    """A verified diff where the files can be edited; else what to add, which wins over what is written."""
    mended = {file: text for file, text in case.texts.items() if text != texts[file]}
    if not changes and not mended:
        return None
    for after in attempts(case.request, changes, case.texts) if changes else [{}]:
        edited = {**case.texts, **after}
        if not changes or verified(case.requests, case.index, changes, edited, reread, judge):
            return Patch(format="diff", text=unified_diff(texts, {**mended, **after}), verified=True)
    form, text = to_add(case.request, changes)
    by_hand = [f"# {mend_by_hand(mend)}" for mend in case.mends]
    return Patch(format=form, text="\n".join([*by_hand, text]), verified=False)


def _advice(changed: Request, outcomes: Sequence[Outcome]) -> list[Advice]:
    """What stays after the changes: warnings, the benefit lost or trouble known; a release that was not read."""
    view = View(changed, changed.releases()[0])
    found = []
    for outcome in outcomes:
        told = outcome.severity == "warning" or outcome.rule.name == _UNREAD_RELEASE
        if outcome.state != "violated" or not told:
            continue
        options = [values for fix in outcome.rule.fixes for values in fix.options(view)]
        path, value = next(iter(options[0].items()), (None, None)) if options else (None, None)
        found.append(Advice(path=path, value=value, why=outcome.message, rule=outcome.rule.name))
    return found


def _summary(case: Case, before: Verdict, after: Verdict, proposal: Proposal, outcomes: Sequence[Outcome]) -> str:
    named = [f"{field_table()[p].name} -> {_word(v)}" for p, v in proposal.changes.items()]
    named += [f"{_short(mend.before)} -> {_short(mend.to)}" for mend in _beside(case, proposal)]
    if not named:
        begin = "Nothing to change" if after == "valid" else "No change is known to be needed, which decides nothing"
        return f"{begin}: {check(case.request).summary}"
    lost = sorted(set(proposal.gives_up.values()))
    text = f"{len(named)} change{'s' if len(named) > 1 else ''}: {', '.join(named)}."
    text += f" Verdict {before} -> {after}."
    if after == "undetermined":
        text += f" Undecided {_still_open(outcomes)}."
    if after == "invalid":
        text += f" Still blocked by what is wrong without overlap too, and is yours to choose: {_left(outcomes)}."
    return text + (f" Gives up: {'; '.join(lost)}." if lost else "")


def _left(outcomes: Sequence[Outcome]) -> str:
    errors = [o for o in outcomes if o.state == "violated" and o.severity == "error"]
    return "; ".join(f"{o.rule.name} ({o.message})" for o in errors)


def _short(text: str) -> str:
    """A part of the text in few words; one that goes is removed."""
    if " line ends" in text:
        return text
    return f"`{text[:60]}`" if text else "removed"


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value))}]"
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _next(after: Verdict, outcomes: Sequence[Outcome]) -> str:
    if after == "valid":
        return f"apply the patch, then {tool('start_smoke_run')} on the changed configuration, then the A/B of `plan`"
    remedy = "give them and check again" if any(o.needs for o in outcomes if undecided_error(o)) else "then check again"
    return f"still undecided {_still_open(outcomes, 12)}; {remedy}"


def _of_carriage_returns(mend: Mended) -> str:
    return (
        f"the patch rewrites every line of {mend.file} and holds its carriage returns: where they get lost on the way, "
        f"run `{LF_COMMAND} {mend.file}` and ask again for a short one"
    )


def _still_open(outcomes: Sequence[Outcome], most: int = 4) -> str:
    """For want of what, and why where no setting would decide."""
    needs = _needs(outcomes, most)
    reasons = [f"as {o.why}" for o in outcomes if undecided_error(o) and not o.needs]
    return " and ".join([*([f"for want of {needs}"] if needs else []), *reasons])


def _needs(outcomes: Sequence[Outcome], most: int = 4) -> str:
    """The settings that decide most of the open rules, most telling first."""
    counts: dict[str, int] = {}
    for outcome in filter(undecided_error, outcomes):
        for need in outcome.needs:
            counts[need] = counts.get(need, 0) + 1
    ordered = sorted(counts, key=lambda need: (-counts[need], need))
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more
