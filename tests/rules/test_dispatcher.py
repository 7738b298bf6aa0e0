"""EPO4xx: dispatchers, flex backends, experts and their router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.deepep import GROUP_SIZES, fits_between_nodes, fits_in_node
from ep_overlap_mcp.rules.view import View
from tests.rules.tables import Tables, ThreeTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rules.tables import Case, OpenCase

FLEX: dict[str, Any] = {
    "moe_token_dispatcher_type": "flex",
    "expert_model_parallel_size": 8,
    "expert_tensor_parallel_size": 1,
    "num_moe_experts": 64,
    "moe_router_dtype": "fp32",
    "hidden_size": 2048,
}
DEEPEP = {**FLEX, "moe_flex_dispatcher_backend": "deepep"}
HYBRIDEP = {**FLEX, "moe_flex_dispatcher_backend": "hybridep"}
NCCLEP = {**FLEX, "moe_flex_dispatcher_backend": "ncclep"}
OVERLAP = {"overlap_moe_expert_parallel_comm": True}
DOMAIN = "env.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
TWO_NODES = {"expert_model_parallel_size": 16, "seq_length": 8192, "train.micro_batch_size": 8}

EXPERTS = {"num_moe_experts": 8}
VIOLATED: list[Case] = [
    (
        "shared-experts-exclude-bias",
        {**EXPERTS, "moe_shared_expert_intermediate_size": 512, "add_bias_linear": True},
        {},
    ),
    ("shared-experts-exclude-bias", {**EXPERTS, "moe_shared_expert_intermediate_size": 512}, {}),
    ("grouped-experts-exclude-fused-bias", {**EXPERTS, "moe_grouped_gemm": True}, {"stack": "megatron-lm==0.16.1"}),
    ("grouped-experts-exclude-fused-bias", {**EXPERTS, "moe_grouped_gemm": True}, {"stack": "megatron-core==0.14.0"}),
    (
        "legacy-grouped-experts-limits",
        {**EXPERTS, "moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": True, "add_bias_linear": True},
        {},
    ),
    (
        "legacy-grouped-experts-limits",
        {
            **EXPERTS,
            "moe_grouped_gemm": True,
            "add_bias_linear": False,
            "moe_latent_size": 64,
            "moe_use_legacy_grouped_gemm": True,
        },
        {"stack": "megatron-core==0.16.1,transformer-engine==2.9.0"},
    ),
    (
        "sinkhorn-excludes-aux-loss",
        {**EXPERTS, "moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": 0.01},
        {},
    ),
    (
        "latent-experts-need-te",
        {**EXPERTS, "moe_latent_size": 64},
        {"stack": "megatron-core==0.16.1,transformer-engine==none"},
    ),
    (
        "topk-fits-routing-groups",
        {"num_moe_experts": 8, "moe_router_num_groups": 4, "moe_router_group_topk": 1, "moe_router_topk": 4},
        {},
    ),
    ("single-grouped-parameters-limits", {"moe_single_grouped_weight": True}, {"stack": "megatron-core==0.19.0"}),
    ("deepep-flag-needs-flex", {"moe_enable_deepep": True, "moe_token_dispatcher_type": "alltoall"}, {}),
    ("one-flex-backend", {**HYBRIDEP, "moe_enable_deepep": True}, {}),
    ("one-flex-backend", {**NCCLEP, "moe_enable_deepep": True}, {"stack": "megatron-core==0.19.0"}),
    ("flex-backend-must-be-known", {**FLEX, "moe_flex_dispatcher_backend": None}, {}),
    ("flex-backend-must-be-known", NCCLEP, {"stack": "megatron-core==0.18.2"}),
    ("flex-needs-deepep-flag", FLEX, {"stack": "megatron-core==0.15.3"}),
    ("deepep-excludes-pad-to-capacity", {**DEEPEP, "moe_pad_expert_input_to_capacity": True}, {}),
    (
        "deepep-excludes-pad-to-capacity",
        {**FLEX, "moe_pad_expert_input_to_capacity": True},
        {"stack": "megatron-core==0.14.0"},
    ),
    ("flex-needs-larger-expert-group", {**HYBRIDEP, "expert_model_parallel_size": 1}, {}),
    (
        "flex-needs-larger-expert-group",
        {**DEEPEP, "expert_model_parallel_size": 1},
        {"stack": "megatron-core==0.17.1"},
    ),
    (
        "flex-backend-ignored",
        {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "hybridep"},
        {},
    ),
    (
        "ncclep-needs-flex",
        {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "ncclep"},
        {"stack": "megatron-core==0.19.0"},
    ),
    ("ncclep-needs-te-2-17", NCCLEP, {"stack": "megatron-core==0.19.0,transformer-engine==2.14.0"}),
    (
        "ncclep-excludes-expert-offload",
        {**NCCLEP, **OVERLAP, "fine_grained_activation_offloading": True, "offload_modules": ["expert_fc1"]},
        {"stack": "megatron-core==0.19.0"},
    ),
    ("ncclep-eager-synchronises-host", {**NCCLEP, **OVERLAP}, {"stack": "megatron-core==0.19.0"}),
    ("ncclep-eager-synchronises-host", {**NCCLEP, **OVERLAP}, {"stack": "megatron-core==main"}),
    (
        "ncclep-static-needs-op-fuser",
        {**NCCLEP, "moe_ncclep_static_shape": True},
        {"stack": "megatron-core==0.19.0"},
    ),
    ("ncclep-static-needs-op-fuser", {**NCCLEP, "moe_expert_capacity_factor": 1.0}, {"stack": "megatron-core==main"}),
    ("quantized-dispatch-needs-ncclep", {"moe_dispatch_fwd_dtype": "mxfp8"}, {"stack": "megatron-core==main"}),
    (
        "rank-capacity-needs-hybridep",
        {"moe_token_dispatcher_type": "alltoall", "moe_expert_rank_capacity_factor": 1.5},
        {"stack": "megatron-core==0.18.2"},
    ),
    (
        "rank-capacity-needs-hybridep",
        {**HYBRIDEP, "moe_expert_rank_capacity_factor": 1.5},
        {"stack": "megatron-core==0.19.0"},
    ),
    (
        "flex-sm-counts-agree",
        {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 32},
        {"stack": "megatron-core==0.19.0"},
    ),
    ("deepep-sms-even", {**DEEPEP, "moe_deepep_num_sms": 21}, {}),
    ("deepep-sms-even", {**DEEPEP, "moe_flex_dispatcher_num_sms": 21}, {"stack": "megatron-core==0.19.0"}),
    (
        "shared-expert-overlap-needs-dispatcher",
        {**FLEX, "moe_shared_expert_overlap": True, "moe_shared_expert_intermediate_size": 512},
        {},
    ),
    ("deepep-group-size", {**DEEPEP, "expert_model_parallel_size": 12}, {}),
    ("deepep-group-size", {**DEEPEP, "expert_model_parallel_size": 24}, {"stack": "deep_ep==1.2.1"}),
    ("deepep-topk-limit", {**DEEPEP, "moe_router_topk": 10, "expert_tensor_parallel_size": 4}, {}),
    ("deepep-hidden-limit", {**DEEPEP, "hidden_size": 8192}, {"gpu": "H100"}),
    ("deepep-hidden-limit", {**DEEPEP, "hidden_size": 1000 + 4}, {}),
    ("hybridep-domain-divides-group", {**HYBRIDEP, DOMAIN: 6}, {}),
    ("hybridep-domain-at-most-72", {**HYBRIDEP, DOMAIN: 128}, {}),
    ("hybridep-domain-below-hardware", {**HYBRIDEP, DOMAIN: 4}, {"gpu": "GB200"}),
    ("hybridep-hidden-multiple", {**HYBRIDEP, "hidden_size": 1000}, {"gpu": "H100"}),
    (
        "hybridep-hidden-multiple",
        {**HYBRIDEP, "num_moe_experts": 2, "expert_model_parallel_size": 2},
        {"gpu": "H100"},
    ),
    ("hybridep-tokens-per-rank-limit", {**HYBRIDEP, **TWO_NODES}, {"gpu": "H100"}),
    (
        "hybridep-tokens-multiple-of-chunk",
        {**HYBRIDEP, "seq_length": 1000, "train.micro_batch_size": 1},
        {},
    ),
    ("hybridep-needs-equal-token-counts", {**HYBRIDEP, "variable_seq_lengths": True}, {}),
    ("hybridep-needs-equal-token-counts", {**HYBRIDEP, "dataset.packed_sequences": True}, {}),
    ("flex-package-must-import", DEEPEP, {"stack": "megatron-core==0.16.1,deep_ep==none"}),
    ("deepep-2-not-importable", DEEPEP, {"stack": "megatron-core==0.16.1,deep_ep==2.1.0"}),
    ("hybridep-needs-hybrid-branch", HYBRIDEP, {"stack": "megatron-core==0.16.1,deep_ep==1.2.1"}),
    ("flex-router-probs-cast", {**DEEPEP, "moe_router_dtype": None}, {}),
    ("flex-dispatch-waits-on-host", {**DEEPEP, **OVERLAP}, {}),
    ("flex-dispatch-waits-on-host", {**HYBRIDEP, **OVERLAP}, {}),
    ("capacity-needs-aux-loss", {"moe_pad_expert_input_to_capacity": True}, {}),
    (
        "capacity-needs-aux-loss",
        {"moe_expert_capacity_factor": 1.0, "moe_router_load_balancing_type": "sinkhorn"},
        {},
    ),
    ("backend-tuning-without-effect", {**DEEPEP, "moe_hybridep_num_sms": 32}, {}),
    ("expert-bias-terms-need-etp-1", {"num_moe_experts": 8, "tensor_model_parallel_size": 2}, {}),
    ("expert-bias-terms-need-etp-1", {"num_moe_experts": 8}, {"stack": "megatron-core==0.14.0"}),
    ("expert-width-needs-experts", {"moe_ffn_hidden_size": 512}, {}),
    ("experts-positive", {"num_moe_experts": 0}, {}),
    ("experts-positive", {"moe_shared_expert_intermediate_size": 0}, {}),
    (
        "one-coefficient-a-balancing-loss",
        {"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": [0.01]},
        {},
    ),
    ("router-bias-needs-sigmoid", {"moe_router_enable_expert_bias": True}, {}),
    ("router-padding-needs-quantization", {"moe_router_padding_for_quantization": True}, {}),
    ("router-padding-needs-quantization", {"moe_router_padding_for_fp8": True, "fp8": "hybrid"}, {}),
    ("top-1-needs-pre-softmax", {"moe_router_topk": 1}, {}),
    ("group-routing-fits-experts", {"moe_router_group_topk": 2, "num_moe_experts": 8}, {}),
    (
        "group-routing-fits-experts",
        {"moe_router_group_topk": 2, "moe_router_num_groups": 3, "num_moe_experts": 8},
        {},
    ),
    ("variable-lengths-need-alltoall", {"variable_seq_lengths": True}, {}),
    ("paged-stash-needs-rank-capacity", {"moe_paged_stash": True}, {"stack": "megatron-core==0.18.2"}),
    ("ncclep-needs-rank-capacity", NCCLEP, {"stack": "megatron-core==0.19.0"}),
    ("grouped-tensor-needs-fused-experts", {"moe_use_grouped_tensor": True}, {"stack": "megatron-core==main"}),
]

SILENT: list[Case] = [
    (
        "shared-experts-exclude-bias",
        {**EXPERTS, "moe_shared_expert_intermediate_size": 512, "add_bias_linear": False},
        {},
    ),
    ("shared-experts-exclude-bias", {**EXPERTS, "add_bias_linear": True}, {}),
    ("grouped-experts-exclude-fused-bias", {**EXPERTS, "moe_grouped_gemm": True, "add_bias_linear": True}, {}),
    (
        "grouped-experts-exclude-fused-bias",
        {**EXPERTS, "moe_grouped_gemm": True, "add_bias_linear": False, "bias_dropout_fusion": True},
        {},
    ),
    (
        "legacy-grouped-experts-limits",
        {
            **EXPERTS,
            "moe_grouped_gemm": True,
            "moe_use_legacy_grouped_gemm": True,
            "add_bias_linear": False,
            "bf16": True,
        },
        {},
    ),
    (
        "sinkhorn-excludes-aux-loss",
        {**EXPERTS, "moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": 0.0},
        {},
    ),
    (
        "sinkhorn-excludes-aux-loss",
        {**EXPERTS, "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01},
        {},
    ),
    (
        "latent-experts-need-te",
        {**EXPERTS, "moe_latent_size": 64},
        {"stack": "megatron-core==0.16.1,transformer-engine==2.9.0"},
    ),
    (
        "topk-fits-routing-groups",
        {"num_moe_experts": 8, "moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_topk": 4},
        {},
    ),
    ("topk-fits-routing-groups", {"num_moe_experts": 8, "moe_router_topk": 4}, {}),
    (
        "single-grouped-parameters-limits",
        {"moe_single_grouped_weight": True, "moe_grouped_gemm": True, "use_transformer_engine_op_fuser": True},
        {"stack": "megatron-core==0.19.0,transformer-engine==2.14.0"},
    ),
    ("deepep-flag-needs-flex", {**FLEX, "moe_enable_deepep": True}, {}),
    ("one-flex-backend", {**DEEPEP, "moe_enable_deepep": True}, {}),
    ("flex-backend-must-be-known", FLEX, {}),
    ("flex-backend-must-be-known", NCCLEP, {"stack": "megatron-core==0.19.0"}),
    ("flex-backend-must-be-known", {**FLEX, "moe_flex_dispatcher_backend": None}, {"stack": "megatron-bridge==main"}),
    ("flex-needs-deepep-flag", {**FLEX, "moe_enable_deepep": True}, {"stack": "megatron-core==0.15.3"}),
    ("deepep-excludes-pad-to-capacity", {**HYBRIDEP, "moe_pad_expert_input_to_capacity": True}, {}),
    (
        "flex-needs-larger-expert-group",
        {**HYBRIDEP, "expert_model_parallel_size": 1},
        {"stack": "megatron-core==0.17.1"},
    ),
    ("flex-backend-ignored", {"moe_token_dispatcher_type": "alltoall"}, {}),
    ("ncclep-needs-flex", NCCLEP, {"stack": "megatron-core==0.19.0"}),
    ("ncclep-needs-te-2-17", NCCLEP, {"stack": "megatron-core==0.19.0,transformer-engine==2.17.0"}),
    (
        "ncclep-excludes-expert-offload",
        {**NCCLEP, **OVERLAP, "fine_grained_activation_offloading": True, "offload_modules": ["moe_act"]},
        {"stack": "megatron-core==0.19.0"},
    ),
    (
        "ncclep-eager-synchronises-host",
        {**NCCLEP, **OVERLAP, "moe_expert_rank_capacity_factor": 1.5},
        {"stack": "megatron-core==main"},
    ),
    (
        "ncclep-static-needs-op-fuser",
        {
            **NCCLEP,
            "moe_ncclep_static_shape": True,
            "use_transformer_engine_op_fuser": True,
            "moe_grouped_gemm": True,
        },
        {"stack": "megatron-core==0.19.0"},
    ),
    ("quantized-dispatch-needs-ncclep", {"moe_dispatch_fwd_dtype": "bf16"}, {"stack": "megatron-core==main"}),
    (
        "rank-capacity-needs-hybridep",
        {**HYBRIDEP, "moe_expert_rank_capacity_factor": 1.5, "use_transformer_engine_op_fuser": True},
        {"stack": "megatron-core==0.19.0"},
    ),
    (
        "flex-sm-counts-agree",
        {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 32, "moe_flex_dispatcher_num_sms": 24},
        {"stack": "megatron-core==0.19.0"},
    ),
    ("deepep-sms-even", DEEPEP, {}),
    ("shared-expert-overlap-needs-dispatcher", {**FLEX, "moe_shared_expert_overlap": True}, {}),
    (
        "shared-expert-overlap-needs-dispatcher",
        {**FLEX, "moe_shared_expert_overlap": True, "moe_shared_expert_intermediate_size": 512},
        {"stack": "megatron-core==0.18.2"},
    ),
    ("deepep-group-size", DEEPEP, {}),
    ("deepep-topk-limit", {**DEEPEP, "moe_router_topk": 8}, {}),
    ("deepep-hidden-limit", {**DEEPEP, "hidden_size": 7168}, {"gpu": "H100"}),
    ("deepep-hidden-limit", {**DEEPEP, "hidden_size": 8192, "moe_latent_size": 1024}, {"gpu": "H100"}),
    ("deepep-hidden-limit", {**DEEPEP, "hidden_size": 8192}, {"gpu": "A100"}),
    ("hybridep-domain-divides-group", HYBRIDEP, {}),
    ("hybridep-domain-at-most-72", {**HYBRIDEP, DOMAIN: 8}, {}),
    ("hybridep-domain-below-hardware", {**HYBRIDEP, DOMAIN: 8}, {"gpu": "GB200"}),
    ("hybridep-hidden-multiple", HYBRIDEP, {"gpu": "H100"}),
    ("hybridep-tokens-per-rank-limit", {**HYBRIDEP, **TWO_NODES, "train.micro_batch_size": 2}, {"gpu": "H100"}),
    ("hybridep-tokens-per-rank-limit", {**HYBRIDEP, **TWO_NODES}, {"gpu": "GB200"}),
    ("hybridep-tokens-multiple-of-chunk", {**HYBRIDEP, "seq_length": 4096, "train.micro_batch_size": 1}, {}),
    (
        "hybridep-needs-equal-token-counts",
        {**HYBRIDEP, "variable_seq_lengths": True, "moe_hybridep_pad_uneven_dispatch_inputs": True},
        {"stack": "megatron-core==0.19.0"},
    ),
    (
        "hybridep-needs-equal-token-counts",
        {**HYBRIDEP, "dataset.packed_sequences": True},
        {"stack": "megatron-bridge==main"},
    ),
    ("flex-package-must-import", DEEPEP, {"stack": "megatron-core==0.16.1,deep_ep==1.2.1"}),
    ("deepep-2-not-importable", DEEPEP, {"stack": "megatron-core==0.16.1,deep_ep==1.2.1"}),
    ("hybridep-needs-hybrid-branch", HYBRIDEP, {"stack": "megatron-core==0.16.1,deep_ep==1.2.1+hybrid"}),
    ("flex-router-probs-cast", DEEPEP, {}),
    (
        "flex-dispatch-waits-on-host",
        {**HYBRIDEP, **OVERLAP, "moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
        {},
    ),
    ("capacity-needs-aux-loss", {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}, {}),
    ("backend-tuning-without-effect", {**HYBRIDEP, "moe_deepep_num_sms": 32}, {"stack": "megatron-core==0.19.0"}),
    (
        "expert-bias-terms-need-etp-1",
        {"num_moe_experts": 8, "tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
        {},
    ),
    (
        "expert-width-needs-experts",
        {"moe_ffn_hidden_size": 512, "moe_layer_freq": 2},
        {"stack": "megatron-core==0.18.2"},
    ),
    ("experts-positive", {"num_moe_experts": 0}, {"stack": "megatron-lm==0.16.1"}),
    (
        "one-coefficient-a-balancing-loss",
        {"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": [0.01, 0.02]},
        {},
    ),
    (
        "router-bias-needs-sigmoid",
        {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"},
        {},
    ),
    (
        "router-padding-needs-quantization",
        {"moe_router_padding_for_fp8": True, "fp8": "hybrid", "moe_token_dispatcher_type": "alltoall"},
        {},
    ),
    ("top-1-needs-pre-softmax", {"moe_router_topk": 1, "moe_router_pre_softmax": True}, {}),
    (
        "group-routing-fits-experts",
        {"moe_router_group_topk": 2, "moe_router_num_groups": 4, "num_moe_experts": 8},
        {},
    ),
    ("variable-lengths-need-alltoall", {"variable_seq_lengths": True, "moe_token_dispatcher_type": "alltoall"}, {}),
    (
        "paged-stash-needs-rank-capacity",
        {"moe_paged_stash": True, "moe_expert_rank_capacity_factor": 1.5},
        {"stack": "megatron-core==0.18.2"},
    ),
    (
        "ncclep-needs-rank-capacity",
        {**NCCLEP, "moe_expert_rank_capacity_factor": 1.5},
        {"stack": "megatron-core==0.19.0"},
    ),
    (
        "grouped-tensor-needs-fused-experts",
        {"moe_use_grouped_tensor": True, "moe_grouped_gemm": True},
        {"stack": "megatron-core==main"},
    ),
]

UNDECIDED: list[OpenCase] = [
    (
        "shared-experts-exclude-bias",
        {**EXPERTS, "moe_shared_expert_intermediate_size": 512, "add_bias_linear": ...},
        {},
        {"model.add_bias_linear"},
    ),
    (
        "grouped-experts-exclude-fused-bias",
        {**EXPERTS, "moe_grouped_gemm": True, "bias_dropout_fusion": ..., "add_bias_linear": True},
        {},
        {"model.bias_dropout_fusion"},
    ),
    (
        "legacy-grouped-experts-limits",
        {**EXPERTS, "moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": ..., "add_bias_linear": True},
        {"stack": "megatron-core==0.16.1,transformer-engine==2.9.0"},
        {"model.moe_use_legacy_grouped_gemm"},
    ),
    (
        "sinkhorn-excludes-aux-loss",
        {**EXPERTS, "moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": ...},
        {},
        {"model.moe_aux_loss_coeff"},
    ),
    ("latent-experts-need-te", {**EXPERTS, "moe_latent_size": 64}, {}, {"runtime.transformer_engine"}),
    (
        "topk-fits-routing-groups",
        {"num_moe_experts": 8, "moe_router_num_groups": 4, "moe_router_group_topk": 1, "moe_router_topk": ...},
        {},
        {"model.moe_router_topk"},
    ),
    (
        "single-grouped-parameters-limits",
        {"moe_single_grouped_weight": True, "moe_grouped_gemm": True, "use_transformer_engine_op_fuser": True},
        {"stack": "megatron-core==0.19.0"},
        {"runtime.transformer_engine"},
    ),
    (
        "deepep-flag-needs-flex",
        {"moe_enable_deepep": True, "moe_token_dispatcher_type": ...},
        {},
        {"model.moe_token_dispatcher_type"},
    ),
    ("one-flex-backend", {**HYBRIDEP, "moe_enable_deepep": ...}, {}, {"model.moe_enable_deepep"}),
    (
        "flex-backend-must-be-known",
        {**FLEX, "moe_flex_dispatcher_backend": ...},
        {},
        {"model.moe_flex_dispatcher_backend"},
    ),
    (
        "flex-needs-deepep-flag",
        {**FLEX, "moe_enable_deepep": ...},
        {"stack": "megatron-core==0.15.3"},
        {"model.moe_enable_deepep"},
    ),
    (
        "deepep-excludes-pad-to-capacity",
        {**DEEPEP, "moe_pad_expert_input_to_capacity": ...},
        {},
        {"model.moe_pad_expert_input_to_capacity"},
    ),
    (
        "flex-needs-larger-expert-group",
        {**DEEPEP, "expert_model_parallel_size": ...},
        {},
        {"model.expert_model_parallel_size"},
    ),
    (
        "flex-backend-ignored",
        {"moe_token_dispatcher_type": ..., "moe_flex_dispatcher_backend": "hybridep"},
        {},
        {"model.moe_token_dispatcher_type"},
    ),
    (
        "ncclep-needs-flex",
        {**NCCLEP, "moe_token_dispatcher_type": ...},
        {"stack": "megatron-core==0.19.0"},
        {"model.moe_token_dispatcher_type"},
    ),
    ("ncclep-needs-te-2-17", NCCLEP, {"stack": "megatron-core==0.19.0"}, {"runtime.transformer_engine"}),
    (
        "ncclep-excludes-expert-offload",
        {**NCCLEP, **OVERLAP, "fine_grained_activation_offloading": True, "offload_modules": ...},
        {"stack": "megatron-core==0.19.0"},
        {"model.offload_modules"},
    ),
    (
        "ncclep-eager-synchronises-host",
        {**NCCLEP, **OVERLAP, "moe_ncclep_static_shape": ...},
        {"stack": "megatron-core==0.19.0"},
        {"model.moe_ncclep_static_shape"},
    ),
    (
        "ncclep-static-needs-op-fuser",
        {**NCCLEP, "moe_ncclep_static_shape": True, "use_transformer_engine_op_fuser": ..., "moe_grouped_gemm": True},
        {"stack": "megatron-core==0.19.0"},
        {"model.use_transformer_engine_op_fuser"},
    ),
    (
        "quantized-dispatch-needs-ncclep",
        {"moe_dispatch_fwd_dtype": ...},
        {"stack": "megatron-core==main"},
        {"model.moe_dispatch_fwd_dtype"},
    ),
    (
        "rank-capacity-needs-hybridep",
        {**HYBRIDEP, "moe_expert_rank_capacity_factor": 1.5, "use_transformer_engine_op_fuser": ...},
        {"stack": "megatron-core==0.19.0"},
        {"model.use_transformer_engine_op_fuser"},
    ),
    (
        "flex-sm-counts-agree",
        {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": ...},
        {"stack": "megatron-core==0.19.0"},
        {"model.moe_hybridep_num_sms"},
    ),
    ("deepep-sms-even", {**DEEPEP, "moe_deepep_num_sms": ...}, {}, {"model.moe_deepep_num_sms"}),
    (
        "shared-expert-overlap-needs-dispatcher",
        {**FLEX, "moe_shared_expert_overlap": True, "moe_shared_expert_intermediate_size": ...},
        {},
        {"model.moe_shared_expert_intermediate_size"},
    ),
    ("deepep-group-size", {**DEEPEP, "expert_model_parallel_size": 48}, {}, {"runtime.deep_ep"}),
    ("deepep-topk-limit", {**DEEPEP, "moe_router_topk": ...}, {}, {"model.moe_router_topk"}),
    ("deepep-hidden-limit", {**DEEPEP, "hidden_size": 8192}, {}, {"hardware.gpu"}),
    ("hybridep-domain-divides-group", {**HYBRIDEP, DOMAIN: ...}, {}, {DOMAIN}),
    ("hybridep-domain-at-most-72", {**HYBRIDEP, DOMAIN: ...}, {}, {DOMAIN}),
    ("hybridep-domain-below-hardware", {**HYBRIDEP, DOMAIN: 4}, {}, {"hardware.gpu"}),
    ("hybridep-hidden-multiple", HYBRIDEP, {}, {"hardware.gpu"}),
    ("hybridep-tokens-per-rank-limit", {**HYBRIDEP, **TWO_NODES}, {}, {"hardware.gpu"}),
    ("hybridep-tokens-multiple-of-chunk", {**HYBRIDEP, "seq_length": 4096}, {}, {"train.micro_batch_size"}),
    (
        "hybridep-needs-equal-token-counts",
        {**HYBRIDEP, "variable_seq_lengths": ...},
        {},
        {"model.variable_seq_lengths"},
    ),
    ("flex-package-must-import", DEEPEP, {}, {"runtime.deep_ep"}),
    ("deepep-2-not-importable", DEEPEP, {}, {"runtime.deep_ep"}),
    (
        "hybridep-needs-hybrid-branch",
        HYBRIDEP,
        {"stack": "megatron-core==0.16.1,deep_ep==1.2.1+94a9f8f"},
        {"runtime.deep_ep"},
    ),
    ("flex-router-probs-cast", {**DEEPEP, "moe_router_dtype": ...}, {}, {"model.moe_router_dtype"}),
    (
        "flex-dispatch-waits-on-host",
        {**FLEX, **OVERLAP, "moe_flex_dispatcher_backend": ...},
        {},
        {"model.moe_flex_dispatcher_backend"},
    ),
    (
        "capacity-needs-aux-loss",
        {"moe_expert_capacity_factor": 1.0, "moe_router_load_balancing_type": ...},
        {},
        {"model.moe_router_load_balancing_type"},
    ),
    (
        "backend-tuning-without-effect",
        {**FLEX, "moe_flex_dispatcher_backend": ..., "moe_hybridep_num_sms": 32},
        {},
        {"model.moe_flex_dispatcher_backend"},
    ),
    (
        "expert-bias-terms-need-etp-1",
        {"num_moe_experts": 8, "expert_tensor_parallel_size": ...},
        {},
        {"model.expert_tensor_parallel_size"},
    ),
    ("expert-width-needs-experts", {"moe_ffn_hidden_size": 512, "num_moe_experts": ...}, {}, {"model.num_moe_experts"}),
    ("experts-positive", {"num_moe_experts": ...}, {}, {"model.num_moe_experts"}),
    (
        "one-coefficient-a-balancing-loss",
        {"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": ...},
        {},
        {"model.moe_aux_loss_coeff"},
    ),
    (
        "router-bias-needs-sigmoid",
        {"moe_router_enable_expert_bias": True, "moe_router_score_function": ...},
        {},
        {"model.moe_router_score_function"},
    ),
    (
        "router-padding-needs-quantization",
        {"moe_router_padding_for_quantization": ...},
        {},
        {"model.moe_router_padding_for_quantization"},
    ),
    (
        "top-1-needs-pre-softmax",
        {"moe_router_topk": 1, "moe_router_pre_softmax": ...},
        {},
        {"model.moe_router_pre_softmax"},
    ),
    (
        "group-routing-fits-experts",
        {"moe_router_group_topk": 2, "moe_router_num_groups": 4, "num_moe_experts": ...},
        {},
        {"model.num_moe_experts"},
    ),
    ("variable-lengths-need-alltoall", {"variable_seq_lengths": ...}, {}, {"model.variable_seq_lengths"}),
    (
        "paged-stash-needs-rank-capacity",
        {"moe_paged_stash": ...},
        {"stack": "megatron-core==0.18.2"},
        {"model.moe_paged_stash"},
    ),
    (
        "ncclep-needs-rank-capacity",
        {**NCCLEP, "moe_expert_rank_capacity_factor": ...},
        {"stack": "megatron-core==0.19.0"},
        {"model.moe_expert_rank_capacity_factor"},
    ),
    (
        "grouped-tensor-needs-fused-experts",
        {"moe_use_grouped_tensor": True, "moe_grouped_gemm": ...},
        {"stack": "megatron-core==main"},
        {"model.moe_grouped_gemm"},
    ),
]


class TestRules(ThreeTables):
    """Every row is a test."""

    tables = Tables(VIOLATED, SILENT, UNDECIDED)


def test_rules_of_other_releases_are_not_enforced(state: Callable[..., str]) -> None:
    """NCCL EP came with 0.19 and has no rules before it."""
    assert state("ncclep-needs-flex", NCCLEP, stack="megatron-core==0.18.2") == "not enforced"


def test_the_release_candidate_that_bridge_pins_has_the_backends_of_0_16(state: Callable[..., str]) -> None:
    """Bridge 0.2.0 pins 0.16.0rc0, which knows flex backends and no longer needs the DeepEP flag."""
    assert state("flex-needs-deepep-flag", HYBRIDEP, stack="megatron-bridge==0.2.0") == "not enforced"
    assert state("hybridep-domain-at-most-72", {**HYBRIDEP, DOMAIN: 128}, stack="megatron-bridge==0.2.0") == "violated"


def test_message_quotes_the_value_and_names_what_is_needed(outcome: Callable[..., Any]) -> None:
    """The message holds what was seen and what would be right, without a full stop."""
    found = outcome("deepep-group-size", {**DEEPEP, "expert_model_parallel_size": 12})
    assert found.message == ("the expert group has 12 ranks; DeepEP has kernels for 2, 4, 8, 16, 32, 64, 128, 144, 160")


def test_smaller_micro_batch_is_proposed_for_hybridep(asked: Callable[..., Any]) -> None:
    """The proposed micro batch is the largest divisor with which the tokens of a rank fit."""
    rule = all_rules()["EPO425"]
    request = asked({**HYBRIDEP, **TWO_NODES}, gpu="H100")
    view = View(request, request.releases()[0])
    assert [list(fix.options(view)) for fix in rule.fixes] == [[{"train.micro_batch_size": 2}]]


@given(st.integers(min_value=1, max_value=20000))
def test_rows_that_fit_inside_a_node_are_at_most_8176_wide(width: int) -> None:
    """DeepEP's limit inside a node, as its kernel asserts it: half a row of whole words in 8,184 bytes."""
    assert fits_in_node(width) == (width % 16 == 0 and width <= 8176)


@given(st.integers(min_value=1, max_value=20000), st.integers(min_value=1, max_value=32))
def test_rows_that_fit_between_nodes_fit_inside_too(width: int, topk: int) -> None:
    """What passes between nodes is a multiple of 256 and passes inside a node."""
    if fits_between_nodes(width, topk):
        assert width % 256 == 0
        assert fits_in_node(width)


def test_group_sizes_are_those_of_compiled_kernels() -> None:
    """Up to 8 ranks by NVLink, beyond in whole nodes of 8."""
    assert all(size in (2, 4, 8) or size % 8 == 0 for size in GROUP_SIZES)
