"""The smallest set of setting changes after which no error is left and overlap is really on.

A search over the fixes of the violated rules, cheapest first: changes of the layout (parallel sizes, experts,
precision, batch) after all others, then fewest changes, then those that give least up. Every state is judged by the
same rules as a check.
"""

from __future__ import annotations

import heapq
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ep_overlap_mcp.proposals.judging import Judge
from ep_overlap_mcp.rules import find_rule
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_DELAY, MODEL_SWITCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ep_overlap_mcp.rules.engine import Fix, Outcome
    from ep_overlap_mcp.settings.request import Request

    Cost = tuple[int, int, int, int]

LAYOUT_FIELDS = frozenset(
    {
        "model.pipeline_model_parallel_size",
        "model.tensor_model_parallel_size",
        "model.expert_model_parallel_size",
        "model.context_parallel_size",
        "model.num_moe_experts",
        "model.num_layers",
        "model.bf16",
        "model.fp16",
        "train.micro_batch_size",
        "train.global_batch_size",
    }
)
REQUESTED = "requested"  # stands for a rule's name where the question itself asks for the change
_MOST_STATES = 300
_MOST_STATES_FOR_ALTERNATIVES = 25
_MOST_STATES_FOR_A_PART = 100
_MOST_CHANGES = 10


@dataclass(frozen=True)
class Proposal:
    """Changes by path, the rules that each satisfies, and what is given up."""

    changes: Mapping[str, Any]
    rules: Mapping[str, tuple[str, ...]]
    gives_up: Mapping[str, str]
    unsafe: frozenset[str] = frozenset()

    @property
    def cost(self) -> Cost:
        """Fewest changes of the layout, then fewest changes, then least given up, then safest."""
        return (len(LAYOUT_FIELDS & self.changes.keys()), len(self.changes), len(self.gives_up), len(self.unsafe))

    def only(self, paths: AbstractSet[str]) -> Proposal:
        """The proposal with just these of its changes."""
        return Proposal(
            {p: v for p, v in self.changes.items() if p in paths},
            {p: r for p, r in self.rules.items() if p in paths},
            {p: g for p, g in self.gives_up.items() if p in paths},
            self.unsafe & paths,
        )


@dataclass(frozen=True)
class Found:
    """The best proposal, others that choose differently, and the rules that no change satisfies.

    Without a best one, `partial` satisfies all rules but those in `blocked_by`, which the text violates without
    overlap as well: what is wrong with it on its own account.
    """

    best: Proposal | None
    alternatives: tuple[Proposal, ...]
    blocked_by: tuple[str, ...]
    partial: Proposal | None = None


def search(request: Request, *, alternatives: int = 2, judge: Judge | None = None) -> Found:
    """Proposals for a request as written, with the switch that the question asks for among the changes."""
    start = switched_on(request)
    judge = judge or judge_of(request)
    best, blocked = _cheapest(request, start, judge)
    if best is None:
        return _all_but_the_texts_own(request, start, judge, blocked)
    return Found(best, tuple(_alternatives(request, best, judge)[:alternatives] if alternatives else ()), ())


def judge_of(request: Request) -> Judge:
    """A judge for everything that a search over this request comes to."""
    return Judge(request, switched_on(request).changes)


def judged(
    request: Request, changes: Mapping[str, Any], judge: Judge | None = None, spared: AbstractSet[str] = frozenset()
) -> tuple[list[Outcome], list[str]]:
    """The violated error rules after the changes but those spared, and why overlap would be off still, if it would."""
    judge = judge or Judge(request)
    errors = [error for error in judge.errors(changes) if error.rule.name not in spared]
    if errors:
        return errors, []
    on = all(view.effective[MODEL_SWITCH].value is True for view in judge.views(changes))
    return errors, [] if on else ["overlap-stays-off"]


def as_changed(request: Request, changes: Mapping[str, Any]) -> Request:
    """The request as written with the changes made, judged as written."""
    return Judge(request).changed(changes)


def switched_on(request: Request) -> Proposal:
    """The switches that the question asks for and the text does not effectively turn on."""
    bridge = request.framework == "bridge"
    wanted = [(BRIDGE_SWITCH if bridge else MODEL_SWITCH, MODEL_SWITCH)]
    if request.assume == "overlap_delay_wgrad":
        wanted.append((BRIDGE_DELAY if bridge else MODEL_DELAY, MODEL_DELAY))
    plain = as_changed(request, {})
    views = [View(plain, release) for release in plain.releases()]
    missing = [path for path, effective in wanted if any(v.effective[effective].value is not True for v in views)]
    changes = dict.fromkeys(missing, True)
    return Proposal(changes, dict.fromkeys(changes, (REQUESTED,)), {})


def is_switch(path: str) -> bool:
    """Whether a setting turns on overlap or delayed weight gradients."""
    return not path.startswith("ddp.") and path.endswith((".overlap_moe_expert_parallel_comm", ".delay_wgrad_compute"))


def _all_but_the_texts_own(request: Request, start: Proposal, judge: Judge, blocked: _Obstacles) -> Found:
    """The cheapest proposal that leaves errors only which the text has without overlap as well, and has no fix for."""
    off = {p: False for p, s in request.as_written.items() if is_switch(p) and s.value is True}
    own = {error.rule.name for error in judge.errors(off)}
    spared: frozenset[str] = frozenset()
    while more := own.intersection(blocked.dead) - spared:
        spared |= more
        found, blocked = _cheapest(request, start, judge, most_states=_MOST_STATES_FOR_A_PART, spared=spared)
        if found is not None:
            return Found(None, (), tuple(error.rule.name for error in judge.errors(found.changes)), found)
    return Found(None, (), tuple(dict.fromkeys([*sorted(spared), *blocked.led, *blocked.dead])))


class _Obstacles(NamedTuple):
    """The rules that make a dead end, and those whose fixes ran into them."""

    led: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()


def _cheapest(
    request: Request,
    start: Proposal,
    judge: Judge,
    without: frozenset[str] = frozenset(),
    *,
    most_states: int = _MOST_STATES,
    spared: frozenset[str] = frozenset(),
) -> tuple[Proposal | None, _Obstacles]:
    """The cheapest proposal that makes none of the choices in `without`, or the rules that block every way.

    The rules in `spared` may stay violated.
    """
    counter = itertools.count()
    queue: list[tuple[Cost, int, Proposal]] = [(start.cost, next(counter), start)]
    seen: set[str] = set()
    blocked = _Obstacles()
    while queue and len(seen) < most_states:
        _, _, proposal = heapq.heappop(queue)
        if (key := _key(proposal.changes)) in seen:
            continue
        seen.add(key)
        errors, off = judged(request, proposal.changes, judge, spared)
        if not errors and not off:
            return _reduced(request, proposal, judge, spared), _Obstacles()
        options = [o for o in _options(proposal, errors, judge) if not without & _choices(o)]
        if not options and not blocked.dead:
            blocked = _obstacles(proposal, errors, judge) if errors else _Obstacles(dead=tuple(off))
        for option in options:
            heapq.heappush(queue, (option.cost, next(counter), option))
    return None, blocked


def _obstacles(proposal: Proposal, errors: Sequence[Outcome], judge: Judge) -> _Obstacles:
    view = next(judge.views(proposal.changes))
    dead = [e for e in errors if not any(True for fix in e.rule.fixes for _ in fix.options(view))] or list(errors[:1])
    read = {path for error in dead for path in error.reads}
    led = [name for path, names in proposal.rules.items() if path in read for name in names if name != REQUESTED]
    return _Obstacles(tuple(led), tuple(error.rule.name for error in dead))


def _alternatives(request: Request, best: Proposal, judge: Judge) -> list[Proposal]:
    """Proposals that decide one of the best one's choices otherwise, cheapest first.

    A number is no choice of its own: four virtual stages instead of two are not offered. Layout changes are offered
    only against others.
    """
    found: dict[str, Proposal] = {}
    for path in best.changes:
        if _has_another_fix(best.rules[path]):
            start = best.only(best.changes.keys() - {path})
            choice = _choices(best.only({path}))
            other, _ = _cheapest(request, start, judge, choice, most_states=_MOST_STATES_FOR_ALTERNATIVES)
            if other is not None and other.cost[0] <= best.cost[0] and not _contains(other, best):
                found.setdefault(_key(other.changes), other)
    ordered = sorted(found.values(), key=lambda proposal: proposal.cost)
    return [p for i, p in enumerate(ordered) if not any(_contains(p, earlier) for earlier in ordered[:i])]


def _has_another_fix(names: Sequence[str]) -> bool:
    rules = (find_rule(name) for name in names if name != REQUESTED)
    return any(rule is not None and len(rule.fixes) > 1 for rule in rules)


def _choices(proposal: Proposal) -> frozenset[str]:
    """What a proposal decides: for numbers the setting alone, else the setting and its value."""
    return frozenset(path if _is_number(v) else f"{path}={json.dumps(v)}" for path, v in proposal.changes.items())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _options(proposal: Proposal, errors: Sequence[Outcome], judge: Judge) -> Iterator[Proposal]:
    """Ways on: every fix, of any violated rule, that touches what the first violated rule read or is its own."""
    if not errors:
        return
    view = next(judge.views(proposal.changes))
    first = min(errors, key=lambda outcome: len(outcome.rule.fixes) or 99)
    for outcome in errors:
        for fix in outcome.rule.fixes:
            for values in fix.options(view):
                if outcome is first or values.keys() & first.reads.keys():
                    yield from _with(proposal, values, fix, outcome)


def _with(proposal: Proposal, values: Mapping[str, Any], fix: Fix, outcome: Outcome) -> Iterator[Proposal]:
    clash = any(path in proposal.changes and proposal.changes[path] != value for path, value in values.items())
    if clash and not all(isinstance(value, list) for value in values.values()):
        return  # two fixes want different values; lists are narrowed further instead
    changes = {**proposal.changes, **values}
    if changes == proposal.changes or len(changes) > _MOST_CHANGES:
        return
    rules = dict(proposal.rules)
    for path in values:
        rules[path] = tuple(dict.fromkeys((*rules.get(path, ()), outcome.rule.name)))
    lost = {**proposal.gives_up, **(dict.fromkeys(list(values)[:1], fix.gives_up) if fix.gives_up else {})}
    unsafe = proposal.unsafe | (frozenset() if fix.safe else frozenset(values))
    yield Proposal(changes, rules, lost, unsafe)


def _reduced(request: Request, proposal: Proposal, judge: Judge, spared: frozenset[str]) -> Proposal:
    """The proposal without changes that turn out not to be needed: most serve a rule that still needs them."""
    if len(proposal.changes) < 2:
        return proposal
    for path in list(proposal.changes):
        rest = proposal.only(set(proposal.changes) - {path})
        served = set(proposal.rules.get(path, ())) - spared
        if served == {REQUESTED} or judge.violates(rest.changes, served):
            continue
        if judged(request, rest.changes, judge, spared) == ([], []):
            proposal = rest
    return proposal


def _contains(proposal: Proposal, other: Proposal) -> bool:
    """Whether a proposal makes every change of another, and so merely adds to it."""
    return all(path in proposal.changes and proposal.changes[path] == v for path, v in other.changes.items())


def _key(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes, sort_keys=True, default=str)
