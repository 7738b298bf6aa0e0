"""One answer to "what is the smallest change": search, patch, alternatives, dispatchers and the order of work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.proposals.dispatchers import candidates
from ep_overlap_mcp.proposals.patch import NoPlaceError, edited, to_add, unified_diff
from ep_overlap_mcp.proposals.search import Found, Proposal, as_changed, search
from ep_overlap_mcp.results.propose import Change, Patch, ProposeResult, Step
from ep_overlap_mcp.rules.checking import check
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.request import (
    BRIDGE_DELAY,
    BRIDGE_SWITCH,
    MODEL_DELAY,
    MODEL_SWITCH,
    build_request,
)
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.reading import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.sources.reading import Reading

    Reread = Callable[[Mapping[str, str]], Sequence[Reading]]


def propose(request: Request, *, texts: Mapping[str, str], reread: Reread | None = None) -> ProposeResult:
    """The proposal for a request. `texts` are the files by name; `reread` reads edited ones, to verify the patch."""
    before = check(request)
    found = search(request)
    if found.best is None:
        return _nothing_found(request, before, found)
    changed = as_changed(request, found.best.changes)
    after = check(changed)
    changes = _changes(request, found.best)
    return ProposeResult(
        summary=_summary(before, after, found.best),
        assume=request.assume,
        configuration=request.name,
        verdict_before=before.verdict,
        verdict_after=after.verdict,
        changes=changes,
        alternatives=[_changes(request, other) for other in found.alternatives],
        blocked_by=[],
        patch=_patch(request, found.best.changes, texts, reread),
        dispatchers=candidates(changed),
        plan=_plan(request, found.best),
        next=_next(after),
    )


def _nothing_found(request: Request, before: CheckResult, found: Found) -> ProposeResult:
    why = ", ".join(found.blocked_by) or "the searched changes do not suffice"
    return ProposeResult(
        summary=f"No change of this configuration makes EP overlap legal: {why}. {before.summary}",
        assume=request.assume,
        configuration=request.name,
        verdict_before=before.verdict,
        verdict_after=before.verdict,
        changes=[],
        alternatives=[],
        blocked_by=list(found.blocked_by),
        patch=None,
        dispatchers=[],
        plan=[],
        next="explain_rule says what the rule asks for and why no setting satisfies it",
    )


def _changes(request: Request, proposal: Proposal) -> list[Change]:
    return [
        Change(
            path=path,
            before=_now(request, path),
            to=value,
            rules=list(proposal.rules.get(path, ())),
            safe=path not in proposal.unsafe,
            gives_up=proposal.gives_up.get(path),
        )
        for path, value in proposal.changes.items()
    ]


def _now(request: Request, path: str) -> Any:
    setting = request.as_written.get(path)
    return None if setting is None or setting.value is UNKNOWN else setting.value


def _patch(
    request: Request, changes: Mapping[str, Any], texts: Mapping[str, str], reread: Reread | None
) -> Patch | None:
    """A verified diff where the files can be edited; else what to add, which wins over what is written."""
    if not changes:
        return None
    try:
        after = edited(request, changes, texts)
    except NoPlaceError:
        after = {}
    if after and reread is not None and _verified(request, changes, {**texts, **after}, reread):
        return Patch(format="diff", text=unified_diff(texts, after), verified=True)
    try:
        form, text = to_add(request, changes)
    except NoPlaceError:
        form, text = "overrides", "\n".join(f"{path}={value}" for path, value in changes.items())
    return Patch(format=form, text=text, verified=False)


def _verified(request: Request, changes: Mapping[str, Any], texts: Mapping[str, str], reread: Reread) -> bool:
    """Whether the edited files, read again, have every change and the same verdict."""
    try:
        readings = reread(texts)
    except UnreadableError:
        return False
    again = build_request(readings, stack=request.stack, assume="as_written")
    given = {p: s for p, s in request.as_written.items() if s.origin.file not in texts}
    again = replace(again, settings={**again.settings, **given}, as_written={**again.as_written, **given})
    wanted = as_changed(request, changes)
    same = all(_effective_equal(again, wanted, path) for path in changes)
    return same and check(again).verdict == check(wanted).verdict


def _effective_equal(left: Request, right: Request, path: str) -> bool:
    from ep_overlap_mcp.settings.effective import Effective

    release = right.releases()[0]
    return bool(Effective(left, release)[path].value == Effective(right, release)[path].value)


def _plan(request: Request, proposal: Proposal) -> list[Step]:
    """Baseline, plain overlap, then delayed weight gradients: one switch at a time, everything else fixed."""
    bridge = request.framework == "bridge"
    switch = BRIDGE_SWITCH if bridge else MODEL_SWITCH
    delay = BRIDGE_DELAY if bridge else MODEL_DELAY
    rest = {path: value for path, value in proposal.changes.items() if path not in (switch, delay)}
    steps = [
        Step(name="baseline", settings={**rest, switch: False, delay: False}, why="all other changes, overlap off"),
        Step(
            name="overlap",
            settings={**rest, switch: True, delay: False},
            compare_with="baseline",
            why="what plain overlap gains; keep it only if step time falls and the loss is unchanged",
        ),
        Step(
            name="overlap_delay_wgrad",
            settings={**rest, switch: True, delay: True},
            compare_with="overlap",
            why="what delayed weight gradients add; check it with assume=overlap_delay_wgrad first",
        ),
    ]
    if request.as_written.get("bridge.moe_a2a_overlap") is not None:
        steps[0] = steps[0].model_copy(
            update={
                "why": steps[0].why + "; the harness flag --moe_a2a_overlap breaks the isolation: true turns delayed "
                "weight gradients on as well, false does not turn overlap off. Use the overrides instead"
            }
        )
    return steps


def _summary(before: CheckResult, after: CheckResult, proposal: Proposal) -> str:
    if not proposal.changes:
        return f"Nothing to change: {after.summary}"
    named = ", ".join(f"{field_table()[p].name} -> {_word(v)}" for p, v in proposal.changes.items())
    lost = sorted(set(proposal.gives_up.values()))
    text = f"{len(proposal.changes)} change{'s' if len(proposal.changes) > 1 else ''}: {named}."
    text += f" Verdict {before.verdict} -> {after.verdict}."
    return text + (f" Gives up: {'; '.join(lost)}." if lost else "")


def _word(value: Any) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _next(after: CheckResult) -> str:
    if after.verdict == "valid":
        return "apply the patch, then start_smoke_run on the changed configuration, then the A/B of `plan`"
    needs = sorted({need for u in after.undecided if u.severity == "error" for need in u.needs})
    return f"still undecided for want of {', '.join(needs)}; give them and check again"
