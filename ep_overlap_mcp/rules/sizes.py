"""EPO533, 535, 539, 542, 543: batches, sizes and shares that no run can have, and sizes that divide one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.rules.engine import ERROR, NOTED, Fix, megatron_lm, put_paths, rule, run_time, violated, violated_by
from ep_overlap_mcp.rules.sources import arguments, megatron
from ep_overlap_mcp.rules.truth import TRUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

MICRO, GLOBAL = "train.micro_batch_size", "train.global_batch_size"
HEADS, GROUPS = "model.num_attention_heads", "model.num_query_groups"
SHARES = ("model.hidden_dropout", "model.attention_dropout")

_ALWAYS: Final = (
    *(f"model.{name}" for name in (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
        "expert_model_parallel_size", "expert_tensor_parallel_size", "num_layers", "num_attention_heads",
        "num_layers_per_virtual_pipeline_stage", "hidden_size", "num_query_groups", "seq_length",
    )),
    "hardware.world_size",
)  # fmt: skip
_OF_EXPERTS: Final = ("model.moe_router_topk", "model.moe_ffn_hidden_size", "model.moe_latent_size")
_OF_LATENT_ATTENTION: Final = tuple(
    f"model.{name}" for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "v_head_dim")
)
_DENSE, _WIDTH_OF_A_HEAD = "model.ffn_hidden_size", "model.kv_channels"
_GROUPS_OF_A_TOKEN, _ROTARY = "model.moe_router_group_topk", "model.qk_pos_emb_head_dim"  # 0 is without
_SIZES: Final = (
    *_ALWAYS, *_OF_EXPERTS, *_OF_LATENT_ATTENTION, _DENSE, _WIDTH_OF_A_HEAD, _GROUPS_OF_A_TOKEN, _ROTARY,
)  # fmt: skip


@rule(
    "EPO533",
    "batches-positive",
    ERROR,
    enforced=[run_time(), megatron_lm()],
    source=[arguments("0.16.1", "494-500"), megatron("0.16.1", "core/num_microbatches_calculator.py", "338-350")],
    unknown=NOTED,
    about=[MICRO, GLOBAL],
    fixes=[put_paths({MICRO: 1, GLOBAL: None}, gives_up="the batch sizes, which are yours to choose")],
)
def batches_positive(view: View) -> Check:
    """What it checks: a micro batch or a global batch of nothing.

    Why: Megatron-LM asserts it, without a text.

    Example: `--micro-batch-size 0`

    Fix: a positive size.
    """
    micro, whole = view[MICRO], view[GLOBAL]
    return violated_by(
        [
            (micro <= 0, f"`micro_batch_size` is {micro}"),
            (whole <= 0, f"`global_batch_size` is {whole}"),
        ],
        expected="micro_batch_size > 0, global_batch_size > 0",
    )


@rule(
    "EPO535",
    "hidden-size-divides-by-heads",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "813-815"),
    unknown=NOTED,
    about=["model.hidden_size", "model.num_attention_heads"],
)
def hidden_size_divides_by_heads(view: View) -> Check:
    """What it checks: a hidden size that is no multiple of the attention heads, without `kv_channels`.

    Why: the width of a head is their quotient; Megatron-LM asserts it, without a text.

    Example: `--hidden-size 1024 --num-attention-heads 6`

    Fix: other heads, or `--kv-channels`.
    """
    width, heads = view["model.hidden_size"], view["model.num_attention_heads"]
    return violated(
        (width % heads > 0) & view["model.kv_channels"].unset,
        f"hidden size {width} does not divide over {heads} attention heads, and `kv_channels` is not set",
        expected="hidden_size % num_attention_heads = 0",
    )


@rule(
    "EPO539",
    "sizes-positive",
    ERROR,
    enforced=[run_time()],
    source=[
        arguments("0.16.1", "314-320"),
        arguments("0.16.1", "1268-1273"),
        megatron("0.16.1", "core/parallel_state.py", "736-795"),
        megatron("0.16.1", "core/transformer/dot_product_attention.py", "80-85"),
        megatron("0.16.1", "core/transformer/moe/moe_utils.py", "687-697"),
        "pytorch/pytorch@v2.13.0:torch/distributed/elastic/agent/server/api.py:107-109",
    ],
    unknown=NOTED,
    about=_SIZES,
    fixes=[Fix(lambda view: _of_one(view), safe=False, gives_up="the size, which is yours to choose")],  # noqa: PLW0108
)
def sizes_positive(view: View) -> Check:
    """What it checks: a size below 1: of a parallel group, of the job, of the model, its heads or its experts.

    Why: a negative one ends in torch's RuntimeError. 0 divides ranks, layers and heads, which is a ZeroDivisionError;
    experts of no width, or tokens that no expert takes, run and learn nothing.

    Example: `--context-parallel-size 0`

    Fix: 1 or more, or leave it out.
    """
    return violated_by(
        [
            (view.written(path) & counts & (view[path] < least), f"`{path.partition('.')[2]}` is {view[path]}")
            for path, least, counts in _counting(view)
        ],
        expected="1 or more",
    )


def _counting(view: View) -> Iterable[tuple[str, int, Truth]]:
    """Each size with the least that it can be, and whether the model has what it is the size of."""
    experts, latent = view["model.num_moe_experts"].is_set, _latent(view)
    yield from ((path, 1, TRUE) for path in _ALWAYS)
    yield from ((path, 1, experts) for path in _OF_EXPERTS)
    yield from ((path, 1, latent) for path in _OF_LATENT_ATTENTION)
    yield _WIDTH_OF_A_HEAD, 1, ~latent
    yield _GROUPS_OF_A_TOKEN, 0, experts
    yield _ROTARY, 0, latent
    own_width = view["model.moe_ffn_hidden_size"].is_set & (view["model.moe_layer_freq"] == 1)
    yield _DENSE, 1, ~(experts & own_width)  # experts in every layer leave no dense one


def _latent(view: View) -> Truth:
    return view["model.multi_latent_attention"].on


@rule(
    "EPO542",
    "query-groups-divide-heads",
    ERROR,
    enforced=[run_time()],
    source=[
        megatron("0.16.1", "core/transformer/attention.py", "1389-1424"),
        megatron("0.19.0", "core/transformer/attention.py", "1830-1832"),
    ],
    unknown=NOTED,
    about=[GROUPS],
    fixes=[Fix(lambda view: _dividing(view), safe=False, gives_up="the number of query groups")],  # noqa: PLW0108
)
def query_groups_divide_heads(view: View) -> Check:
    """What it checks: query groups that do not divide the attention heads.

    Why: the heads of a group are their quotient, cut to a whole number; the first step ends in RuntimeError (`shape …
    is invalid for input of size`).

    Example: `num_attention_heads: 32` with `num_query_groups: 3`

    Fix: groups that divide the heads.
    """
    heads, groups = view[HEADS], view[GROUPS]
    return violated(
        ~_latent(view) & (groups > 0) & (heads % groups > 0),
        f"{groups} query groups do not divide {heads} attention heads",
        expected="num_attention_heads % num_query_groups = 0",
    )


@rule(
    "EPO543",
    "dropout-is-a-share",
    ERROR,
    enforced=[run_time()],
    source=[
        megatron("0.16.1", "core/models/common/embeddings/language_model_embedding.py", "86"),
        megatron("0.16.1", "core/transformer/dot_product_attention.py", "114-116"),
        "pytorch/pytorch@v2.13.0:torch/nn/modules/dropout.py:22-27",
    ],
    unknown=NOTED,
    about=SHARES,
    fixes=[Fix(lambda view: _without_dropout(view), safe=False, gives_up="dropout")],  # noqa: PLW0108
)
def dropout_is_a_share(view: View) -> Check:
    """What it checks: `hidden_dropout` or `attention_dropout` below 0 or above 1.

    Why: torch raises ValueError when the model is built.

    Example: `--hidden-dropout 10`, meant as a percentage

    Fix: a share from 0 to 1; 0 in nearly every large model.
    """
    return violated_by(
        [
            (view.written(path) & _no_share(view, path), f"`{path.partition('.')[2]}` is {view[path]}")
            for path in SHARES
        ],
        expected="0 <= dropout <= 1",
    )


def _no_share(view: View, path: str) -> Truth:
    return (view[path] < 0) | (view[path] > 1)


def _of_one(view: View) -> Iterable[Mapping[str, int | None]]:
    """The parallel sizes that are no size at 1; a model of no layers has no remedy."""
    below = [path for path in _SIZES if isinstance(size := view.effective[path].value, int) and size <= 0]
    if below and all(path.endswith("parallel_size") for path in below):
        yield dict.fromkeys(below, 1)


def _dividing(view: View) -> Iterable[Mapping[str, int]]:
    """The largest smaller number of groups that divides the heads."""
    heads, groups = view[HEADS].raw, view[GROUPS].raw
    if isinstance(heads, int) and isinstance(groups, int):
        yield {GROUPS: next(count for count in range(min(groups, heads), 0, -1) if heads % count == 0)}


def _without_dropout(view: View) -> Iterable[Mapping[str, float]]:
    yield {path: 0.0 for path in SHARES if _no_share(view, path).value}
