"""EPO1xx, each silent, violated and undecided, and what is peculiar to a framework or a release."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.engine import judge
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.sources.shell import read_shell
from ep_overlap_mcp.stack import parse_stack
from tests.rules.tables import OneTable

BRIDGE = "megatron-bridge==0.4.2"

# rule, stack, changes that violate it, changes that do not, a setting that leaves it open
CASES = [
    (
        "bias-activation-fusion-fits",
        "megatron-lm==0.16.1",
        {"args.squared_relu": True, "add_bias_linear": True},
        {"args.squared_relu": True, "add_bias_linear": False},
        None,
    ),
    (
        "bias-activation-fusion-fits",
        "",
        {"bias_activation_fusion": True, "activation_func": "torch.nn.functional.relu"},
        {"bias_activation_fusion": True, "activation_func": "torch.nn.functional.silu"},
        "bias_activation_fusion",
    ),
    (
        "te-activation-known",
        "",
        {"use_te_activation_func": True, "activation_func": "squared_relu"},
        {"use_te_activation_func": True},
        None,
    ),
    (
        "fp8-activation-input-needs-swiglu",
        "",
        {"activation_func_fp8_input_store": True},
        {"activation_func_fp8_input_store": True, "activation_func": "silu", "gated_linear_unit": True},
        "activation_func_fp8_input_store",
    ),
    (
        "fused-residual-norm-needs-rmsnorm",
        "megatron-core==0.19.0",
        {"fused_residual_rmsnorm": True},
        {"fused_residual_rmsnorm": True, "normalization": "RMSNorm"},
        "fused_residual_rmsnorm",
    ),
    (
        "symmetric-all-reduce-needs-te-2-3",
        "megatron-core==0.16.1,transformer-engine==2.2.0",
        {"symmetric_ar_type": "two_shot"},
        {},
        "symmetric_ar_type",
    ),
    (
        "inference-options-need-their-implementation",
        "",
        {"inference_fuse_tp_communication": True},
        {},
        "inference_fuse_tp_communication",
    ),
    (
        "inference-layers-limits",
        "megatron-core==0.19.0",
        {"transformer_impl": "inference_optimized"},
        {
            "transformer_impl": "inference_optimized",
            "normalization": "RMSNorm",
            "add_bias_linear": False,
            "moe_router_dtype": "fp32",
        },
        "transformer_impl",
    ),
    ("needs-expert-parallelism", "", {"expert_model_parallel_size": 1}, {}, "expert_model_parallel_size"),
    ("needs-experts", "", {"num_moe_experts": None}, {}, "num_moe_experts"),
    ("dispatcher-alltoall-or-flex", "", {"moe_token_dispatcher_type": "allgather"}, {}, "moe_token_dispatcher_type"),
    (
        "pipeline-needs-virtual-stages",
        "",
        {"pipeline_model_parallel_size": 2},
        {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
        "pipeline_model_parallel_size",
    ),
    ("no-full-recompute", "", {"recompute_granularity": "full"}, {}, "recompute_granularity"),
    ("no-recompute-method", "", {"recompute_method": "block"}, {}, "recompute_method"),
    ("no-recompute-num-layers", "", {"recompute_num_layers": 1}, {}, "recompute_num_layers"),
    (
        "no-moe-in-recompute-modules",
        "megatron-core==0.17.1",
        {"recompute_modules": ["moe"]},
        {"recompute_modules": ["moe_act"]},
        "recompute_modules",
    ),
    ("needs-half-precision", "", {"bf16": False}, {"bf16": False, "fp16": True}, "bf16"),
    ("no-shared-expert-overlap", "", {"moe_shared_expert_overlap": True}, {}, "moe_shared_expert_overlap"),
    ("mtp-at-most-one-layer", "", {"mtp_num_layers": 2}, {"mtp_num_layers": 1}, "mtp_num_layers"),
    (
        "mtp-needs-pipeline",
        "",
        {"mtp_num_layers": 1},
        {"mtp_num_layers": 1, "pipeline_model_parallel_size": 2},
        "mtp_num_layers",
    ),
    (
        "early-attention-release-needs-overlap",
        "",
        {"ep_overlap_early_attn_memory_release": True, "overlap_moe_expert_parallel_comm": False},
        {"ep_overlap_early_attn_memory_release": True},
        None,
    ),
    ("only-gpt-models-overlap", "", {"is_hybrid_model": True}, {}, "is_hybrid_model"),
    ("forward-step-must-return-plan", "", {"bridge.forward_step": "vlm_step"}, {}, "bridge.forward_step"),
    (
        "mtp-excludes-packed-sequences",
        "",
        {"mtp_num_layers": 1, "dataset.packed_sequences": True},
        {"mtp_num_layers": 1},
        None,
    ),
    ("overlap-field-needs-core-0-14", "megatron-core==0.13.0", {}, {"overlap_moe_expert_parallel_comm": False}, None),
    (
        "dispatch-backward-wgrad-excludes-overlap",
        "megatron-core==0.18.2",
        {"overlap_dispatch_backward_with_experts_wgrad": True},
        {},
        "overlap_dispatch_backward_with_experts_wgrad",
    ),
    (
        "mtp-excludes-learned-positions",
        "megatron-lm==0.18.2",
        {"mtp_num_layers": 1},
        {"mtp_num_layers": 1, "position_embedding_type": "rope"},
        "mtp_num_layers",
    ),
    ("mtp-hidden-state-mixing-needs-two-layers", "megatron-core==main", {"mtp_hsm": True}, {}, "mtp_hsm"),
    (
        "full-recompute-needs-method",
        "",
        {"recompute_granularity": "full"},
        {"recompute_granularity": "full", "recompute_method": "block"},
        "recompute_granularity",
    ),
    (
        "full-recompute-needs-num-layers",
        "",
        {"recompute_granularity": "full"},
        {"recompute_granularity": "full", "recompute_num_layers": 1},
        "recompute_granularity",
    ),
    (
        "sharded-saves-exclude-sequence-parallel",
        "",
        {"recompute_granularity": "selective", "distribute_saved_activations": True, "sequence_parallel": True},
        {"distribute_saved_activations": True, "sequence_parallel": True},
        None,
    ),
    (
        "recompute-modules-known",
        "",
        {"recompute_granularity": "selective", "recompute_modules": ["gdn_norm_out"]},
        {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]},
        None,
    ),
    (
        "moe-act-recompute-needs-grouped-gemm",
        "",
        {"recompute_granularity": "selective", "recompute_modules": ["moe_act"]},
        {"recompute_granularity": "selective", "recompute_modules": ["moe_act"], "moe_grouped_gemm": True},
        None,
    ),
    (
        "mla-recompute-needs-latent-attention",
        "",
        {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"]},
        {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"], "multi_latent_attention": True},
        None,
    ),
    (
        "shared-experts-recompute-excludes-their-overlap",
        "",
        {
            "recompute_granularity": "selective",
            "recompute_modules": ["shared_experts"],
            "moe_shared_expert_intermediate_size": 512,
            "moe_shared_expert_overlap": True,
        },
        {"recompute_granularity": "selective", "recompute_modules": ["shared_experts"]},
        None,
    ),
    (
        "fp8-recompute-excludes-delayed-scaling",
        "",
        {"recompute_granularity": "selective", "recompute_modules": ["layernorm"], "fp8": "hybrid"},
        {
            "recompute_granularity": "selective",
            "recompute_modules": ["layernorm"],
            "fp8": "hybrid",
            "fp8_recipe": "blockwise",
        },
        None,
    ),
    (
        "fp8-recompute-needs-te-2-6",
        "megatron-core==0.16.1,transformer-engine==2.5.0",
        {
            "recompute_granularity": "selective",
            "recompute_modules": ["layernorm"],
            "fp8": "hybrid",
            "fp8_recipe": "blockwise",
        },
        {},
        None,
    ),
    (
        "moe-layer-recompute-excludes-full",
        "",
        {"recompute_granularity": "full", "moe_layer_recompute": True},
        {"moe_layer_recompute": True},
        None,
    ),
    (
        "delta-net-recompute-needs-delta-net",
        "megatron-core==0.19.0",
        {"recompute_granularity": "selective", "recompute_modules": ["gdn_norm_out"]},
        {},
        None,
    ),
    (
        "residual-stream-recompute-limits",
        "megatron-core==main",
        {"recompute_granularity": "selective", "recompute_modules": ["mhc"]},
        {"recompute_granularity": "selective", "recompute_modules": ["mhc"], "enable_mhc_connections": True},
        None,
    ),
    (
        "residual-streams-exclude",
        "megatron-core==main",
        {"enable_mhc_connections": True, "mtp_num_layers": 1},
        {"enable_mhc_connections": True},
        "enable_mhc_connections",
    ),
    (
        "cpu-offloading-limits",
        "",
        {"cpu_offloading": True, "cpu_offloading_num_layers": 8},
        {"cpu_offloading": True, "cpu_offloading_num_layers": 2},
        "cpu_offloading_num_layers",
    ),
    (
        "activation-offloading-excludes-cpu-offloading",
        "",
        {"fine_grained_activation_offloading": True, "cpu_offloading": True},
        {"fine_grained_activation_offloading": True},
        None,
    ),
    (
        "offload-modules-known",
        "",
        {"fine_grained_activation_offloading": True, "offload_modules": ["fused_group_mlp"]},
        {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]},
        None,
    ),
    (
        "attention-projection-offload-needs-core-attention",
        "",
        {"fine_grained_activation_offloading": True, "offload_modules": ["attn_proj"]},
        {"fine_grained_activation_offloading": True, "offload_modules": ["attn_proj", "core_attn"]},
        None,
    ),
    (
        "recomputed-moe-excludes-offload-inside",
        "megatron-core==0.19.0",
        {
            "fine_grained_activation_offloading": True,
            "offload_modules": ["expert_fc1"],
            "recompute_granularity": "selective",
            "recompute_modules": ["moe"],
        },
        {"fine_grained_activation_offloading": True, "offload_modules": ["expert_fc1"]},
        None,
    ),
    (
        "fused-mlp-offload-limits",
        "megatron-core==0.19.0",
        {"fine_grained_activation_offloading": True, "offload_modules": ["fused_group_mlp"]},
        {
            "fine_grained_activation_offloading": True,
            "offload_modules": ["fused_group_mlp"],
            "use_transformer_engine_op_fuser": True,
        },
        None,
    ),
    (
        "offload-amounts-in-range",
        "megatron-core==0.19.0",
        {"fine_grained_activation_offloading": True, "activation_offload_fraction": 1.5},
        {"fine_grained_activation_offloading": True, "activation_offload_fraction": 1.0},
        None,
    ),
    (
        "delta-product-offload-excludes-its-recompute",
        "megatron-core==main",
        {
            "fine_grained_activation_offloading": True,
            "offload_modules": ["gdp_qkv"],
            "recompute_granularity": "selective",
            "recompute_modules": ["gdp_in_proj"],
        },
        {"fine_grained_activation_offloading": True, "offload_modules": ["gdp_qkv"]},
        None,
    ),
]


class TestRules(OneTable):
    """Every row is two tests."""

    cases = CASES
    without_fix = frozenset({"overlap-field-needs-core-0-14", "only-gpt-models-overlap"})


def test_zero_mtp_layers_count_as_none_from_0_19_but_not_on_dev(state, overlapping):
    """0.19 and main take 0 for unset; 0.18 and the dev branch reject it with overlap."""
    zero = overlapping(mtp_num_layers=0)
    seen = {v: state("EPO111", zero, stack=f"megatron-core=={v}") for v in ("0.18.2", "0.19.0", "main", "dev")}
    assert seen == {"0.18.2": "violated", "0.19.0": "met", "main": "met", "dev": "violated"}


def test_one_mtp_layer_needs_a_pipeline_on_0_16_and_0_17_only(state, overlapping):
    """The assertion came with 0.16.0 and went with 0.18."""
    one = overlapping(mtp_num_layers=1)
    seen = {v: state("EPO112", one, stack=f"megatron-core=={v}") for v in ("0.15.3", "0.16.1", "0.17.1", "0.18.2")}
    assert seen == {"0.15.3": "not enforced", "0.16.1": "violated", "0.17.1": "violated", "0.18.2": "not enforced"}


def test_dev_replays_full_recompute_without_dropout(state, overlapping):
    """The dev branch admits full recompute where nothing random or delayed has to be replayed."""
    full = overlapping(recompute_granularity="full", recompute_method="block", recompute_num_layers=1)
    quiet = {**full, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    assert state("EPO105", full, stack="megatron-core==dev") == "violated"
    assert state("EPO105", quiet, stack="megatron-core==dev") == "met"
    assert state("EPO106", quiet, stack="megatron-core==dev") == "met"
    assert state("EPO105", quiet, stack="megatron-core==main") == "violated"


def test_a_layout_gives_virtual_stages_in_core_and_not_in_bridge_setup(state, overlapping):
    """`CommOverlapConfig.setup` looks before the model is finalised, so a layout alone is too late there."""
    layout = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Ett|tt|tt|ttL"}
    switch = {"comm_overlap.overlap_moe_expert_parallel_comm": True}
    assert state("EPO104", overlapping(**layout)) == "met"
    assert state("EPO104", overlapping(**layout, **switch), stack=BRIDGE) == "violated"
    both = overlapping(**layout, **switch, virtual_pipeline_model_parallel_size=2)
    assert state("EPO104", both, stack=BRIDGE) == "met"
    without_comm_overlap = overlapping(**layout)
    assert state("EPO104", without_comm_overlap, stack=BRIDGE) == "met"


def test_one_virtual_stage_counts_in_core_and_is_none_in_megatron_lm(state, overlapping):
    """Megatron-LM turns a VPP of 1 into unset; core and Bridge look for unset only."""
    one = overlapping(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=1)
    assert state("EPO104", one) == "met"
    assert state("EPO104", one, stack="megatron-lm==0.16.1") == "violated"


def test_bridge_wants_more_than_one_expert(state, overlapping):
    """Core accepts a single expert; Bridge's setup asserts more, and breaks without any."""
    switch = {"comm_overlap.overlap_moe_expert_parallel_comm": True}
    assert state("EPO102", overlapping(num_moe_experts=1)) == "met"
    assert state("EPO102", overlapping(num_moe_experts=1, **switch), stack=BRIDGE) == "violated"
    assert state("EPO102", overlapping(num_moe_experts=None, **switch), stack=BRIDGE) == "violated"


def test_moe_recompute_is_banned_from_0_17_and_its_release_candidate(state, overlapping):
    """Bridge 0.4.0 pins 0.17.0rc0, which has the check; 0.16.1 lets it pass."""
    moe = overlapping(recompute_modules=["moe"], **{"comm_overlap.overlap_moe_expert_parallel_comm": True})
    assert state("EPO108", moe, stack="megatron-bridge==0.4.0") == "violated"
    assert state("EPO108", moe, stack="megatron-bridge==0.3.1") == "not enforced"


def test_recompute_flags_of_the_past_count_after_the_checks(state, overlapping):
    """`moe_layer_recompute` chooses selective only after the number of layers was looked at."""
    late = overlapping(moe_layer_recompute=True, recompute_num_layers=1, overlap_moe_expert_parallel_comm=False)
    assert state("EPO107", late) == "met"
    assert state("EPO107", {**late, "recompute_granularity": "selective"}) == "violated"


def test_a_partial_text_does_not_ask_whether_the_model_is_hybrid(state, overlapping):
    """Only a model class or pattern that the text names can be refused."""
    assert state("EPO114", overlapping(), partial=True) == "met"
    assert state("EPO114", overlapping(**{"model.provider": "Qwen3VLModelProvider"}), partial=True) == "violated"


@pytest.mark.parametrize(
    ("program", "state"),
    [
        ("pretrain_gpt.py", "met"),
        ("pretrain_mamba.py", "violated"),
        ("pretrain_hybrid.py", "violated"),
        ("pretrain_bert.py", "violated"),
        ("pretrain_t5.py", "violated"),
        ("pretrain_vlm.py", "violated"),
        ("pretrain_vision_classify.py", "violated"),
        ("pretrain_gpt.py --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", "violated"),
    ],
)
def test_the_entry_point_says_which_model_it_is(program: str, state: str) -> None:
    """Megatron-LM has a training program for each kind of model."""
    text = f"torchrun {program} --num-experts 8 --overlap-moe-expert-parallel-comm\n"
    request = build_request(read_shell(text, "run.sh"), stack=parse_stack("megatron-lm==0.16.1"))
    found = judge(all_rules()["EPO114"], [View(request, release) for release in request.releases()])
    assert found is not None
    assert found.state == state
