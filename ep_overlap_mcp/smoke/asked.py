"""What a run was asked to show: what the evidence is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Evidence = dict[str, Any]
BASELINE = "baseline"


@dataclass(frozen=True)
class Asked:
    """Ranks, compared steps, timed pairs and variants (the baseline is not one of them) of a run.

    `microbatches` of a step; None for runs that were planned before it was written down.
    """

    engine: str
    ranks: int
    steps: int
    pairs: int
    variants: tuple[str, ...]
    microbatches: int | None = None

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> Asked:
        """From the JSON of a SmokePlanResult."""
        inner = plan["plan"]
        variants = tuple(name for name in inner["variants"] if name != BASELINE)
        microbatches = inner.get("microbatches")
        return cls(plan["engine"], plan["world_size"], inner["steps"], inner["pairs"], variants, microbatches)

    @property
    def bitwise(self) -> bool:
        """Equal work gives equal bits on this engine."""
        return self.engine != "nccl-gpu"


def part(evidence: Any, *names: str) -> Any:
    """What stands under the names, or None when anything on the way is missing or no object."""
    for name in names:
        if not isinstance(evidence, dict):
            return None
        evidence = evidence.get(name)
    return evidence


def rows(evidence: Any, *names: str) -> list[Evidence] | None:
    """The list of objects under the names; None when it is anything else."""
    found = part(evidence, *names)
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        return None
    return found


def number(value: Any) -> float | None:
    """A finite number, or None."""
    from math import isfinite

    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return float(value)


def completed(evidence: Any) -> bool:
    """The run reached its end."""
    return bool(part(evidence, "status") == "completed")
