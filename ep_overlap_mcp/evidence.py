"""What is published about EP overlap and dispatchers, a row of `evidence.json` each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """One published A/B of overlap, all else equal, or a published choice that nothing measured stands behind.

    `off` and `on` are in `unit`, `gain` is the speed-up, above 1 where overlap is faster; None: not measured. Gains
    compare overlap off and on; what compares dispatchers is `on`.
    """

    model: str
    hardware: str
    precision: str
    expert_model_parallel_size: int
    dispatcher: str
    backend: str | None
    note: str
    unit: str
    off: float | None
    on: float | None
    gain: float | None
    source: str

    def __str__(self) -> str:
        measured = f"{self.off} to {self.on} {self.unit}, {self.gain}x"
        what = self.note if self.gain is None else measured
        return f"{self.model}, {self.hardware}, EP {self.expert_model_parallel_size}: {what} ({self.source})"


@lru_cache(maxsize=1)
def measurements() -> tuple[Measurement, ...]:
    """All of them."""
    rows = json.loads((Path(__file__).parent / "evidence.json").read_text(encoding="utf-8"))
    return tuple(Measurement(**row) for row in rows)


def evidence_markdown() -> str:
    """The table as Markdown, for `epo://evidence`."""
    head = "| model | hardware | EP | dispatcher | off | on | gain | note | source |\n"
    head += "|---|---|--:|---|--:|--:|--:|---|---|\n"
    rows = [
        f"| {m.model} | {m.hardware} | {m.expert_model_parallel_size} | {m.backend or m.dispatcher} "
        f"| {_in(m.off, m.unit)} | {_in(m.on, m.unit)} | {_in(m.gain)} | {m.note} | {m.source} |"
        for m in measurements()
    ]
    return head + "\n".join(rows) + "\n"


def _in(value: float | None, unit: str = "") -> str:
    return "not measured" if value is None else f"{value} {unit}".strip()
