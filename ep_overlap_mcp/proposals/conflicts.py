"""Delayed weight gradients against Transformer Engine, CUDA graphs, fusion, bias, gradient reduction and the rest.

Every cell of the matrix is the rules' own verdict on the user's configuration with only the graph implementation, its
scope and the Transformer Engine version replaced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.proposals.judging import Judge
from ep_overlap_mcp.proposals.search import Proposal, search
from ep_overlap_mcp.results.conflicts import Cell, ConflictsResult, Row, WayOut
from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.checking import check
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, MODEL_DELAY

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
_DELAYS = (MODEL_DELAY, BRIDGE_DELAY)  # on in every cell, be it that plain overlap is legal only without
_UNKNOWN_TO_VERSION = "EPO801"
_RELEASE = ("EPO813", "EPO816")  # whether the rules know the release
_FAMILIES = "23"  # delayed wgrad and CUDA graphs


def conflicts(request: Request) -> ConflictsResult:
    """Judge the configuration with delayed weight gradients on; the matrix, and ways out by what they keep.

    `request` asks for `overlap_delay_wgrad`.
    """
    judged = check(request)
    findings = [f for f in judged.findings if f.rule[3] in _FAMILIES or f.rule in _RELEASE]
    undecided = [u for u in judged.undecided if u.rule[3] in _FAMILIES or u.rule in _RELEASE]
    plain = search(replace(request, assume="overlap"), alternatives=0).best
    kept = {path: value for path, value in (plain.changes if plain else {}).items() if path not in _DELAYS}
    matrix = list(_matrix(request.with_settings(kept, "overlap made legal")))
    rows = _rows(matrix)
    errors = sum(f.severity == "error" for f in findings)
    return ConflictsResult(
        summary=_summary(errors, undecided, rows),
        configuration=request.name,
        verdict=judged.verdict,
        findings=findings,
        undecided=undecided,
        rows=rows,
        matrix=matrix,
        way_out=_ways_out(request, plain) if errors else [],
    )


def _matrix(request: Request) -> Iterator[Cell]:
    """Every cell; `request` has what plain overlap needs, so that a cell tells of delayed wgrad and graphs alone."""
    given = request.stack.version("transformer-engine")
    versions = sorted({*TE_VERSIONS, *([given] if given else [])}, key=_number)
    modules = "cuda_graph_modules" if request.releases()[-1].core.minor >= (0, 18) else "cuda_graph_scope"
    other = "cuda_graph_scope" if modules == "cuda_graph_modules" else "cuda_graph_modules"
    old = {f"model.{other}": None} if f"model.{other}" in request.as_written else {}
    rules = {code: rule for code, rule in all_rules().items() if code[3] in _FAMILIES or code == _UNKNOWN_TO_VERSION}
    judge = Judge(replace(request, as_written=request.settings), rules=rules)
    for implementation, scope in SCOPES:
        changes = {"model.cuda_graph_impl": implementation, f"model.{modules}": list(scope), **old}
        graphed = request.with_settings({**changes, **_legacy_flags(request)}, "matrix")
        for version in versions:
            changed = graphed.with_settings({"runtime.transformer_engine": version}, "matrix")
            yield _cell(judge.outcomes(changed), implementation, scope, version)


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


def _legacy_flags(request: Request) -> dict[str, bool]:
    """Old switches of CUDA graphs that would overrule the implementation of a cell."""
    old = ("model.enable_cuda_graph", "model.external_cuda_graph")
    return {path: False for path in old if path in request.as_written}


def _cell(found: Sequence[Outcome], implementation: str, scope: Sequence[str], version: str) -> Cell:
    outcomes = [o for o in found if _counts(o)]
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


def _rows(matrix: Sequence[Cell]) -> list[Row]:
    """The matrix with one row for each implementation and scope."""
    grouped: dict[tuple[str, ...], list[Cell]] = {}
    for cell in matrix:
        grouped.setdefault((cell.cuda_graph_impl, *cell.scope), []).append(cell)
    return [_row(cells) for cells in grouped.values()]


def _row(cells: Sequence[Cell]) -> Row:
    """`cells` are of one implementation and scope, oldest version first."""
    allowed = [cell.allowed for cell in cells]
    newest_not = max((i for i, word in enumerate(allowed) if word != "yes"), default=-1)
    floor = cells[newest_not + 1].transformer_engine if newest_not + 1 < len(cells) else None
    same = len(set(allowed)) == 1
    return Row(
        cuda_graph_impl=cells[0].cuda_graph_impl,
        scope=cells[0].scope,
        allowed_from=floor,
        verdict=allowed[0] if same else "depends on the version",
        rules=list(dict.fromkeys(name for cell in cells for name in cell.rules)),
    )


def _counts(outcome: Outcome) -> bool:
    if outcome.rule.code == _UNKNOWN_TO_VERSION:  # an implementation or a module that the release does not have
        return outcome.state == "violated"
    return outcome.severity == "error" and outcome.rule.code[3] in _FAMILIES and outcome.unknown != "noted"


def _ways_out(request: Request, plain: Proposal | None) -> list[WayOut]:
    """The smallest changes that keep delayed wgrad, then plain overlap without it; those that keep most first."""
    found = search(request, alternatives=3)
    ways = [_way(request, p) for p in (found.best, *found.alternatives) if p is not None and p.changes]
    if plain is not None:
        off = {path: False for path in _delays(request) if path not in plain.changes}
        ways.append(_way(request, replace(plain, changes={**plain.changes, **off})))
    unique = [way for i, way in enumerate(ways) if all(way.changes != other.changes for other in ways[:i])]
    return sorted(unique, key=lambda way: (-len(way.keeps), len(way.gives_up), len(way.changes)))


def _delays(request: Request) -> list[str]:
    written = [p for p in _DELAYS if p in request.as_written and request.as_written[p].value]
    return written or [BRIDGE_DELAY if request.framework == "bridge" else MODEL_DELAY]


def _way(request: Request, proposal: Proposal) -> WayOut:
    view = View(request.with_settings(proposal.changes, "way out"), request.releases()[0])
    features = {
        "EP overlap": view.overlap,
        "delayed weight gradients": view.delay,
        "CUDA graphs": view["model.cuda_graph_impl"].test(lambda v: v not in (None, "none")),
        "shared-expert overlap": view["model.moe_shared_expert_overlap"].on,
        "overlapped gradient reduction": view["ddp.overlap_grad_reduce"].on,
        "gradient accumulation fusion": view["model.gradient_accumulation_fusion"].on,
    }
    lost = sorted(set(proposal.gives_up.values()))
    if features["delayed weight gradients"].value is False:
        lost.append("delayed weight gradients")
    return WayOut(
        changes=dict(proposal.changes),
        keeps=[name for name, on in features.items() if on.value is True],
        gives_up=lost,
    )


def _summary(errors: int, undecided: Sequence[object], rows: Sequence[Row]) -> str:
    state = f"{errors} conflict{'' if errors == 1 else 's'}" if errors else "no conflict found"
    if undecided:
        state += f", {len(undecided)} undecided"
    said = []
    for row in rows:
        name = " ".join((row.cuda_graph_impl, "+".join(row.scope))).strip()
        floor = f"from TE {row.allowed_from}" if row.allowed_from else "unknown" if row.verdict == "unknown" else "no"
        said.append(f"{name}: {'yes' if row.verdict == 'yes' else floor}")
    return f"Delayed weight gradients here: {state}. By CUDA graphs: {'; '.join(said)}."
