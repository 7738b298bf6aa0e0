"""Puts the parts of all ranks together: the body of result.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .timing import gather_overlap, gather_timing

if TYPE_CHECKING:
    from .run import Part


def assemble(parts: list[Part], *, host_times: bool) -> dict[str, Any]:
    """The gathered evidence; parts are in the order of the ranks."""
    timed = parts[0].measured
    measured = {name: [part.measured[name] for part in parts] for name in timed}
    return {
        "schedule": {name: _schedule(parts, name) for name in parts[0].schedule},
        "steps": [row for part in parts for row in part.steps],
        "timing": {name: gather_timing(ranks, host_times=host_times) for name, ranks in measured.items()},
        "overlap": {"baseline": None, **{name: gather_overlap(ranks) for name, ranks in measured.items()}},
        "profile": _profile(parts),
        "memory_mib": {rank: part.memory_mib for rank, part in enumerate(parts)},
    }


def _schedule(parts: list[Part], name: str) -> dict[str, Any]:
    rows = [part.schedule[name] for part in parts]
    per_rank = [{"rank": rank, **{k: v for k, v in row.items() if k != "formula"}} for rank, row in enumerate(rows)]
    return {"formula": rows[0]["formula"], "per_rank": per_rank}


def _profile(parts: list[Part]) -> dict[str, Any] | None:
    names = parts[0].traces
    if not names:
        return None
    return {
        name: {"traces": [{"rank": rank, **part.traces[name]} for rank, part in enumerate(parts)]} for name in names
    }
