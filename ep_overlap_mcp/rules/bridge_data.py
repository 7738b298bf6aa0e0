"""EPO935-942: what the data set of a Megatron-Bridge run must share with the model and the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, Fix, bridge, put_paths, rule, violated, violated_by
from ep_overlap_mcp.rules.graphs import IMPLEMENTATION, graphs_iteration
from ep_overlap_mcp.rules.sources import megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, TRUE, derived

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

KIND, LENGTH, MODEL_LENGTH = "dataset.kind", "dataset.seq_length", "model.seq_length"
MICRO, DATA_MICRO = "train.micro_batch_size", "dataset.micro_batch_size"
IN_BATCH, OFFLINE, SPECS = (
    "dataset.enable_in_batch_packing",
    "dataset.enable_offline_packing",
    "dataset.offline_packing_specs",
)
SIZE, PADDED = "dataset.packed_sequence_specs.packed_sequence_size", "dataset.packed_sequence_specs.pad_cu_seqlens"
WHOLE_LENGTH, BUFFER = "dataset.pad_to_max_length", "dataset.packing_buffer_size"
PER_TOKEN, AVERAGE = "model.calculate_per_token_loss", "ddp.average_in_collective"
CP = "model.context_parallel_size"
BLEND, SPLITS, SPLIT = "dataset.blend", "dataset.blend_per_split", "dataset.split"
MASKS = tuple(f"dataset.{name}" for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"))

_GPT = ("GPTDatasetConfig", "MockGPTDatasetConfig", "GPTFIMDatasetConfig")
_FINE_TUNING = ("FinetuningDatasetConfig",)
_DIRECT = ("DirectHFSFTDatasetConfig", "EnergonDatasetConfig", "MockVLMSFTDatasetConfig")
_SFT = (*_FINE_TUNING, "GPTSFTDatasetConfig", *_DIRECT)
_CONFIG = "training/config.py"


@rule(
    "EPO935",
    "bridge-data-length-is-the-models",
    ERROR,
    enforced=[bridge("<0.6", kinds=(*_GPT, *_FINE_TUNING)), bridge(">=0.6", kinds=(*_GPT, *_SFT))],
    source=[megatron_bridge("main", _CONFIG, "1629-1648"), megatron_bridge("0.2.0", _CONFIG, "1346-1360")],
    unknown=NOTED,
    about=[LENGTH],
    fixes=[Fix(lambda view: _as_the_model(view), safe=False, gives_up="the length of the data's sequences")],  # noqa: PLW0108
)
def bridge_data_length_is_the_models(view: View, *, kinds: tuple[str, ...]) -> Check:
    """What it checks: a sequence length of the data set that is not the model's.

    Why: `ConfigContainer.validate` asserts that they are equal, for the data sets of Bridge's own classes.

    Example: `model.seq_length=8192` over a recipe whose data set has 4096

    Fix: `dataset.seq_length=8192` as well.
    """
    length, model = view[LENGTH], view[MODEL_LENGTH]
    return violated(
        view[KIND].one_of(*kinds) & (length != model),
        f"the data set's sequences are {length} long and the model's {model}",
        expected="dataset.seq_length = model.seq_length",
    )


@rule(
    "EPO936",
    "bridge-packed-data-take-one-sequence",
    ERROR,
    enforced=[bridge("<0.6", declared=False), bridge(">=0.6", declared=True)],
    source=[megatron_bridge("main", _CONFIG, "1600-1619"), megatron_bridge("0.5.1", _CONFIG, "1336-1356")],
    unknown=NOTED,
    about=[SPECS, SIZE, OFFLINE],
    fixes=[put_paths({MICRO: 1}, gives_up="the micro batch; a longer packed sequence gives it back")],
)
def bridge_packed_data_take_one_sequence(view: View, *, declared: bool) -> Check:
    """What it checks: a micro batch of several sequences with data that were packed before the training.

    Why: a packed sequence is a batch in itself; `ConfigContainer.validate` raises ValueError. Before Bridge 0.6 the
    size of a packed sequence says that data are packed, from then on `enable_offline_packing`.

    Example: `dataset.packed_sequence_specs.packed_sequence_size=4096 train.micro_batch_size=2`

    Fix: `train.micro_batch_size=1` and a packed sequence that is as much longer.
    """
    packed = view[OFFLINE].on if declared else view[KIND].one_of(*_FINE_TUNING) & view[SPECS].is_set & (view[SIZE] > 0)
    return violated(
        packed & (view[MICRO] > 1),
        f"`micro_batch_size` is {view[MICRO]} with packed sequences",
        expected="train.micro_batch_size = 1",
    )


@rule(
    "EPO937",
    "bridge-in-batch-packing-needs-two-sequences",
    ERROR,
    enforced=[bridge(">=0.3")],
    source=[megatron_bridge("main", _CONFIG, "1620-1625"), megatron_bridge("0.3.1", _CONFIG, "1582-1587")],
    unknown=NOTED,
    about=[IN_BATCH],
    fixes=[
        put_paths({IN_BATCH: False}, gives_up="packing in the batch, which one sequence does not need"),
        put_paths({MICRO: 2}, gives_up="memory for a second sequence"),
    ],
)
def bridge_in_batch_packing_needs_two_sequences(view: View) -> Check:
    """What it checks: packing in the batch with a micro batch of one sequence.

    Why: it packs the sequences of a micro batch into one; `ConfigContainer.validate` raises ValueError for one. The
    field is `pack_sequences_in_batch` before Bridge 0.6.

    Example: `dataset.enable_in_batch_packing=true train.micro_batch_size=1`

    Fix: a larger micro batch, or no packing.
    """
    return violated(
        view[IN_BATCH].on & (view[MICRO] == 1),
        "packing in the batch with `micro_batch_size` 1",
        expected="train.micro_batch_size > 1",
    )


@rule(
    "EPO938",
    "bridge-fine-tuning-over-context-parallel-ranks",
    ERROR,
    enforced=[bridge("<0.6", kinds=_FINE_TUNING), bridge(">=0.6", kinds=_SFT)],
    source=[megatron_bridge("main", _CONFIG, "1574-1597"), megatron_bridge("0.2.0", _CONFIG, "1307-1321")],
    unknown=NOTED,
    about=[KIND],
    fixes=[put_paths({PER_TOKEN: True, AVERAGE: False})],
)
def bridge_fine_tuning_over_context_parallel_ranks(view: View, *, kinds: tuple[str, ...]) -> Check:
    """What it checks: fine-tuning with context parallelism without `calculate_per_token_loss`, or with
    `average_in_collective`.

    Why: a rank whose slice holds only masked tokens would make the loss NaN; `ConfigContainer.validate` asserts both.

    Example: `model.context_parallel_size=2` over an SFT recipe

    Fix: `model.calculate_per_token_loss=true ddp.average_in_collective=false`.
    """
    return violated_by(
        [
            (view[PER_TOKEN].off, "`calculate_per_token_loss` is off"),
            (view[AVERAGE].on, "`average_in_collective` is on"),
        ],
        when=view[KIND].one_of(*kinds) & (view[CP] > 1),
        expected="calculate_per_token_loss = true, average_in_collective = false",
    )


@rule(
    "EPO939",
    "bridge-offline-packing-fits",
    ERROR,
    enforced=[bridge(">=0.6")],
    source=megatron_bridge("main", _CONFIG, "1269-1309"),
    unknown=NOTED,
    about=[OFFLINE, SPECS],
    fixes=[
        put_paths({WHOLE_LENGTH: True, PADDED: True, IN_BATCH: False}, gives_up="padding to the longest of a batch"),
    ],
)
def bridge_offline_packing_fits(view: View) -> Check:
    """What it checks: offline packing beside packing in the batch, without its specification or one without it, without
    a size, or under CUDA graphs without static shapes.

    Why: `ConfigContainer.validate` refuses them. Graphs need rows of one width (`pad_to_max_length`), and graphs of
    the attention boundaries of one number (`pad_cu_seqlens`).

    Example: `dataset.enable_offline_packing=true model.cuda_graph_impl=transformer_engine`

    Fix: `dataset.dataset_kwargs.pad_to_max_length=true` and `offline_packing_specs.pad_cu_seqlens=true`.
    """
    packs, specs, padded = view[OFFLINE].on, view[SPECS].is_set, view[WHOLE_LENGTH].on
    whole, by_te = graphs_iteration(view), view[IMPLEMENTATION] == "transformer_engine"
    attention = whole | (by_te & view.graph_modules.test(lambda modules: not modules or "attn" in modules))
    return violated_by(
        [
            (packs & view[IN_BATCH].on, "offline packing beside packing in the batch"),
            (packs & ~specs, "`enable_offline_packing` without `offline_packing_specs`"),
            (specs & ~packs, "`offline_packing_specs` without `enable_offline_packing`"),
            (packs & specs & (view[SIZE] <= 0), f"`packed_sequence_size` is {view[SIZE]}"),
            (specs & view[PADDED].on & ~padded, "`pad_cu_seqlens` without `pad_to_max_length`"),
            (specs & (whole | by_te) & ~padded, "CUDA graphs over packed data without `pad_to_max_length`"),
            (specs & attention & view[PADDED].off, "a CUDA graph of packed attention without `pad_cu_seqlens`"),
        ],
        expected="enable_offline_packing with offline_packing_specs; under graphs pad_to_max_length and pad_cu_seqlens",
    )


@rule(
    "EPO940",
    "bridge-energon-data-fit",
    ERROR,
    enforced=[bridge(">=0.6,<0.7", packs=False), bridge(">=0.7", packs=True)],
    source=[
        megatron_bridge("main", _CONFIG, "1319-1345"),
        megatron_bridge("main", "data/builders/energon.py", "178-205"),
    ],
    unknown=NOTED,
    about=[BUFFER, DATA_MICRO],
    fixes=[
        Fix(lambda view: _as_the_training(view), safe=False, gives_up="the data set's own micro batch"),  # noqa: PLW0108
        put_paths({BUFFER: None}, gives_up="packing in the data loader"),
    ],
)
def bridge_energon_data_fit(view: View, *, packs: bool) -> Check:
    """What it checks: Energon data whose micro batch is not the training's; on Bridge main also packing in the loader
    with more than one sequence, MTP, CUDA graphs, a pipeline, `average_in_collective` or a loss that is not per token.

    Why: `ConfigContainer.validate` raises ValueError for each.

    Example: `dataset.micro_batch_size=2 train.micro_batch_size=1`

    Fix: the same micro batch in both.
    """
    micro, own, pp = view[MICRO], view[DATA_MICRO], view["model.pipeline_model_parallel_size"]
    packing: Truth = view[BUFFER].is_set if packs else FALSE
    return violated_by(
        [
            (own != micro, f"the data set's micro batch is {own} and the training's {micro}"),
            (packing & (micro != 1), f"packing in the loader with micro batch {micro}"),
            (packing & view[IN_BATCH].on, "packing in the loader and in the batch"),
            (packing & view[PER_TOKEN].off, "packing in the loader without `calculate_per_token_loss`"),
            (packing & view[AVERAGE].on, "packing in the loader with `average_in_collective`"),
            (packing & (view["model.mtp_num_layers"] > 0), "packing in the loader with MTP"),
            (packing & ~view[IMPLEMENTATION].one_of(None, "none"), "packing in the loader with CUDA graphs"),
            (packing & (pp > 1), f"packing in the loader with {pp} pipeline stages"),
        ],
        when=view[KIND] == "EnergonDatasetConfig",
        expected="dataset.micro_batch_size = train.micro_batch_size",
    )


@rule(
    "EPO941",
    "bridge-fine-tuning-length-divides",
    ERROR,
    enforced=[bridge(">=0.6")],
    source=megatron_bridge("main", _CONFIG, "1354-1372"),
    unknown=NOTED,
    about=[LENGTH],
)
def bridge_fine_tuning_length_divides(view: View) -> Check:
    """What it checks: conversations or multimodal data whose sequence length does not divide over context and sequence
    parallel ranks.

    Why: batches are padded to a multiple of 2 x CP and, under sequence parallelism, of CP x TP; Bridge raises
    ValueError where the longest sequence is no such multiple.

    Example: `dataset.seq_length=4100` with context parallel size 4

    Fix: a sequence length that is a multiple.
    """
    length, cp, tp = view[LENGTH], view[CP], view["model.tensor_model_parallel_size"]
    multiple = derived(_padding, cp, tp, derived(int, view["model.sequence_parallel"]))
    return violated(
        view.tells(KIND, LENGTH, CP) & view[KIND].one_of(*_DIRECT) & (length % multiple > 0),
        f"the data set's sequence length {length} is no multiple of {multiple}",
        expected="dataset.seq_length a multiple of 2 x CP and of CP x TP",
    )


@rule(
    "EPO942",
    "bridge-pretraining-data-stated",
    ERROR,
    enforced=[bridge("<0.3", refuses_mock=False), bridge(">=0.3", refuses_mock=True)],
    source=[
        megatron_bridge("main", _CONFIG, "321-325"),
        megatron_bridge("main", _CONFIG, "375-382"),
        megatron("0.16.1", "core/datasets/blended_megatron_dataset_config.py", "89-118"),
    ],
    unknown=NOTED,
    about=[KIND],
    fixes=[
        put_paths(dict.fromkeys(MASKS, False), gives_up="masks at the ends of documents"),
        put_paths({SPLITS: None, SPLIT: "99,1,0"}, gives_up="the paths by split"),
    ],
)
def bridge_pretraining_data_stated(view: View, *, refuses_mock: bool) -> Check:
    """What it checks: a GPT data set without `reset_position_ids`, `reset_attention_mask` or `eod_mask_loss`, with data
    from two sources or without their split, or mock data with a source.

    Why: core has no default for the three; the data set's `finalize` asserts them.

    Example: `MockGPTDatasetConfig(seq_length=4096)` in a whole configuration

    Fix: all three, false where documents are not told apart.
    """
    mock = (view[KIND] == "MockGPTDatasetConfig") & (TRUE if refuses_mock else FALSE)
    blend, splits = view[BLEND].on, view[SPLITS].on
    return violated_by(
        [
            *((view[path].unset, f"`{path.partition('.')[2]}` is not given") for path in MASKS),
            (mock & (blend | splits), "mock data with a source"),
            (~mock & blend & splits, "`blend` and `blend_per_split` are both given"),
            (~mock & blend & ~splits & view[SPLIT].unset, "`blend` is given without `split`"),
            (~mock & splits & view[SPLIT].is_set, "`blend_per_split` is given with `split`"),
        ],
        when=view[KIND].one_of(*_GPT),
        expected="reset_position_ids, reset_attention_mask and eod_mask_loss set, and one source of data",
    )


def _padding(cp: int, tp: int, sequence_parallel: int) -> int:
    """The multiple that batches are padded to."""
    return math.lcm(2 * cp if cp > 1 else 1, cp * tp if sequence_parallel and tp > 1 else 1)


def _as_the_model(view: View) -> Iterable[Mapping[str, int]]:
    if isinstance(length := view.effective[MODEL_LENGTH].value, int):
        yield {LENGTH: length}


def _as_the_training(view: View) -> Iterable[Mapping[str, int]]:
    if isinstance(micro := view.effective[MICRO].value, int):
        yield {DATA_MICRO: micro}
