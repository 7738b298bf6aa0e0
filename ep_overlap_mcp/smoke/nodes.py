"""Did overlap run: the nodes of the combined schedule against their number, and the time both streams worked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.results.smoke import Hidden, OverlapRan, OverlapVerdict
from ep_overlap_mcp.smoke.asked import BASELINE, completed, number, rows

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.asked import Asked, Evidence

MOST_RANKS = 8  # named one by one
ONE_MICROBATCH = "one microbatch a step: the first forward and the last backward pass run alone, so nothing overlaps"
Nodes = Literal["as_expected", "none", "other", "unknown"]


def overlap_ran(evidence: Evidence | None, asked: Asked, variant: str) -> OverlapRan:
    """Yes only when every rank ran all nodes in every step and some communication was covered by computation.

    The count alone would say yes of a schedule whose streams wait for each other, and of one microbatch. Cover is taken
    from the timed pairs, and from the compared steps where none were timed.
    """
    nodes, lines = schedule(evidence, asked, variant)
    if nodes == "none":
        return OverlapRan(verdict="no", evidence=lines)
    if nodes != "as_expected":
        return OverlapRan(verdict="unknown", evidence=lines)
    if asked.microbatches == 1:
        return OverlapRan(verdict="no", evidence=[*lines, ONE_MICROBATCH])
    if asked.pairs:
        shares, where = _covered(evidence, asked, variant), ""
    else:
        shares, where = _covered_in_compared_steps(evidence, asked, variant), " in the compared steps"
    if shares is None:
        missing = "the time both streams worked is missing for some rank; timed pairs (--pairs 8) would show it"
        return OverlapRan(verdict="unknown", evidence=[*lines, missing])
    text = _listed([f"{hidden:.1f} of {comm:.1f} ms" for hidden, comm in shares])
    verdict: OverlapVerdict = "yes" if any(hidden > 0 for hidden, _ in shares) else "no"
    return OverlapRan(verdict=verdict, evidence=[*lines, f"communication under compute{where}: {text}"])


def schedule(evidence: Evidence | None, asked: Asked, variant: str) -> tuple[Nodes, list[str]]:
    """How the executed nodes stand to the expected ones, in words too. Baseline nodes make everything unknown."""
    if not completed(evidence):
        return "unknown", ["the run did not reach its end, so the count of schedule nodes is not complete"]
    base, given = (_per_rank(evidence, asked, name) for name in (BASELINE, variant))
    if base is None or given is None:
        return "unknown", ["the counts of schedule nodes are not there for every rank and step"]
    if any(any(row["executed"]) for row in base):
        return "unknown", ["the baseline ran nodes of the combined schedule, so it is no baseline"]
    counts = _listed([f"{_range(row['executed'])} of {row['expected']}" for row in given])
    lines = [f"combined-1F1B nodes a step: {counts}"]
    if any(row["expected_wgrad"] for row in given):
        wgrads = _listed([f"{_range(row['executed_wgrad'])} of {row['expected_wgrad']}" for row in given])
        lines.append(f"delayed weight gradients a step: {wgrads}")
    if any(not any(row["executed"]) for row in given):
        return "none", [*lines, "a rank ran no node of the combined schedule: overlap was off"]
    return ("as_expected" if all(_as_expected(row, variant) for row in given) else "other"), lines


def _listed(by_rank: list[str]) -> str:
    """What each rank did; of many ranks those that did something else than most come first, and the rest is counted."""
    usual = Counter(by_rank).most_common(1)[0][0] if len(by_rank) > MOST_RANKS else ""
    ranks = sorted(range(len(by_rank)), key=lambda rank: by_rank[rank] == usual)
    shown = ", ".join(f"rank {rank} {by_rank[rank]}" for rank in ranks[:MOST_RANKS])
    more = len(by_rank) - MOST_RANKS
    return f"{shown} and {more} more ranks" if more > 0 else shown


def hidden(evidence: Evidence | None, asked: Asked, variant: str) -> Hidden | None:
    """The rank with the least of its communication covered."""
    shares = _covered(evidence, asked, variant)
    if shares is None:
        return None
    rank, (covered, comm) = min(enumerate(shares), key=lambda item: item[1][0] / item[1][1] if item[1][1] else 1.0)
    traces = rows(evidence, "profile", variant, "traces") or []
    return Hidden(
        rank=rank,
        comm_ms=round(comm, 3),
        hidden_ms=round(covered, 3),
        hidden_pct=round(100 * covered / comm, 1) if comm else None,
        traces=[str(row.get("file")) for row in traces],
    )


def _per_rank(evidence: Evidence | None, asked: Asked, variant: str) -> list[dict[str, Any]] | None:
    """A row a rank with as many counts as steps; None when any is missing."""
    found = rows(evidence, "schedule", variant, "per_rank")
    if found is None or sorted(str(row.get("rank")) for row in found) != sorted(map(str, range(asked.ranks))):
        return None
    whole = all(
        _counts(row.get("executed"), asked.steps)
        and _counts(row.get("executed_wgrad"), asked.steps)
        and _counts([row.get("expected"), row.get("expected_wgrad")], 2)
        for row in found
    )
    return sorted(found, key=lambda row: int(row["rank"])) if whole else None


def _counts(value: Any, length: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == length > 0
        and all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in value)
    )


def _as_expected(row: dict[str, Any], variant: str) -> bool:
    delayed = variant == "overlap_delay_wgrad"
    return (
        row["expected"] > 0
        and set(row["executed"]) == {row["expected"]}
        and set(row["executed_wgrad"]) == {row["expected_wgrad"]}
        and (row["expected_wgrad"] > 0) == delayed
    )


def _covered(evidence: Evidence | None, asked: Asked, variant: str) -> list[tuple[float, float]] | None:
    """Hidden and all milliseconds of communication of each rank; None when a rank is missing or impossible."""
    return _sound_shares(rows(evidence, "overlap", variant), asked)


def _covered_in_compared_steps(
    evidence: Evidence | None, asked: Asked, variant: str
) -> list[tuple[float, float]] | None:
    """The same of the steps whose numbers were compared: the sum over them."""
    return _sound_shares(rows(evidence, "schedule", variant, "per_rank"), asked)


def _sound_shares(found: list[Evidence] | None, asked: Asked) -> list[tuple[float, float]] | None:
    if found is None or len(found) != asked.ranks:
        return None
    by_rank = {str(row.get("rank")): (number(row.get("hidden_ms")), number(row.get("comm_ms"))) for row in found}
    shares = [by_rank.get(str(rank), (None, None)) for rank in range(asked.ranks)]
    sound = [(h, c) for h, c in shares if h is not None and c is not None and 0 <= h <= c and c > 0]
    return sound if len(sound) == asked.ranks else None


def _range(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
