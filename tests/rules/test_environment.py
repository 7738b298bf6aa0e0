"""EPO6xx: GPU, packages, environment variables and sharded data parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules import all_rules
from tests.rules.tables import Tables, ThreeTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rules.tables import Case, OpenCase

ON: dict[str, Any] = {
    "overlap_moe_expert_parallel_comm": True,
    "moe_token_dispatcher_type": "alltoall",
    "num_moe_experts": 16,
    "expert_model_parallel_size": 8,
    "bf16": True,
}
FLEX = {"moe_token_dispatcher_type": "flex", "expert_model_parallel_size": 16, "num_moe_experts": 64}
DEEPEP = {**FLEX, "moe_flex_dispatcher_backend": "deepep"}
HYBRIDEP = {**FLEX, "moe_flex_dispatcher_backend": "hybridep"}
NCCLEP = {**FLEX, "moe_flex_dispatcher_backend": "ncclep"}
HELPER = "bridge.apply_flex_dispatcher_backend"
CONNECTIONS = "env.CUDA_DEVICE_MAX_CONNECTIONS"
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
FSDP = {"ddp.use_megatron_fsdp": True}
OFFLOAD = {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]}
LM = "megatron-lm==0.16.1"

VIOLATED: list[Case] = [
    (
        "per-token-loss-excludes-average-in-collective",
        {"calculate_per_token_loss": True, "ddp.average_in_collective": True},
        {},
    ),
    ("low-precision-needs-its-gpu", {"fp8": "hybrid", "fp8_recipe": "delayed"}, {"gpu": "A100"}),
    ("low-precision-needs-its-gpu", {"fp8": "e4m3", "fp8_recipe": "blockwise"}, {"gpu": "L40S"}),
    ("low-precision-needs-its-gpu", {"fp8": "e4m3", "fp8_recipe": "mxfp8"}, {"gpu": "H100"}),
    ("low-precision-needs-its-gpu", {"fp4": "e2m1"}, {"gpu": "H200"}),
    ("torch-at-least-2-6", ON, {"stack": "megatron-core==0.16.1,torch==2.5.1"}),
    ("deepep-needs-supported-gpu", DEEPEP, {"gpu": "GB200"}),
    ("deepep-needs-supported-gpu", FLEX, {"gpu": "GB200", "stack": LM}),
    ("deepep-needs-supported-gpu", DEEPEP, {"gpu": "NVIDIA B300 SXM6 AC", "stack": "megatron-bridge==0.3.1"}),
    ("hybridep-needs-supported-gpu", HYBRIDEP, {"gpu": "V100"}),
    ("hybridep-needs-supported-gpu", HYBRIDEP, {"gpu": "H100", "stack": "megatron-bridge==0.2.0"}),
    ("ncclep-needs-hopper", NCCLEP, {"gpu": "A100", "stack": "megatron-core==0.19.0"}),
    ("hybridep-on-ampere-unproven", HYBRIDEP, {"gpu": "A100"}),
    ("more-than-one-cuda-connection", {**ON, CONNECTIONS: 1}, {}),
    ("one-cuda-connection-without-overlap", {**TP2, CONNECTIONS: 32}, {"gpu": "H100", "stack": LM}),
    ("fsdp-needs-more-cuda-connections", {**FSDP, CONNECTIONS: 1}, {"stack": LM}),
    ("fsdp-needs-more-cuda-connections", {**FSDP, CONNECTIONS: 1}, {"stack": "megatron-bridge==0.5.0"}),
    ("torch-fsdp2-excludes-ep", {"dist.use_torch_fsdp2": True, "expert_model_parallel_size": 8}, {"stack": LM}),
    ("fsdp-overlap-needs-0-18", {**ON, **FSDP}, {}),
    (
        "fsdp-overlap-limits",
        {**ON, **FSDP, "ddp.fsdp_double_buffer": True},
        {"stack": "megatron-core==0.18.2"},
    ),
    (
        "fsdp-overlap-limits",
        {**ON, **FSDP, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
        {"stack": "megatron-core==0.18.2"},
    ),
    ("grouped-gemm-needs-ampere", {"moe_grouped_gemm": True}, {"gpu": "V100", "stack": LM}),
    (
        "offloading-needs-v1-env",
        {**OFFLOAD, "env.NVTE_CPU_OFFLOAD_V1": 0},
        {"stack": f"{LM},transformer-engine==2.10.0"},
    ),
    ("deepep-nvshmem-match", DEEPEP, {"stack": "megatron-core==0.16.1,nvshmem==3.7.2"}),
    ("bridge-gpu-fallback", {HELPER: "deepep"}, {"gpu": "GB200", "stack": "megatron-bridge==0.6.0"}),
    (
        "hybrid-context-parallel-limits",
        {"hybrid_context_parallel": True, "pipeline_model_parallel_size": 2},
        {"stack": LM},
    ),
    ("fake-process-group-excludes-flex", {**FLEX, "dist.fake_process_group": True}, {"stack": LM}),
]

SILENT: list[Case] = [
    (
        "per-token-loss-excludes-average-in-collective",
        {"calculate_per_token_loss": False, "ddp.average_in_collective": True},
        {},
    ),
    ("low-precision-needs-its-gpu", {"fp8": "hybrid", "fp8_recipe": "delayed"}, {"gpu": "L40S"}),
    ("low-precision-needs-its-gpu", {"fp8": "e4m3", "fp8_recipe": "blockwise"}, {"gpu": "H100"}),
    ("low-precision-needs-its-gpu", {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp4": None}, {"gpu": "GB200"}),
    ("low-precision-needs-its-gpu", {"bf16": True}, {"gpu": "A100"}),
    ("torch-at-least-2-6", ON, {"stack": "megatron-core==0.16.1,torch==2.6.0"}),
    ("deepep-needs-supported-gpu", DEEPEP, {"gpu": "H100"}),
    ("deepep-needs-supported-gpu", DEEPEP, {"gpu": "NVIDIA B300 SXM6 AC", "stack": "megatron-bridge==0.4.2"}),
    ("deepep-needs-supported-gpu", HYBRIDEP, {"gpu": "GB200"}),
    ("hybridep-needs-supported-gpu", HYBRIDEP, {"gpu": "GB200", "stack": "megatron-bridge==0.2.0"}),
    ("ncclep-needs-hopper", NCCLEP, {"gpu": "H100", "stack": "megatron-core==0.19.0"}),
    ("hybridep-on-ampere-unproven", HYBRIDEP, {"gpu": "H100"}),
    ("more-than-one-cuda-connection", {**ON, CONNECTIONS: 8}, {}),
    ("one-cuda-connection-without-overlap", {**TP2, CONNECTIONS: 1}, {"gpu": "H100", "stack": LM}),
    ("one-cuda-connection-without-overlap", {**TP2, CONNECTIONS: 32}, {"gpu": "B200", "stack": LM}),
    ("one-cuda-connection-without-overlap", {**TP2, **ON, CONNECTIONS: 32}, {"gpu": "H100", "stack": LM}),
    ("fsdp-needs-more-cuda-connections", FSDP, {"stack": LM}),
    ("torch-fsdp2-excludes-ep", {"dist.use_torch_fsdp2": True}, {"stack": LM}),
    ("fsdp-overlap-needs-0-18", ON, {}),
    ("fsdp-overlap-limits", {**ON, **FSDP}, {"stack": "megatron-core==0.18.2"}),
    ("grouped-gemm-needs-ampere", {"moe_grouped_gemm": True}, {"gpu": "A100", "stack": LM}),
    (
        "offloading-needs-v1-env",
        {**OFFLOAD, "env.NVTE_CPU_OFFLOAD_V1": 1},
        {"stack": f"{LM},transformer-engine==2.10.0"},
    ),
    ("offloading-needs-v1-env", OFFLOAD, {"stack": f"{LM},transformer-engine==2.9.0"}),
    ("deepep-nvshmem-match", DEEPEP, {"stack": "megatron-core==0.16.1,nvshmem==3.4.5"}),
    ("bridge-gpu-fallback", {HELPER: "hybridep"}, {"gpu": "GB200", "stack": "megatron-bridge==0.6.0"}),
    (
        "hybrid-context-parallel-limits",
        {"hybrid_context_parallel": True, "calculate_per_token_loss": True},
        {"stack": LM},
    ),
    ("fake-process-group-excludes-flex", {**ON, "dist.fake_process_group": True}, {"stack": LM}),
]

UNDECIDED: list[OpenCase] = [
    (
        "per-token-loss-excludes-average-in-collective",
        {"calculate_per_token_loss": ..., "ddp.average_in_collective": True},
        {},
        {"model.calculate_per_token_loss"},
    ),
    ("low-precision-needs-its-gpu", {"fp8": "hybrid"}, {}, {"hardware.gpu"}),
    ("torch-at-least-2-6", ON, {}, {"runtime.torch"}),
    ("deepep-needs-supported-gpu", DEEPEP, {}, {"hardware.gpu"}),
    ("hybridep-needs-supported-gpu", HYBRIDEP, {"gpu": "Moore Threads"}, {"hardware.gpu"}),
    ("ncclep-needs-hopper", NCCLEP, {"stack": "megatron-core==0.19.0"}, {"hardware.gpu"}),
    ("hybridep-on-ampere-unproven", HYBRIDEP, {}, {"hardware.gpu"}),
    ("more-than-one-cuda-connection", ON, {}, {CONNECTIONS}),
    ("one-cuda-connection-without-overlap", {**TP2, CONNECTIONS: 32}, {"stack": LM}, {"hardware.gpu"}),
    ("fsdp-needs-more-cuda-connections", {**FSDP, CONNECTIONS: ...}, {"stack": LM}, {CONNECTIONS}),
    (
        "torch-fsdp2-excludes-ep",
        {"dist.use_torch_fsdp2": True, "expert_model_parallel_size": ...},
        {"stack": LM},
        {"model.expert_model_parallel_size"},
    ),
    ("fsdp-overlap-needs-0-18", {**ON, "ddp.use_megatron_fsdp": ...}, {}, {"ddp.use_megatron_fsdp"}),
    (
        "fsdp-overlap-limits",
        {**ON, **FSDP, "ddp.fsdp_double_buffer": ...},
        {"stack": "megatron-core==0.18.2"},
        {"ddp.fsdp_double_buffer"},
    ),
    ("grouped-gemm-needs-ampere", {"moe_grouped_gemm": True}, {"stack": LM}, {"hardware.gpu"}),
    (
        "offloading-needs-v1-env",
        OFFLOAD,
        {"stack": LM},
        {"env.NVTE_CPU_OFFLOAD_V1", "runtime.transformer_engine"},
    ),
    ("deepep-nvshmem-match", DEEPEP, {}, {"runtime.nvshmem"}),
    ("bridge-gpu-fallback", {HELPER: "deepep"}, {"stack": "megatron-bridge==0.6.0"}, {"hardware.gpu"}),
    (
        "hybrid-context-parallel-limits",
        {"hybrid_context_parallel": True, "calculate_per_token_loss": True, "pipeline_model_parallel_size": ...},
        {"stack": LM},
        {"model.pipeline_model_parallel_size"},
    ),
    (
        "fake-process-group-excludes-flex",
        {"moe_token_dispatcher_type": ..., "dist.fake_process_group": True},
        {"stack": LM},
        {"model.moe_token_dispatcher_type"},
    ),
]


class TestRules(ThreeTables):
    """Every row is a test."""

    tables = Tables(VIOLATED, SILENT, UNDECIDED)


def test_a_refused_helper_falls_back_and_deepep_is_not_blamed(state: Callable[..., str]) -> None:
    """From Bridge 0.6 the helper leaves `alltoall` behind, so that DeepEP's own GPU rule has nothing to say."""
    given = {"gpu": "GB200", "stack": "megatron-bridge==0.6.0", "partial": True}
    assert state("bridge-gpu-fallback", {HELPER: "deepep"}, **given) == "violated"
    assert state("deepep-needs-supported-gpu", {HELPER: "deepep"}, **given) == "met"


def test_the_helper_of_older_bridges_leaves_the_dispatcher(outcome: Callable[..., Any]) -> None:
    """Before 0.6 the message says which dispatcher stays."""
    settings = {"moe_token_dispatcher_type": "alltoall", HELPER: "deepep"}
    found = outcome("bridge-gpu-fallback", settings, gpu="GB200", stack="megatron-bridge==0.5.1")
    assert found.message == (
        "`apply_flex_dispatcher_backend` asks for deepep on NVIDIA GB200, where Bridge leaves the dispatcher as it was "
        "(alltoall)"
    )


def test_an_unknown_torch_counts_as_met_and_an_unknown_variable_as_a_note() -> None:
    """Floors that every stack passes are met; what the environment holds never changes a verdict."""
    rules = {rule.name: rule.unknown for rule in all_rules().values()}
    assert rules["torch-at-least-2-6"] == "met"
    assert rules["more-than-one-cuda-connection"] == "noted"
    assert rules["deepep-needs-supported-gpu"] == "undecided"


def test_the_gpu_decides_over_all_releases_that_know_the_backend(
    state: Callable[..., str], asked: Callable[..., Any]
) -> None:
    """A backend that is written narrows the releases to those from 0.16, and the GPU alone decides them."""
    given = {"stack": "torch==2.9.0", "gpu": "GB200"}
    assert asked(DEEPEP, **given).releases()[0].core.label == "0.16.1"
    assert state("deepep-needs-supported-gpu", DEEPEP, **given) == "violated"
