"""Step times: where they change within a run, and by how much between two runs, with bootstrap intervals."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES = 1000
MOST_STEPS = 400
WARM_UP = 0.1
_SEED = 20260101


@dataclass(frozen=True)
class StepTimeChange:
    """Median step time after over before; `low` and `high` bound 95 % of the bootstrap."""

    ratio: float
    low: float
    high: float
    steps_before: int
    steps_after: int

    @property
    def verdict(self) -> Literal["slower", "faster", "no difference shown"]:
        """A difference counts when the interval leaves 1 out."""
        if self.low > 1:
            return "slower"
        return "faster" if self.high < 1 else "no difference shown"

    def numbers(self) -> dict[str, Any]:
        """The change as an answer has it."""
        return {**asdict(self), "verdict": self.verdict}


def compare_step_times(before_ms: Sequence[float], after_ms: Sequence[float]) -> StepTimeChange | None:
    """Change between two runs in milliseconds per step; None with fewer than three steps on a side.

    The first tenth of each run is left out as warm-up.
    """
    return _compare(_settled(before_ms), _settled(after_ms))


def change_point(times_ms: Sequence[float]) -> tuple[int, StepTimeChange] | None:
    """Index of the step from which a run's step time is another, and the change; None when there is none."""
    times = list(times_ms)
    if len(times) < 8:
        return None
    stride = max(1, len(times) // MOST_STEPS)
    places = range(3, len(times) - 2, stride)
    place = min(places, key=lambda at: _spread(times[:at:stride]) + _spread(times[at::stride]))
    change = _compare(times[:place], times[place:])
    return (place, change) if change and change.verdict != "no difference shown" else None


def _settled(times: Sequence[float]) -> list[float]:
    return list(times[int(len(times) * WARM_UP) :])


def _compare(before: Sequence[float], after: Sequence[float]) -> StepTimeChange | None:
    if min(len(before), len(after)) < 3 or min(before) <= 0:
        return None
    left, right = _thinned(before), _thinned(after)
    chance = random.Random(_SEED)  # noqa: S311
    ratios = sorted(
        median(chance.choices(right, k=len(right))) / median(chance.choices(left, k=len(left)))
        for _ in range(RESAMPLES)
    )
    return StepTimeChange(
        ratio=median(after) / median(before),
        low=ratios[int(0.025 * RESAMPLES)],
        high=ratios[int(0.975 * RESAMPLES) - 1],
        steps_before=len(before),
        steps_after=len(after),
    )


def _thinned(times: Sequence[float]) -> list[float]:
    return list(times[:: max(1, -(-len(times) // MOST_STEPS))])


def _spread(times: Sequence[float]) -> float:
    middle = median(times)
    return sum(abs(time - middle) for time in times)
