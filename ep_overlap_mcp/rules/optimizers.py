"""EPO626-636, 641: which optimizer goes with which sharding, gathering, precision of its states and schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    bridge,
    megatron_lm,
    put_paths,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sources import arguments, megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View
    from ep_overlap_mcp.stack import Framework

DISTRIBUTED, OPTIMIZER = "ddp.use_distributed_optimizer", "optimizer.optimizer"
MEGATRON_FSDP, TORCH_FSDP2 = "ddp.use_megatron_fsdp", "dist.use_torch_fsdp2"
REDUCE, GATHER = "ddp.overlap_grad_reduce", "ddp.overlap_param_gather"
GATHER_WITH_STEP = "optimizer.overlap_param_gather_with_optimizer_step"
FP8_GATHER, REUSED = "ddp.fp8_param_gather", "ddp.reuse_grad_buf_for_mxfp8_param_ag"
PRECISION_AWARE, CPU_OFFLOAD = "optimizer.use_precision_aware_optimizer", "optimizer.optimizer_cpu_offload"
STATES = tuple(f"optimizer.{name}_dtype" for name in ("main_grads", "main_params", "exp_avg", "exp_avg_sq"))
FORMAT = "args.ckpt_format"
STYLE = "args.lr_decay_style"

_CONFIG = "core/optimizer/optimizer_config.py"
_DDP_CONFIG = "core/distributed/distributed_data_parallel_config.py"
_ON_MEGATRON_LM: Final[tuple[Framework, ...]] = ("megatron-lm",)
_DISTRIBUTE = put_paths({DISTRIBUTED: True}, gives_up="an optimizer state on every rank")


@rule(
    "EPO626",
    "param-gather-overlap-needs-grad-reduce-overlap",
    ERROR,
    enforced=[megatron_lm("<0.17", dist_muon=False), megatron_lm(">=0.17", dist_muon=True)],
    source=[arguments("0.16.1", "597-601"), arguments("0.17.1", "856-861")],
    about=[GATHER],
    fixes=[
        put_paths({GATHER: False}, gives_up="the overlap of the parameter gather"),
        put_paths({DISTRIBUTED: True, REDUCE: True}, gives_up="an optimizer state on every rank"),
    ],
)
def param_gather_overlap_needs_grad_reduce_overlap(view: View, *, dist_muon: bool) -> Check:
    """What it checks: `overlap_param_gather` without the distributed optimizer or Megatron-FSDP, or without
    `overlap_grad_reduce`.

    Why: only a sharded optimizer gathers parameters, and the gather's buckets are those of the reduction. Megatron-LM
    asserts both; from 0.17 the optimizer `dist_muon` counts as sharded.

    Example: `--use-distributed-optimizer --overlap-param-gather` without `--overlap-grad-reduce`

    Fix: add `--overlap-grad-reduce`, or leave the gather's overlap off.
    """
    muon = view[OPTIMIZER] == "dist_muon" if dist_muon else FALSE
    return violated_by(
        [
            (
                ~(view[DISTRIBUTED].on | view[MEGATRON_FSDP].on | muon),
                "`overlap_param_gather` has no sharded optimizer",
            ),
            (view[REDUCE].off, "`overlap_param_gather` is on and `overlap_grad_reduce` is not"),
        ],
        when=view[GATHER].on,
        expected="use_distributed_optimizer = true and overlap_grad_reduce = true",
    )


@rule(
    "EPO627",
    "param-gather-with-step-needs-interleaving",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "635-643"),
    about=[GATHER_WITH_STEP],
    fixes=[put_paths({GATHER_WITH_STEP: False}, gives_up="the overlap of the gather with the optimizer's step")],
)
def param_gather_with_step_needs_interleaving(view: View) -> Check:
    """What it checks: `overlap_param_gather_with_optimizer_step` without the distributed optimizer,
    `overlap_param_gather` or virtual pipeline stages, or with distributed checkpoints.

    Why: Megatron-LM asserts all four; the default checkpoint format is a distributed one.

    Example: `--overlap-param-gather-with-optimizer-step` without `--ckpt-format torch`

    Fix: leave it off.
    """
    form = view[FORMAT]
    return violated_by(
        [
            (view[DISTRIBUTED].off, "the distributed optimizer is off"),
            (view[GATHER].off, "`overlap_param_gather` is off"),
            (view["model.virtual_pipeline_model_parallel_size"].unset, "there are no virtual pipeline stages"),
            (form != "torch", f"`ckpt_format` is {form}, a distributed one"),
        ],
        when=view[GATHER_WITH_STEP].on,
        expected="overlap_param_gather_with_optimizer_step = false",
    )


@rule(
    "EPO628",
    "fp8-param-gather-needs-sharded-optimizer",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "655-657"),
    about=[FP8_GATHER],
    fixes=[put_paths({FP8_GATHER: False}, gives_up="parameters kept in FP8"), _DISTRIBUTE],
)
def fp8_param_gather_needs_sharded_optimizer(view: View) -> Check:
    """What it checks: `fp8_param_gather` without the distributed optimizer, torch FSDP2 or Megatron-FSDP.

    Why: it gathers parameters in FP8, which only a sharded optimizer does; Megatron-LM asserts it.

    Example: `--fp8-format hybrid --fp8-param-gather` without `--use-distributed-optimizer`

    Fix: `--use-distributed-optimizer`, or leave it off.
    """
    sharded = view[DISTRIBUTED].on | view[TORCH_FSDP2].on | view[MEGATRON_FSDP].on
    return violated(
        view[FP8_GATHER].on & ~sharded,
        "`fp8_param_gather` is on without a sharded optimizer",
        expected="use_distributed_optimizer = true",
    )


@rule(
    "EPO629",
    "reused-grad-buffer-needs-fp8-param-gather",
    ERROR,
    enforced=[
        run_time("<0.18", on=_ON_MEGATRON_LM, fsdp_clears=False),
        run_time(">=0.18", on=_ON_MEGATRON_LM, fsdp_clears=True),
        bridge(unknown=NOTED, fsdp_clears=False),
    ],
    source=[
        megatron("0.16.1", _DDP_CONFIG, "153-154"),
        arguments("0.18.2", "1119-1121"),
        megatron_bridge("main", "training/config.py", "1401-1404"),
    ],
    about=[REUSED],
    fixes=[put_paths({REUSED: False}, gives_up="the memory that the shared buffer saves")],
)
def reused_grad_buffer_needs_fp8_param_gather(view: View, *, fsdp_clears: bool) -> Check:
    """What it checks: `reuse_grad_buf_for_mxfp8_param_ag` without `fp8_param_gather`.

    Why: the gradient buffer is lent to the gather of MXFP8 parameters; without one, building the data-parallel
    configuration fails an assertion. From 0.18 Megatron-FSDP clears the flag, in Bridge only after the assertion.

    Example: `--reuse-grad-buf-for-mxfp8-param-ag` without `--fp8-param-gather`

    Fix: add `--fp8-param-gather`, or leave it off.
    """
    cleared = view[MEGATRON_FSDP].on if fsdp_clears else FALSE
    return violated(
        view[REUSED].on & view[FP8_GATHER].off & ~cleared,
        "`reuse_grad_buf_for_mxfp8_param_ag` is on without `fp8_param_gather`",
        expected="fp8_param_gather = true",
    )


@rule(
    "EPO630",
    "muon-excludes-sharded-parameters",
    ERROR,
    enforced=[
        megatron_lm(">=0.16,<0.17", alone=("muon", "dist_muon")),
        megatron_lm(">=0.17,<0.18", alone=("muon",)),
    ],
    source=[arguments("0.16.1", "1177-1187"), arguments("0.17.1", "1483-1493")],
    about=[OPTIMIZER],
    fixes=[
        put_paths({DISTRIBUTED: False, REDUCE: False, GATHER: False}, gives_up="sharded optimizer states"),
        put_paths({OPTIMIZER: "adam"}, gives_up="the optimizer"),
    ],
)
def muon_excludes_sharded_parameters(view: View, *, alone: tuple[str, ...]) -> Check:
    """What it checks: Muon with the distributed optimizer or the overlap of its reduction and gather.

    Why: Muon works on whole matrices. Megatron-LM asserts it up to 0.17; there `dist_muon` may overlap. From 0.18 the
    distributed optimizer selects a layer-wise one by itself.

    Example: `--optimizer muon --use-distributed-optimizer`

    Fix: without these, or another optimizer.
    """
    optimizer = view[OPTIMIZER]
    whole = optimizer.one_of(*alone)
    return violated_by(
        [
            (view[DISTRIBUTED].on, f"`optimizer` is {optimizer} with the distributed optimizer"),
            (whole & view[REDUCE].on, f"`optimizer` is {optimizer} with `overlap_grad_reduce`"),
            (whole & view[GATHER].on, f"`optimizer` is {optimizer} with `overlap_param_gather`"),
        ],
        when=optimizer.one_of("muon", "dist_muon"),
        expected="use_distributed_optimizer = false",
    )


@rule(
    "EPO631",
    "fsdp-needs-adam-or-sgd",
    ERROR,
    enforced=[
        megatron_lm(">=0.16,<0.18", unsharded=("muon", "dist_muon")),
        megatron_lm(">=0.18", unsharded=("muon", "dist_muon", "lion", "soap", "adaptive_muon")),
    ],
    source=[arguments("0.16.1", "1184-1187"), arguments("0.18.2", "1572-1574")],
    about=[OPTIMIZER],
    fixes=[
        put_paths({OPTIMIZER: "adam"}, gives_up="the optimizer"),
        put_paths({MEGATRON_FSDP: False, TORCH_FSDP2: False, FORMAT: "torch_dist"}, gives_up="sharded parameters"),
    ],
)
def fsdp_needs_adam_or_sgd(view: View, *, unsharded: tuple[str, ...]) -> Check:
    """What it checks: another optimizer than Adam and SGD with torch FSDP2, Megatron-FSDP or their checkpoints.

    Why: Megatron-LM asserts that neither is on and that the checkpoints are `torch` or `torch_dist`.

    Example: `--optimizer muon --use-megatron-fsdp --ckpt-format fsdp_dtensor`

    Fix: Adam, or plain data parallelism.
    """
    optimizer, form = view[OPTIMIZER], view[FORMAT]
    return violated_by(
        [
            (view[TORCH_FSDP2].on, f"`optimizer` is {optimizer} with torch FSDP2"),
            (view[MEGATRON_FSDP].on, f"`optimizer` is {optimizer} with Megatron-FSDP"),
            (~form.one_of("torch", "torch_dist"), f"`optimizer` is {optimizer} with `ckpt_format` {form}"),
        ],
        when=optimizer.one_of(*unsharded),
        expected="optimizer = adam, or no FSDP",
    )


@rule(
    "EPO632",
    "cpu-optimizer-needs-precision-aware-optimizer",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "1190-1198"),
    about=[CPU_OFFLOAD],
    fixes=[
        put_paths({PRECISION_AWARE: True, DISTRIBUTED: True}, gives_up="an optimizer state on every rank"),
        put_paths({CPU_OFFLOAD: False}, gives_up="the memory of the optimizer's state"),
    ],
)
def cpu_optimizer_needs_precision_aware_optimizer(view: View) -> Check:
    """What it checks: the optimizer's state offloaded to the CPU without the precision-aware optimizer, or with FP8
    parameters of another recipe than `delayed`.

    Why: offloading reuses its code; Megatron-LM asserts it.

    Example: `--optimizer-cpu-offload` alone

    Fix: `--use-precision-aware-optimizer`.
    """
    recipe = view["model.fp8_recipe"]
    return violated_by(
        [
            (view[PRECISION_AWARE].off, "`optimizer_cpu_offload` is on without `use_precision_aware_optimizer`"),
            (
                view.written(FP8_GATHER) & view[FP8_GATHER].on & (recipe != "delayed"),
                f"`optimizer_cpu_offload` with `fp8_param_gather` and recipe {recipe}",
            ),
        ],
        when=view[CPU_OFFLOAD].on,
        expected="use_precision_aware_optimizer = true",
    )


@rule(
    "EPO633",
    "precision-aware-optimizer-needs-distributed-adam",
    ERROR,
    enforced=[
        run_time("<0.18", on=_ON_MEGATRON_LM, fsdp_distributes=False),
        run_time(">=0.18", on=_ON_MEGATRON_LM, fsdp_distributes=True),
        bridge(unknown=NOTED, fsdp_distributes=False, one_flag=False),
    ],
    source=[
        megatron("0.16.1", _CONFIG, "374-381"),
        arguments("0.18.2", "1113-1119"),
        megatron_bridge("main", "training/config.py", "1401-1404"),
    ],
    about=[PRECISION_AWARE],
    fixes=[_DISTRIBUTE, put_paths({PRECISION_AWARE: False}, gives_up="small optimizer states")],
)
def precision_aware_optimizer_needs_distributed_adam(
    view: View, *, fsdp_distributes: bool, one_flag: bool = True
) -> Check:
    """What it checks: the precision-aware optimizer without the distributed optimizer, or with another than Adam.

    Why: building the optimizer's configuration fails an assertion. From 0.18 Megatron-FSDP turns the distributed
    optimizer on. Bridge has a flag in `ddp` and one in `optimizer`, which are one setting here: there, only Adam is
    checked.

    Example: `--use-precision-aware-optimizer` without `--use-distributed-optimizer`

    Fix: `--use-distributed-optimizer`.
    """
    optimizer = view[OPTIMIZER]
    distributed = view[DISTRIBUTED].on | (view[MEGATRON_FSDP].on if fsdp_distributes else FALSE)
    return violated_by(
        [
            (optimizer != "adam", f"`use_precision_aware_optimizer` is on with `optimizer` {optimizer}"),
            (
                ~distributed if one_flag else FALSE,
                "`use_precision_aware_optimizer` is on without the distributed optimizer",
            ),
        ],
        when=view[PRECISION_AWARE].on,
        expected="optimizer = adam, use_distributed_optimizer = true",
    )


@rule(
    "EPO634",
    "small-optimizer-states-need-precision-aware-optimizer",
    ERROR,
    enforced=[run_time(on=_ON_MEGATRON_LM), bridge(unknown=NOTED)],
    source=megatron("0.16.1", _CONFIG, "413-426"),
    about=STATES,
    fixes=[
        put_paths(dict.fromkeys(STATES, "fp32"), gives_up="small optimizer states"),
        put_paths({PRECISION_AWARE: True, DISTRIBUTED: True}, gives_up="an optimizer state on every rank"),
    ],
)
def small_optimizer_states_need_precision_aware_optimizer(view: View) -> Check:
    """What it checks: gradients, parameters or moments of the optimizer below fp32 without the precision-aware one.

    Why: only that one keeps them so; building the optimizer's configuration fails an assertion.

    Example: `--exp-avg-dtype bf16` without `--use-precision-aware-optimizer`

    Fix: `--use-precision-aware-optimizer`.
    """
    return violated_by(
        [(~view[path].one_of("fp32", None), f"`{path.partition('.')[2]}` is {view[path]}") for path in STATES],
        when=view[PRECISION_AWARE].off,
        expected="use_precision_aware_optimizer = true",
    )


@rule(
    "EPO635",
    "fp32-reduction-needs-fp32-main-grads",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "714-718"),
    about=["args.accumulate_allreduce_grads_in_fp32"],
    fixes=[put_paths({"optimizer.main_grads_dtype": "fp32"}, gives_up="small main gradients")],
)
def fp32_reduction_needs_fp32_main_grads(view: View) -> Check:
    """What it checks: gradients summed in fp32 under bf16 with main gradients of another type.

    Why: they are the same buffer; Megatron-LM asserts it.

    Example: `--bf16 --accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16`

    Fix: leave one of the two out.
    """
    grads = view["optimizer.main_grads_dtype"]
    return violated(
        view["args.accumulate_allreduce_grads_in_fp32"].on & view["model.bf16"].on & ~grads.one_of("fp32", None),
        f"`main_grads_dtype` is {grads} with `accumulate_allreduce_grads_in_fp32`",
        expected="main_grads_dtype = fp32",
    )


@rule(
    "EPO636",
    "min-lr-at-most-lr",
    ERROR,
    enforced=[megatron_lm(), bridge(unknown=NOTED)],
    source=[arguments("0.16.1", "835-836"), megatron("0.16.1", "core/optimizer_param_scheduler.py", "147-149")],
    about=["optimizer.min_lr"],
    fixes=[put_paths({"optimizer.min_lr": None}, gives_up="the floor of the learning rate")],
)
def min_lr_at_most_lr(view: View) -> Check:
    """What it checks: a smallest learning rate above the largest.

    Why: Megatron-LM and core's scheduler, which Bridge builds, assert the order without a text.

    Example: `--lr 1e-5 --min-lr 1e-4`

    Fix: exchange or correct them.
    """
    rate, least = view["optimizer.lr"], view["optimizer.min_lr"]
    return violated(least > rate, f"`min_lr` {least} is above `lr` {rate}", expected="min_lr <= lr")


@rule(
    "EPO641",
    "learning-rate-schedule-fits",
    ERROR,
    enforced=[run_time(on=_ON_MEGATRON_LM)],
    source=[
        megatron("0.16.1", "core/optimizer_param_scheduler.py", "147-161"),
        megatron("0.16.1", "training/training.py", "1360-1394"),
    ],
    unknown=NOTED,
    about=["args.lr_warmup_iters", "args.lr_warmup_fraction", "args.lr_warmup_init", STYLE, "optimizer.min_lr"],
    fixes=[
        put_paths({"args.lr_warmup_iters": None}, gives_up="the warm-up"),
        put_paths({"args.lr_warmup_fraction": None}, gives_up="the warm-up"),
        put_paths({"args.lr_warmup_init": None}, gives_up="where the warm-up starts"),
        put_paths({"optimizer.min_lr": 0.0}, gives_up="the smallest learning rate as written"),
        put_paths({STYLE: None}, gives_up="the schedule: the default is linear"),
    ],
)
def learning_rate_schedule_fits(view: View) -> Check:
    """What it checks: a warm-up as long as the decay or longer, one that starts above the learning rate, a negative
    smallest rate, or WSD without the length of its decay.

    Why: the scheduler asserts these, without a text, once the model and the optimizer are built.

    Example: `--train-iters 50 --lr-warmup-iters 100`

    Fix: a shorter warm-up; `--lr-wsd-decay-iters` for WSD.
    """
    rate, least, start = view["optimizer.lr"], view["optimizer.min_lr"], view["args.lr_warmup_init"]
    warmup, share, decay = view["args.lr_warmup_iters"], view["args.lr_warmup_fraction"], view["args.lr_decay_iters"]
    length = view["args.train_iters"] if decay.known and decay.raw is None else decay
    unmeasured = view["args.lr_wsd_decay_iters"].unset & view["args.lr_wsd_decay_samples"].unset
    return violated_by(
        [
            (warmup >= length, f"the warm-up of {warmup} iterations is not shorter than the decay, {length}"),
            (share >= 1, f"`lr_warmup_fraction` is {share} of the decay"),
            (start > rate, f"`lr_warmup_init` {start} is above `lr` {rate}"),
            (least < 0, f"`min_lr` is {least}"),
            ((view[STYLE] == "WSD") & unmeasured, "`lr_decay_style` is WSD without `lr_wsd_decay_iters`"),
        ],
        expected="a warm-up shorter than the decay, rates in order, the length of a WSD decay",
    )
