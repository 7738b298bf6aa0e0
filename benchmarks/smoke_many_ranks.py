"""What a smoke run of many ranks costs whoever follows it: files of 8, 128 and 1,024 ranks, read and judged.

    python benchmarks/smoke_many_ranks.py

The evidence is that of a recorded run on two ranks, repeated; no rank is started.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from ep_overlap_mcp.smoke.answering import smoke_result
from ep_overlap_mcp.smoke.store import Store

RECORDED = Path(__file__).parents[1] / "tests" / "smoke" / "recorded" / "sound.json"
STATE_BYTES = 4096


def main() -> None:
    """A line for each number of ranks."""
    store = Store(Path(tempfile.mkdtemp()))
    for ranks in (8, 128, 1024):
        run = store.add(f"of {ranks}", _plan(ranks), 900)
        folder = store.run_folder(run.id)
        state = {"phase": "parity", "variant": "overlap", "step": 1, "in_flight": []}
        for rank in range(ranks):
            folder.state(rank).write_text(json.dumps({"rank": rank, "pid": 1, **state}).ljust(STATE_BYTES))
        begun = time.perf_counter()
        folder.states(ranks)
        look_ms = 1000 * (time.perf_counter() - begun)
        folder.result.write_text(json.dumps(_evidence(ranks)))
        store.end(run.id, "done", {"cause": "ended by itself"})
        begun = time.perf_counter()
        answer = smoke_result(store.get(run.id), folder)
        print(
            f"{ranks} ranks: one look at where all are {look_ms:.1f} ms; result.json"
            f" {folder.result.stat().st_size / 1e6:.2f} MB, judged in {1000 * (time.perf_counter() - begun):.0f} ms,"
            f" answer {len(answer.model_dump_json())} bytes"
        )


def _plan(ranks: int) -> dict[str, Any]:
    lists = {"kept": {}, "reduced": [], "not_tested": [], "emulated": [], "variants": ["baseline", "overlap"]}
    plan = {**lists, "steps": 2, "pairs": 8}
    return {"plan": plan, "engine": "gloo-cpu", "device": "CPU", "world_size": ranks, "stack": {}}


def _evidence(ranks: int) -> dict[str, Any]:
    """The recorded rows of rank 0, for every rank."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    of_first = [row for row in found["steps"] if row["rank"] == 0]
    found["steps"] = [{**row, "rank": rank} for rank in range(ranks) for row in of_first]
    for one in found["schedule"].values():
        one["per_rank"] = [{**one["per_rank"][0], "rank": rank} for rank in range(ranks)]
    for name, rows in found["overlap"].items():
        found["overlap"][name] = rows and [{**rows[0], "rank": rank} for rank in range(ranks)]
    for one in found["timing"].values():
        for pair in one["pairs"]:
            pair["per_rank_ms"] = {side: (times * ranks)[:ranks] for side, times in pair["per_rank_ms"].items()}
    return {**found, "world_size": ranks}


if __name__ == "__main__":
    main()
