"""Did it pay: the median ratio of interleaved pairs with a bootstrap interval."""

from __future__ import annotations

from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.smoke import Speed, SpeedVerdict
from ep_overlap_mcp.smoke.asked import BASELINE, completed, number, part, rows
from ep_overlap_mcp.smoke.nodes import schedule
from ep_overlap_mcp.smoke.options import FEWEST_PAIRS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.smoke.asked import Asked, Evidence

RESAMPLES = 2000
SLOW = 3.0  # a rank whose own work takes this many times the others' hides what overlap gives
APPLIES_TO = {
    "gloo-cpu": "these ranks on this CPU and its loopback network only; no forecast for GPUs",
    "gloo-gpu": "nothing: ranks share a GPU and send through host memory",
    "nccl-gpu": "these GPUs with the reduced model; the full model sends more and computes more",
}


def speed(evidence: Evidence | None, asked: Asked, variant: str) -> Speed:
    """The verdict; not_measured whenever a pair is missing or the pairs compare something else."""
    pair_ratios = ratios(evidence, asked, variant)
    why = _why_not(evidence, asked, variant, pair_ratios)
    if why or pair_ratios is None:
        return _speed("not_measured", asked, why=[why or "the pairs are not there"])
    low, high = bootstrap_interval(pair_ratios)
    verdict: SpeedVerdict = "faster" if low > 1 else "slower" if high < 1 else "no_difference_shown"
    return Speed(
        verdict=verdict,
        ratio=round(median(pair_ratios), 4),
        ci95=(round(low, 4), round(high, 4)),
        pairs=len(pair_ratios),
        applies_to=APPLIES_TO[asked.engine],
        evidence=_notes(evidence, variant),
    )


def ratios(evidence: Evidence | None, asked: Asked, variant: str) -> list[float] | None:
    """Baseline by variant time of every pair, in order; None when any pair is incomplete."""
    found = rows(evidence, "timing", variant, "pairs")
    if found is None:
        return None
    times = [(number(part(row, "ms", BASELINE)), number(part(row, "ms", "variant"))) for row in found]
    sound = [base / given for base, given in times if base and given and base > 0 and given > 0]
    complete = all(_complete(row, asked, variant) for row in found)
    return sound if complete and len(sound) == len(found) else None


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the median over resamples with replacement; the same for the same values."""
    draw = Random(seed)  # noqa: S311 - statistics, not secrets
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def _why_not(evidence: Evidence | None, asked: Asked, variant: str, found: list[float] | None) -> str | None:
    if asked.engine == "gloo-gpu":
        return "gloo-gpu shows correctness only"
    if not asked.pairs:
        return "no timed pairs were asked for"
    if not completed(evidence):
        return "the run did not reach its end"
    if found is None or len(found) != asked.pairs or len(found) < FEWEST_PAIRS:
        return f"{len(found or [])} sound pairs of {asked.pairs}; it takes all, and at least {FEWEST_PAIRS}"
    nodes, lines = schedule(evidence, asked, variant)
    if nodes != "as_expected":
        return f"the variant did not run the combined schedule as expected: {lines[-1]}"
    without, given = (slow_rank(evidence, variant, side) for side in (BASELINE, "variant"))
    if without and given and without[0] == given[0]:
        return f"rank {without[0]} is slow with and without overlap and hides its effect: {without[1]}"
    return None


def slow_rank(evidence: Evidence | None, variant: str, side: str) -> tuple[int, str] | None:
    """The rank whose own work takes far longer than the others', and the times; None where no rank stands out."""
    times = part(evidence, "timing", variant, "own_ms", side)
    own = [number(time) for time in times] if isinstance(times, list) else []
    known = [time for time in own if time is not None]
    if len(known) < 2 or len(known) != len(own):
        return None
    slowest = max(known)
    rank = known.index(slowest)
    others = median([time for index, time in enumerate(known) if index != rank])
    if slowest < SLOW * max(others, 1.0):
        return None
    return rank, f"{slowest:.0f} ms of its own a step, the others {others:.0f} ms"


def _notes(evidence: Evidence | None, variant: str) -> list[str]:
    notes = []
    for side, name in ((BASELINE, BASELINE), ("variant", variant)):
        if slow := slow_rank(evidence, variant, side):
            notes.append(f"rank {slow[0]} is slow in {name}: {slow[1]}")
    return notes


def _complete(row: Evidence, asked: Asked, variant: str) -> bool:
    order = row.get("order")
    both = isinstance(order, list) and sorted(map(str, order)) == sorted([BASELINE, variant])
    return both and all(_every_rank(part(row, "per_rank_ms", side), asked) for side in (BASELINE, "variant"))


def _every_rank(times: Any, asked: Asked) -> bool:
    return isinstance(times, list) and len(times) == asked.ranks and None not in map(number, times)


def _speed(verdict: SpeedVerdict, asked: Asked, *, why: list[str]) -> Speed:
    return Speed(verdict=verdict, ratio=None, ci95=None, pairs=0, applies_to=APPLIES_TO[asked.engine], evidence=why)
