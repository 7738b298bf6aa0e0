"""Are the numerics unchanged: losses, gradients and weights of a variant against the baseline, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.results.smoke import Numerics
from ep_overlap_mcp.smoke.asked import completed, number, part, rows
from ep_overlap_mcp.smoke.nodes import schedule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_overlap_mcp.smoke.asked import Asked, Evidence

Row = Literal["same", "changed", "unknown"]
PARTS = ("loss", "grads", "params", "grad_norm")


def numerics(evidence: Evidence | None, asked: Asked, variant: str) -> Numerics:
    """Unchanged only when every rank has a sound, equal, finite row for every step of a schedule that really ran.

    One row that shows a difference is enough for changed; whatever else is missing or broken is unknown.
    """
    found = rows(evidence, "steps") or []
    mine = [row for row in found if row.get("variant") == variant]
    states = [_row(row, bitwise=asked.bitwise) for row in mine]
    facts: dict[str, Any] = {
        "loss_equal": _loss_equal(mine),
        "max_abs_grad_diff": _largest(mine),
        "steps": _whole_steps(mine, asked),
    }
    if "changed" in states:
        return Numerics(verdict="changed", evidence=_changes(mine, states), **facts)
    why = _why_unknown(evidence, asked, variant, mine, states)
    if why:
        return Numerics(verdict="unknown", evidence=[why], **facts)
    held = "bit for bit" if asked.bitwise else "within the engine's tolerance"
    text = f"{len(mine)} rows (rank and step): losses, every gradient, gradient norm and weights are equal {held}"
    return Numerics(verdict="unchanged", evidence=[text], **facts)


def _row(row: Evidence, *, bitwise: bool) -> Row:
    """What one row shows. Missing words are no evidence; a difference that any part shows counts."""
    if not all(isinstance(row.get(name), dict) for name in PARTS):
        return "unknown"
    finite = [row.get("finite"), *(part(row, name, "finite") for name in PARTS)]
    if finite != [True] * len(finite):
        return "changed" if _only_variant_broke(row) else "unknown"
    equal = [row.get("equal"), *(part(row, name, "equal") for name in PARTS)]
    if not _substantial(row) or not all(isinstance(word, bool) for word in equal):
        return "unknown"
    if not bitwise:
        within = row.get("within_tolerance")
        return "unknown" if not isinstance(within, bool) else "same" if within else "changed"
    return "same" if all(equal) and _really_equal(row) else "changed"


def _only_variant_broke(row: Evidence) -> bool:
    """The baseline's losses are numbers and the variant's are not."""
    base, given = part(row, "loss", "baseline"), part(row, "loss", "variant")
    if not (isinstance(base, list) and isinstance(given, list) and base):
        return False
    return None not in map(number, base) and None in map(number, given)


def _substantial(row: Evidence) -> bool:
    """There were gradients and weights to compare, and gradients other than zero."""
    counts = [part(row, "grads", "tensors"), part(row, "grads", "nonzero"), part(row, "params", "tensors")]
    return all((number(count) or 0) > 0 for count in counts)


def _really_equal(row: Evidence) -> bool:
    """The numbers say what the words say."""
    losses = part(row, "loss", "baseline"), part(row, "loss", "variant")
    return (
        isinstance(losses[0], list)
        and losses[0] == losses[1]
        and None not in map(number, losses[0])
        and part(row, "grad_norm", "baseline") == part(row, "grad_norm", "variant")
        and part(row, "grads", "different") == part(row, "params", "different") == 0
    )


def _why_unknown(
    evidence: Evidence | None, asked: Asked, variant: str, mine: list[Evidence], states: list[Row]
) -> str | None:
    if not completed(evidence):
        return "the run did not reach its end"
    if _whole_steps(mine, asked) != asked.steps or len(mine) != asked.ranks * asked.steps:
        return f"{len(mine)} rows of {asked.ranks * asked.steps} (rank and step): not every one is there, once"
    if "unknown" in states:
        bad = mine[states.index("unknown")]
        return f"rank {bad.get('rank')} step {bad.get('step')}: numbers that are not finite, or no numbers at all"
    for step in range(asked.steps):
        if not any(part(row, "loss", "variant") for row in mine if row.get("step") == step):
            return f"step {step}: no rank has a loss"
    nodes, lines = schedule(evidence, asked, variant)
    if nodes != "as_expected":
        return f"the numbers are equal, but not those of the combined schedule: {lines[-1]}"
    return None


def _whole_steps(mine: Iterable[Evidence], asked: Asked) -> int:
    """Steps that every rank has exactly one row of."""
    places = [(row.get("step"), row.get("rank")) for row in mine]
    return sum(all(places.count((step, rank)) == 1 for rank in range(asked.ranks)) for step in range(asked.steps))


def _changes(mine: list[Evidence], states: list[Row]) -> list[str]:
    changed = [row for row, state in zip(mine, states, strict=True) if state == "changed"]
    near = all(row.get("within_rounding") is True for row in changed)
    size = "by no more than another order of bf16 sums explains" if near else "far beyond rounding"
    lines = [f"{len(changed)} of {len(mine)} rows (rank and step) differ, {size}"]
    changed.sort(key=lambda row: -(number(part(row, "grads", "different")) or 0))
    lines += [_change(row) for row in changed[:2]]
    return lines


def _change(row: Evidence) -> str:
    losses = f"losses {_list(part(row, 'loss', 'baseline'))} against {_list(part(row, 'loss', 'variant'))}"
    first = part(row, "grads", "first_different")
    grads = f"{part(row, 'grads', 'different')} of {part(row, 'grads', 'tensors')} gradients differ"
    return f"rank {row.get('rank')} step {row.get('step')}: {losses}; {grads}" + (f", first {first}" if first else "")


def _list(values: Any) -> str:
    if not isinstance(values, list) or not values:
        return "(none here)"
    return " ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values[:4])


def _loss_equal(mine: list[Evidence]) -> bool | None:
    words = [part(row, "loss", "equal") for row in mine]
    return all(words) if words and all(isinstance(word, bool) for word in words) else None


def _largest(mine: list[Evidence]) -> float | None:
    sizes = [number(part(row, "grads", "max_abs_diff")) for row in mine]
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == len(sizes) else None
