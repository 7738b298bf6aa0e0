"""EPO124 to EPO136, 145, 146: activation recomputation, whether overlap is on or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, core, megatron_lm, put, rule, violated, violated_by, without
from ep_overlap_mcp.rules.remedies import drop_shared_expert_overlap
from ep_overlap_mcp.rules.sources import arguments, core_config
from ep_overlap_mcp.rules.truth import any_of

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
_STORES_MORE = "activation memory: that module is kept"
_NO_RECOMPUTE = put(recompute_granularity=None, gives_up="activation memory: nothing is recomputed any more")


def recomputes(view: View) -> Truth:
    """Whether a granularity is set when core checks it: `moe_layer_recompute` chooses selective only afterwards."""
    implied = view["model.moe_layer_recompute"].on & view.requested("model.recompute_granularity").unset
    return view["model.recompute_granularity"].is_set & ~(implied & view["args.recompute_activations"].off)


def recomputes_modules(view: View) -> Truth:
    """Whether recomputation is selective when core checks it."""
    return recomputes(view) & (view["model.recompute_granularity"] == "selective")


@rule(
    "EPO124",
    "full-recompute-needs-method",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1160-1171"),
    fixes=[put(recompute_method="uniform"), _NO_RECOMPUTE],
)
def full_recompute_needs_method(view: View) -> Check:
    """What it checks: `recompute_granularity=full` without `recompute_method`.

    Why: full recompute has to know how layers are grouped; Megatron-Core rejects it otherwise.

    Example: `--recompute-granularity full --recompute-num-layers 1`

    Fix: `recompute_method=uniform` or `block`.
    """
    granularity, method = view["model.recompute_granularity"], view["model.recompute_method"]
    return violated(
        (granularity == "full") & method.unset,
        f"`recompute_granularity` is {granularity} and `recompute_method` is unset",
        expected="recompute_method in (uniform, block)",
    )


@rule(
    "EPO125",
    "full-recompute-needs-num-layers",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1173-1179"),
    fixes=[put(recompute_num_layers=1), _NO_RECOMPUTE],
)
def full_recompute_needs_num_layers(view: View) -> Check:
    """What it checks: `recompute_granularity=full` without `recompute_num_layers`.

    Why: full recompute has to know how many layers form a group; Megatron-Core rejects it otherwise.

    Example: `--recompute-granularity full --recompute-method uniform`

    Fix: `recompute_num_layers=1`.
    """
    granularity, number = view["model.recompute_granularity"], view["model.recompute_num_layers"]
    return violated(
        (granularity == "full") & number.unset,
        f"`recompute_granularity` is {granularity} and `recompute_num_layers` is unset",
        expected="recompute_num_layers >= 1",
    )


@rule(
    "EPO126",
    "sharded-saves-exclude-sequence-parallel",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1187-1191"),
    fixes=[put(distribute_saved_activations=False)],
)
def sharded_saves_exclude_sequence_parallel(view: View) -> Check:
    """What it checks: recomputation with both `distribute_saved_activations` and `sequence_parallel`.

    Why: under sequence parallelism the saved activations are sharded already; Megatron-Core rejects the pair.

    Example: `--recompute-granularity selective --distribute-saved-activations --sequence-parallel`

    Fix: remove `distribute_saved_activations`.
    """
    shards = view["model.distribute_saved_activations"]
    return violated(
        recomputes(view) & shards.on & view["model.sequence_parallel"].on,
        f"`distribute_saved_activations` is {shards} with sequence parallelism",
        expected="distribute_saved_activations=false",
    )


@rule(
    "EPO145",
    "distributed-saves-need-full-recompute",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "883-897"),
    about=["model.distribute_saved_activations"],
    fixes=[put(distribute_saved_activations=False, gives_up="activation memory")],
)
def distributed_saves_need_full_recompute(view: View) -> Check:
    """What it checks: `distribute_saved_activations` without tensor parallelism, full recomputation or a method of it.

    Why: it spreads what full recomputation keeps over the tensor-parallel ranks; Megatron-LM asserts all three.

    Example: `--distribute-saved-activations --recompute-granularity selective`

    Fix: leave it off; EP overlap excludes full recomputation anyway.
    """
    tp, granularity = view["model.tensor_model_parallel_size"], view["model.recompute_granularity"]
    return violated_by(
        [
            (tp <= 1, f"`distribute_saved_activations` is on with tensor parallel size {tp}"),
            (granularity != "full", f"`distribute_saved_activations` is on with recompute granularity {granularity}"),
            (view["model.recompute_method"].unset, "`distribute_saved_activations` is on without `recompute_method`"),
        ],
        when=view["model.distribute_saved_activations"].on,
        expected="distribute_saved_activations = false",
    )


@rule(
    "EPO146",
    "selective-recompute-takes-no-method",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "899-902"),
    about=["model.recompute_method"],
    fixes=[put(recompute_method=None)],
)
def selective_recompute_takes_no_method(view: View) -> Check:
    """What it checks: `recompute_method` with selective recomputation.

    Why: a method says which whole layers are recomputed; Megatron-LM asserts that there is none.

    Example: `--recompute-granularity selective --recompute-method uniform`

    Fix: remove `--recompute-method`.
    """
    method = view["model.recompute_method"]
    return violated(
        method.is_set & (view["model.recompute_granularity"] == "selective"),
        f"`recompute_method` is {method} with selective recomputation",
        expected="recompute_method unset",
    )


@rule(
    "EPO127",
    "recompute-modules-known",
    ERROR,
    enforced=[
        core("<0.19", allowed=_MODULES),
        core(">=0.19,<0.20", allowed=(*_MODULES, "gdn_norm_out")),
        core(">=0.20,!dev", allowed=(*_MODULES, "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")),
        core("dev", allowed=(*_MODULES, "gdn_norm_out", "gdn", "mhc")),
    ],
    unknown=NOTED,
    source=[core_config("0.16.1", "1196-1211"), core_config("main", "1943-1962"), core_config("dev", "2195-2213")],
    fixes=[without("model.recompute_modules", "gdn_norm_out", "gdn", "gdp_in_proj", "gdp_qkv", "mhc")],
)
def recompute_modules_known(view: View, *, allowed: tuple[str, ...]) -> Check:
    """What it checks: selective recompute names a module that the release does not know.

    Why: Megatron-Core asserts that every name is one of its list, which grows with the releases.

    Example: `--recompute-granularity selective --recompute-modules gdn_norm_out` on 0.16.1

    Fix: drop the name, or run the release that has it.
    """
    modules = view["model.recompute_modules"]
    return violated(
        recomputes_modules(view) & modules.test(lambda named: bool(set(named or ()) - set(allowed))),
        f"`recompute_modules` is {modules}",
        expected=f"modules among {', '.join(allowed)}",
    )


@rule(
    "EPO128",
    "moe-act-recompute-needs-grouped-gemm",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1213-1216"),
    fixes=[put(moe_grouped_gemm=True), without("model.recompute_modules", "moe_act", gives_up=_STORES_MORE)],
)
def moe_act_recompute_needs_grouped_gemm(view: View) -> Check:
    """What it checks: selective recompute of `moe_act` without `moe_grouped_gemm`.

    Why: only the grouped experts recompute their activation alone; Megatron-Core rejects it otherwise.

    Example: `--recompute-granularity selective --recompute-modules moe_act`

    Fix: `moe_grouped_gemm=true`, or drop `moe_act`.
    """
    modules, grouped = view["model.recompute_modules"], view["model.moe_grouped_gemm"]
    return violated(
        recomputes_modules(view) & modules.has("moe_act") & grouped.off,
        f"`recompute_modules` is {modules} and `moe_grouped_gemm` is {grouped}",
        expected="moe_grouped_gemm=true with moe_act",
    )


@rule(
    "EPO129",
    "mla-recompute-needs-latent-attention",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1218-1222"),
    fixes=[without("model.recompute_modules", "mla_up_proj")],
)
def mla_recompute_needs_latent_attention(view: View) -> Check:
    """What it checks: selective recompute of `mla_up_proj` in a model without multi-latent attention.

    Why: only multi-latent attention has that projection; Megatron-Core rejects it otherwise.

    Example: `--recompute-modules mla_up_proj` for a Qwen3 model

    Fix: drop `mla_up_proj`.
    """
    modules, latent = view["model.recompute_modules"], view["model.multi_latent_attention"]
    return violated(
        recomputes_modules(view) & modules.has("mla_up_proj") & latent.off,
        f"`recompute_modules` is {modules} and `multi_latent_attention` is {latent}",
        expected="mla_up_proj with multi-latent attention only",
    )


@rule(
    "EPO130",
    "shared-experts-recompute-excludes-their-overlap",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1232-1239"),
    fixes=[
        drop_shared_expert_overlap(),
        without("model.recompute_modules", "shared_experts", gives_up=_STORES_MORE),
    ],
)
def shared_experts_recompute_excludes_their_overlap(view: View) -> Check:
    """What it checks: selective recompute of `shared_experts` with `moe_shared_expert_overlap`.

    Why: the overlapped shared expert runs in pieces on its own stream and cannot be run again as one.

    Example: `--recompute-modules shared_experts --moe-shared-expert-overlap`

    Fix: `moe_shared_expert_overlap=false`, which EP overlap needs anyway.
    """
    modules, shared = view["model.recompute_modules"], view["model.moe_shared_expert_intermediate_size"]
    return violated(
        recomputes_modules(view)
        & modules.has("shared_experts")
        & shared.is_set
        & view["model.moe_shared_expert_overlap"].on,
        f"`recompute_modules` is {modules} with `moe_shared_expert_overlap`",
        expected="moe_shared_expert_overlap=false",
    )


@rule(
    "EPO131",
    "fp8-recompute-excludes-delayed-scaling",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1241-1247"),
    fixes=[without("model.recompute_modules", "moe_act", "layernorm", gives_up=_STORES_MORE)],
)
def fp8_recompute_excludes_delayed_scaling(view: View) -> Check:
    """What it checks: FP8 with delayed scaling and selective recompute of `moe_act` or `layernorm`.

    Why: the recomputed output would enter the scaling history twice; Megatron-Core rejects it.

    Example: `--fp8-format hybrid --recompute-modules moe_act layernorm` (the default recipe is delayed)

    Fix: another `fp8_recipe`, or drop these modules.
    """
    return violated(
        _low_precision_recompute(view) & (view["model.fp8_recipe"] == "delayed"),
        f"`recompute_modules` is {view['model.recompute_modules']} with FP8 delayed scaling",
        expected="another fp8_recipe than delayed",
    )


@rule(
    "EPO132",
    "fp8-recompute-needs-te-2-6",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1248-1253"),
    fixes=[without("model.recompute_modules", "moe_act", "layernorm", gives_up=_STORES_MORE)],
)
def fp8_recompute_needs_te_2_6(view: View) -> Check:
    """What it checks: FP8 with selective recompute of `moe_act` or `layernorm` and Transformer Engine before 2.6.

    Why: the quantised recomputation needs what 2.6 added; Megatron-Core rejects older ones.

    Example: `--fp8-recipe blockwise --recompute-modules moe_act` with Transformer Engine 2.5

    Fix: upgrade Transformer Engine, or drop these modules.
    """
    return violated(
        _low_precision_recompute(view) & (view["model.fp8_recipe"] != "delayed") & view.te.below("2.6.0.dev0"),
        f"Transformer Engine is {view.te} with FP8 recompute of {view['model.recompute_modules']}",
        expected="transformer-engine >= 2.6",
    )


@rule(
    "EPO133",
    "moe-layer-recompute-excludes-full",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1255-1263"),
    fixes=[put(moe_layer_recompute=False)],
)
def moe_layer_recompute_excludes_full(view: View) -> Check:
    """What it checks: the old flag `moe_layer_recompute` with `recompute_granularity=full`.

    Why: the flag means selective recompute of `moe`; Megatron-Core rejects the contradiction.

    Example: `--moe-layer-recompute --recompute-granularity full`

    Fix: remove `moe_layer_recompute`.
    """
    granularity = view["model.recompute_granularity"]
    return violated(
        view["model.moe_layer_recompute"].on & (granularity == "full"),
        f"`moe_layer_recompute` is on and `recompute_granularity` is {granularity}",
        expected="moe_layer_recompute=false",
    )


@rule(
    "EPO134",
    "delta-net-recompute-needs-delta-net",
    ERROR,
    enforced=[
        core(">=0.19,<0.20", modules=("gdn_norm_out",), variants=("gated_delta_net",)),
        core(">=0.20,!dev", modules=("gdn_norm_out",), variants=("gated_delta_net", "gdn", "gdn2")),
        core("dev", modules=("gdn_norm_out", "gdn"), variants=("gated_delta_net",)),
    ],
    unknown=NOTED,
    source=[core_config("main", "1975-1982"), core_config("dev", "2226-2248")],
    fixes=[without("model.recompute_modules", "gdn_norm_out", "gdn")],
)
def delta_net_recompute_needs_delta_net(view: View, *, modules: tuple[str, ...], variants: tuple[str, ...]) -> Check:
    """What it checks: selective recompute of a gated delta net's part in a model without one.

    Why: only that attention variant has the module; Megatron-Core rejects it otherwise.

    Example: `--recompute-modules gdn_norm_out` without `--experimental-attention-variant gated_delta_net`

    Fix: drop the module.
    """
    named, variant = view["model.recompute_modules"], view["model.experimental_attention_variant"]
    return violated(
        recomputes_modules(view) & any_of(named.has(module) for module in modules) & ~variant.one_of(*variants),
        f"`recompute_modules` is {named} and `experimental_attention_variant` is {variant}",
        expected=f"experimental_attention_variant in ({', '.join(variants)})",
    )


@rule(
    "EPO135",
    "residual-stream-recompute-limits",
    ERROR,
    enforced=[
        core(">=0.20,!dev", streams="enable_mhc_connections"),
        core("dev", streams="enable_hyper_connections", offloaded=("attn_norm", "mlp_norm")),
    ],
    unknown=NOTED,
    source=[core_config("main", "2026-2052"), core_config("dev", "2294-2332")],
    fixes=[without("model.recompute_modules", "mhc", gives_up=_STORES_MORE)],
)
def residual_stream_recompute_limits(view: View, *, streams: str, offloaded: tuple[str, ...] = ()) -> Check:
    """What it checks: selective recompute of `mhc` without `enable_mhc_connections` (`enable_hyper_connections` on
    dev), together with `mlp`, with a `mhc_recompute_layer_num` below 1, or with fine-grained activation offloading
    (on dev: of the norms).

    Why: it belongs to multi-stream residual connections and brings its own checkpointing; Megatron-Core rejects the
    rest.

    Example: `--recompute-modules mhc mlp`

    Fix: drop `mhc` or what it excludes.
    """
    modules, offloads = view["model.recompute_modules"], view["model.fine_grained_activation_offloading"].on
    named = view["model.offload_modules"]
    both = offloads & any_of(named.has(module) for module in offloaded) if offloaded else offloads
    return violated_by(
        [
            (view[f"model.{streams}"].off, f"`recompute_modules` is {modules} without `{streams}`"),
            (modules.has("mlp"), f"`recompute_modules` is {modules}"),
            (view["model.mhc_recompute_layer_num"] < 1, "`mhc_recompute_layer_num` is below 1"),
            (both, f"mhc is recomputed and `offload_modules` is {named}"),
        ],
        when=recomputes_modules(view) & modules.has("mhc"),
        expected="no mhc in recompute_modules, or what it needs",
    )


@rule(
    "EPO136",
    "residual-streams-exclude",
    ERROR,
    enforced=[core(">=0.20,!dev")],
    unknown=NOTED,
    source=core_config("main", "2060-2125"),
    fixes=[put(enable_mhc_connections=False, gives_up="multi-stream residual connections: another model")],
)
def residual_streams_exclude(view: View) -> Check:
    """What it checks: `enable_mhc_connections` with MTP, full recompute, a pipeline, an fp32 residual, fused inference
    communication, or parameters out of range.

    Why: the residual has several streams there, which these features do not know; Megatron-Core rejects them.

    Example: `--enable-mhc-connections --pipeline-model-parallel-size 2`

    Fix: drop the connections or what they exclude.
    """
    excluded = (
        view["model.mtp_num_layers"].is_set
        | (view["model.recompute_granularity"] == "full")
        | (view["model.pipeline_model_parallel_size"] > 1)
        | view["model.fp32_residual_connection"].on
        | view["model.inference_fuse_tp_communication"].on
        | (view["model.mhc_sinkhorn_iterations"] < 1)
        | (view["model.mhc_init_gating_factor"] < 0)
    )
    return violated(
        view["model.enable_mhc_connections"].on & excluded,
        "`enable_mhc_connections` with MTP, full recompute, a pipeline or an fp32 residual",
        expected="enable_mhc_connections=false, or none of these",
    )


def _low_precision_recompute(view: View) -> Truth:
    modules = view["model.recompute_modules"]
    again = any_of((modules.has("moe_act"), modules.has("layernorm")))
    return recomputes_modules(view) & view["model.fp8"].on & again
