"""A sound result.json of two ranks, two steps, eight pairs, as smoke_train.py writes it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.smoke.asked import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = Asked(engine="gloo-cpu", ranks=2, steps=2, pairs=8, variants=("overlap",))
RATIO = 1.25


def sound(variant: str = "overlap") -> dict[str, Any]:
    """Every answer is good: all nodes, equal numbers, each pair a quarter faster."""
    wgrads = 8 if variant == "overlap_delay_wgrad" else 0
    return {
        "schema": 1,
        "status": "completed",
        "failure": None,
        "engine": "gloo-cpu",
        "tolerance": {"kind": "bitwise"},
        "schedule": {
            "baseline": {"formula": "0", "per_rank": [_nodes(rank, 0, 0) for rank in (0, 1)]},
            variant: {"formula": "42", "per_rank": [_nodes(rank, 42, wgrads) for rank in (0, 1)]},
        },
        "steps": [_row(variant, rank, step) for rank in (0, 1) for step in (0, 1)],
        "timing": {variant: {"pairs": [_pair(variant, number) for number in range(8)], "own_ms": _own(50.0, 52.0)}},
        "overlap": {"baseline": None, variant: [{"rank": r, "comm_ms": 30.0, "hidden_ms": 12.0} for r in (0, 1)]},
    }


def without(evidence: dict[str, Any], *path: str | int) -> dict[str, Any]:
    """A copy in which what stands under the path is missing."""
    changed = copy.deepcopy(evidence)
    holder: Any = changed
    for name in path[:-1]:
        holder = holder[name]
    del holder[path[-1]]
    return changed


def given(evidence: dict[str, Any], value: Any, *path: str | int) -> dict[str, Any]:
    """A copy in which the value stands under the path."""
    changed = copy.deepcopy(evidence)
    holder: Any = changed
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value
    return changed


def paths(value: Any, *before: str | int) -> Iterator[tuple[str | int, ...]]:
    """The paths of everything in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*before, name)
        yield from paths(inner, *before, name)


def _nodes(rank: int, nodes: int, wgrads: int) -> dict[str, Any]:
    return {"rank": rank, "expected": nodes, "executed": [nodes] * 2, "expected_wgrad": wgrads,
            "executed_wgrad": [wgrads] * 2, "as_expected": True, "by_node": {},
            "comm_ms": 60.0 if nodes else 0.0, "hidden_ms": 24.0 if nodes else 0.0}  # fmt: skip


def _row(variant: str, rank: int, step: int) -> dict[str, Any]:
    tensors = {"tensors": 27, "nonzero": 27, "different": 0, "max_abs_diff": 0.0, "max_rel_l2": 0.0,
               "first_different": None, "finite": True, "equal": True}  # fmt: skip
    loss = {"baseline": [5.5, 5.4], "variant": [5.5, 5.4], "equal": True, "finite": True, "max_abs_diff": 0.0}
    norm = {"baseline": 1.5, "variant": 1.5, "equal": True, "finite": True, "max_abs_diff": 0.0}
    parts = {"loss": loss, "grads": tensors, "params": dict(tensors), "grad_norm": norm}
    words = {"equal": True, "within_rounding": True, "within_tolerance": True, "finite": True}
    return {"variant": variant, "rank": rank, "step": step, **words, **parts}


def _pair(variant: str, number: int) -> dict[str, Any]:
    order = ["baseline", variant] if number % 2 == 0 else [variant, "baseline"]
    base = 100.0 + number
    ms = {"baseline": base, "variant": base / RATIO}
    return {"order": order, "ms": ms, "per_rank_ms": {side: [time, time - 1] for side, time in ms.items()}}


def _own(*ranks: float) -> dict[str, list[float]]:
    return {"baseline": list(ranks), "variant": list(ranks)}
