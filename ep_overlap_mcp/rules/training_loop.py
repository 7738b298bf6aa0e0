"""EPO534, 536, 537, 540, 541, 912-916, 922: sequence lengths, iterations and data, as Megatron-LM has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    Fix,
    bridge,
    megatron_lm,
    put,
    put_paths,
    rule,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sizes import GLOBAL, MICRO
from ep_overlap_mcp.rules.sources import arguments, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, any_of, derived

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

LENGTH, POSITIONS = "model.seq_length", "args.max_position_embeddings"
CP, LEVELS, COMM = "model.context_parallel_size", "model.hierarchical_context_parallel_sizes", "model.cp_comm_type"
ITERATIONS, SAMPLES = "args.train_iters", "args.train_samples"
MOCK, BLEND = "args.mock_data", "args.data_path"
SPLITS = ("args.train_data_path", "args.valid_data_path", "args.test_data_path")
_OF_ARGUMENTS = ("args.eval_micro_batch_size", "args.eval_global_batch_size")
_OF_BRIDGE = ("validation.eval_micro_batch_size", "validation.eval_global_batch_size")
STYLE, DECAYS = "args.weight_decay_incr_style", ("args.start_weight_decay", "args.end_weight_decay")
_RETIRED = ("args.batch_size", "args.warmup", "args.model_parallel_size", "args.checkpoint_activations")


@rule(
    "EPO534",
    "positions-cover-sequence",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "829-832"),
    unknown=NOTED,
    about=[POSITIONS],
    fixes=[Fix(lambda view: _as_long(view), safe=False, gives_up="the number of positions")],  # noqa: PLW0108
)
def positions_cover_sequence(view: View) -> Check:
    """What it checks: `max_position_embeddings` below the sequence length.

    Why: Megatron-LM asserts it, with rotary embeddings too.

    Example: `--seq-length 8192 --max-position-embeddings 4096`

    Fix: `--max-position-embeddings` of at least the sequence length.
    """
    length, positions = view[LENGTH], view[POSITIONS]
    return violated(
        positions < length,
        f"`max_position_embeddings` {positions} is below the sequence length {length}",
        expected="max_position_embeddings >= seq_length",
    )


@rule(
    "EPO536",
    "context-parallel-levels-fit",
    ERROR,
    enforced=[megatron_lm(), bridge(">=0.4", unknown=NOTED)],
    source=[arguments("0.16.1", "403-408"), megatron_bridge("main", "training/config.py", "1664-1697")],
    about=[LEVELS, COMM],
    fixes=[put(hierarchical_context_parallel_sizes=None, cp_comm_type=["p2p"], gives_up="the levels")],
)
def context_parallel_levels_fit(view: View) -> Check:
    """What it checks: `hierarchical_context_parallel_sizes` whose product is not the context parallel size, or
    `cp_comm_type` a2a+p2p without them.

    Why: Megatron-LM asserts both, and Bridge from 0.4; there, without levels each rank would attend to its own slice.

    Example: `--context-parallel-size 4 --cp-comm-type a2a+p2p`

    Fix: sizes that multiply to the context parallel size.
    """
    levels, cp, comm = view[LEVELS], view[CP], view[COMM]
    product = derived(_product, levels)
    return violated_by(
        [
            (levels.on & (product != cp), f"the levels {levels} do not multiply to context parallel size {cp}"),
            (comm.has("a2a+p2p") & levels.unset, "`cp_comm_type` is a2a+p2p without levels"),
        ],
        expected="product of hierarchical_context_parallel_sizes = context_parallel_size",
    )


@rule(
    "EPO537",
    "microbatched-inference-needs-pipeline",
    ERROR,
    enforced=[megatron_lm("<0.15", graphs=False), megatron_lm(">=0.15", graphs=True)],
    source=arguments("0.16.1", "1146-1152"),
    about=["args.inference_batch_times_seqlen_threshold"],
    fixes=[put_paths({"args.inference_batch_times_seqlen_threshold": -1})],
)
def microbatched_inference_needs_pipeline(view: View, *, graphs: bool) -> Check:
    """What it checks: `inference_batch_times_seqlen_threshold` without a pipeline or with CUDA graphs.

    Why: it splits batches for the pipeline's stages; Megatron-LM asserts one.

    Example: `--inference-batch-times-seqlen-threshold 4096` with one pipeline stage

    Fix: leave it out.
    """
    pp, impl = view["model.pipeline_model_parallel_size"], view["model.cuda_graph_impl"]
    return violated_by(
        [
            (pp <= 1, "`inference_batch_times_seqlen_threshold` is set with one pipeline stage"),
            (
                ~impl.one_of("none", None) if graphs else FALSE,
                f"`inference_batch_times_seqlen_threshold` is set with CUDA graphs by {impl}",
            ),
        ],
        when=view["args.inference_batch_times_seqlen_threshold"] > -1,
        expected="inference_batch_times_seqlen_threshold = -1",
    )


@rule(
    "EPO912",
    "iterations-or-samples",
    ERROR,
    enforced=[
        megatron_lm("<0.17", skipped_passes=False, ramp_passes=False),
        megatron_lm(">=0.17,<0.18", skipped_passes=True, ramp_passes=False),
        megatron_lm(">=0.18", skipped_passes=True, ramp_passes=True),
    ],
    source=[arguments("0.16.1", "756-783"), arguments("0.17.1", "1045-1074"), arguments("0.18.2", "1225-1252")],
    about=[ITERATIONS, SAMPLES],
    fixes=[Fix(lambda view: _in_one_measure(view), safe=False, gives_up="the other measure of the training")],  # noqa: PLW0108
)
def iterations_or_samples(view: View, *, skipped_passes: bool, ramp_passes: bool) -> Check:
    """What it checks: a training that is measured in iterations and in samples at once, by its length, its learning
    rate's schedule or its batch ramp, or with two lengths of warm-up.

    Why: Megatron-LM asserts one measure throughout. Up to 0.17 a batch ramp takes samples; from 0.17 a run with
    `--skip-train` passes.

    Example: `--train-iters 1000 --rampup-batch-size 32 32 1000000`

    Fix: `--train-samples` and `--lr-…-samples`, or iterations throughout.
    """
    iterations, samples = view[ITERATIONS].on, view[SAMPLES].on
    skipped = view["args.skip_train"].on if skipped_passes else FALSE
    fraction = view["args.lr_warmup_fraction"].is_set
    ramp = FALSE if ramp_passes else view["train.rampup_batch_size"].on
    return violated_by(
        [
            (view[ITERATIONS].is_set & view[SAMPLES].is_set, "`train_iters` and `train_samples` are both given"),
            (iterations & view["args.lr_decay_samples"].is_set, "`train_iters` with `lr_decay_samples`"),
            (iterations & _any_given(view, "lr_warmup_samples"), "`train_iters` with `lr_warmup_samples`"),
            (iterations & ramp, "`train_iters` with `rampup_batch_size`"),
            (samples & view["args.lr_decay_iters"].is_set, "`train_samples` with `lr_decay_iters`"),
            (samples & _any_given(view, "lr_warmup_iters"), "`train_samples` with `lr_warmup_iters`"),
            (
                fraction & _any_given(view, "lr_warmup_iters", "lr_warmup_samples"),
                "`lr_warmup_fraction` with another length of warm-up",
            ),
        ],
        when=(iterations | samples) & ~skipped,
        expected="iterations or samples throughout",
    )


@rule(
    "EPO913",
    "one-source-of-data",
    ERROR,
    enforced=[megatron_lm()],
    source=[arguments("0.16.1", "474-487"), arguments("0.16.1", "1052-1056")],
    about=[MOCK, BLEND, *SPLITS, "args.fim_data"],
    fixes=[
        put_paths({MOCK: False}, gives_up="mock data"),
        put_paths(dict.fromkeys((BLEND, *SPLITS)), gives_up="the data that are named"),
    ],
)
def one_source_of_data(view: View) -> Check:
    """What it checks: more than one of `--mock-data`, `--data-path` and the paths by split, a list of paths and a file
    of them, or `--fim-data` over mock data.

    Why: Megatron-LM asserts a single source.

    Example: `--mock-data --data-path /data/text`

    Fix: keep one.
    """
    splits = any_of(view[path].on for path in SPLITS)
    mock, blend = view[MOCK].on, view[BLEND].on
    return violated_by(
        [
            ((mock & blend) | (mock & splits) | (blend & splits), "the data come from more than one source"),
            (mock & view["args.fim_data"].on, "fill-in-the-middle data need real data"),
            (blend & view["args.data_args_path"].is_set, "`data_path` and `data_args_path` are both given"),
            (splits & view["args.per_split_data_args_path"].is_set, "paths by split, and a file of such paths"),
        ],
        expected="one source of data",
    )


@rule(
    "EPO914",
    "weight-decay-schedule-fits",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "867-874"),
    about=[STYLE, *DECAYS],
    fixes=[put_paths({STYLE: None, DECAYS[0]: None, DECAYS[1]: None}, gives_up="the schedule of the weight decay")],
)
def weight_decay_schedule_fits(view: View) -> Check:
    """What it checks: a first and last weight decay with the constant schedule, which is the default, or another
    schedule without both.

    Why: Megatron-LM asserts it, without a text.

    Example: `--start-weight-decay 0.0 --end-weight-decay 0.1` without `--weight-decay-incr-style`

    Fix: `--weight-decay-incr-style linear`, or `--weight-decay` alone.
    """
    style = view[STYLE]
    start, end = (view[path].is_set for path in DECAYS)
    constant = style.one_of("constant", None)
    return violated_by(
        [
            (
                constant & (start | end),
                "`start_weight_decay` or `end_weight_decay` is given with a constant weight decay",
            ),
            (~constant & ~(start & end), f"`weight_decay_incr_style` is {style} without a start and an end"),
        ],
        expected="both with a schedule, neither without",
    )


@rule(
    "EPO915",
    "retired-argument",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "413-428"),
    about=_RETIRED,
    fixes=[put_paths(dict.fromkeys(_RETIRED), gives_up="what the arguments once set")],
)
def retired_argument(view: View) -> Check:
    """What it checks: `--batch-size`, `--warmup`, `--model-parallel-size` or `--checkpoint-activations`.

    Why: Megatron-LM's parser still takes them, and then ends with the name of what replaced them.

    Example: `--checkpoint-activations`

    Fix: `--micro-batch-size`, `--lr-warmup-fraction`, `--tensor-model-parallel-size`, `--recompute-activations`.
    """
    return violated_by(
        [
            (view["args.batch_size"].is_set, "`--batch-size` is now `--micro-batch-size`"),
            (view["args.warmup"].is_set, "`--warmup` is now `--lr-warmup-fraction`"),
            (view["args.model_parallel_size"].is_set, "`--model-parallel-size` is now `--tensor-model-parallel-size`"),
            (view["args.checkpoint_activations"].on, "`--checkpoint-activations` is now `--recompute-activations`"),
        ],
        expected="the argument that replaced it",
    )


@rule(
    "EPO916",
    "intervals-fit",
    ERROR,
    enforced=[megatron_lm()],
    source=[arguments("0.16.1", "739"), arguments("0.16.1", "843-844")],
    about=["args.log_memory_interval", "args.num_dataset_builder_threads"],
    fixes=[
        put_paths(
            {"args.log_memory_interval": None, "args.num_dataset_builder_threads": None},
            gives_up="the log of the memory",
        )
    ],
)
def intervals_fit(view: View) -> Check:
    """What it checks: `log_memory_interval` that is no multiple of `log_interval`, or no thread for the data sets.

    Why: Megatron-LM asserts both, without a text. `log_interval` is 100 by default.

    Example: `--log-memory-interval 10`

    Fix: a multiple of `--log-interval`.
    """
    memory, log = view["args.log_memory_interval"], view["args.log_interval"].otherwise(100)
    threads = view["args.num_dataset_builder_threads"]
    return violated_by(
        [
            (memory % log > 0, f"`log_memory_interval` {memory} is no multiple of `log_interval` {log}"),
            (threads <= 0, f"`num_dataset_builder_threads` is {threads}"),
        ],
        expected="log_memory_interval a multiple of log_interval",
    )


@rule(
    "EPO540",
    "evaluation-batch-divides",
    ERROR,
    enforced=[megatron_lm(">=0.18", of=_OF_ARGUMENTS), bridge(">=0.5", of=_OF_BRIDGE)],
    source=[
        arguments("0.18.2", "704-711"),
        arguments("main", "706-719"),
        megatron_bridge("main", "training/config.py", "1431-1478"),
    ],
    unknown=NOTED,
    about=[*_OF_ARGUMENTS, *_OF_BRIDGE, "train.rampup_batch_size"],
    fixes=[Fix(lambda view: _as_in_training(view), safe=False, gives_up="batches of the evaluation's own")],  # noqa: PLW0108
)
def evaluation_batch_divides(view: View, *, of: tuple[str, str]) -> Check:
    """What it checks: an evaluation batch that does not divide into whole microbatches on the data-parallel ranks.

    Why: Megatron-LM asserts it from 0.18 and Bridge from 0.5; what is not given is as in training.

    Example: `--eval-global-batch-size 100` on 64 data-parallel ranks

    Fix: a multiple of evaluation micro batch x data-parallel size.
    """
    micro, whole = (view[path] for path in of)
    micro = view[MICRO] if micro.known and micro.raw is None else micro
    whole = view[GLOBAL] if whole.known and whole.raw is None else whole
    step = micro * view.data_parallel_size
    return violated(
        (micro <= 0) | ((step > 0) & (whole % step > 0)),
        f"evaluation batch {whole} is no multiple of micro batch {micro} x {view.data_parallel_size} ranks",
        expected="eval_global_batch_size % (eval_micro_batch_size * data_parallel_size) = 0",
    )


@rule(
    "EPO541",
    "one-global-batch",
    ERROR,
    enforced=[megatron_lm(">=0.18")],
    source=arguments("0.18.2", "694-700"),
    about=["args.step_batch_size_schedule"],
    fixes=[put_paths({"args.step_batch_size_schedule": None}, gives_up="the schedule of the batch")],
)
def one_global_batch(view: View) -> Check:
    """What it checks: `--step-batch-size-schedule` with `--global-batch-size`.

    Why: the schedule is the global batch; Megatron-LM raises ValueError.

    Example: both flags

    Fix: keep one.
    """
    stated = view.written(GLOBAL) & view[GLOBAL].is_set
    return violated(
        view["args.step_batch_size_schedule"].is_set & stated,
        "`step_batch_size_schedule` and `global_batch_size` are both given",
        expected="one of the two",
    )


@rule(
    "EPO922",
    "encoder-sizes-repeat",
    ERROR,
    enforced=[megatron_lm()],
    source=[arguments("0.16.1", "786-794"), arguments("0.16.1", "822-828")],
    about=["args.encoder_num_layers", "args.encoder_seq_length"],
    fixes=[put_paths({"args.encoder_num_layers": None, "args.encoder_seq_length": None})],
)
def encoder_sizes_repeat(view: View) -> Check:
    """What it checks: `--encoder-num-layers` beside `--num-layers`, or `--encoder-seq-length` beside `--seq-length`.

    Why: they are two names of one thing; Megatron-LM asserts that one is used.

    Example: both

    Fix: `--num-layers` and `--seq-length` alone.
    """
    layers = view.written("model.num_layers") & view["model.num_layers"].is_set
    length = view.written(LENGTH) & view[LENGTH].is_set
    return violated_by(
        [
            (layers & view["args.encoder_num_layers"].is_set, "`num_layers` and `encoder_num_layers` are both given"),
            (length & view["args.encoder_seq_length"].is_set, "`seq_length` and `encoder_seq_length` are both given"),
        ],
        expected="num_layers and seq_length alone",
    )


def _any_given(view: View, *names: str) -> Truth:
    """Whether any of the arguments is given and not 0."""
    return any_of(view[f"args.{name}"].on for name in names)


def _as_in_training(view: View) -> Iterable[Mapping[str, None]]:
    """The batches of the evaluation that are given, left out."""
    yield {path: None for path in (*_OF_ARGUMENTS, *_OF_BRIDGE) if view.effective[path].written}


def _product(levels: object) -> int:
    product = 1
    for level in levels if isinstance(levels, list) else [levels]:
        product *= int(level) if isinstance(level, (int, float)) else 0
    return product


def _as_long(view: View) -> Iterable[Mapping[str, int]]:
    """As many positions as the sequence is long."""
    if (length := view.effective[LENGTH].value) and isinstance(length, int):
        yield {POSITIONS: length}


def _in_one_measure(view: View) -> Iterable[Mapping[str, None]]:
    """Without what is measured the other way: in samples where iterations are given, else in iterations."""
    by_samples = (SAMPLES, "args.lr_decay_samples", "args.lr_warmup_samples", "train.rampup_batch_size")
    by_iterations = (ITERATIONS, "args.lr_decay_iters", "args.lr_warmup_iters")
    others = by_samples if view.effective[ITERATIONS].value else by_iterations
    yield {path: None for path in (*others, "args.lr_warmup_fraction") if view.effective[path].written}
