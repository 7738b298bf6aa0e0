"""Shrinks a configuration to the ranks at hand: parallel layout, layers, experts, and the sizes of everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.moe_layers import moe_layers
from ep_overlap_mcp.smoke.dispatchers import flex_stands_in
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.surface import argument

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.draft import Draft
    from ep_overlap_mcp.smoke.machine import Machine

MOST_LOCAL_EXPERTS = 8
MICROBATCHES = 4


@dataclass(frozen=True)
class Sizes:
    """What the sizes are reduced to, per engine; a configuration that is smaller keeps its own."""

    hidden: int
    heads: int
    ffn: int
    seq: int
    vocab: int


CPU_SIZES = Sizes(hidden=64, heads=4, ffn=128, seq=32, vocab=256)
GPU_SIZES = Sizes(hidden=1024, heads=8, ffn=1024, seq=1024, vocab=4096)
MLA_SIZES = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_head_dim": 16, "qk_pos_emb_head_dim": 16, "v_head_dim": 16}


def shrink(draft: Draft) -> int:
    """Fill layout, layers, experts, sizes and batch of the draft; the number of ranks."""
    sizes = GPU_SIZES if draft.machine.on_gpu else CPU_SIZES
    ranks = _layout(draft)
    _layers(draft)
    _experts(draft, sizes)
    _attention(draft, sizes)
    _batch(draft, sizes)
    return ranks


def _layout(draft: Draft) -> int:
    """PP x VPP keeps its shape at two of each, EP takes the ranks that are left; TP and CP go to 1."""
    pp, vpp = _pipeline(draft)
    ep = _whole(draft, "model.expert_model_parallel_size", 2)
    stages = _stages(draft, pp, ep)
    experts = _expert_ranks(draft, ep, stages)
    ranks = stages * experts
    if (asked := draft.options.ranks) is not None and ranks != asked:
        stages_said = f"{stages} pipeline stages of " if stages > 1 else ""
        draft.not_tested.append(f"{asked} ranks as asked: EP {ep} divides into {stages_said}{experts}, so {ranks} run")
    for name in ("tensor_model_parallel_size", "context_parallel_size"):
        draft.set(name, 1, "the smoke run has EP and PP only")
    draft.set("expert_tensor_parallel_size", 1)
    draft.set("sequence_parallel", to=False, why="TP is 1")
    draft.set("pipeline_model_parallel_size", stages)
    one = draft.value("model.virtual_pipeline_model_parallel_size") == 1
    draft.set(
        "virtual_pipeline_model_parallel_size",
        2 if stages > 1 and (vpp > 1 or one) else None,
        "one virtual stage is not run: two stand in" if stages > 1 and one else None,
    )
    draft.set("expert_model_parallel_size", experts)
    if ranks > draft.machine.most_alone:
        shared = f"{ranks} ranks share {draft.machine.most_alone} {'GPUs' if draft.machine.on_gpu else 'cores'}"
        draft.not_tested.append(f"speed of ranks with a device each: {shared}")
    return ranks


def _pipeline(draft: Draft) -> tuple[int, int]:
    """PP and VPP; unknown ones as EP overlap and MTP need them, so that a stand-in breaks nothing."""
    pp_path, vpp_path = (f"model.{name}pipeline_model_parallel_size" for name in ("", "virtual_"))
    pp = _whole(draft, pp_path, 2 if not draft.known(pp_path) and draft.value("model.mtp_num_layers") else 1)
    return pp, _whole(draft, vpp_path, 1 if draft.known(vpp_path) else pp)


def _stages(draft: Draft, pp: int, ep: int) -> int:
    """Two stages where the ranks allow two expert-parallel ranks in each."""
    if pp == 1:
        return 1
    most = _most_ranks(draft.machine, draft.options.ranks, least=4)
    if most >= 2 * min(ep, 2):
        return 2
    draft.leave_out("model.pipeline_model_parallel_size", pp, f"PP x EP needs 4 ranks, there are {most}")
    return 1


def _expert_ranks(draft: Draft, ep: int, stages: int) -> int:
    """The largest part of EP that the ranks allow, at least two of them: with one there is no overlap."""
    most = _most_ranks(draft.machine, draft.options.ranks, least=2 * stages) // stages
    if ep > 1 and most < 2:
        raise SmokeError(
            f"EP overlap needs at least {2 * stages} ranks and there are {most * stages} on {draft.machine.engine};"
            " take engine gloo-cpu, which may share cores"
        )
    largest = min(ep, most)
    return next((part for part in range(largest, 1, -1) if ep % part == 0), largest)


def _most_ranks(machine: Machine, asked: int | None, *, least: int) -> int:
    """Ranks that may be started: as asked, else one a device, or `least` where ranks may share."""
    if asked is not None:
        if asked > machine.most_ranks:
            raise SmokeError(
                f"{argument('ranks')} is {asked}; {machine.engine} takes at most {machine.most_ranks} here"
            )
        return asked
    return max(machine.most_alone, min(least, machine.most_ranks))


def _layers(draft: Draft) -> None:
    """As few layers as keep the first and last kinds, and a layer for every stage."""
    before = _whole(draft, "model.num_layers", 2)
    chunks = draft.model["pipeline_model_parallel_size"] * (draft.model["virtual_pipeline_model_parallel_size"] or 1)
    freq = draft.value("model.moe_layer_freq", 1)
    pattern = [int(moe) for moe in moe_layers(freq, before) or [True] * before]
    count = draft.options.sizes.get("num_layers") or _fewest(pattern, chunks)
    if count % chunks:
        raise SmokeError(f"sizes.num_layers is {count}; {chunks} pipeline chunks need a multiple of {chunks}")
    draft.set("num_layers", count)
    kinds = _kinds(pattern, count)
    draft.set("moe_layer_freq", _frequency(freq, kinds, before == count), "first, last and a MoE layer kept")
    if (recomputed := draft.value("model.recompute_num_layers")) is not None:
        draft.set("recompute_num_layers", min(recomputed, count // chunks))


def _fewest(pattern: list[int], chunks: int) -> int:
    ends = [pattern[0], pattern[-1]] if pattern else [1, 1]
    least = 3 if 1 in pattern and 1 not in ends else 2
    return max(chunks, -(-least // chunks) * chunks)


def _kinds(pattern: list[int], count: int) -> list[int]:
    """The first and the last layer as they are, MoE between them where there is one at all."""
    if len(pattern) <= 1 or count == 1:
        return (pattern or [1]) * count
    middle = int(1 in pattern[1:-1] or 1 in pattern)
    return [pattern[0], *[middle] * (count - 2), pattern[-1]]


def _frequency(freq: Any, kinds: list[int], same: bool) -> Any:  # noqa: FBT001 - one caller, beside it
    if same and isinstance(freq, (int, list)):
        return freq
    return 1 if all(kinds) else kinds


def _experts(draft: Draft, sizes: Sizes) -> None:
    """Experts a rank are kept up to eight; top-k and groups follow where they no longer fit."""
    ep_before = _whole(draft, "model.expert_model_parallel_size", 2)
    ep = draft.model["expert_model_parallel_size"]
    experts = _whole(draft, "model.num_moe_experts", 4 * ep_before)
    local = max(1, experts // ep_before)
    # alltoall in the place of a flex backend crashes with one expert a rank before 0.17 (EPO512)
    least = 2 if flex_stands_in(draft) is not None else 1
    kept_local = max(least, min(local, MOST_LOCAL_EXPERTS))
    fits = ep == ep_before and experts <= ep * MOST_LOCAL_EXPERTS and local >= least
    count = experts if fits else kept_local * ep
    said = f"{kept_local} experts a rank"
    if kept_local > local:
        said += ", as alltoall stands in and takes no fewer"
    elif kept_local < local:
        said += f" of {local}"
    draft.set("num_moe_experts", count, said)
    draft.kept["experts per rank"] = count // ep
    topk = _whole(draft, "model.moe_router_topk", 2)
    if draft.value("model.moe_router_num_groups") is not None:
        topk = _groups(draft, count, topk)
    draft.set("moe_router_topk", min(topk, count))
    draft.set("moe_ffn_hidden_size", _size(draft, "moe_ffn_hidden_size", sizes.ffn))
    if draft.value("model.moe_shared_expert_intermediate_size") is not None:
        shared = _whole(draft, "model.moe_shared_expert_intermediate_size", 64)
        draft.set("moe_shared_expert_intermediate_size", min(shared, sizes.hidden))
    _latent_experts(draft, sizes)
    for name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff"):
        if draft.known(f"model.{name}"):
            draft.keep(name, _single(draft.value(f"model.{name}", 0.0)))


def _latent_experts(draft: Draft, sizes: Sizes) -> None:
    size = draft.value("model.moe_latent_size")
    if size is None:
        return
    if draft.machine.transformer_engine is None:
        draft.leave_out("model.moe_latent_size", size, "needs Transformer Engine; experts take the whole hidden size")
        return
    draft.set("moe_latent_size", min(_whole(draft, "model.moe_latent_size", 64), sizes.hidden))


def _groups(draft: Draft, experts: int, topk: int) -> int:
    """Two groups, one of them chosen; the top-k that fits."""
    groups = 2 if experts % 2 == 0 else 1
    draft.set("moe_router_num_groups", groups)
    draft.set("moe_router_group_topk", 1)
    return min(topk, experts // groups)


def _single(value: Any) -> Any:
    """A list of one as its one value; numbers that were read as text as numbers."""
    values = [_number(item) for item in (value if isinstance(value, list) else [value])]
    return values[0] if len(values) == 1 else values


def _number(item: Any) -> Any:
    if not isinstance(item, str):
        return item
    try:
        return float(item)
    except ValueError:
        return item


def _attention(draft: Draft, sizes: Sizes) -> None:
    hidden = _size(draft, "hidden_size", sizes.hidden)
    if hidden % 2:
        if draft.options.sizes.get("hidden_size"):
            raise SmokeError(f"sizes.hidden_size is {hidden}; rotary embeddings need an even one")
        hidden += 1
    heads = min(_whole(draft, "model.num_attention_heads", sizes.heads), sizes.heads)
    while hidden % heads or (hidden // heads) % 2:  # rotary embeddings need even heads
        heads -= 1
    draft.set("hidden_size", hidden)
    draft.set("num_attention_heads", heads)
    draft.set("ffn_hidden_size", _size(draft, "ffn_hidden_size", sizes.ffn))
    if draft.value("model.multi_latent_attention") is True:
        _latent_attention(draft)
        return
    groups = draft.value("model.num_query_groups")
    if groups is not None:
        grouped = groups < _whole(draft, "model.num_attention_heads", groups)
        draft.set("num_query_groups", max(1, heads // 2) if grouped else heads)
    if draft.value("model.kv_channels") is not None:
        draft.set("kv_channels", hidden // heads)


def _latent_attention(draft: Draft) -> None:
    """MLA with small ranks; Megatron's local layers have none (0.16.1 to 0.19.0), so there attention is standard."""
    if draft.machine.transformer_engine is None:
        why = "needs Transformer Engine; standard attention stands in"
        draft.leave_out("model.multi_latent_attention", value=True, why=why)
        return
    draft.set("multi_latent_attention", to=True)
    for name, size in MLA_SIZES.items():
        if draft.value(f"model.{name}") is not None:
            draft.set(name, min(_whole(draft, f"model.{name}", size), size))


def _batch(draft: Draft, sizes: Sizes) -> None:
    seq = _size(draft, "seq_length", sizes.seq)
    micro = draft.options.sizes.get("micro_batch_size", 1)
    microbatches = draft.options.sizes.get("num_microbatches") or _microbatches(draft)
    vocabulary = draft.options.sizes.get("vocab_size", sizes.vocab)
    position = _position_embedding(draft)
    stated = draft.effective["model.position_embedding_type"].written
    draft.note("model.seq_length", seq)
    draft.note("train.micro_batch_size", micro)
    draft.note("args.vocab_size", vocabulary, "vocabulary")
    draft.note("model.position_embedding_type", position, None if stated else "not written; MTP takes no other")
    draft.note("train.global_batch_size", micro * microbatches * draft.model["expert_model_parallel_size"])
    draft.train = {
        "micro_batch_size": micro,
        "num_microbatches": microbatches,
        "seq_length": seq,
        "vocab_size": vocabulary,
        "position_embedding_type": position,
    }


def _position_embedding(draft: Draft) -> str:
    """As effective where the run has it; rotary else, and with MTP where only Megatron-LM's default says another."""
    setting = draft.effective["model.position_embedding_type"]
    embedding = setting.value if setting.known else None
    if draft.value("model.mtp_num_layers") and not setting.written:
        return embedding if embedding in ("rope", "none") else "rope"
    return embedding if embedding in ("rope", "learned_absolute", "none") else "rope"


def _microbatches(draft: Draft) -> int:
    """Four, unless the configuration has fewer: with one, nothing can overlap, and the run must show that."""
    total, micro = draft.value("train.global_batch_size"), draft.value("train.micro_batch_size")
    world = draft.value("hardware.world_size")
    split = [_whole(draft, f"model.{name}_model_parallel_size", 1) for name in ("tensor", "pipeline")]
    split.append(_whole(draft, "model.context_parallel_size", 1))
    if not (isinstance(total, int) and isinstance(micro, int) and isinstance(world, int)):
        return MICROBATCHES
    data = world // (split[0] * split[1] * split[2])
    return max(1, min(MICROBATCHES, total // (micro * data))) if micro and data else MICROBATCHES


def _size(draft: Draft, name: str, reduced: int) -> int:
    """The caller's choice, else the smaller of the configuration's and ours."""
    chosen = draft.options.sizes.get(name)
    return chosen or min(_whole(draft, f"model.{name}", reduced), reduced)


def _whole(draft: Draft, path: str, otherwise: int) -> int:
    value = draft.value(path, otherwise)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise
