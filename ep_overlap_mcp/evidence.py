"""Published measurements of EP overlap, on against off with everything else equal: the rows of `evidence.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """One published A/B. `off` and `on` are in `unit`; `gain` is the speed-up, above 1 where overlap is faster."""

    model: str
    hardware: str
    precision: str
    expert_model_parallel_size: int
    dispatcher: str
    backend: str | None
    note: str
    unit: str
    off: float
    on: float
    gain: float
    source: str

    def __str__(self) -> str:
        way = self.backend or self.dispatcher
        where = f"{self.hardware}, EP {self.expert_model_parallel_size}, {way}"
        return f"{self.model} on {where}: {self.gain}x ({self.source})"


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
        f"| {m.model} | {m.hardware} | {m.expert_model_parallel_size} | {m.backend or m.dispatcher} | {m.off} {m.unit} "
        f"| {m.on} {m.unit} | {m.gain} | {m.note} | {m.source} |"
        for m in measurements()
    ]
    return head + "\n".join(rows) + "\n"
