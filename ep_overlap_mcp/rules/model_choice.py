"""EPO917-921, 923, 950: the legacy model classes, activations and hybrid patterns, and what they exclude."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, megatron_lm, put_paths, rule, violated, violated_by
from ep_overlap_mcp.rules.sources import arguments, megatron

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

LEGACY = "args.use_legacy_models"
SQUARED, QUICK, SWIGLU = "args.squared_relu", "args.quick_geglu", "args.swiglu"
PATTERN = "model.hybrid_layer_pattern"
_PLACING = tuple(
    f"model.{name}"
    for name in (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    )
)
HETEROGENEOUS = ("args.heterogeneous_layers_config_path",)


@rule(
    "EPO917",
    "legacy-models-stand-alone",
    ERROR,
    enforced=[megatron_lm("<0.18")],
    source=[
        arguments("0.16.1", "308-311"),
        arguments("0.16.1", "602-603"),
        arguments("0.16.1", "985-993"),
        arguments("0.16.1", "1020-1038"),
        arguments("0.16.1", "1229-1230"),
        arguments("0.16.1", "1272"),
    ],
    about=[LEGACY],
    fixes=[put_paths({LEGACY: False}, gives_up="the legacy model classes: checkpoints must be converted")],
)
def legacy_models_stand_alone(view: View) -> Check:
    """What it checks: `--use-legacy-models` with what only the Megatron-Core models have: another checkpoint format
    than `torch`, `overlap_param_gather`, context parallelism, MTP, latent experts, a decoupled learning rate or
    interleaved rotary embeddings.

    Why: Megatron-LM asserts each. From 0.18 the legacy models are gone.

    Example: `--use-legacy-models` without `--ckpt-format torch`

    Fix: the Megatron-Core models.
    """
    form, cp = view["args.ckpt_format"], view["model.context_parallel_size"]
    decoupled = view["optimizer.decoupled_lr"].is_set | view["optimizer.decoupled_min_lr"].is_set
    return violated_by(
        [
            (form != "torch", f"`use_legacy_models` is on with `ckpt_format` {form}"),
            (view["ddp.overlap_param_gather"].on, "`use_legacy_models` is on with `overlap_param_gather`"),
            (cp > 1, f"`use_legacy_models` is on with context parallel size {cp}"),
            (view["model.mtp_num_layers"].on, "`use_legacy_models` is on with MTP layers"),
            (view["model.moe_latent_size"].is_set, "`use_legacy_models` is on with `moe_latent_size`"),
            (decoupled, "`use_legacy_models` is on with a decoupled learning rate"),
            (view["model.rotary_interleaved"].on, "`use_legacy_models` is on with `rotary_interleaved`"),
        ],
        when=view[LEGACY].on,
        expected="use_legacy_models = false",
    )


@rule(
    "EPO918",
    "one-activation",
    ERROR,
    enforced=[megatron_lm()],
    source=[arguments("0.14.0", "1177-1178"), arguments("0.16.1", "1338-1343")],
    about=[SQUARED, QUICK],
)
def one_activation(view: View) -> Check:
    """What it checks: `--swiglu` with `--squared-relu` or `--quick-geglu`.

    Why: a layer has one activation; building the configuration fails an assertion.

    Example: `--swiglu --squared-relu`

    Fix: keep the model's.
    """
    return violated(
        view[SWIGLU].on & (view[SQUARED].on | view[QUICK].on),
        "`swiglu` is on with another activation",
        expected="one activation",
    )


@rule(
    "EPO919",
    "heterogeneous-layers-exclude-latent-attention",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "1314-1316"),
    about=HETEROGENEOUS,
)
def heterogeneous_layers_exclude_latent_attention(view: View) -> Check:
    """What it checks: `--heterogeneous-layers-config-path` with `--multi-latent-attention`.

    Why: building the configuration fails an assertion.

    Example: both flags

    Fix: keep the model's.
    """
    return violated(
        view[HETEROGENEOUS[0]].is_set & view["model.multi_latent_attention"].on,
        "`multi_latent_attention` is on with heterogeneous layers",
        expected="multi_latent_attention = false",
    )


@rule(
    "EPO920",
    "hybrid-pattern-places-its-layers",
    ERROR,
    enforced=[megatron_lm(">=0.17")],
    source=arguments("0.17.1", "645-686"),
    about=[PATTERN],
    fixes=[put_paths(dict.fromkeys(_PLACING), gives_up="the placement outside the pattern")],
)
def hybrid_pattern_places_its_layers(view: View) -> Check:
    """What it checks: `--hybrid-layer-pattern` with another argument that places layers on pipeline stages.

    Why: the `|` of the pattern do that; Megatron-LM asserts from 0.17 that nothing else does.

    Example: `--hybrid-layer-pattern "M*|M*" --num-virtual-stages-per-pipeline-rank 2`

    Fix: put the stages into the pattern.
    """
    return violated_by(
        [(view[path].on, f"`{path.partition('.')[2]}` is set beside `hybrid_layer_pattern`") for path in _PLACING],
        when=view[PATTERN].is_set,
        expected="stages in the pattern alone",
    )


@rule(
    "EPO921",
    "fused-loss-is-native",
    ERROR,
    enforced=[megatron_lm(">=0.18")],
    source=arguments("0.18.2", "1527-1533"),
    about=["model.cross_entropy_fusion_impl"],
    fixes=[put_paths({"model.cross_entropy_fusion_impl": "native"})],
)
def fused_loss_is_native(view: View) -> Check:
    """What it checks: the fused cross entropy loss of Transformer Engine, from 0.18.

    Why: Megatron-LM disables it for stability; it asserts the native one.

    Example: `--cross-entropy-loss-fusion --cross-entropy-fusion-impl te`

    Fix: `--cross-entropy-fusion-impl native`.
    """
    return violated(
        (view["model.cross_entropy_fusion_impl"] == "te") & view["model.cross_entropy_loss_fusion"].on,
        "`cross_entropy_fusion_impl` is te with `cross_entropy_loss_fusion`",
        expected="cross_entropy_fusion_impl = native",
    )


@rule(
    "EPO923",
    "fused-down-projection-needs-latent-attention",
    ERROR,
    enforced=[megatron_lm(">=0.17")],
    source=arguments("0.17.1", "1595-1597"),
    about=["model.mla_down_proj_fusion"],
    fixes=[put_paths({"model.mla_down_proj_fusion": False})],
)
def fused_down_projection_needs_latent_attention(view: View) -> Check:
    """What it checks: `mla_down_proj_fusion` without `multi_latent_attention`.

    Why: only latent attention has down projections; Megatron-LM asserts it.

    Example: `--mla-down-proj-fusion` alone

    Fix: leave it out.
    """
    return violated(
        view["model.mla_down_proj_fusion"].on & view["model.multi_latent_attention"].off,
        "`mla_down_proj_fusion` is on without `multi_latent_attention`",
        expected="mla_down_proj_fusion = false",
    )


@rule(
    "EPO950",
    "no-xavier-initialization",
    ERROR,
    enforced=[megatron_lm()],
    source=[arguments("0.16.1", "1345-1347"), megatron("0.19.0", "training/argument_utils.py", "327-329")],
    about=["args.init_method_xavier_uniform"],
    fixes=[put_paths({"args.init_method_xavier_uniform": False}, gives_up="the Xavier initialization of the weights")],
)
def no_xavier_initialization(view: View) -> Check:
    """What it checks: `--init-method-xavier-uniform`.

    Why: Megatron-LM then hands core's configuration a field that it does not have (TypeError, `scaled_init_method`).

    Example: `--init-method-xavier-uniform`

    Fix: leave it out; `--init-method-std` sets the spread of the normal initialization.
    """
    return violated(
        view["args.init_method_xavier_uniform"].on,
        "`init_method_xavier_uniform` is on, which no release can build",
        expected="init_method_xavier_uniform = false",
    )
