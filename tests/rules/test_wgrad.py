"""EPO2xx, each silent, violated and undecided, and what is peculiar to a framework or a release."""

from __future__ import annotations

import pytest

from tests.rules.tables import OneTable

CORE, LM, BRIDGE = "megatron-core==0.16.1", "megatron-lm==0.17.1", "megatron-bridge==0.6.0"
DELAY = {"delay_wgrad_compute": True}
BOTH = {"comm_overlap.overlap_moe_expert_parallel_comm": True, "comm_overlap.delay_wgrad_compute": True}
REDUCES = {"ddp.overlap_grad_reduce": True}
ATTENTION = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]}

# rule, stack, changes that violate it, changes that do not, a setting that leaves it open
CASES = [
    (
        "delayed-wgrad-needs-overlap",
        CORE,
        {**DELAY, "overlap_moe_expert_parallel_comm": False},
        DELAY,
        "delay_wgrad_compute",
    ),
    (
        "bridge-delay-needs-comm-overlap-flag",
        BRIDGE,
        {"comm_overlap.delay_wgrad_compute": True},
        BOTH,
        "comm_overlap.delay_wgrad_compute",
    ),
    ("delayed-wgrad-needs-te-2-3", f"{CORE},te==2.2.0", DELAY, {}, "delay_wgrad_compute"),
    (
        "delayed-wgrad-with-grad-reduce-needs-te",
        f"{LM},te==2.7.0",
        {**DELAY, **REDUCES},
        DELAY,
        "ddp.overlap_grad_reduce",
    ),
    (
        "delayed-wgrad-fusion-needs-te",
        f"{LM},te==2.6.0",
        {**DELAY, "gradient_accumulation_fusion": False},
        DELAY,
        "gradient_accumulation_fusion",
    ),
    (
        "delayed-wgrad-needs-transformer-engine",
        LM,
        {**DELAY, "transformer_impl": "local"},
        DELAY,
        "transformer_impl",
    ),
    (
        "delayed-wgrad-excludes-legacy-grouped-gemm",
        CORE,
        {**DELAY, "moe_use_legacy_grouped_gemm": True},
        DELAY,
        "moe_use_legacy_grouped_gemm",
    ),
    (
        "te-graph-with-delayed-wgrad-needs-te-2-10",
        f"{CORE},te==2.9.0",
        {**DELAY, **ATTENTION},
        DELAY,
        "cuda_graph_impl",
    ),
    (
        "graphed-wgrad-needs-te-2-12",
        f"{LM},te==2.11.0",
        {**DELAY, **REDUCES, **ATTENTION},
        {**DELAY, **ATTENTION},
        "cuda_graph_scope",
    ),
    (
        "graphed-wgrad-needs-fusion",
        LM,
        {**DELAY, **REDUCES, **ATTENTION, "gradient_accumulation_fusion": False},
        {**DELAY, **REDUCES, **ATTENTION},
        "gradient_accumulation_fusion",
    ),
    (
        "graphed-attention-wgrad-needs-no-bias",
        LM,
        {**DELAY, **REDUCES, **ATTENTION, "add_bias_linear": True},
        {**DELAY, **REDUCES, **ATTENTION, "add_bias_linear": False},
        "add_bias_linear",
    ),
    (
        "delayed-wgrad-excludes-tp-bulk-wgrad",
        CORE,
        {**DELAY, "tensor_model_parallel_size": 2, "tp_comm_overlap": True},
        {**DELAY, "tensor_model_parallel_size": 2, "tp_comm_overlap": True, "tp_comm_bulk_wgrad": False},
        "tp_comm_overlap",
    ),
    (
        "delayed-wgrad-needs-ddp-flag",
        BRIDGE,
        {**BOTH, "ddp.use_distributed_optimizer": False},
        {**BOTH, "ddp.use_distributed_optimizer": True},
        "ddp.use_distributed_optimizer",
    ),
    (
        "delayed-wgrad-hooks-need-te-2-7",
        f"{BRIDGE},te==2.5.0",
        {**BOTH, "ddp.use_distributed_optimizer": True},
        {**BOTH, "ddp.use_distributed_optimizer": False},
        "ddp.use_distributed_optimizer",
    ),
    (
        "delayed-wgrad-drops-unfused-grads",
        f"{CORE},te==2.7.0",
        {**DELAY, "gradient_accumulation_fusion": False},
        {**DELAY, "gradient_accumulation_fusion": True},
        "gradient_accumulation_fusion",
    ),
    (
        "delayed-wgrad-with-fp8-bias",
        CORE,
        {**DELAY, "fp8": "hybrid", "add_qkv_bias": True},
        {**DELAY, "fp8": "hybrid", "add_bias_linear": False},
        "fp8",
    ),
    (
        "fsdp-v2-excludes-delayed-wgrad",
        "megatron-lm==main",
        {**DELAY, "ddp.use_megatron_fsdp": True, "ddp.megatron_fsdp_version": 2},
        {**DELAY, "ddp.use_megatron_fsdp": True},
        "ddp.megatron_fsdp_version",
    ),
    ("permute-fusion-needs-te", f"{CORE},te==none", {"moe_permute_fusion": True}, {}, "moe_permute_fusion"),
    ("one-half-precision", CORE, {"fp16": True}, {}, "fp16"),
    ("one-quantised-format", CORE, {"fp8": "hybrid", "fp4": "e2m1"}, {"fp8": "hybrid"}, "fp8"),
    ("quantised-parameters-need-their-format", CORE, {"fp8_param": True}, {"fp8_param": True, "fp8": "e4m3"}, "fp8"),
    (
        "bf16-end-layers-limits",
        CORE,
        {"fp8": "hybrid", "first_last_layers_bf16": True},
        {"fp8": "hybrid", "first_last_layers_bf16": True, "fp8_recipe": "tensorwise"},
        "first_last_layers_bf16",
    ),
    (
        "custom-recipe-needs-quantizer",
        CORE,
        {"fp8": "hybrid", "fp8_recipe": "custom"},
        {"fp8": "hybrid", "fp8_recipe": "custom", "fp8_quantizer_factory": "recipes.quantizers"},
        "fp8_recipe",
    ),
    ("fp8-experts-need-te", f"{CORE},te==none", {"fp8": "hybrid"}, {}, "fp8"),
    (
        "fp8-output-projection-needs-mxfp8",
        "megatron-core==0.18.2",
        {"fp8_output_proj": True, "fp8": "hybrid"},
        {"fp8_output_proj": True, "fp8": "hybrid", "fp8_recipe": "mxfp8"},
        "fp8_recipe",
    ),
]


class TestRules(OneTable):
    """Every row is two tests."""

    cases = CASES


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("EPO203", DELAY),
        ("EPO204", {**DELAY, **REDUCES}),
        ("EPO208", {**DELAY, **ATTENTION}),
        ("EPO209", {**DELAY, **REDUCES, **ATTENTION}),
        ("EPO218", {"moe_permute_fusion": True}),
    ],
)
def test_an_unknown_transformer_engine_is_what_is_needed(rule, settings, outcome, overlapping):
    """Where only the version is missing, exactly the version is asked for."""
    open_rule = outcome(rule, overlapping(**settings), stack=LM)
    assert (open_rule.state, open_rule.needs) == ("undecided", {"runtime.transformer_engine"})


def test_the_floor_with_gradient_reduction_rose_in_0_15_and_not_in_bridge(state, overlapping):
    """Megatron-LM asks for 2.8 from 0.15 on, for 2.7 before; Bridge for 2.7."""
    settings = overlapping(**DELAY, **REDUCES, **BOTH)
    seen = {
        stack: state("EPO204", settings, stack=f"{stack},te==2.7.0")
        for stack in ("megatron-lm==0.14.0", "megatron-lm==0.15.3", BRIDGE)
    }
    assert seen == {"megatron-lm==0.14.0": "met", "megatron-lm==0.15.3": "violated", BRIDGE: "met"}


def test_fusion_is_guarded_on_opposite_sides(state, overlapping):
    """Megatron-LM asks for Transformer Engine 2.7 without fusion, Bridge with it."""
    fused = overlapping(**DELAY, **BOTH, gradient_accumulation_fusion=True)
    unfused = overlapping(**DELAY, **BOTH, gradient_accumulation_fusion=False)
    assert [state("EPO205", s, stack=f"{LM},te==2.6.0") for s in (fused, unfused)] == ["met", "violated"]
    assert [state("EPO205", s, stack=f"{BRIDGE},te==2.6.0") for s in (fused, unfused)] == ["violated", "met"]


def test_bridge_reports_the_reset_and_not_the_assertion_that_follows(state, overlapping):
    """Delay in `comm_overlap` and overlap in `model` alone is EPO202; with neither flag of overlap it is EPO201."""
    reset = overlapping(**{"comm_overlap.delay_wgrad_compute": True})
    neither = {**reset, "overlap_moe_expert_parallel_comm": False}
    assert [state(rule, reset, stack=BRIDGE) for rule in ("EPO201", "EPO202")] == ["met", "violated"]
    assert [state(rule, neither, stack=BRIDGE) for rule in ("EPO201", "EPO202")] == ["violated", "met"]


def test_bridge_0_4_misses_modules_by_name(outcome, overlapping):
    """It compares names with numbers: a warning there, an error from 0.5 on."""
    settings = overlapping(**BOTH, **ATTENTION)
    old = outcome("EPO209", settings, stack="megatron-bridge==0.4.2,te==2.11.0")
    new = outcome("EPO209", settings, stack="megatron-bridge==0.5.1,te==2.11.0")
    assert [(o.state, o.severity) for o in (old, new)] == [("violated", "warning"), ("violated", "error")]


def test_graphed_router_delays_only_shared_experts(state, overlapping):
    """`moe_router` holds a weight gradient only where shared experts are not overlapped."""
    router = overlapping(**BOTH, cuda_graph_impl="transformer_engine", cuda_graph_modules=["moe_router"])
    stack = "megatron-bridge==0.5.1,te==2.11.0"
    assert state("EPO209", router, stack=stack) == "met"
    assert state("EPO209", {**router, "moe_shared_expert_intermediate_size": 512}, stack=stack) == "violated"


def test_bridge_looks_at_graph_modules_with_graphs_off(state, overlapping):
    """Names that were left behind trip the check although nothing is captured."""
    left = overlapping(**BOTH, cuda_graph_impl="none", cuda_graph_modules=["attn"])
    assert state("EPO209", left, stack="megatron-bridge==0.5.1,te==2.11.0") == "violated"
