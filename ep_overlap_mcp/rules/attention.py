"""EPO901-911: attention implementations, positions, and what determinism asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    MET,
    NOTED,
    WARNING,
    core,
    megatron_lm,
    put,
    put_paths,
    rule,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sources import arguments, core_config, megatron
from ep_overlap_mcp.rules.truth import FALSE, any_of

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

BACKEND, VARIANT = "model.attention_backend", "model.experimental_attention_variant"
LATENT, GROUPED = "model.multi_latent_attention", "args.group_query_attention"
POSITIONS, ROPE, ROPE_FUSION = "model.position_embedding_type", "model.rope_type", "model.apply_rope_fusion"
TP, CP = "model.tensor_model_parallel_size", "model.context_parallel_size"
INVARIANT, DETERMINISTIC = "model.batch_invariant_mode", "model.deterministic_mode"
CLIP, LOG_LOGITS = "model.qk_clip", "model.log_max_attention_logit"

_DELTA_NETS = ("gated_delta_net", "gdn", "gdn2")
_SIZES = tuple(
    f"model.linear_{name}"
    for name in ("conv_kernel_dim", "key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
)
_REDUCTIONS = ("Ring", "CollnetDirect", "CollnetChain", "^NVLS")


@rule(
    "EPO901",
    "local-attention-needs-local-spec",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "321-322"),
    about=[BACKEND],
    fixes=[put(attention_backend="auto")],
)
def local_attention_needs_local_spec(view: View) -> Check:
    """What it checks: `--attention-backend local` without `--spec local`.

    Why: Transformer Engine's layers have no local attention. Megatron-LM asserts the spec, and without any spec ends
    with TypeError.

    Example: `--attention-backend local`

    Fix: leave the backend to `auto`.
    """
    spec = view["args.spec"]
    return violated(
        (view[BACKEND] == "local") & spec.test(lambda words: not words or words[0] != "local"),
        f"`attention_backend` is local and `spec` is {spec}",
        expected="attention_backend = auto",
    )


@rule(
    "EPO902",
    "batch-invariance-needs-flash-attention",
    ERROR,
    enforced=[core(">=0.16,<0.19", pinned=False), core(">=0.19", pinned=True)],
    source=[core_config("0.16.1", "1999-2002"), core_config("0.19.0", "2875-2895")],
    about=[INVARIANT],
    fixes=[put(batch_invariant_mode=False, gives_up="results that do not depend on the batch")],
)
def batch_invariance_needs_flash_attention(view: View, *, pinned: bool) -> Check:
    """What it checks: `batch_invariant_mode` with another attention backend than `flash`; from 0.19 also without a
    pinned FlashAttention version, or with context parallelism or attention dropout.

    Why: only FlashAttention's kernels are made batch-invariant; Megatron-Core asserts it.

    Example: `--batch-invariant-mode` without `--attention-backend flash`

    Fix: `--attention-backend flash`, from 0.19 with `--flash-attention-version 3`.
    """
    backend = view[BACKEND]
    parts = [(backend != "flash", f"`batch_invariant_mode` is on with `attention_backend` {backend}")]
    if pinned:
        flash, cp, dropout = view["model.flash_attention_version"], view[CP], view["model.attention_dropout"]
        parts += [
            (~flash.one_of(3, 4), f"`batch_invariant_mode` is on with `flash_attention_version` {flash}"),
            (cp > 1, f"`batch_invariant_mode` is on with context parallel size {cp}"),
            (dropout != 0, f"`batch_invariant_mode` is on with `attention_dropout` {dropout}"),
        ]
    return violated_by(parts, when=view[INVARIANT].on, expected="attention_backend = flash")


@rule(
    "EPO903",
    "gated-delta-net-sizes-fit",
    ERROR,
    enforced=[core(">=0.16,<0.18", over_cp=False), core(">=0.18", over_cp=True)],
    source=[core_config("0.16.1", "948-986"), core_config("0.18.2", "1219-1254"), core_config("main", "1470-1509")],
    about=[VARIANT],
)
def gated_delta_net_sizes_fit(view: View, *, over_cp: bool) -> Check:
    """What it checks: a gated delta net without its sizes, or with heads that do not divide over the ranks.

    Why: Megatron-Core asserts `linear_attention_freq`, the five `linear_` sizes, value heads that are a multiple of
    the key heads, and both a multiple of the tensor parallel size (from 0.18 times context parallel size; before,
    context parallelism is refused).

    Example: `--experimental-attention-variant gated_delta_net` without `--linear-attention-freq`

    Fix: give the sizes of the model.
    """
    variant = view[VARIANT]
    keys, values = view["model.linear_num_key_heads"], view["model.linear_num_value_heads"]
    tp, cp = view[TP], view[CP]
    ranks = tp * cp if over_cp else tp
    parts = [
        (
            view["model.linear_attention_freq"].unset & (variant != "gdn2"),
            f"`linear_attention_freq` is not set for {variant}",
        ),
        (any_of(view[path].unset for path in _SIZES), f"not all `linear_` sizes are set for {variant}"),
        (values % keys != 0, f"{values} linear value heads are no multiple of {keys} key heads"),
        ((keys % ranks != 0) | (values % ranks != 0), f"{keys} and {values} linear heads do not divide over {ranks}"),
        (FALSE if over_cp else cp != 1, f"{variant} does not go with context parallel size {cp}"),
    ]
    return violated_by(parts, when=variant.one_of(*_DELTA_NETS), expected="the sizes that the model has")


@rule(
    "EPO904",
    "sparse-attention-limits",
    ERROR,
    enforced=[core(">=0.16,<0.19", gathers=False), core(">=0.19", gathers=True)],
    source=[core_config("0.16.1", "1987-1991"), core_config("0.19.0", "1384-1389"), core_config("0.19.0", "2838-2850")],
    about=[VARIANT],
    fixes=[
        put(apply_rope_fusion=False),
        put(context_parallel_size=1, gives_up="context parallelism"),
        put(add_bias_linear=False, gives_up="the bias terms"),
    ],
)
def sparse_attention_limits(view: View, *, gathers: bool) -> Check:
    """What it checks: `dsa` attention with fused RoPE, which Megatron-LM turns on by itself, or with context
    parallelism; from 0.19 with bias terms.

    Why: Megatron-Core asserts it. From 0.19 context parallelism passes with `cp_comm_type` allgather.

    Example: `--experimental-attention-variant dsa` without `--no-rope-fusion`

    Fix: `--no-rope-fusion`.
    """
    cp, comm = view[CP], view["model.cp_comm_type"]
    passes = comm.test(_gathers) if gathers else FALSE
    return violated_by(
        [
            (view[ROPE_FUSION].on, "`apply_rope_fusion` is on with dsa attention"),
            ((cp > 1) & ~passes, f"context parallel size is {cp} with dsa attention"),
            (view["model.add_bias_linear"].on if gathers else FALSE, "`add_bias_linear` is on with dsa attention"),
        ],
        when=view[VARIANT] == "dsa",
        expected="apply_rope_fusion = false, context_parallel_size = 1",
    )


@rule(
    "EPO905",
    "latent-attention-excludes-query-groups",
    ERROR,
    enforced=[megatron_lm(">=0.16")],
    source=arguments("0.16.1", "1265-1266"),
    about=[GROUPED],
    fixes=[put_paths({GROUPED: False}, gives_up="the query groups")],
)
def latent_attention_excludes_query_groups(view: View) -> Check:
    """What it checks: `--multi-latent-attention` with `--group-query-attention`.

    Why: latent attention has no query groups; Megatron-LM asserts it from 0.16.

    Example: `--multi-latent-attention --group-query-attention --num-query-groups 8`

    Fix: keep the one that the model has.
    """
    return violated(
        view[LATENT].on & view[GROUPED].on,
        "`multi_latent_attention` and `group_query_attention` are both on",
        expected="one of the two",
    )


@rule(
    "EPO906",
    "rope-type-fits-attention",
    ERROR,
    enforced=[megatron_lm()],
    source=[arguments("0.16.1", "1352-1359"), core_config("0.16.1", "2068-2069")],
    about=[ROPE],
    fixes=[put(rope_type=None)],
)
def rope_type_fits_attention(view: View) -> Check:
    """What it checks: `rope_type` yarn without latent attention, or `rope` with latent attention and fused RoPE.

    Why: common attention takes `rope` alone, and the fused kernel of latent attention takes `yarn` alone; building the
    configuration raises.

    Example: `--rope-type yarn` without `--multi-latent-attention`

    Fix: leave `--rope-type` out, which means the fitting one.
    """
    kind, latent = view[ROPE], view[LATENT]
    return violated_by(
        [
            (kind.is_set & (kind != "rope") & latent.off, f"`rope_type` is {kind} without `multi_latent_attention`"),
            (
                (kind == "rope") & latent.on & view[ROPE_FUSION].on,
                "`rope_type` is rope with `multi_latent_attention` and `apply_rope_fusion`",
            ),
        ],
        expected="rope_type unset",
    )


@rule(
    "EPO907",
    "position-embedding-fits",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "996-1011"),
    about=[POSITIONS, "args.add_position_embedding"],
    fixes=[put(position_embedding_type="rope", gives_up="the other position embedding: another model")],
)
def position_embedding_fits(view: View) -> Check:
    """What it checks: `mrope` without `mrope_section`, `relative` without Transformer Engine's layers, or
    `--no-position-embedding` with another type than `rope`.

    Why: Megatron-LM asserts the first two and raises for the last.

    Example: `--position-embedding-type mrope` without `--mrope-section`

    Fix: what the type asks for.
    """
    kind, dropped = view[POSITIONS], view["args.add_position_embedding"] == False  # noqa: E712
    return violated_by(
        [
            ((kind == "mrope") & view["model.mrope_section"].off, "`position_embedding_type` mrope has no sections"),
            (
                (kind == "relative") & (view["model.transformer_impl"] != "transformer_engine"),
                "`position_embedding_type` relative needs Transformer Engine's layers",
            ),
            (dropped & (kind != "rope"), f"`--no-position-embedding` with `position_embedding_type` {kind}"),
        ],
        expected="position_embedding_type = rope",
    )


@rule(
    "EPO908",
    "deterministic-mode-limits",
    ERROR,
    enforced=[
        megatron_lm("<0.19", excluded=("args.use_flash_attn", "model.cross_entropy_loss_fusion")),
        megatron_lm(">=0.19", excluded=("model.tp_comm_overlap", "model.cross_entropy_loss_fusion")),
    ],
    source=[arguments("0.16.1", "1073-1079"), megatron("0.19.0", "training/determinism.py", "22-23")],
    about=[DETERMINISTIC],
    fixes=[
        put(cross_entropy_loss_fusion=False, gives_up="the fused loss"),
        put(deterministic_mode=False, gives_up="equal results of equal runs"),
    ],
)
def deterministic_mode_limits(view: View, *, excluded: tuple[str, ...]) -> Check:
    """What it checks: `deterministic_mode` with the fused cross entropy loss, up to 0.18 with `--use-flash-attn`, from
    0.19 with `tp_comm_overlap`.

    Why: they are taken for not deterministic; Megatron-LM asserts them away.

    Example: `--deterministic-mode --cross-entropy-loss-fusion`

    Fix: leave the other one out.
    """
    return violated_by(
        [(view[path].on, f"`deterministic_mode` is on with `{path.partition('.')[2]}`") for path in excluded],
        when=view[DETERMINISTIC].on,
        expected=", ".join(f"{path.partition('.')[2]} = false" for path in excluded),
    )


@rule(
    "EPO909",
    "deterministic-mode-needs-nccl-algorithm",
    ERROR,
    enforced=[
        megatron_lm("<0.19", given=True),
        megatron_lm("<0.19", severity=WARNING, unsaid=True),
        megatron_lm(">=0.19", given=False),
    ],
    source=[arguments("0.16.1", "1077-1079"), megatron("0.19.0", "training/determinism.py", "69-94")],
    unknown=NOTED,
    about=[DETERMINISTIC],
    fixes=[put_paths({"env.NCCL_ALGO": "Ring"})],
)
def deterministic_mode_needs_nccl_algorithm(view: View, *, given: bool = True, unsaid: bool = False) -> Check:
    """What it checks: `deterministic_mode` with an `NCCL_ALGO` that does not reduce in a fixed order, up to 0.18 also
    without one.

    Why: Megatron-LM asserts it. Ring, CollnetDirect, CollnetChain and ^NVLS pass, up to 0.18 Tree as well. Where the
    text says no algorithm it is a warning: the shell around the text may.

    Example: `NCCL_ALGO=NVLS` with `--deterministic-mode`

    Fix: `export NCCL_ALGO=Ring`.
    """
    algorithm = view["env.NCCL_ALGO"]
    if unsaid:
        return violated(
            view[DETERMINISTIC].on & ~view.written("env.NCCL_ALGO"),
            "`deterministic_mode` is on, which asserts an NCCL_ALGO, and the text sets none",
            expected="NCCL_ALGO = Ring",
        )
    fixed = algorithm.one_of("Tree", *_REDUCTIONS) if given else algorithm.test(_reduces_in_order)
    return violated(
        view[DETERMINISTIC].on & ~fixed,
        f"NCCL_ALGO is {algorithm} with `deterministic_mode`",
        expected="NCCL_ALGO = Ring",
    )


@rule(
    "EPO910",
    "logit-statistics-need-te-2-9",
    ERROR,
    enforced=[megatron_lm(">=0.16")],
    source=arguments("0.16.1", "971-984"),
    unknown=MET,
    about=[CLIP, LOG_LOGITS],
    fixes=[put(qk_clip=False, log_max_attention_logit=False, gives_up="the clipping of attention logits")],
)
def logit_statistics_need_te_2_9(view: View) -> Check:
    """What it checks: `qk_clip` or `log_max_attention_logit` with Transformer Engine before 2.9, or a clipping exponent
    or threshold out of range.

    Why: Transformer Engine's attention returns the largest logit from 2.9 on; Megatron-LM asserts version and ranges.

    Example: `--qk-clip` with Transformer Engine 2.8

    Fix: Transformer Engine 2.9, or leave both off.
    """
    clip, alpha, threshold = view[CLIP].on, view["model.qk_clip_alpha"], view["model.qk_clip_threshold"]
    return violated_by(
        [
            ((clip | view[LOG_LOGITS].on) & view.te.below("2.9.0"), f"Transformer Engine is {view.te}; 2.9 is needed"),
            (clip & ((alpha <= 0) | (alpha >= 1)), f"`qk_clip_alpha` is {alpha}, not between 0 and 1"),
            (clip & (threshold <= 0), f"`qk_clip_threshold` is {threshold}"),
        ],
        expected="transformer-engine >= 2.9",
    )


@rule(
    "EPO911",
    "rope-fusion-needs-te",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1543-1551"),
    unknown=MET,
    about=[ROPE_FUSION],
    fixes=[put(apply_rope_fusion=False)],
)
def rope_fusion_needs_te(view: View) -> Check:
    """What it checks: `apply_rope_fusion` asked for without Transformer Engine.

    Why: the fused kernel is Transformer Engine's; Megatron-Core raises ValueError.

    Example: `apply_rope_fusion: true` with no Transformer Engine installed

    Fix: `apply_rope_fusion=false`.
    """
    return violated(
        view[ROPE_FUSION].on & view.te.below("1.4.0"),
        f"Transformer Engine is {view.te}; `apply_rope_fusion` needs it",
        expected="transformer-engine installed",
    )


def _reduces_in_order(algorithms: object) -> bool:
    return algorithms is None or all(word.strip() in _REDUCTIONS for word in str(algorithms).split(","))


def _gathers(comm: object) -> bool:
    """Whether context parallelism works by `allgather` in every layer; unset means it does not."""
    kinds = comm if isinstance(comm, list) else [comm]
    return all(str(kind).replace("_", "").lower() == "allgather" for kind in kinds)
