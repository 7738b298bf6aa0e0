"""Dispatcher candidates for a request's hardware and stack, judged by the rules; hardware narrows, it does not pick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.evidence import measurements
from ep_overlap_mcp.proposals.judging import undecided_error
from ep_overlap_mcp.results.propose import DispatcherCandidate
from ep_overlap_mcp.rules.view import View

if TYPE_CHECKING:
    from ep_overlap_mcp.proposals.judging import Judge
    from ep_overlap_mcp.rules.engine import Outcome
    from ep_overlap_mcp.settings.request import Request

_DISPATCHER, _BACKEND = "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"
_OLD_FLAG = "model.moe_enable_deepep"
_PATHS = (_DISPATCHER, _BACKEND, _OLD_FLAG)
_CANDIDATES: tuple[tuple[str, str | None], ...] = (
    ("alltoall", None),
    ("flex", "deepep"),
    ("flex", "hybridep"),
    ("flex", "ncclep"),
)
_NEEDS = {
    "deepep": ["DeepEP v1.2.1 built in the training environment; NVSHMEM across nodes"],
    "hybridep": ["DeepEP's branch hybrid-ep built in the training environment; a multi-node build across nodes"],
    "ncclep": ["Transformer Engine 2.17 or later built with NCCL EP; NCCL 2.30.4 or later"],
}
_TUNE = {
    "deepep": "; its SM count is moe_flex_dispatcher_num_sms (core 0.19) or moe_deepep_num_sms, even",
    "hybridep": "; its SM count is moe_flex_dispatcher_num_sms (core 0.19) or moe_hybridep_num_sms; "
    "leave NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN unset or at the NVLink domain",
}
_RANK = {"yes": 0, "unknown": 1, "no": 2}


def candidates(request: Request, judge: Judge) -> list[DispatcherCandidate]:
    """All dispatchers, supported ones first, each with the matched A/B that would decide; none is picked.

    `request` is the configuration with overlap legally on; only the dispatcher differs between candidates.
    """
    present = View(request, request.releases()[0]).effective
    now = str(present[_BACKEND].value if present[_DISPATCHER].value == "flex" else present[_DISPATCHER].value)
    before = {o.rule.code for o in judge.touched(request, _PATHS) if o.state == "violated"}
    found = [_candidate(request, way, before, now, judge) for way in _CANDIDATES]
    return sorted(found, key=lambda c: _RANK[c.supported])


def _candidate(
    request: Request, way: tuple[str, str | None], before: set[str], now: str, judge: Judge
) -> DispatcherCandidate:
    dispatcher, backend = way
    name = backend or dispatcher
    changed = request.with_settings(_settings(request, dispatcher, backend), "candidate")
    outcomes = judge.touched(changed, _PATHS)
    against = [o for o in outcomes if o.state == "violated" and o.severity == "error" and o.rule.code not in before]
    undecided = [o for o in outcomes if o.state == "undecided" and _about_dispatcher(o)]
    supported: Literal["yes", "no", "unknown"] = "no" if against else "unknown" if undecided else "yes"
    return DispatcherCandidate(
        dispatcher=dispatcher,
        backend=backend,
        supported=supported,
        why=_why(against, undecided, _warnings(outcomes, before), _falls_back(changed, dispatcher)),
        evidence=[str(m) for m in measurements() if (m.backend or m.dispatcher) == name],
        needs=[*sorted({need for o in undecided for need in o.needs}), *_NEEDS.get(name, [])],
        ab_test=_ab_test(name, now),
    )


def _settings(request: Request, dispatcher: str, backend: str | None) -> dict[str, Any]:
    """What chooses a candidate. The old DeepEP flag goes: it would choose again, except where it is the only way."""
    changes: dict[str, Any] = {_DISPATCHER: dispatcher}
    if backend is not None:
        changes[_BACKEND] = backend
    if request.settings.get(_OLD_FLAG) is not None:
        before_backends = request.releases()[0].core.minor < (0, 16)
        changes[_OLD_FLAG] = before_backends and backend == "deepep"
    return changes


def _ab_test(name: str, now: str) -> str:
    if name == now:
        return f"the present dispatcher: with {name} in both runs, overlap off against overlap on, all else fixed"
    return (
        f"overlap on in both runs, {now} against {name}, all else fixed; medians of interleaved runs"
        f"{_TUNE.get(name, '')}"
    )


def _falls_back(changed: Request, dispatcher: str) -> str | None:
    """What the stack really runs with, where that is another dispatcher."""
    effective = View(changed, changed.releases()[0]).effective[_DISPATCHER].value
    return None if effective == dispatcher or not isinstance(effective, str) else effective


def _about_dispatcher(outcome: Outcome) -> bool:
    """Open rules on dispatchers and hardware; what is installed counts here, though it never changes a verdict."""
    if outcome.rule.code[3] not in "46":
        return False
    installed = outcome.severity == "error" and any(need.startswith("runtime.") for need in outcome.needs)
    return undecided_error(outcome) or (installed and outcome.unknown == "noted")


def _warnings(outcomes: list[Outcome], before: set[str]) -> list[Outcome]:
    return [o for o in outcomes if o.state == "violated" and o.severity == "warning" and o.rule.code not in before]


def _why(against: list[Outcome], undecided: list[Outcome], warnings: list[Outcome], fallback: str | None) -> str:
    if against:
        return "; ".join(f"{o.rule.name}: {o.message}" for o in against[:3])
    notes = [f"the stack falls back to {fallback} here"] if fallback else []
    if undecided:
        notes.append("not decided: " + ", ".join(o.rule.name for o in undecided[:4]))
    notes += [f"{o.rule.name}: {o.message}" for o in warnings[:2]]
    return "; ".join(notes) or "no rule speaks against it here"
