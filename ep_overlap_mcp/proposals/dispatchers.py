"""Dispatcher candidates for a request's hardware and stack, judged by the rules; hardware narrows, it does not pick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.evidence import measurements
from ep_overlap_mcp.results.propose import DispatcherCandidate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ep_overlap_mcp.proposals.judging import Judge
    from ep_overlap_mcp.rules.engine import Outcome
    from ep_overlap_mcp.settings.request import Request

_DISPATCHER, _BACKEND = "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"
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
_RANK = {"yes": 0, "unknown": 1, "no": 2}


def candidates(request: Request, judge: Judge) -> list[DispatcherCandidate]:
    """All dispatchers, supported ones first, each with the matched A/B that would decide.

    `request` is the configuration with overlap legally on; only the dispatcher differs between candidates.
    """
    baseline = {o.rule.code for o in _outcomes(request, {}, judge) if o.state == "violated"}
    found = [_candidate(request, dispatcher, backend, baseline, judge) for dispatcher, backend in _CANDIDATES]
    return sorted(found, key=lambda c: (_RANK[c.supported], -len(c.evidence)))


def _candidate(request: Request, dispatcher: str, backend: str | None, baseline: set[str], judge: Judge) -> DispatcherCandidate:
    changes: dict[str, Any] = {_DISPATCHER: dispatcher, _BACKEND: backend}
    if backend is None:
        changes = {_DISPATCHER: dispatcher}
    outcomes = _outcomes(request, changes, judge)
    against = [o for o in outcomes if o.state == "violated" and o.severity == "error" and o.rule.code not in baseline]
    open_rules = [o for o in outcomes if o.state == "undecided" and _about_dispatcher(o)]
    supported: Literal["yes", "no", "unknown"] = "no" if against else "unknown" if open_rules else "yes"
    needs = sorted({need for o in open_rules for need in o.needs})
    name = backend or dispatcher
    return DispatcherCandidate(
        dispatcher=dispatcher,
        backend=backend,
        supported=supported,
        why=_why(against, open_rules),
        evidence=[str(m) for m in measurements() if (m.backend or m.dispatcher) == name],
        needs=[*needs, *_NEEDS.get(name, [])],
        ab_test=f"overlap on in both runs, everything else fixed, {name} against the present dispatcher; "
        "compare the median step time of interleaved runs",
    )


def _outcomes(request: Request, changes: Mapping[str, Any], judge: Judge) -> list[Outcome]:
    return judge.outcomes(request.with_settings(changes, "candidate") if changes else request)


def _about_dispatcher(outcome: Outcome) -> bool:
    return outcome.severity == "error" and outcome.rule.unknown != "met" and outcome.rule.code[3] in "46"


def _why(against: list[Outcome], undecided: list[Outcome]) -> str:
    if against:
        return "; ".join(o.message for o in against[:3])
    if undecided:
        return "not decided: " + ", ".join(o.rule.name for o in undecided[:4])
    return "no rule speaks against it here"
