"""EPO510, 511, 513, 514, 526, 531, 538, 550: how ranks, experts, heads and sequences divide."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    WARNING,
    Fix,
    core,
    evidence,
    megatron_lm,
    put,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.remedies import RESHARDED
from ep_overlap_mcp.rules.sources import arguments, core_config, megatron
from ep_overlap_mcp.rules.truth import FALSE, derived

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

TP, PP, CP = (f"model.{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context"))
_LARGEST = 64  # of the sizes that a message offers
EP, ETP = "model.expert_model_parallel_size", "model.expert_tensor_parallel_size"


@rule(
    "EPO510",
    "world-divides-parallelism",
    ERROR,
    enforced=[run_time()],
    source=[
        megatron("0.16.1", "core/parallel_state.py", "736-741"),
        megatron("0.16.1", "core/parallel_state.py", "788-795"),
        arguments("0.16.1", "314-319"),
    ],
    unknown=NOTED,
    fixes=[Fix(lambda view: _whole_experts(view), safe=False, gives_up=RESHARDED)],  # noqa: PLW0108
)
def world_divides_parallelism(view: View) -> Check:
    """What it checks: the number of ranks is no multiple of TP x PP x CP, or of expert TP x EP x PP.

    Why: dense and expert layers share the ranks in two layouts, and both must fill them; initialising the process
    groups raises RuntimeError otherwise. Expert TP is TP unless set.

    Example: 16 ranks with TP 2, PP 2, EP 8: the experts need 32, or `expert_tensor_parallel_size=1`

    Fix: another number of ranks or another layout; often `expert_tensor_parallel_size=1`.
    """
    return violated_by(
        [*_no_multiple(view, TP, PP, CP), *_no_multiple(view, ETP, EP, PP)],
        expected="world size % (TP * PP * CP) = world size % (expert TP * EP * PP) = 0",
    )


_SHORT = {TP: "TP", PP: "PP", CP: "CP", ETP: "expert TP", EP: "EP"}


def _no_multiple(view: View, *paths: str) -> Iterable[tuple[Truth, str]]:
    """The ranks against the product of a layout's sizes, and of those alone that are known: whatever the rest is."""
    known = [path for path in paths if view[path].known]
    for factors in [paths] if len(known) in (0, len(paths)) else [known, paths]:
        world = view["hardware.world_size"]
        sizes = math.prod((view[path] for path in factors[1:]), start=view[factors[0]])
        names = " x ".join(_SHORT[path] for path in factors)
        yield world % sizes > 0, f"{world} ranks are no multiple of {names} = {sizes}{_that_fit(view, *paths)}"


@rule(
    "EPO511",
    "experts-divide-by-ep",
    ERROR,
    enforced=[run_time(), megatron_lm()],
    source=[megatron("0.16.1", "core/transformer/moe/moe_layer.py", "99-101"), arguments("0.16.1", "1024-1028")],
    unknown=NOTED,
    fixes=[Fix(lambda view: _fitting_ep(view), safe=False, gives_up="the expert parallel size")],  # noqa: PLW0108
)
def experts_divide_by_ep(view: View) -> Check:
    """What it checks: the number of experts is no multiple of `expert_model_parallel_size`.

    Why: each rank holds the same number. Megatron-Core's configuration does not look, and building the MoE layer
    fails an assertion without a text.

    Example: `--num-experts 12 --expert-model-parallel-size 8`

    Fix: an `expert_model_parallel_size` that divides the experts.
    """
    experts, ep = view["model.num_moe_experts"], view[EP]
    return violated(
        experts.is_set & (ep > 1) & (experts % ep != 0),
        f"{experts} experts do not divide over {ep} expert parallel ranks",
        expected="num_moe_experts % expert_model_parallel_size = 0",
    )


@rule(
    "EPO513",
    "sequence-parallel-needs-tp",
    ERROR,
    enforced=[core()],
    source=megatron("0.16.1", "core/model_parallel_config.py", "409-411"),
    fixes=[put(sequence_parallel=False)],
)
def sequence_parallel_needs_tp(view: View) -> Check:
    """What it checks: sequence parallelism without tensor parallelism.

    Why: it splits the sequence over the tensor parallel ranks; Megatron-Core raises ValueError. Megatron-LM clears
    the flag by itself.

    Example: `sequence_parallel: true` with `tensor_model_parallel_size: 1`

    Fix: `sequence_parallel=false`.
    """
    return violated(
        view["model.sequence_parallel"].on & (view[TP] <= 1),
        f"`sequence_parallel` is on with tensor parallel size {view[TP]}",
        expected="sequence_parallel = false, or TP > 1",
    )


@rule(
    "EPO514",
    "tensor-parallel-experts-need-sequence-parallel",
    ERROR,
    enforced=[
        core("<=0.16.0rc0", plain=False),
        evidence(">=0.16", severity=WARNING, plain=False),
        run_time(">=0.16", plain=True),
    ],
    source=[
        megatron("0.14.0", "core/model_parallel_config.py", "388-393"),
        megatron("0.16.1", "core/model_parallel_config.py", "440-445"),
        megatron("0.16.1", "core/transformer/moe/moe_layer.py", "379-383"),
    ],
    fixes=[put(sequence_parallel=True)],
)
def tensor_parallel_experts_need_sequence_parallel(view: View, *, plain: bool) -> Check:
    """What it checks: tensor and expert parallelism without sequence parallelism.

    Why: every tensor parallel rank would then dispatch the same tokens. 0.14 raises ValueError, 0.15 crashes with
    NameError on its way to a warning, later releases warn. There the ordinary MoE layer raises in its first training
    step, so that without EP overlap it is an error; the combined schedule passes that layer's check by.

    Example: `--tensor-model-parallel-size 2 --expert-model-parallel-size 4` without `--sequence-parallel`

    Fix: `sequence_parallel=true`.
    """
    apart = (view[TP] > 1) & view["model.sequence_parallel"].off
    return violated(
        apart & (~view.overlap & view["model.num_moe_experts"].is_set if plain else view[EP] > 1),
        f"TP {view[TP]} and EP {view[EP]} without `sequence_parallel`; each tensor rank would dispatch the same tokens",
        expected="sequence_parallel = true",
    )


@rule(
    "EPO526",
    "heads-divide-by-tp",
    ERROR,
    enforced=[core("<=0.16.0rc0", divisor_passes=False), core(">=0.16", divisor_passes=True)],
    source=[core_config("0.16.1", "924-946"), core_config("0.15.3", "758-763")],
    unknown=NOTED,
)
def heads_divide_by_tp(view: View, *, divisor_passes: bool) -> Check:
    """What it checks: attention heads or query groups that do not divide over the tensor parallel ranks.

    Why: Megatron-Core raises ValueError; from 0.16 fewer query groups than ranks pass if they divide the ranks.

    Example: 8 query groups on TP 3

    Fix: another tensor parallel size.
    """
    heads, tp = view["model.num_attention_heads"], view[TP]
    groups = view["model.num_query_groups"]
    spread = tp % groups == 0 if divisor_passes else FALSE
    return violated_by(
        [
            (heads % tp > 0, f"{heads} attention heads do not divide over {tp} tensor parallel ranks"),
            (
                groups.is_set & (groups % tp > 0) & ~spread,
                f"{groups} query groups do not fit {tp} tensor ranks",
            ),
        ],
        expected="num_attention_heads % TP = 0, query groups a multiple of TP",
    )


@rule(
    "EPO531",
    "sequence-divides-by-context-parallel",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "817-820"),
    unknown=NOTED,
)
def sequence_divides_by_context_parallel(view: View) -> Check:
    """What it checks: context parallelism with a sequence length that is no multiple of twice its size.

    Why: each rank takes two mirrored slices of the sequence; Megatron-LM asserts it.

    Example: `--seq-length 1000 --context-parallel-size 8`

    Fix: a sequence length that is a multiple of 2 x context parallel size.
    """
    length, cp = view["model.seq_length"], view[CP]
    return violated(
        (cp > 1) & (length % (cp * 2) > 0),
        f"sequence length {length} is no multiple of 2 x context parallel size {cp}",
        expected="seq_length % (2 * context_parallel_size) = 0",
    )


@rule(
    "EPO550",
    "context-parallel-needs-te",
    ERROR,
    enforced=[run_time()],
    source=megatron("0.16.1", "core/transformer/dot_product_attention.py", "57-59"),
    about=[CP],
    unknown=NOTED,
)
def context_parallel_needs_te(view: View) -> Check:
    """What it checks: context parallelism without Transformer Engine.

    Why: only Transformer Engine's attention exchanges the slices of a sequence; the local one asserts it when the
    model is built.

    Example: `--context-parallel-size 2` in an environment without Transformer Engine

    Fix: install Transformer Engine.
    """
    cp = view[CP]
    return violated(
        (cp > 1) & view.te.absent,
        f"context parallel size is {cp} and Transformer Engine is not installed",
        expected="Transformer Engine installed",
    )


@rule(
    "EPO538",
    "tensor-parallel-overlap-needs-sequence-parallel",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "915-916"),
    about=["model.tp_comm_overlap"],
    fixes=[
        put(tp_comm_overlap=False, gives_up="the overlap of tensor-parallel communication"),
        put(sequence_parallel=True),
    ],
)
def tensor_parallel_overlap_needs_sequence_parallel(view: View) -> Check:
    """What it checks: `tp_comm_overlap` without sequence parallelism, which Megatron-LM clears at TP 1.

    Why: the overlapped operations are those of sequence parallelism; Megatron-LM asserts it.

    Example: `--tp-comm-overlap` with `--tensor-model-parallel-size 1`

    Fix: `--sequence-parallel` with tensor parallelism, or leave it off.
    """
    return violated(
        view["model.tp_comm_overlap"].on & view["model.sequence_parallel"].off,
        f"`tp_comm_overlap` is on without sequence parallelism (tensor parallel size {view[TP]})",
        expected="sequence_parallel = true",
    )


def _that_fit(view: View, *paths: str) -> str:
    """The sizes that one setting could have, where the others fill the ranks without it."""
    world, *sizes = (view.effective[path].value for path in ("hardware.world_size", *paths))
    if not all(isinstance(size, int) and size > 0 for size in (world, *sizes)):
        return ""
    said = []
    for path, size in zip(paths, sizes, strict=True):
        left, over = divmod(world, math.prod(sizes) // size)
        if not over and left % size:
            fitting = [number for number in range(1, min(left, _LARGEST) + 1) if left % number == 0]
            said.append(f"{path.partition('.')[2]} {', '.join(map(str, fitting))}")
    return f"; {' or '.join(said)} would fit" if said else ""


def _whole_experts(view: View) -> Iterable[Mapping[str, int]]:
    """Expert TP 1 where nobody has written another one and the ranks then hold the experts."""
    sizes = [view.effective[path].value for path in ("hardware.world_size", TP, PP, CP, EP)]
    if view.effective.requested(ETP).written or not all(isinstance(size, int) and size > 0 for size in sizes):
        return
    world, tp, pp, cp, ep = sizes
    if tp > 1 and world % (tp * pp * cp) == world % (ep * pp) == 0:
        yield {ETP: 1}


def _fitting_ep(view: View) -> Iterable[Mapping[str, int]]:
    """The largest smaller size that divides the experts, and the ranks where their number is known."""
    experts, ep = view.effective["model.num_moe_experts"], view.effective[EP]
    ranks = derived(
        lambda world, *sizes: world // (math.prod(sizes) or 1), view["hardware.world_size"], view[ETP], view[PP]
    )
    if experts.known and ep.known and experts.value and ep.value:
        fitting = [size for size in range(2, ep.value) if experts.value % size == 0]
        fitting = [size for size in fitting if not ranks.known or not ranks.raw or ranks.raw % size == 0] or fitting
        if fitting:
            yield {EP: fitting[-1]}
