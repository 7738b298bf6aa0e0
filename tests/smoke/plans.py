"""Plans of a large MoE configuration with changes, for a machine of the test's choice."""

from __future__ import annotations

from typing import Any

from ep_overlap_mcp import smoke
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.smoke.options import SmokeOptions
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import parse_stack
from ep_overlap_mcp.training_env import FakePipe, TrainingEnvironment
from ep_overlap_mcp.training_env.environment import DESCRIBE

DROPOUT = [  # what every plan says of a configuration that writes no dropout
    f"model.{name}_dropout=0.1: each schedule would draw other masks (not written: Megatron's default)"
    for name in ("hidden", "attention")
]
MODEL = {
    "num_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "ffn_hidden_size": 6144,
    "num_moe_experts": 64, "moe_router_topk": 8, "moe_ffn_hidden_size": 768, "expert_model_parallel_size": 16,
    "moe_token_dispatcher_type": "alltoall", "bf16": True, "add_bias_linear": False,
    "overlap_moe_expert_parallel_comm": True,
}  # fmt: skip
PIPELINE = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 3}


def machine(*, cores: int = 2, gpus: int = 0, core: str | None = "0.16.1", te: str | None = None, deep_ep=None,
            judge=None):  # fmt: skip
    """A training environment that says it has these; `judge` answers for its Megatron, which else cannot judge."""
    versions = {"torch": "2.9.0" if gpus else "2.9.0+cpu", "megatron-core": core, "transformer-engine": te,
                "deep_ep": deep_ep}  # fmt: skip
    no = {"possible": None, "why": "not tried"}
    answer = {
        "summary": "a machine", "python": "/opt/python", "python_version": "3.12.1",
        "components": {n: {"version": v, "importable": None, "usable": None, "why": None} for n, v in versions.items()},
        "gpus": [{"name": "NVIDIA H100", "compute_capability": "9.0", "memory_gib": 80.0, "nvlink_domain": 8,
                  "nvlink_domain_why": None}] * gpus,
        "gpus_why": None if gpus else "no driver", "cpu": {"cores": cores, "memory_gib": 64.0},
        "can": {**dict.fromkeys(("alltoall", "deepep", "hybridep", "ncclep", "delay_wgrad"), no), "smoke": [],
                "smoke_why": "not tried"},
    }  # fmt: skip

    def answers(program, request):
        if program == DESCRIBE:
            return answer
        if "hello" in request:
            return {"cannot_judge": None if judge else "no Megatron here"}
        return {"answers": [judge(settings) for settings in request["batch"]]}

    return TrainingEnvironment("/opt/python", open_pipe=FakePipe.opener(answers))


def request_of(changes: dict[str, Any] | None = None, *, partial: bool = False, stack: str = "", assume=None):
    """MODEL with changes; a bare name is a field of `model`, `...` is a value that the text leaves open."""
    reading = Reading("json", "job.json", framework="megatron-core")
    for line, (name, value) in enumerate({**MODEL, **(changes or {})}.items(), start=1):
        if value is not None:
            path = name if "." in name else f"model.{name}"
            reading.add(path, UNKNOWN if value is ... else value, line=line, text=f"{name}={value}")
    if partial:
        reading.partial.append("the recipe is imported")
    return build_request([reading], stack=parse_stack(stack), assume=assume)


def planned(changes=None, *, environment=None, partial=False, stack="", assume=None, **options):
    """The plan of MODEL with changes."""
    request = request_of(changes, partial=partial, stack=stack, assume=assume)
    return smoke.plan(request, environment or machine(), SmokeOptions(**options))


def reduced(plan) -> dict[str, Any]:
    """What settings were reduced to."""
    return {row.setting: row.to for row in plan.shown.plan.reduced}
