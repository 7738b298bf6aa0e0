"""The smallest set of setting changes after which no error is left and overlap is really on.

A search over the fixes of the violated rules, cheapest first: changes of the layout (parallel sizes, experts,
precision, batch) after all others, then fewest changes, then those that give least up. Every state is judged by the
same engine as a check.
"""

from __future__ import annotations

import heapq
import itertools
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.checking import outcomes_of
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_DELAY, MODEL_SWITCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ep_overlap_mcp.rules.engine import Fix, Outcome, Rule
    from ep_overlap_mcp.settings.request import Request

LAYOUT_FIELDS = frozenset(
    {
        "model.pipeline_model_parallel_size",
        "model.tensor_model_parallel_size",
        "model.expert_model_parallel_size",
        "model.expert_tensor_parallel_size",
        "model.context_parallel_size",
        "model.num_moe_experts",
        "model.num_layers",
        "model.bf16",
        "model.fp16",
        "train.micro_batch_size",
        "train.global_batch_size",
    }
)
_MOST_STATES = 600
_MOST_CHANGES = 10


@dataclass(frozen=True)
class Proposal:
    """Changes by path, the rules that each satisfies, and what is given up."""

    changes: Mapping[str, Any]
    rules: Mapping[str, tuple[str, ...]]
    gives_up: Mapping[str, str]
    unsafe: frozenset[str] = frozenset()

    @property
    def cost(self) -> tuple[bool, int, int, int]:
        """Layout changes last, then fewest changes, then least given up, then safest."""
        return (bool(LAYOUT_FIELDS & self.changes.keys()), len(self.changes), len(self.gives_up), len(self.unsafe))


@dataclass(frozen=True)
class Found:
    """The best proposal, others of a different kind, and the rules that no change satisfies."""

    best: Proposal | None
    alternatives: tuple[Proposal, ...]
    blocked_by: tuple[str, ...]


def search(request: Request, *, alternatives: int = 2) -> Found:
    """Proposals for a request as written, with the switch that the question asks for among the changes."""
    start = _switch(request)
    queue: list[tuple[tuple[bool, int, int, int], int, Proposal]] = []
    counter = itertools.count()
    heapq.heappush(queue, (start.cost, next(counter), start))
    seen: set[str] = set()
    found: list[Proposal] = []
    blocked: list[str] = []
    states = 0
    while queue and states < _MOST_STATES and len(found) <= alternatives:
        _, _, proposal = heapq.heappop(queue)
        if (key := _key(proposal.changes)) in seen or any(_contains(proposal, done) for done in found):
            continue
        seen.add(key)
        states += 1
        errors, off = judged(request, proposal.changes)
        if not errors and not off:
            found.append(_reduced(request, proposal))
            continue
        if not errors:
            blocked = off
            continue
        options = list(_options(request, proposal, errors))
        if not options and not blocked:
            blocked = [errors[0].rule.name]
        for option in options:
            heapq.heappush(queue, (option.cost, next(counter), option))
    unique = [p for i, p in enumerate(found) if _key(p.changes) not in {_key(q.changes) for q in found[:i]}]
    return Found(unique[0] if unique else None, tuple(unique[1:]), () if unique else tuple(blocked))


def judged(request: Request, changes: Mapping[str, Any]) -> tuple[list[Outcome], list[str]]:
    """The violated error rules after the changes, and why overlap would still be off, if it would."""
    changed = as_changed(request, changes)
    views = [View(changed, release) for release in changed.releases()]
    outcomes = [o for o in outcomes_of(views, _error_rules()) if o.state == "violated" and o.severity == "error"]
    off = [] if all(v.effective[MODEL_SWITCH].value is True for v in views) else ["overlap-stays-off"]
    return outcomes, off


def as_changed(request: Request, changes: Mapping[str, Any]) -> Request:
    """The request as written with the changes made, judged as written."""
    plain = replace(request, settings=dict(request.as_written), assume="as_written")
    return plain.with_settings(changes, "proposed")


@lru_cache(maxsize=1)
def _error_rules() -> dict[str, Rule]:
    return {code: rule for code, rule in all_rules().items() if _may_be_error(rule)}


def _may_be_error(rule: Rule) -> bool:
    return rule.severity == "error" or any(clause.severity == "error" for clause in rule.clauses)


def _switch(request: Request) -> Proposal:
    """The switches that the question asks for and the text does not effectively turn on."""
    bridge = request.framework == "bridge"
    wanted = [(BRIDGE_SWITCH if bridge else MODEL_SWITCH, MODEL_SWITCH)]
    if request.assume == "overlap_delay_wgrad":
        wanted.append((BRIDGE_DELAY if bridge else MODEL_DELAY, MODEL_DELAY))
    plain = as_changed(request, {})
    views = [View(plain, release) for release in plain.releases()]
    missing = [path for path, effective in wanted if any(v.effective[effective].value is not True for v in views)]
    changes = dict.fromkeys(missing, True)
    return Proposal(changes, dict.fromkeys(changes, ("requested",)), {})


def _options(request: Request, proposal: Proposal, errors: Sequence[Outcome]) -> Iterator[Proposal]:
    """Ways on: every fix, of any violated rule, that touches what the first violated rule read or is its own."""
    changed = as_changed(request, proposal.changes)
    view = View(changed, changed.releases()[0])
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
    lost = {**proposal.gives_up, **(dict.fromkeys(values, fix.gives_up) if fix.gives_up else {})}
    unsafe = proposal.unsafe | (frozenset() if fix.safe else frozenset(values))
    yield Proposal(changes, rules, lost, unsafe)


def _reduced(request: Request, proposal: Proposal) -> Proposal:
    """The proposal without changes that turn out not to be needed."""
    changes = dict(proposal.changes)
    for path in list(changes):
        rest = {p: v for p, v in changes.items() if p != path}
        errors, off = judged(request, rest)
        asked = proposal.rules.get(path) == ("requested",)
        if not errors and not off and not asked:
            changes = rest
    kept = changes.keys()
    return Proposal(
        changes,
        {p: r for p, r in proposal.rules.items() if p in kept},
        {p: g for p, g in proposal.gives_up.items() if p in kept},
        proposal.unsafe & kept,
    )


def _contains(proposal: Proposal, done: Proposal) -> bool:
    return done.changes.items() <= proposal.changes.items() if _hashable(done) else False


def _hashable(proposal: Proposal) -> bool:
    return all(not isinstance(value, (list, dict)) for value in proposal.changes.values())


def _key(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes, sort_keys=True, default=str)
