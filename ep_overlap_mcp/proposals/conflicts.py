"""Delayed weight gradients against Transformer Engine, CUDA graphs, fusion, bias, gradient reduction and the rest.

Every cell of the matrix is the rules' own verdict on the user's configuration with only the graph implementation, its
scope and the Transformer Engine version replaced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.proposals.search import Proposal, search
from ep_overlap_mcp.results.conflicts import Cell, ConflictsResult, WayOut
from ep_overlap_mcp.rules.checking import check, outcomes_of
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.stack import Component

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ep_overlap_mcp.rules.engine import Outcome
    from ep_overlap_mcp.settings.request import Request

# One version below and one at each floor that a rule of any layer names: 2.3, 2.7, 2.8, 2.10 and 2.12.
TE_VERSIONS = ("2.2.0", "2.3.0", "2.7.0", "2.8.0", "2.10.0", "2.12.0")
SCOPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("none", ()),
    ("transformer_engine", ("attn",)),
    ("transformer_engine", ("moe_router",)),
    ("transformer_engine", ("moe_router", "moe_preprocess")),
    ("transformer_engine", ("attn", "moe_router", "moe_preprocess")),
    ("transformer_engine", ("moe",)),
    ("transformer_engine", ()),
    ("local", ()),
    ("full_iteration", ()),
)
_FAMILIES = "23"  # delayed wgrad and CUDA graphs


def conflicts(request: Request) -> ConflictsResult:
    """Judge the configuration with delayed weight gradients on; the matrix, and ways out by what they keep.

    `request` asks for `overlap_delay_wgrad`.
    """
    judged = check(request)
    findings = [f for f in judged.findings if f.rule[3] in _FAMILIES]
    undecided = [u for u in judged.undecided if u.rule[3] in _FAMILIES]
    matrix = list(_matrix(request))
    return ConflictsResult(
        summary=_summary(
            findings_count=sum(f.severity == "error" for f in findings), undecided=undecided, matrix=matrix
        ),
        configuration=request.name,
        verdict=judged.verdict,
        findings=findings,
        undecided=undecided,
        matrix=matrix,
        way_out=_ways_out(request),
    )


def _matrix(request: Request) -> Iterator[Cell]:
    given = request.stack.version("transformer-engine")
    versions = sorted({*TE_VERSIONS, *([given] if given else [])}, key=lambda v: [int(p) for p in v.split(".")[:2]])
    modules = "cuda_graph_modules" if request.releases()[-1].core.minor >= (0, 18) else "cuda_graph_scope"
    for implementation, scope in SCOPES:
        changes = {"model.cuda_graph_impl": implementation, f"model.{modules}": list(scope)}
        for version in versions:
            changed = _with_te(request.with_settings(changes, "matrix"), version)
            yield _cell(changed, implementation, scope, version)


def _with_te(request: Request, version: str) -> Request:
    components = {**request.stack.components, "transformer-engine": Component(version)}
    stacked = replace(request, stack=replace(request.stack, components=components))
    return stacked.with_settings({"runtime.transformer_engine": version}, "matrix")


def _cell(request: Request, implementation: str, scope: Sequence[str], version: str) -> Cell:
    outcomes = [o for o in outcomes_of([View(request, r) for r in request.releases()]) if _counts(o)]
    against = [o for o in outcomes if o.state == "violated"]
    undecided = [o for o in outcomes if o.state == "undecided"]
    allowed: Literal["yes", "no", "unknown"] = "no" if against else "unknown" if undecided else "yes"
    telling = against or undecided
    return Cell(
        cuda_graph_impl=implementation,
        scope=list(scope),
        transformer_engine=version,
        allowed=allowed,
        rules=[o.rule.name for o in telling],
        why="; ".join(o.message or f"needs {', '.join(sorted(o.needs))}" for o in telling[:2]),
    )


def _counts(outcome: Outcome) -> bool:
    if outcome.rule.code == "EPO801":  # an implementation or a module that the release does not have
        return outcome.state == "violated"
    return outcome.severity == "error" and outcome.rule.code[3] in _FAMILIES and outcome.rule.unknown != "noted"


def _ways_out(request: Request) -> list[WayOut]:
    """The smallest changes that keep delayed wgrad, then plain overlap without it."""
    found = search(request, alternatives=3)
    ways = [_way(p) for p in (found.best, *found.alternatives) if p is not None and p.changes]
    plain = search(replace(request, assume="overlap"), alternatives=0).best
    without = {"model.delay_wgrad_compute": False, **(dict(plain.changes) if plain else {})}
    if all(way.changes != without for way in ways):
        ways.append(WayOut(changes=without, keeps=["EP overlap"], gives_up=["delayed weight gradients"]))
    return sorted(ways, key=lambda way: (len(way.gives_up), len(way.changes)))


def _way(proposal: Proposal) -> WayOut:
    keeps = ["EP overlap"]
    if proposal.changes.get("model.delay_wgrad_compute") is not False:
        keeps.append("delayed weight gradients")
    lost = sorted(set(proposal.gives_up.values()))
    if proposal.changes.get("model.delay_wgrad_compute") is False:
        lost.append("delayed weight gradients")
    return WayOut(changes=dict(proposal.changes), keeps=keeps, gives_up=lost)


def _summary(*, findings_count: int, undecided: Sequence[object], matrix: Sequence[Cell]) -> str:
    counts = {word: sum(cell.allowed == word for cell in matrix) for word in ("yes", "no", "unknown")}
    state = f"{findings_count} conflicts" if findings_count else "no conflict found"
    if undecided:
        state += f", {len(undecided)} undecided"
    return (
        f"Delayed weight gradients here: {state}. Matrix of graph implementation, scope and Transformer Engine: "
        f"{counts['yes']} allowed, {counts['no']} not, {counts['unknown']} unknown."
    )
