"""EPO924-926: how long a Megatron-Bridge run trains, and the schedules of its learning rate and weight decay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, Fix, bridge, rule, violated_by
from ep_overlap_mcp.rules.sources import megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, any_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View

ITERATIONS, SAMPLES, EPOCHS = "train.train_iters", "train.train_samples", "train.num_epochs"
STYLE, FRACTION = "scheduler.lr_decay_style", "scheduler.lr_warmup_fraction"
DECAY, WARMUP, WSD = "scheduler.lr_decay_iters", "scheduler.lr_warmup_iters", "scheduler.lr_wsd_decay_iters"
DECAY_SAMPLES, WARMUP_SAMPLES = "scheduler.lr_decay_samples", "scheduler.lr_warmup_samples"
WSD_SAMPLES, MOST = "scheduler.lr_wsd_decay_samples", "scheduler.max_steps"
RATE, LEAST, FIRST = "optimizer.lr", "optimizer.min_lr", "scheduler.lr_warmup_init"
START, END = "scheduler.start_weight_decay", "scheduler.end_weight_decay"
OVERRIDE, KEPT = "scheduler.override_opt_param_scheduler", "scheduler.use_checkpoint_opt_param_scheduler"
FINITE = ("GPTSFTDatasetConfig", "FinetuningDatasetConfig")
_CONFIG = "training/config.py"


@rule(
    "EPO924",
    "bridge-training-has-one-length",
    ERROR,
    enforced=[bridge("<0.6", epochs=False), bridge(">=0.6", epochs=True)],
    source=[
        megatron_bridge("main", _CONFIG, "467-497"),
        megatron_bridge("main", _CONFIG, "1261-1267"),
        megatron_bridge("0.5.1", _CONFIG, "588-606"),
    ],
    unknown=NOTED,
    about=[ITERATIONS, SAMPLES, EPOCHS],
    fixes=[Fix(lambda view: _one_length(view), safe=False, gives_up="the other measure of the training")],  # noqa: PLW0108
)
def bridge_training_has_one_length(view: View, *, epochs: bool) -> Check:
    """What it checks: none or more than one of `train_iters`, `train_samples` and, from Bridge 0.6, `num_epochs`; a
    length of nothing; a batch ramp with samples or epochs; epochs over data that have no length.

    Why: `TrainingConfig.finalize` and `ConfigContainer.validate` refuse them. A saved configuration of a training by
    samples holds the iterations that follow as well, and cannot be run again as it is.

    Example: `train.train_iters=1000 train.train_samples=64000`

    Fix: one of them.
    """
    iterations, samples, count = view[ITERATIONS], view[SAMPLES], view[EPOCHS]
    by_epochs = count.is_set & view.tells(EPOCHS) if epochs else FALSE
    ramp = view["train.rampup_batch_size"].is_set & view.tells("train.rampup_batch_size")
    by_samples = samples.is_set & view.tells(SAMPLES)
    several = (iterations.is_set & by_samples) | (by_epochs & (iterations.is_set | by_samples))
    loader = view["dataset.dataloader_type"]
    return violated_by(
        [
            (iterations.unset & samples.unset & ~by_epochs, "no length of the training is given"),
            (several, "more than one length of the training is given"),
            (by_samples & (samples <= 0), f"`train_samples` is {samples}"),
            ((by_samples | by_epochs) & ramp, "a batch ramp with a training that is not measured in iterations"),
            (by_epochs & (count <= 0), f"`num_epochs` is {count}"),
            (by_epochs & ~view["dataset.kind"].one_of(*FINITE, None), "`num_epochs` over data without a length"),
            (
                by_epochs & view.written("dataset.dataloader_type") & (loader != "batch"),
                f"`num_epochs` with `dataloader_type` {loader}",
            ),
        ],
        expected="one of train.train_iters, train.train_samples, train.num_epochs",
    )


@rule(
    "EPO925",
    "bridge-schedule-in-one-measure",
    ERROR,
    enforced=[bridge()],
    source=[
        megatron_bridge("main", _CONFIG, "418-438"),
        megatron_bridge("main", _CONFIG, "1699-1728"),
        megatron_bridge("0.2.0", _CONFIG, "442-462"),
    ],
    unknown=NOTED,
    about=[DECAY, WARMUP, WSD, DECAY_SAMPLES, WARMUP_SAMPLES, WSD_SAMPLES, FRACTION, SAMPLES],
    fixes=[Fix(lambda view: _in_one_measure(view), safe=False, gives_up="the other measure of the schedule")],  # noqa: PLW0108
)
def bridge_schedule_in_one_measure(view: View) -> Check:
    """What it checks: a schedule in iterations and in samples at once, in another measure than the training, or with
    two lengths of warm-up.

    Why: `SchedulerConfig.finalize` and `ConfigContainer.validate` assert one measure throughout.

    Example: `train.train_iters=1000 scheduler.lr_warmup_samples=6400`

    Fix: `lr_decay_iters` and `lr_warmup_iters` with `train_iters`, the `…_samples` with `train_samples`.
    """
    iterations, samples = _stated(view, DECAY, WSD, WARMUP), _stated(view, DECAY_SAMPLES, WSD_SAMPLES, WARMUP_SAMPLES)
    by_samples, warmed = view[SAMPLES].is_set & view.tells(SAMPLES), _stated(view, WARMUP, WARMUP_SAMPLES)
    return violated_by(
        [
            (iterations & samples, "the schedule is given in iterations and in samples"),
            (_stated(view, FRACTION) & warmed, "`lr_warmup_fraction` with another length of warm-up"),
            (by_samples & _stated(view, DECAY, WARMUP), "`train_samples` with a schedule in iterations"),
            (
                view[SAMPLES].unset & _stated(view, DECAY_SAMPLES, WARMUP_SAMPLES),
                "a schedule in samples without `train_samples`",
            ),
            (by_samples & _stated(view, MOST), "`max_steps` with `train_samples`"),
        ],
        expected="iterations or samples throughout",
    )


@rule(
    "EPO926",
    "bridge-schedule-fits",
    ERROR,
    enforced=[
        bridge("<0.3.1", caps=False, decays_wsd=False),
        bridge(">=0.3.1,<0.4", caps=True, decays_wsd=False),
        bridge(">=0.4", caps=True, decays_wsd=True),
    ],
    source=[
        megatron_bridge("main", _CONFIG, "405-416"),
        megatron_bridge("main", _CONFIG, "1764-1808"),
        megatron("0.16.1", "core/optimizer_param_scheduler.py", "147-181"),
    ],
    unknown=NOTED,
    about=[STYLE, DECAY, WARMUP, WSD, MOST, START, END, FIRST, OVERRIDE, KEPT],
    fixes=[Fix(lambda view: _fitting(view), safe=False, gives_up="the part of the schedule that does not fit")],  # noqa: PLW0108
)
def bridge_schedule_fits(view: View, *, caps: bool, decays_wsd: bool) -> Check:
    """What it checks: a weight decay that is not given, shrinks or changes under the constant style; a learning rate
    that is not given or below where its warm-up starts, a smallest one that is not given or negative; a decay over
    nothing; a warm-up as long as the decay before Bridge 0.3.1; WSD without the length of its decay before 0.4;
    `max_steps` below the training's length; a schedule that is overridden and kept at once.

    Why: the checks of `SchedulerConfig` and of core's scheduler end the run. Bridge, unlike Megatron-LM, fills in
    neither weight decay nor `min_lr`; without them the scheduler compares None with a number.

    Example: `SchedulerConfig(lr_warmup_iters=100)` in a whole configuration, with neither weight decay

    Fix: `start_weight_decay` and `end_weight_decay` as the optimizer's weight decay.
    """
    start, end, least, rate = view[START], view[END], view[LEAST], view[RATE]
    decays, rates = view.tells(START, END), view.tells(LEAST, RATE)
    constant = view["scheduler.weight_decay_incr_style"] == "constant"
    most, iterations, by_iterations = view[MOST], view[ITERATIONS], view[SAMPLES].unset
    length = iterations if view[DECAY].known and view[DECAY].raw is None else view[DECAY]
    unmeasured = by_iterations & view[WSD].unset & (FALSE if decays_wsd else view[STYLE] == "WSD")
    return violated_by(
        [
            (decays & (start.unset | end.unset), "`start_weight_decay` or `end_weight_decay` is not given"),
            (rates & (rate.unset | least.unset), "`optimizer.lr` or `optimizer.min_lr` is not given"),
            (view.tells(LEAST) & (least < 0), f"`optimizer.min_lr` is {least}"),
            (
                view.tells(FIRST, RATE) & (view[FIRST] > rate),
                f"`lr_warmup_init` {view[FIRST]} is above `optimizer.lr` {rate}",
            ),
            (view.tells(START) & (start < 0), f"`start_weight_decay` is {start}"),
            (decays & (end < start), f"the weight decay shrinks from {start} to {end}"),
            (
                decays & constant & start.is_set & end.is_set & (start != end),
                f"a constant weight decay from {start} to {end}",
            ),
            (
                view.tells(OVERRIDE, KEPT) & view[OVERRIDE].on & view[KEPT].on,
                "the schedule is overridden and kept from the checkpoint at once",
            ),
            (
                view.tells(DECAY) & by_iterations & (length <= 0),
                f"the learning rate decays over {length} iterations",
            ),
            (
                FALSE if caps else view.tells(WARMUP) & by_iterations & (view[WARMUP] >= length),
                f"the warm-up of {view[WARMUP]} iterations is not shorter than the decay, {length}",
            ),
            (view.tells(STYLE) & unmeasured, "`lr_decay_style` is WSD without `lr_wsd_decay_iters`"),
            (
                view.tells(MOST) & ((most <= 0) | (most < iterations)),
                f"`max_steps` is {most} and `train_iters` {iterations}",
            ),
        ],
        expected="0 <= start_weight_decay <= end_weight_decay, a decay of at least one step",
    )


def _stated(view: View, *paths: str) -> Truth:
    """Whether any length of the schedule is given; a warm-up is where it is not 0."""
    lengths = {path: view[path] for path in paths}
    given = {p: v != 0 if p in (WARMUP, WARMUP_SAMPLES) else v.is_set for p, v in lengths.items()}
    return any_of(view.tells(path) & is_given for path, is_given in given.items())


def _one_length(view: View) -> Iterable[Mapping[str, None]]:
    """The iterations where they are given, else the samples."""
    given = [path for path in (ITERATIONS, SAMPLES, EPOCHS) if view.effective[path].value is not None]
    ramp = {} if ITERATIONS in given else {"train.rampup_batch_size": None}
    if given:
        yield dict.fromkeys(given[1:]) | ramp


def _in_one_measure(view: View) -> Iterable[Mapping[str, int | None]]:
    """The schedule in the measure of the training, without a second length of warm-up."""
    by_samples = view.effective[SAMPLES].value is not None
    others = (DECAY, WSD, WARMUP, MOST) if by_samples else (DECAY_SAMPLES, WSD_SAMPLES, WARMUP_SAMPLES)
    unset: dict[str, int | None] = {path: 0 if "warmup" in path else None for path in (*others, FRACTION)}
    unset[FRACTION] = None
    yield {path: value for path, value in unset.items() if view.effective[path].value not in (None, value)}


def _fitting(view: View) -> Iterable[Mapping[str, object]]:
    """The optimizer's weight decay throughout, and the rest of the schedule by the training's length."""
    decay = view.effective["optimizer.weight_decay"].value
    decay = decay if isinstance(decay, float) else 0.01
    changes: dict[str, object] = {START: decay, END: decay, KEPT: False, MOST: None}
    changes |= {path: None for path in (DECAY,) if view.effective[path].value is not None}
    least, rate = view.effective[LEAST].value, view.effective[RATE].value
    changes |= {} if isinstance(least, (int, float)) and least >= 0 else {LEAST: 0.0}
    changes |= {FIRST: 0.0} if isinstance(rate, (int, float)) and rate >= 0 else {RATE: 1e-4, FIRST: 0.0}
    if isinstance(length := view.effective[ITERATIONS].value, int) and view.effective[WARMUP].value not in (0, None):
        changes[WARMUP] = min(view.effective[WARMUP].value, max(length - 1, 0))
    if view.effective[STYLE].value == "WSD":
        changes[WSD] = length
    yield changes
