"""EPO7xx: overlap that gains less than hoped, does not happen, or is known to go wrong."""

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
BRIDGE_ON = {**ON, "comm_overlap.overlap_moe_expert_parallel_comm": True}
FLEX = {"moe_token_dispatcher_type": "flex", "expert_model_parallel_size": 16, "num_moe_experts": 64}
HARNESS, HELPER = "bridge.moe_a2a_overlap", "bridge.apply_flex_dispatcher_backend"
GRAPH = {"cuda_graph_impl": "transformer_engine"}
B06 = {"stack": "megatron-bridge==0.6.0"}
C18, C19 = {"stack": "megatron-core==0.18.2"}, {"stack": "megatron-core==0.19.0"}
LORA = {"peft.scheme": "lora"}

VIOLATED: list[Case] = [
    ("bridge-needs-comm-overlap-flag", {**ON, "comm_overlap.tp_comm_overlap": False}, B06),
    ("harness-flag-brings-delayed-wgrad", {HARNESS: True}, B06),
    ("harness-false-does-not-disable", {**BRIDGE_ON, HARNESS: False}, B06),
    (
        "harness-false-sets-one-connection",
        {**BRIDGE_ON, HARNESS: False, "tensor_model_parallel_size": 2},
        {**B06, "gpu": "H100"},
    ),
    ("packing-disables-overlap", {**BRIDGE_ON, "dataset.packing_buffer_size": 64}, {"stack": "megatron-bridge==main"}),
    (
        "moe-recompute-not-applied",
        {**ON, "recompute_granularity": "selective", "recompute_modules": ["moe", "layernorm"]},
        {},
    ),
    ("early-attention-release-exposes-communication", {**ON, "ep_overlap_early_attn_memory_release": True}, {}),
    ("autocast-ignored-by-overlap", {**ON, "enable_autocast": True}, {}),
    ("partial-checkpointing-ignored", {**ON, "num_microbatches_with_partial_activation_checkpoints": 2}, {}),
    ("hybrid-context-parallel-skipped", {**ON, "hybrid_context_parallel": True}, {}),
    ("attention-graph-nan-report", {**ON, **GRAPH, "cuda_graph_modules": ["attn"]}, C19),
    ("lora-with-overlap-unproven", {**ON, **LORA}, {}),
    (
        "lora-with-shared-expert-overlap",
        {**LORA, "moe_shared_expert_overlap": True, "tensor_model_parallel_size": 2},
        {},
    ),
    ("latent-moe-wgrad-on-communication-stream", {**ON, "moe_latent_size": 512}, {}),
    ("stream-priority-without-overlap", {"high_priority_a2a_comm_stream": True}, C18),
    ("overlap-holds-one-more-microbatch", {**ON, "pipeline_model_parallel_size": 2}, {}),
    ("hybridep-on-eight-gpu-nodes", {**FLEX, "moe_flex_dispatcher_backend": "hybridep"}, {"gpu": "H200"}),
    ("deepep-with-context-folded-experts", {**FLEX, "context_parallel_size": 2}, {}),
    (
        "shared-overlap-delays-expert-wgrad",
        {"moe_shared_expert_overlap": True, "overlap_dispatch_backward_with_experts_wgrad": True},
        C18,
    ),
    ("verl-needs-fused-kernels", {**ON, "verl.use_fused_kernels": False}, {}),
    ("router-graph-with-z-loss", {**GRAPH, "cuda_graph_scope": ["moe_router"], "moe_z_loss_coeff": 0.001}, {}),
    ("flex-helper-without-effect", {HELPER: "ncclep"}, B06),
    ("flex-helper-without-effect", {HELPER: "deepep", "num_moe_experts": None}, B06),
    ("mtp-loss-mask-in-combined-schedule", {**ON, "mtp_num_layers": 1}, {}),
    ("vendor-deepep-with-overlap", {**ON, "primus.use_turbo_deepep": True}, {}),
]

SILENT: list[Case] = [
    ("bridge-needs-comm-overlap-flag", BRIDGE_ON, B06),
    ("bridge-needs-comm-overlap-flag", ON, B06),
    ("harness-flag-brings-delayed-wgrad", {HARNESS: False}, B06),
    ("harness-false-does-not-disable", {HARNESS: False}, B06),
    (
        "harness-false-sets-one-connection",
        {**BRIDGE_ON, HARNESS: False, "tensor_model_parallel_size": 2},
        {**B06, "gpu": "B200"},
    ),
    ("packing-disables-overlap", BRIDGE_ON, {"stack": "megatron-bridge==main"}),
    (
        "moe-recompute-not-applied",
        {**ON, "recompute_granularity": "selective", "recompute_modules": ["moe_act"]},
        {},
    ),
    ("early-attention-release-exposes-communication", ON, {}),
    ("autocast-ignored-by-overlap", ON, {}),
    ("partial-checkpointing-ignored", ON, {}),
    ("hybrid-context-parallel-skipped", {**ON, "hybrid_context_parallel": True, "pipeline_model_parallel_size": 2}, {}),
    ("attention-graph-nan-report", {**ON, **GRAPH, "cuda_graph_modules": ["moe_router"]}, C19),
    ("lora-with-overlap-unproven", LORA, {}),
    ("lora-with-shared-expert-overlap", {**LORA, "moe_shared_expert_overlap": True}, {}),
    ("latent-moe-wgrad-on-communication-stream", ON, {}),
    ("stream-priority-without-overlap", {**ON, "high_priority_a2a_comm_stream": True}, C18),
    ("overlap-holds-one-more-microbatch", ON, {}),
    ("hybridep-on-eight-gpu-nodes", {**FLEX, "moe_flex_dispatcher_backend": "hybridep"}, {"gpu": "GB200"}),
    ("deepep-with-context-folded-experts", FLEX, {}),
    ("shared-overlap-delays-expert-wgrad", {"overlap_dispatch_backward_with_experts_wgrad": True}, C18),
    ("verl-needs-fused-kernels", ON, {}),
    ("router-graph-with-z-loss", {**GRAPH, "cuda_graph_scope": ["attn"], "moe_z_loss_coeff": 0.001}, {}),
    ("flex-helper-without-effect", {HELPER: "hybridep", "num_moe_experts": 64}, B06),
    ("flex-helper-without-effect", ON, B06),
    ("mtp-loss-mask-in-combined-schedule", ON, {}),
    ("vendor-deepep-with-overlap", {"primus.use_turbo_deepep": True}, {}),
]

UNDECIDED: list[OpenCase] = [
    (
        "bridge-needs-comm-overlap-flag",
        {**ON, "comm_overlap.overlap_moe_expert_parallel_comm": ...},
        B06,
        {"comm_overlap.overlap_moe_expert_parallel_comm"},
    ),
    ("harness-flag-brings-delayed-wgrad", {HARNESS: ...}, B06, {HARNESS}),
    ("harness-false-does-not-disable", {**BRIDGE_ON, HARNESS: ...}, B06, {HARNESS}),
    (
        "harness-false-sets-one-connection",
        {**BRIDGE_ON, HARNESS: False, "tensor_model_parallel_size": 2},
        B06,
        {"hardware.gpu"},
    ),
    (
        "packing-disables-overlap",
        {**BRIDGE_ON, "dataset.packing_buffer_size": ...},
        {"stack": "megatron-bridge==main"},
        {"dataset.packing_buffer_size"},
    ),
    (
        "moe-recompute-not-applied",
        {**ON, "recompute_granularity": "selective", "recompute_modules": ...},
        {},
        {"model.recompute_modules"},
    ),
    (
        "early-attention-release-exposes-communication",
        {**ON, "ep_overlap_early_attn_memory_release": ...},
        {},
        {"model.ep_overlap_early_attn_memory_release"},
    ),
    ("autocast-ignored-by-overlap", {**ON, "enable_autocast": ...}, {}, {"model.enable_autocast"}),
    (
        "partial-checkpointing-ignored",
        {**ON, "num_microbatches_with_partial_activation_checkpoints": ...},
        {},
        {"model.num_microbatches_with_partial_activation_checkpoints"},
    ),
    (
        "hybrid-context-parallel-skipped",
        {**ON, "hybrid_context_parallel": ...},
        {},
        {"model.hybrid_context_parallel"},
    ),
    ("attention-graph-nan-report", {**ON, **GRAPH, "cuda_graph_modules": ...}, C19, {"model.cuda_graph_modules"}),
    ("lora-with-overlap-unproven", {**ON, "peft.scheme": ...}, {}, {"peft.scheme"}),
    (
        "lora-with-shared-expert-overlap",
        {**LORA, "moe_shared_expert_overlap": ..., "tensor_model_parallel_size": 2},
        {},
        {"model.moe_shared_expert_overlap"},
    ),
    ("latent-moe-wgrad-on-communication-stream", {**ON, "moe_latent_size": ...}, {}, {"model.moe_latent_size"}),
    (
        "stream-priority-without-overlap",
        {"high_priority_a2a_comm_stream": ...},
        C18,
        {"model.high_priority_a2a_comm_stream"},
    ),
    (
        "overlap-holds-one-more-microbatch",
        {**ON, "pipeline_model_parallel_size": ...},
        {},
        {"model.pipeline_model_parallel_size"},
    ),
    ("hybridep-on-eight-gpu-nodes", {**FLEX, "moe_flex_dispatcher_backend": "hybridep"}, {}, {"hardware.gpu"}),
    (
        "deepep-with-context-folded-experts",
        {**FLEX, "context_parallel_size": ...},
        {},
        {"model.context_parallel_size"},
    ),
    (
        "shared-overlap-delays-expert-wgrad",
        {"moe_shared_expert_overlap": ..., "overlap_dispatch_backward_with_experts_wgrad": True},
        C18,
        {"model.moe_shared_expert_overlap"},
    ),
    ("verl-needs-fused-kernels", {**ON, "verl.use_fused_kernels": ...}, {}, {"verl.use_fused_kernels"}),
    (
        "router-graph-with-z-loss",
        {**GRAPH, "cuda_graph_scope": ["moe_router"], "moe_z_loss_coeff": ...},
        {},
        {"model.moe_z_loss_coeff"},
    ),
    ("flex-helper-without-effect", {HELPER: ...}, B06, {HELPER}),
    ("mtp-loss-mask-in-combined-schedule", {**ON, "mtp_num_layers": ...}, {}, {"model.mtp_num_layers"}),
    ("vendor-deepep-with-overlap", {**ON, "primus.use_turbo_deepep": ...}, {}, {"primus.use_turbo_deepep"}),
]


class TestRules(ThreeTables):
    """Every row is a test."""

    tables = Tables(VIOLATED, SILENT, UNDECIDED)


def test_only_verl_of_them_is_an_error() -> None:
    """Lost benefit is a warning or worth a note; only verl's missing plan ends the run."""
    errors = [r.name for code, r in all_rules().items() if code.startswith("EPO7") and r.severity == "error"]
    assert errors == ["verl-needs-fused-kernels"]


def test_moe_recompute_is_another_rule_from_0_17(state: Callable[..., str]) -> None:
    """From 0.17 the combination is refused, by `no-moe-in-recompute-modules`."""
    settings = {**ON, "recompute_granularity": "selective", "recompute_modules": ["moe"]}
    assert state("moe-recompute-not-applied", settings, stack="megatron-core==0.17.0") == "not enforced"
