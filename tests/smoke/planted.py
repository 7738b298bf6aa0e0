"""Runs with a planted fault or a known defect of megatron-core, and what must be said of each.

    python tests/smoke/planted.py FOLDER [NAME…]

runs them for real on two or four CPU ranks with the megatron-core of this Python (0.16.1 for the recorded ones), and
leaves each result.json in FOLDER without this machine's paths. `recorded/` was made so.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp import smoke
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.smoke.options import SmokeOptions
from ep_overlap_mcp.sources.reading import Reading

if TYPE_CHECKING:
    from ep_overlap_mcp.results.smoke import SmokeResult
    from ep_overlap_mcp.smoke.planning import SmokePlan
    from ep_overlap_mcp.training_env import TrainingEnvironment

MODEL = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128,
    "num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 128, "expert_model_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall", "moe_router_load_balancing_type": "none",
    "moe_router_dtype": "fp32", "add_bias_linear": False, "bf16": True, "overlap_moe_expert_parallel_comm": True,
}  # fmt: skip
PIPELINE = {"num_layers": 8, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2,
            "expert_model_parallel_size": 4, "num_moe_experts": 8}  # fmt: skip
MEASURED = ("faster", "slower", "no_difference_shown")


@dataclass(frozen=True)
class Case:
    """A run, and what must be said of overlap, numerics and speed; `rank` is the rank that a failure must name."""

    overlap: str
    numerics: str
    speed: tuple[str, ...] = MEASURED
    rank: int | None = None
    model: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """The run must not reach its end."""
        return self.rank is not None

    def plan(self, environment: TrainingEnvironment, **others: Any) -> SmokePlan:
        """Two steps and eight pairs of a small model; known defects are forced past the check."""
        reading = Reading("json", "job.json", framework="megatron-core")
        for line, (name, value) in enumerate({**MODEL, **self.model}.items(), start=1):
            reading.add(f"model.{name}", value, line=line, text=f"{name}={value}")
        fault = {"kind": self.fault, "rank": 1, "step": 1, "seconds": 0.3} if self.fault else None
        sizes = {"num_microbatches": 2, "seq_length": 16}
        chosen = {"steps": 2, "warmup": 1, "force": True, "sizes": sizes, "fault": fault, **self.options, **others}
        return smoke.plan(build_request([reading]), environment, SmokeOptions(**chosen))


NOTHING = {"overlap": "unknown", "numerics": "unknown", "speed": ("not_measured",)}
CASES = {
    "sound": Case("yes", "unchanged"),
    "delay": Case("yes", "unchanged", options={"variants": ("overlap_delay_wgrad",)}),
    "both": Case("yes", "unchanged", options={"variants": ("overlap", "overlap_delay_wgrad")}),
    "pp": Case("yes", "unchanged", model=PIPELINE),
    "inline": Case("no", "unchanged", options={"mode": "inline"}),
    "drop_wgrad": Case("yes", "changed", fault="drop_wgrad"),
    "missing_wait": Case("yes", "changed", fault="missing_wait"),
    "overlap_silently_off": Case("no", "unknown", ("not_measured",), fault="overlap_silently_off"),
    "slow_rank": Case("yes", "unchanged", ("not_measured",), fault="slow_rank"),
    "nan_loss": Case("yes", "unknown", fault="nan_loss"),
    "die": Case(**NOTHING, rank=1, fault="die"),
    "hang": Case(**NOTHING, rank=1, fault="hang", options={"stall_s": 6, "limit_s": 60}),
    "one_local_expert": Case(**NOTHING, rank=1, model={"num_moe_experts": 2}),
    "dense_last": Case("yes", "changed", model={"moe_layer_freq": [1, 0]}),
}


def run(case: Case, environment: TrainingEnvironment, **others: Any) -> SmokeResult:
    """Run it to its end."""
    result = smoke.start(case.plan(environment, **others))
    while result.status in ("queued", "running"):
        result = smoke.get(result.id, 25)
    return result


def without_paths(text: str) -> str:
    """The same evidence, naming files from `site-packages` or `tools` on, and no folder of this machine."""
    text = re.sub(r'/[^\s"\']*/site-packages/', "site-packages/", text)
    return re.sub(r'/[^\s"\']*/tools/', "tools/", text)


def main() -> int:
    """Record; exit 1 when a run says something else than it must."""
    from ep_overlap_mcp.training_env import TrainingEnvironment

    folder, *names = sys.argv[1:]
    wrong = 0
    for name in names or CASES:
        case, result = CASES[name], run(CASES[name], TrainingEnvironment(sys.executable))
        said = (result.overlap_ran.verdict, result.numerics.verdict, result.speed.verdict)
        right = said[:2] == (case.overlap, case.numerics) and said[2] in case.speed
        right = right and (result.failure.rank if result.failure else None) == case.rank
        wrong += not right
        sys.stdout.write(f"{'ok   ' if right else 'WRONG'} {name}: {result.summary}\n")
        evidence = (Path(result.logs) / "result.json").read_text()
        Path(folder, f"{name}.json").write_text(json.dumps(json.loads(without_paths(evidence)), indent=None) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
