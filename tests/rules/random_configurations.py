"""Random configurations of core fields around the boundaries of the rules.

Uniform noise is nearly always rejected for many reasons at once. Here most draws start from a legal configuration,
turn a few dials of one theme together and perhaps one or two elsewhere, so that every rule is sometimes the only one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.fields import field_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.stack import Core

BASE: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_moe_experts": 8,
    "expert_model_parallel_size": 4,
    "moe_token_dispatcher_type": "alltoall",
    "bf16": True,
    "add_bias_linear": False,
    "overlap_moe_expert_parallel_comm": True,
}

_LAYOUTS: list[Any] = [
    "Et*4|t*4L", "Et*4|t*4mL", "Et*2|t*2|t*2|t*2L", "Et*2|t*2|t*2|t*2mL", "Et*2|t*2|t*2|t*2m|L", "E|t*4|t*4|L",
    "Et*8L", "Et*8mL", "Et|t*3|t*3|tL", "Et|m|t*7|L", "t*8|EL", "|Et*8L", "EEt*8L", "Et*8LL", "Et*8", "Et*4|t*3mtL",
    "Et*3m|t*5|mL|", [["embedding", *["decoder"] * 4], [*["decoder"] * 4, "mtp", "loss"]], [["foo"], ["loss"]],
    [["embedding", "encoder"], ["decoder", "loss"]],
]  # fmt: skip
_SCOPES: list[Any] = [
    [], "full", ["full_iteration"], ["attn"], ["mlp"], ["moe"], ["moe_router"], ["moe_preprocess"],
    ["moe_router", "moe_preprocess"], ["attn", "moe_router"], ["attn", "moe"], ["moe", "moe_router"],
    ["full", "attn"], ["attn", "full_iteration"], ["attn", "moe_router", "moe_preprocess"], ["mamba"],
    ["full_iteration_inference"],
]  # fmt: skip
_MODULE_LISTS: list[Any] = [
    None, ["moe"], ["moe_act"], ["mlp"], ["moe_act", "layernorm"], ["mla_up_proj"], ["shared_experts"], ["core_attn"],
    ["moe", "moe_act"], ["layernorm", "moe"], ["everything"],
]  # fmt: skip

DIALS: dict[str, list[Any]] = {
    "overlap_moe_expert_parallel_comm": [True, True, False],
    "delay_wgrad_compute": [True, False],
    "ep_overlap_early_attn_memory_release": [True, False],
    "overlap_dispatch_backward_with_experts_wgrad": [True, False],
    "high_priority_a2a_comm_stream": [True, False],
    "num_layers": [8, 8, 4, 7, 6],
    "num_attention_heads": [8, 8, 12, 6],
    "num_query_groups": [None, 1, 2, 4, 8],
    "num_moe_experts": [None, 0, 1, 8, 8, 16, 12],
    "moe_layer_freq": [1, 2, [0] * 4 + [1] * 4, [1] * 8, [1] * 4],
    "expert_model_parallel_size": [1, 2, 4, 8],
    "expert_tensor_parallel_size": [None, 1, 2],
    "tensor_model_parallel_size": [1, 2, 4, 3],
    "context_parallel_size": [1, 2],
    "sequence_parallel": [True, False],
    "pipeline_model_parallel_size": [1, 1, 2, 2, 4],
    "virtual_pipeline_model_parallel_size": [None, None, 1, 2, 3, 4],
    "pipeline_model_parallel_layout": [None] * 8 + _LAYOUTS,
    "num_layers_in_first_pipeline_stage": [None, None, 1, 2, 4, 0],
    "num_layers_in_last_pipeline_stage": [None, None, 1, 2, 4, -1],
    "account_for_embedding_in_pipeline_split": [True, False, False],
    "account_for_loss_in_pipeline_split": [True, False, False],
    "mtp_num_layers": [None, None, 0, 1, 1, 2],
    "mtp_hsm": [True, False],
    "bf16": [True, False],
    "fp16": [True, False, False],
    "fp32_residual_connection": [True, False],
    "add_bias_linear": [True, False, False],
    "variable_seq_lengths": [True, False],
    "overlap_p2p_comm": [True, False],
    "batch_p2p_comm": [True, False],
    "overlap_p2p_comm_warmup_flush": [True, False, False],
    "defer_embedding_wgrad_compute": [True, False, False],
    "gradient_accumulation_fusion": [True, False],
    "wgrad_deferral_limit": [0, -1],
    "moe_token_dispatcher_type": ["alltoall", "alltoall", "flex", "allgather", "alltoall_seq"],
    "moe_flex_dispatcher_backend": ["deepep", "hybridep", "ncclep"],
    "moe_enable_deepep": [True, False],
    "moe_deepep_num_sms": [None, 20, 24],
    "moe_hybridep_num_sms": [None, 20, 16],
    "moe_flex_dispatcher_num_sms": [None, 20],
    "moe_expert_capacity_factor": [None, 1.0, 1.5, -1.0, 0.0],
    "moe_pad_expert_input_to_capacity": [True, False],
    "moe_expert_rank_capacity_factor": [None, 1.5],
    "moe_paged_stash": [True, False],
    "moe_dispatch_fwd_dtype": ["bf16", "mxfp8"],
    "moe_combine_bwd_dtype": ["bf16", "mxfp8"],
    "moe_use_grouped_tensor": [True, False],
    "use_transformer_engine_op_fuser": [True, False],
    "moe_grouped_gemm": [True, False],
    "moe_use_legacy_grouped_gemm": [True, False],
    "moe_shared_expert_intermediate_size": [None, 256, 0, -2],
    "moe_shared_expert_overlap": [True, False],
    "moe_ffn_hidden_size": [None, 512],
    "moe_router_load_balancing_type": [
        "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none", ["aux_loss", "seq_aux_loss"],
        ["aux_loss", "sinkhorn"],
    ],
    "moe_aux_loss_coeff": [0.01, [0.01, 0.02], [0.1, 0.1, 0.1]],
    "moe_router_dtype": [None, "fp32", "fp64"],
    "moe_router_topk": [1, 2, 4],
    "moe_router_pre_softmax": [True, False],
    "moe_router_score_function": ["softmax", "sigmoid"],
    "moe_router_enable_expert_bias": [True, False],
    "moe_router_group_topk": [None, 1, 2, 4, 0],
    "moe_router_num_groups": [None, 2, 3, 4, 0],
    "moe_router_topk_limited_devices": [None, 2],
    "moe_router_padding_for_fp8": [True, False],
    "moe_router_padding_for_quantization": [True, False],
    "moe_input_jitter_eps": [None, 0.1],
    "moe_permute_fusion": [False, False, False, True],
    "recompute_granularity": [None, "selective", "selective", "full"],
    "recompute_method": [None, "uniform", "block"],
    "recompute_num_layers": [None, 1, 2],
    "recompute_modules": _MODULE_LISTS,
    "moe_layer_recompute": [True, False],
    "distribute_saved_activations": [True, False],
    "attention_dropout": [0.0, 0.0, 0.1],
    "hidden_dropout": [0.0, 0.0, 0.1],
    "cuda_graph_impl": ["none", "local", "transformer_engine", "transformer_engine", "full_iteration", "magic"],
    "cuda_graph_scope": _SCOPES,
    "cuda_graph_modules": _SCOPES,
    "enable_cuda_graph": [True, False, False],
    "external_cuda_graph": [True, False, False],
    "cpu_offloading": [True, False, False],
    "cpu_offloading_num_layers": [0, 2, 8, 9, -1],
    "fine_grained_activation_offloading": [True, False],
    "offload_modules": [
        [], ["expert_fc1"], ["moe_act"], ["core_attn"], ["attn_proj"], ["attn_norm", "core_attn"], ["x"],
    ],
    "activation_func": ["silu", "gelu", "gelu", "relu", "squared_relu", "quick_gelu"],
    "gated_linear_unit": [True, False],
    "bias_activation_fusion": [True, True, False],
    "use_te_activation_func": [True, False, False],
    "activation_func_fp8_input_store": [True, False],
    "glu_linear_offset": [0.0, 0.0, 1.0],
    "normalization": ["LayerNorm", "RMSNorm"],
    "fused_residual_rmsnorm": [True, False],
    "symmetric_ar_type": [None, None, "two_shot"],
    "transformer_impl": ["transformer_engine", "transformer_engine", "local", "inference_optimized"],
    "inference_fuse_tp_communication": [True, False],
    "inference_disable_triton_nvls_kernels": [True, False],
    "moe_single_grouped_weight": [True, False],
    "moe_single_grouped_bias": [True, False],
    "fp8": [None, "e4m3", "hybrid"],
    "fp8_recipe": ["delayed", "tensorwise", "blockwise", "mxfp8"],
    "fp8_param": [True, False],
    "first_last_layers_bf16": [True, False],
    "num_layers_at_start_in_bf16": [-1, 0, 1, 5, 9],
    "num_layers_at_end_in_bf16": [-1, 0, 1, 5, 9],
    "apply_rope_fusion": [True, False, False, False],
    "attention_backend": ["auto", "flash", "flash", "fused"],
    "batch_invariant_mode": [True, False],
    "experimental_attention_variant": [None, "gated_delta_net", "gated_delta_net", "dsa"],
    "flash_attention_version": [None, 2, 3, 4],
    "linear_attention_freq": [None, [1, 1, 1, 0, 1, 1, 1, 0]],
    "linear_key_head_dim": [64, 64, 64, None],
    "linear_num_key_heads": [4, 6, 8, None],
    "linear_num_value_heads": [8, 8, 20, None],
}  # fmt: skip

THEMES: tuple[tuple[str, ...], ...] = (
    (
        "overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "ep_overlap_early_attn_memory_release",
        "overlap_dispatch_backward_with_experts_wgrad", "moe_use_legacy_grouped_gemm", "bf16", "fp16",
        "expert_model_parallel_size", "moe_token_dispatcher_type",
    ),
    (
        "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout",
        "mtp_num_layers",
    ),
    (
        "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "num_layers",
        "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    ),
    (
        "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep",
        "moe_pad_expert_input_to_capacity", "moe_expert_capacity_factor", "moe_shared_expert_intermediate_size",
        "moe_shared_expert_overlap",
    ),
    (
        "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_expert_rank_capacity_factor",
        "use_transformer_engine_op_fuser", "moe_grouped_gemm", "moe_use_grouped_tensor", "moe_dispatch_fwd_dtype",
        "moe_combine_bwd_dtype", "moe_paged_stash",
    ),
    (
        "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_expert_capacity_factor", "moe_router_topk",
        "moe_router_pre_softmax", "moe_router_score_function", "moe_router_enable_expert_bias",
    ),
    ("moe_router_group_topk", "moe_router_num_groups", "moe_router_topk_limited_devices", "num_moe_experts"),
    (
        "tensor_model_parallel_size", "sequence_parallel", "expert_model_parallel_size",
        "expert_tensor_parallel_size", "num_query_groups", "num_moe_experts", "num_attention_heads",
        "add_bias_linear",
    ),
    ("cpu_offloading", "cpu_offloading_num_layers", "pipeline_model_parallel_size", "recompute_granularity"),
    (
        "fine_grained_activation_offloading", "offload_modules", "cpu_offloading", "recompute_modules",
        "recompute_granularity",
    ),
    ("moe_deepep_num_sms", "moe_hybridep_num_sms", "moe_flex_dispatcher_num_sms", "moe_token_dispatcher_type"),
    (
        "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
        "moe_layer_recompute", "moe_grouped_gemm", "distribute_saved_activations",
        "overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap", "moe_shared_expert_intermediate_size",
    ),
    (
        "cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules", "overlap_moe_expert_parallel_comm",
        "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "moe_layer_freq", "num_moe_experts",
    ),
    (
        "cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules", "recompute_granularity", "recompute_modules",
        "overlap_moe_expert_parallel_comm", "attention_dropout", "hidden_dropout", "moe_input_jitter_eps",
        "moe_grouped_gemm", "recompute_method", "recompute_num_layers",
    ),
    ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph", "cuda_graph_scope", "cpu_offloading"),
    (
        "fp8", "fp8_recipe", "fp8_param", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
        "num_layers_at_end_in_bf16", "moe_router_padding_for_fp8", "recompute_granularity", "recompute_modules",
    ),
    (
        "activation_func", "gated_linear_unit", "bias_activation_fusion", "use_te_activation_func",
        "activation_func_fp8_input_store", "glu_linear_offset", "add_bias_linear",
    ),
    ("bias_activation_fusion", "activation_func", "gated_linear_unit"),
    (
        "transformer_impl", "normalization", "inference_fuse_tp_communication", "inference_disable_triton_nvls_kernels",
        "fused_residual_rmsnorm", "moe_router_dtype", "gated_linear_unit", "symmetric_ar_type",
    ),
    (
        "moe_single_grouped_weight", "moe_single_grouped_bias", "moe_grouped_gemm", "use_transformer_engine_op_fuser",
        "add_bias_linear",
    ),
    ("attention_backend", "attention_dropout", "batch_invariant_mode", "context_parallel_size",
     "flash_attention_version"),
    ("apply_rope_fusion", "context_parallel_size", "experimental_attention_variant", "linear_attention_freq",
     "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads", "tensor_model_parallel_size"),
    ("defer_embedding_wgrad_compute", "gradient_accumulation_fusion", "wgrad_deferral_limit",
     "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "overlap_p2p_comm",
     "overlap_p2p_comm_warmup_flush", "batch_p2p_comm"),
)  # fmt: skip


# Combinations that random draws meet too rarely: each violates one rule alone.
_OFF = {"overlap_moe_expert_parallel_comm": False}
_FULL = {**_OFF, "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
_SELECTIVE = {**_OFF, "recompute_granularity": "selective"}
_GRAPHS = {"cuda_graph_impl": "transformer_engine"}
SCENARIOS: tuple[dict[str, Any], ...] = (
    {"batch_invariant_mode": True},
    {"experimental_attention_variant": "gated_delta_net"},
    {"experimental_attention_variant": "dsa", "context_parallel_size": 2},
    {"apply_rope_fusion": True},
    {**_OFF, "recompute_granularity": "full", "recompute_num_layers": 1},
    {**_OFF, "moe_token_dispatcher_type": "allgather", "moe_shared_expert_intermediate_size": 256,
     "moe_shared_expert_overlap": True},
    {**_SELECTIVE, **_GRAPHS, "recompute_modules": ["core_attn"], "cuda_graph_scope": ["attn"],
     "cuda_graph_modules": ["attn"], "attention_dropout": 0.1},
    {**_OFF, **_GRAPHS, "cuda_graph_scope": ["moe_router", "moe_preprocess"],
     "cuda_graph_modules": ["moe_router", "moe_preprocess"], "moe_expert_capacity_factor": 1.0},
    {
        **_GRAPHS, "cuda_graph_scope": ["moe"], "cuda_graph_modules": ["moe"], "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    },
    {**_OFF, **_GRAPHS, "cuda_graph_scope": ["moe", "moe_router"], "cuda_graph_modules": ["moe", "moe_router"],
     "moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
    {**_OFF, **_GRAPHS, "cuda_graph_scope": ["moe_router", "moe_preprocess"],
     "cuda_graph_modules": ["moe_router", "moe_preprocess"], "moe_expert_capacity_factor": 1.0},
    {**_FULL, "moe_layer_recompute": True},
    {**_FULL, **_GRAPHS, "cuda_graph_scope": ["attn"], "cuda_graph_modules": ["attn"]},
    {**_FULL, "cuda_graph_impl": "local", "cuda_graph_scope": [], "cuda_graph_modules": []},
    {**_SELECTIVE, **_GRAPHS, "recompute_modules": ["moe"], "cuda_graph_scope": ["moe_router"],
     "cuda_graph_modules": ["moe_router"]},
    {**_SELECTIVE, "recompute_modules": ["shared_experts"], "moe_shared_expert_intermediate_size": 256,
     "moe_shared_expert_overlap": True},
    {**_FULL, "distribute_saved_activations": True, "tensor_model_parallel_size": 2, "sequence_parallel": True},
    {**_SELECTIVE, "recompute_modules": ["core_attn"], "distribute_saved_activations": True,
     "tensor_model_parallel_size": 2, "sequence_parallel": True},
    {**_OFF, "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*4|t*4L",
     "num_layers_in_first_pipeline_stage": 4},
    {**_OFF, "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*4|t*4L",
     "account_for_loss_in_pipeline_split": True},
    {**_OFF, **_GRAPHS, "cuda_graph_scope": ["moe"], "cuda_graph_modules": ["moe"]},
    {**_OFF, **_GRAPHS, "cuda_graph_scope": ["mlp"], "cuda_graph_modules": ["mlp"]},
    {**_OFF, "variable_seq_lengths": True, "moe_token_dispatcher_type": "allgather"},
    {**_OFF, "num_moe_experts": None, "expert_model_parallel_size": 1, "moe_ffn_hidden_size": 512},
    {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True, "moe_flex_dispatcher_backend": "hybridep"},
    {
        "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep",
        "moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True,
    },
    {
        "moe_token_dispatcher_type": "flex", "moe_enable_deepep": True,
        "moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True,
    },
    {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*2|t*2m|t*2|t*2L", "mtp_num_layers": 1},
    {"pipeline_model_parallel_size": 4, "pipeline_model_parallel_layout": "Et*2|t*2|t*2m|t*2L", "mtp_num_layers": 1,
     **_OFF},
    {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Em|t*4|t*2|t*2L", "mtp_num_layers": 1,
     **_OFF},
)  # fmt: skip


def random_configurations(core: Core, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` configurations of fields that the release has, by canonical path; the scenarios come first."""
    rng = random.Random(seed)
    for number in range(count):
        drawn = {**BASE, **SCENARIOS[number]} if number < len(SCENARIOS) else _draw(rng)
        yield {f"model.{n}": v for n, v in drawn.items() if field_table()[f"model.{n}"].exists_in(core)}


def _draw(rng: random.Random) -> dict[str, Any]:
    drawn = (
        dict(BASE) if rng.random() < 0.9 else {k: BASE[k] for k in ("num_layers", "hidden_size", "num_attention_heads")}
    )
    turned = {dial for theme in rng.sample(THEMES, rng.choice([1, 1, 1, 2])) for dial in theme if rng.random() < 0.6}
    turned |= set(rng.sample(sorted(DIALS), rng.choice([0, 0, 1, 2])))
    for dial in sorted(turned):
        drawn[dial] = rng.choice(DIALS[dial])
    return drawn
