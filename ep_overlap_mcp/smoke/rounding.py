"""Differences no larger than another order of bf16 sums: said beside the finding, never instead of it.

The size is smoke_train.py's (`within_rounding` of its rows), and so are the combinations where it was seen without a
defect behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.smoke.asked import part, rows

if TYPE_CHECKING:
    from ep_overlap_mcp.results.smoke import Numerics, Plan
    from ep_overlap_mcp.smoke.asked import Evidence

DECIDES = (
    "what decides: more compared steps (`ep-overlap-mcp smoke run --steps 20`) and another release of Megatron-Core;"
    " what grows beyond rounding is a defect, what stays within it in every step and is gone there speaks for another"
    " order of sums"
)


def with_rounding(found: Numerics, evidence: Evidence | None, variant: str, plan: Plan) -> Numerics:
    """The finding, with what its size means where that is within rounding; its verdict stays."""
    if found.verdict != "changed" or not within_rounding(evidence, variant):
        return found
    seen = seen_without_defect(evidence, plan)
    where = f"seen without a defect with {' and with '.join(seen)}, as here" if seen else _NOT_SEEN
    return found.model_copy(
        update={"evidence": [*found.evidence, f"within rounding, which is no pass: {where}", DECIDES]}
    )


def within_rounding(evidence: Evidence | None, variant: str | None = None) -> bool:
    """Some row (of the variant, or of all) differs, and every one that does is within rounding."""
    found = (row for row in rows(evidence, "steps") or [] if variant in (None, row.get("variant")))
    apart = [row for row in found if row.get("equal") is not True]
    return bool(apart) and all(row.get("within_rounding") is True for row in apart)


def seen_without_defect(evidence: Evidence | None, plan: Plan) -> list[str]:
    """What the run holds of the combinations that were found to differ so although nothing was lost."""
    core = str(part(evidence, "versions", "megatron_core") or "")
    found = []
    if core.startswith("0.15.") and _has(plan, "model.moe_shared_expert_intermediate_size"):
        found.append("shared experts on megatron-core 0.15")
    if part(evidence, "parallel", "pp") == 1 and _has(plan, "model.mtp_num_layers"):
        found.append("multi-token prediction on one pipeline stage (the embedding's gradient)")
    return found


_NOT_SEEN = (
    "it was seen without a defect only with shared experts on megatron-core 0.15 and with multi-token prediction on"
    " one pipeline stage, and this run has neither"
)


def _has(plan: Plan, path: str) -> bool:
    """The run has the setting on, as configured or smaller."""
    return bool(plan.kept.get(path)) or any(change.setting == path and change.to for change in plan.reduced)
