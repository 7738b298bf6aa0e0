"""What Megatron-LM's argument handling writes before core sees the configuration.

Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:430-456, 500-560, 573-590, 910-914, 965-966,
1326, 1332-1351 and `core_transformer_config_from_args`; the same logic at core_v0.14.0 to main.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.settings.core_writes import LAYOUT, PP, VPP, virtual_stages
from ep_overlap_mcp.settings.setting import UNKNOWN

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.effective import Effective

_PER_STAGE = "model.num_layers_per_virtual_pipeline_stage"
_DISPATCHER = "model.moe_token_dispatcher_type"
_PER_RANK = "model.num_virtual_stages_per_pipeline_rank"


# What `--use-checkpoint-args` takes from the checkpoint over the parser's default, by the release that began it
# (NVIDIA/Megatron-LM@core_v0.19.0 megatron/training/checkpointing.py:1894-1981, and the same function of the others).
_FROM_CHECKPOINT = {
    (0, 14): (
        "num_layers", "hidden_size", "ffn_hidden_size", "seq_length", "num_attention_heads", "num_query_groups",
        "kv_channels", "position_embedding_type", "rotary_interleaved", "add_bias_linear", "add_qkv_bias",
        "activation_func", "gated_linear_unit", "layernorm_zero_centered_gamma", "normalization",
        "apply_query_key_layer_scaling", "attention_dropout", "hidden_dropout", "hybrid_override_pattern",
        "hybrid_layer_pattern", "num_moe_experts", "moe_layer_freq", "moe_ffn_hidden_size", "moe_router_topk",
        "moe_router_pre_softmax", "moe_grouped_gemm", "moe_shared_expert_intermediate_size",
    ),
    (0, 16): (
        "moe_router_score_function", "moe_router_enable_expert_bias", "moe_router_topk_scaling_factor",
        "moe_latent_size",
    ),
    (0, 17): ("mtp_num_layers",),
}  # fmt: skip
_MP_FROM_CHECKPOINT = (
    "model.tensor_model_parallel_size", PP, VPP, _PER_STAGE, "model.expert_model_parallel_size",
)  # fmt: skip


def megatron_lm_writes(settings: Effective) -> None:
    """Apply all of them."""
    _from_checkpoint(settings)
    if settings.value("args.recompute_activations") is True:
        settings.write("model.recompute_granularity", "selective", "--recompute-activations")
    if settings.value("args.use_rotary_position_embeddings") is True:
        settings.write("model.position_embedding_type", "rope", "--use-rotary-position-embeddings")
    _activation(settings)
    if settings.value("model.position_embedding_type") not in ("rope", UNKNOWN):
        settings.write("model.apply_rope_fusion", value=False, why="cleared without rotary embeddings")
    for name in ("fp8_param", "fp4_param"):
        gathered = settings[f"ddp.{name}_gather"]
        if gathered.written:
            settings.write(f"model.{name}", gathered.value, f"--{name.replace('_', '-')}-gather", *gathered.needs)
    _query_groups(settings)
    _virtual_stages(settings)
    _point_to_point(settings)
    if settings.value("model.num_moe_experts") == 0:
        settings.write("model.num_moe_experts", None, "no experts")
    _cpu_offloading(settings)
    if settings.value("model.tensor_model_parallel_size") == 1:
        settings.write("model.sequence_parallel", value=False, why="cleared at TP 1")
    graphs = settings["model.cuda_graph_impl"]
    if graphs.known and graphs.value not in (None, "none"):
        settings.write("rng.te_rng_tracker", value=True, why="turned on for CUDA graphs")
    delay = settings["model.delay_wgrad_compute"]
    settings.write("ddp.delay_wgrad_compute", delay.value, "--delay-wgrad-compute", *delay.needs)


def _from_checkpoint(settings: Effective) -> None:
    """What the checkpoint says is unknown, not default; what the text says as well is taken to agree with it.

    But for the dispatcher, which a run may well change: before 0.16 the checkpoint's wins over the text's.
    """
    if settings.value("args.use_checkpoint_args") is not True:
        return
    minor = settings.release.core.minor
    names = [name for since, begun in _FROM_CHECKPOINT.items() if minor >= since for name in begun]
    sizes = settings.value("args.use_mp_args_from_checkpoint_args") is True
    for path in (*(f"model.{name}" for name in names), *(_MP_FROM_CHECKPOINT if sizes else ())):
        if not settings[path].written:
            settings.write(path, UNKNOWN, "--use-checkpoint-args", path)
    if minor < (0, 16):
        settings.write(_DISPATCHER, UNKNOWN, "--use-checkpoint-args", _DISPATCHER)


def _activation(settings: Effective) -> None:
    """Flags name the activation and each has its own fused kernel; gelu's needs a bias."""
    flags = {name: settings[f"args.{name}"] for name in ("squared_relu", "quick_geglu", "swiglu")}
    if not any(flag.written for flag in flags.values()):
        return
    needs = frozenset[str]().union(*(flag.needs for flag in flags.values()))
    names = {"squared_relu": "squared_relu", "quick_geglu": "quick_gelu", "swiglu": "silu"}
    chosen = next((name for name, flag in flags.items() if flag.value is True), None)
    gated = chosen in ("quick_geglu", "swiglu")
    if chosen == "swiglu":
        fused = settings.value("args.bias_swiglu_fusion") is not False
    else:
        biased = settings.value("model.add_bias_linear") is not False
        fused = biased and settings.value("args.bias_gelu_fusion") is not False
    why = f"--{(chosen or 'swiglu').replace('_', '-')}"
    settings.write("model.activation_func", names.get(chosen or "", "gelu"), why, *needs)
    settings.write("model.gated_linear_unit", gated, why, *needs)
    settings.write("model.bias_activation_fusion", fused, why, *needs)


def _query_groups(settings: Effective) -> None:
    """`--num-query-groups`, 1 by default, counts with `--group-query-attention` alone."""
    grouped = settings["args.group_query_attention"]
    if grouped.known and grouped.value is not True:
        settings.write("model.num_query_groups", None, "no --group-query-attention")


def _cpu_offloading(settings: Effective) -> None:
    """Since 0.16 the count of offloaded layers turns offloading on."""
    layers = settings.value("model.cpu_offloading_num_layers")
    if isinstance(layers, int) and layers > 0 and settings.release.core.minor >= (0, 16):
        settings.write("model.cpu_offloading", value=True, why="--cpu-offloading-num-layers")


def _virtual_stages(settings: Effective) -> None:
    """VPP has no flag of its own here: it follows from one of three others, and 1 becomes None."""
    stated = [settings[p] for p in (VPP, LAYOUT, _PER_RANK, _PER_STAGE)]
    stated = [s for s in stated if s.written and s.value is not None]
    if not stated:
        return
    last = max(stated, key=lambda s: s.origin.order)
    if last.path == LAYOUT:
        stages, needs = virtual_stages(settings)
        settings.write(VPP, stages, f"stages of {LAYOUT} / PP", *needs)
    elif last.path == _PER_STAGE:
        _virtual_stages_of_layers(settings)
    elif last.path == _PER_RANK or last.value == 1:
        settings.write(VPP, None if last.value == 1 else last.value, last.path, *last.needs)


def _virtual_stages_of_layers(settings: Effective) -> None:
    layers, pp, per_stage = settings["model.num_layers"], settings[PP], settings[_PER_STAGE]
    needs = layers.needs | pp.needs | per_stage.needs
    if needs:
        settings.write(VPP, UNKNOWN, _PER_STAGE, *needs)
        return
    extra = sum(settings.value(f"model.account_for_{part}_in_pipeline_split") is True for part in ("embedding", "loss"))
    if not layers.value or not pp.value or not per_stage.value:
        return
    stages = (layers.value + extra) // pp.value // per_stage.value
    settings.write(VPP, stages if stages > 1 else None, f"num_layers / PP / {_PER_STAGE}")


def _point_to_point(settings: Effective) -> None:
    """Without virtual stages P2P overlap is off; batched P2P is its opposite."""
    if settings.value(VPP) is None and settings[VPP].known:
        settings.write("model.overlap_p2p_comm", value=False, why="no virtual stages")
    overlap = settings["model.overlap_p2p_comm"]
    value = UNKNOWN if not overlap.known else not overlap.value
    settings.write("model.batch_p2p_comm", value, "the opposite of overlap_p2p_comm", *overlap.needs)
