"""Everything but sizes: what is passed on as it is, and what this engine has to do without.

The reasons of the CPU stand in tools/smoke/config.py too, which applies them; a test holds the two together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.smoke import Reduction
from ep_overlap_mcp.smoke.dispatchers import pass_on_dispatcher
from ep_overlap_mcp.smoke.draft import UNKNOWN_TEXT
from ep_overlap_mcp.smoke.gradients import pass_on_gradients, pass_on_optimizer

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.draft import Draft

OVERLAP_SWITCHES = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
SETTLED = frozenset(  # set by shapes.py and below
    (
        "tensor_model_parallel_size", "context_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
        "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "expert_model_parallel_size",
        "num_layers", "moe_layer_freq", "recompute_num_layers", "num_moe_experts", "moe_router_topk",
        "moe_router_num_groups", "moe_router_group_topk", "moe_ffn_hidden_size",
        "moe_shared_expert_intermediate_size", "moe_latent_size", "moe_router_load_balancing_type",
        "moe_aux_loss_coeff", "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups",
        "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "kv_channels",
        "seq_length", "position_embedding_type", "activation_func", "gated_linear_unit", "multi_latent_attention",
        "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep",
    )
)  # fmt: skip
NO_CONFIG_FIELD = frozenset(  # arguments beside TransformerConfig
    (
        "hybrid_override_pattern", "hybrid_layer_pattern", "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank", "provider", "mtp_hybrid_override_pattern",
    )
)  # fmt: skip
MLA_ONLY = frozenset(
    (
        "beta_fast", "beta_slow", "cache_mla_latents", "mscale", "mscale_all_dim", "mla_down_proj_fusion",
        "original_max_position_embeddings", "rope_type", "rotary_base", "rotary_percent", "rotary_scaling_factor",
    )
)  # fmt: skip

RANDOM = {  # drawn anew by every schedule, so that equal work would give other numbers; zero and false are kept
    "hidden_dropout": "each schedule would draw other masks",
    "attention_dropout": "each schedule would draw other masks",
    "moe_input_jitter_eps": "each schedule would draw other noise",
    "moe_router_force_load_balancing": "each schedule would draw other routes",
    "moe_router_force_biased": "each schedule would draw other routes",
}
DROPOUTS = ("hidden_dropout", "attention_dropout")  # the class has them at 0.1
# Names or beginnings of names (with a `*`), and why a run does without
NOWHERE = {
    "hf_model_id": "the run exports no model",
    "restore_modelopt_state": "the run loads no checkpoint",
    "pipeline_model_parallel_layout": "stages are even; PP x VPP is kept",
    "num_layers_in_first_pipeline_stage": "stages are even",
    "num_layers_in_last_pipeline_stage": "stages are even",
    "account_for_*": "stages are even",
    "microbatch_group_size_per_vp_stage": "its default is used",
    "tp_comm_*": "TP is 1",
    "cp_comm_type": "CP is 1",
    "hierarchical_context_parallel_sizes": "CP is 1",
    "hybrid_context_parallel": "CP is 1",
    "window_*": "attention is causal over the whole sequence",
    "no_rope_freq": "all layers have the same position embedding",
    "experimental_attention_variant": "attention is the standard one",
    "dsa_*": "attention is the standard one",
    "linear_*": "attention is the standard one",
    "mamba_*": "the run has no Mamba layers",
    "is_hybrid_model": "the run has no Mamba layers",
    "heterogeneous_block_specs": "all layers are alike but for MoE and dense",
    "enable_mhc_connections": "the run has plain residual connections",
    "mhc_*": "the run has plain residual connections",
    "use_mup": "sizes are reduced",
    "mup_*": "sizes are reduced",
    "use_kitchen*": "not part of the run",
    "kitchen_*": "not part of the run",
    "quant_recipe": "not part of the run",
    "inference_*": "training only",
    "*_func": "a function cannot be passed on",
    "*init_method": "a function cannot be passed on",
    "timers": "not part of the run",
    "config_logger_dir": "the run writes to its own folder only",
    "mrope_section": "position embeddings are rotary",
    "max_seqlen_per_dp_cp_rank": "sequences are of one length",
    "transformer_impl": "the engine chooses the layers",
    "perform_initialization": "weights are initialised",
    "init_model_with_meta_device": "weights are initialised",
    "use_cpu_initialization": "the engine chooses",
    "deterministic_mode": "the engine chooses",
    "moe_extended_tp": "TP is 1",
    "symmetric_ar_type": "TP is 1",
}
WITHOUT_TRANSFORMER_ENGINE = {
    "fp8*": "FP8 needs Transformer Engine and a GPU",
    "first_last_layers_bf16": "FP8 needs Transformer Engine and a GPU",
    "num_layers_at_*": "FP8 needs Transformer Engine and a GPU",
    "moe_router_padding_for_*": "FP8 needs Transformer Engine and a GPU",
    "fp4*": "FP4 needs Transformer Engine and a GPU",
    "moe_grouped_gemm": "needs Transformer Engine's grouped GEMM; experts run one after another",
    "use_te_*": "needs Transformer Engine",
    "use_transformer_engine_op_fuser": "needs Transformer Engine",
    "layernorm_zero_centered_gamma": "needs Transformer Engine's norms",
    "memory_efficient_layer_norm": "needs Transformer Engine's norms",
    "persist_layer_norm": "needs Apex's norms",
    "qk_clip*": "needs Transformer Engine",
    "softmax_type": "needs Transformer Engine",
    "fp32_residual_connection": "local norms take one precision only",
}
ON_THE_CPU = {
    "defer_embedding_wgrad_compute": "needs the fused gradient accumulation, a CUDA kernel",
    "wgrad_deferral_limit": "needs the fused gradient accumulation, a CUDA kernel",
    "use_fused_*": "fused kernels are CUDA only",
    "gradient_accumulation_fusion": "the fused kernel is CUDA only",
    "*_fusion": "fused kernels are CUDA only",
    "cuda_graph*": "there are no CUDA graphs on the CPU",
    "enable_cuda_graph": "there are no CUDA graphs on the CPU",
    "external_cuda_graph": "there are no CUDA graphs on the CPU",
    "cpu_offloading*": "there is nowhere to offload to",
    "_cpu_offloading_context": "there is nowhere to offload to",
    "fine_grained_*": "there is nowhere to offload to",
    "offload_modules": "there is nowhere to offload to",
    "attention_backend": "attention is Megatron's local one",
    "flash_*": "attention is Megatron's local one",
    "moe_hybridep_*": "HybridEP needs a GPU",
    "moe_deepep_*": "DeepEP needs a GPU",
    "moe_flex_*": "flex backends need a GPU",
    "moe_ncclep_*": "NCCL EP needs a GPU",
    "moe_paged_stash*": "needs a GPU",
    "high_priority_a2a_comm_stream": "streams have no priorities on the CPU",
    "batch_p2p_comm": "gloo has no batched send and receive",
    "batch_p2p_sync": "gloo has no batched send and receive",
    "use_ring_exchange_p2p": "gloo has no ring exchange",
    "pipeline_model_parallel_comm_backend": "gloo is the only one",
    "async_tensor_model_parallel_allreduce": "TP is 1",
}
ACTIVATIONS = ("silu", "gelu", "relu", "squared_relu", "quick_gelu")


def pass_on(draft: Draft) -> None:
    """Fill the rest of the model, the dispatcher, precision, gradient reduction and optimizer of the draft."""
    pass_on_dispatcher(draft)
    _activation(draft)
    _precision(draft)
    for path, setting in sorted(draft.effective.core_receives().items()):
        name = path.partition(".")[2]
        handled = name in SETTLED or name in OVERLAP_SWITCHES or name in draft.model
        if not handled and setting.known:
            _pass_on_one(draft, name, setting.value)
    _random(draft)
    _stand_ins(draft)
    _recompute(draft)
    pass_on_gradients(draft)
    pass_on_optimizer(draft)
    untied = draft.effective["args.untie_embeddings_and_output_weights"]
    if draft.effective.request.framework == "megatron-lm" and untied.known and untied.value is not True:
        draft.not_tested.append("embeddings tied with the output layer: the run has them apart")


def _pass_on_one(draft: Draft, name: str, value: Any) -> None:
    path = f"model.{name}"
    why = RANDOM.get(name) if value else None
    if why is None and (draft.is_default(path, value) or value is None):
        return
    why = why or _why_without(draft, name)
    if why is None and not draft.sends(name):
        why = f"megatron-core {draft.machine.core.label} has no such field"
    if why is None and name in MLA_ONLY and not draft.model.get("multi_latent_attention"):
        why = "position embeddings have Megatron's defaults"
    if why is None and name in NO_CONFIG_FIELD:
        return  # it acts through another setting, which is there
    if why is not None:
        draft.leave_out(path, value, why)
        return
    draft.set(name, value)


def _why_without(draft: Draft, name: str) -> str | None:
    tables = [NOWHERE]
    if draft.machine.transformer_engine is None:
        tables.append(WITHOUT_TRANSFORMER_ENGINE)
    if not draft.machine.on_gpu:
        tables.append(ON_THE_CPU)
    return next((why for table in tables for given, why in table.items() if _names(given, name)), None)


def _names(given: str, name: str) -> bool:
    if given.endswith("*"):
        return name.startswith(given[:-1])
    return name.endswith(given[1:]) if given.startswith("*") else name == given


def _activation(draft: Draft) -> None:
    """SwiGLU and the like, which are arguments in Megatron-LM and a function elsewhere."""
    swiglu = draft.value("args.swiglu") is True
    gated = swiglu or draft.value("model.gated_linear_unit") is True
    stated = draft.value("model.activation_func")
    function = "silu" if swiglu else "squared_relu" if draft.value("args.squared_relu") is True else None
    if isinstance(stated, str) and stated.rpartition(".")[2] in ACTIVATIONS:
        function = stated.rpartition(".")[2]
    elif stated is not None:
        draft.leave_out("model.activation_func", "(a function)", "it cannot be passed on; GELU stands in")
    if gated:
        draft.model["gated_linear_unit"] = True
    if function:
        draft.model["activation_func"] = function
    if gated or function:
        draft.kept["activation"] = ("gated " if gated else "") + (function or "gelu")


def _precision(draft: Draft) -> None:
    """bf16 or fp16 as stated; bf16 where the text does not say."""
    if draft.value("model.fp16") is True:
        draft.set("fp16", to=True)
    elif draft.value("model.bf16") is True or not draft.known("model.bf16"):
        draft.set("bf16", to=True)


def _recompute(draft: Draft) -> None:
    """Two modules are recomputed only where there is what they are named after; without any left, nothing is."""
    needs = {"moe_act": "moe_grouped_gemm", "mla_up_proj": "multi_latent_attention"}
    modules = draft.model.get("recompute_modules") or []
    absent = [module for module in modules if module in needs and not draft.model.get(needs[module])]
    if not absent:
        return
    why = "the run has nothing there to recompute"
    draft.drop("recompute_modules", absent, why)
    if left := [module for module in modules if module not in absent]:
        draft.keep("recompute_modules", left)
    elif draft.model.get("recompute_granularity"):
        draft.drop("recompute_granularity", draft.model["recompute_granularity"], why)


def _random(draft: Draft) -> None:
    """Dropout that no one wrote and the class has by default: the run has none, and says so."""
    received = draft.effective.core_receives()
    for name, why in RANDOM.items():
        path = f"model.{name}"
        if path in received and draft.known(path):
            continue
        if name in DROPOUTS and draft.open_in(path):
            draft.reduced.append(Reduction(setting=path, before=UNKNOWN_TEXT, to=0.0, why=why))
        elif path not in received and (value := draft.value(path)):
            draft.leave_out(path, value, f"{why} (not written: Megatron's default)")


def _stand_ins(draft: Draft) -> None:
    """Unknown fields whose class default cannot run with what is known."""
    chosen: dict[str, tuple[Any, str]] = {"add_bias_linear": (False, "stand-in: shared experts take no bias")}
    score = draft.value("model.moe_router_score_function", "softmax")
    if draft.value("model.moe_router_enable_expert_bias") is True:
        chosen["moe_router_score_function"] = ("sigmoid", "stand-in: the expert bias takes no softmax")
        score = draft.value("model.moe_router_score_function", "sigmoid")
    if draft.model.get("moe_router_topk") == 1 and score == "softmax":
        chosen["moe_router_pre_softmax"] = (True, "stand-in: top-1 routing takes no softmax after it")
    if draft.value("model.moe_pad_expert_input_to_capacity") is True:
        chosen["moe_expert_capacity_factor"] = (1.0, "stand-in: padding needs a capacity")
    for name, (value, why) in chosen.items():
        if draft.open_in(f"model.{name}"):
            draft.set(name, value, why)
