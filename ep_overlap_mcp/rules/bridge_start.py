"""EPO931, 943-948: precision, profilers, loggers and the loop of a Megatron-Bridge run, as its start-up checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, bridge, megatron_lm, put, put_paths, rule, violated, violated_by
from ep_overlap_mcp.rules.sources import arguments, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, truth

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

BF16, FP16 = "optimizer.bf16", "optimizer.fp16"
AWARE = "optimizer.use_precision_aware_optimizer"
GATHER = "mixed_precision.fp8_param_gather"
REUSED = "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"
QUANTISED, FUSED = "model.restore_modelopt_state", "model.gradient_accumulation_fusion"
NSYS, TORCH = "profiling.use_nsys_profiler", "profiling.use_pytorch_profiler"
FIRST, LAST = "profiling.profile_step_start", "profiling.profile_step_end"
MLFLOW, COMET = ("mlflow_experiment", "mlflow_run_name"), ("comet_project", "comet_experiment_name")
SEED, COLLECTS, INTERVAL = "rng.seed", "train.manual_gc", "train.manual_gc_interval"
OFFLOADS, IMPLEMENTATION = "model.fine_grained_activation_offloading", "model.transformer_impl"
_CONFIG = "training/config.py"


@rule(
    "EPO943",
    "bridge-optimizer-has-the-models-precision",
    ERROR,
    enforced=[bridge(">=0.3")],
    source=[megatron_bridge("main", _CONFIG, "2139-2179"), megatron_bridge("0.3.0", _CONFIG, "1728-1768")],
    unknown=NOTED,
    about=[BF16, FP16],
    fixes=[put_paths({BF16: True, FP16: False}), put_paths({AWARE: False}, gives_up="small optimizer states")],
)
def bridge_optimizer_has_the_models_precision(view: View) -> Check:
    """What it checks: an optimizer in bf16 and fp16 at once, or a precision-aware one in another precision than the
    model.

    Why: `ConfigContainer.validate` asserts both. `mixed_precision` writes model and optimizer alike, so that the
    question only arises without it.

    Example: `model.bf16=true optimizer.bf16=false optimizer.use_precision_aware_optimizer=true`

    Fix: `optimizer.bf16=true`.
    """
    bf16, fp16 = view["model.bf16"], view["model.fp16"]
    apart = (bf16.on & view[BF16].off) | (fp16.on & view[FP16].off)
    more = bf16.off & fp16.off & (view[BF16].on | view[FP16].on)
    plain = truth(view.effective["model.bf16"].origin.kind != "derived")
    return violated_by(
        [
            (view[BF16].on & view[FP16].on, "`optimizer.bf16` and `optimizer.fp16` are both on"),
            (view[AWARE].on & plain & (apart | more), "the precision-aware optimizer has another precision"),
        ],
        expected="optimizer.bf16 = model.bf16, optimizer.fp16 = model.fp16",
    )


@rule(
    "EPO944",
    "bridge-mxfp8-gather-needs-reused-buffer",
    ERROR,
    enforced=[bridge("<0.5", fsdp_spared=False), bridge(">=0.5", fsdp_spared=True)],
    source=[
        megatron_bridge("main", _CONFIG, "1487-1499"),
        megatron_bridge("0.4.2", "training/mixed_precision.py", "105-112"),
    ],
    unknown=NOTED,
    about=[GATHER],
    fixes=[put_paths({REUSED: True}), put_paths({GATHER: False}, gives_up="parameters gathered in FP8")],
)
def bridge_mxfp8_gather_needs_reused_buffer(view: View, *, fsdp_spared: bool) -> Check:
    """What it checks: `mixed_precision.fp8_param_gather` with the recipe `mxfp8` and without
    `reuse_grad_buf_for_mxfp8_param_ag`.

    Why: the gather borrows the gradient buffer; Bridge asserts it, from 0.5 except with Megatron-FSDP.

    Example: `mixed_precision.fp8_recipe=mxfp8 mixed_precision.fp8_param_gather=true`

    Fix: `mixed_precision.reuse_grad_buf_for_mxfp8_param_ag=true`.
    """
    spared = view["ddp.use_megatron_fsdp"].on if fsdp_spared else FALSE
    mxfp8 = view["mixed_precision.fp8_recipe"] == "mxfp8"
    return violated(
        view[GATHER].on & mxfp8 & view[REUSED].off & ~spared,
        "`fp8_param_gather` with mxfp8 and without `reuse_grad_buf_for_mxfp8_param_ag`",
        expected="mixed_precision.reuse_grad_buf_for_mxfp8_param_ag = true",
    )


@rule(
    "EPO945",
    "bridge-quantised-model-excludes-fused-accumulation",
    ERROR,
    enforced=[bridge()],
    source=[megatron_bridge("main", _CONFIG, "1516-1521"), megatron_bridge("0.2.0", _CONFIG, "1263-1268")],
    unknown=NOTED,
    about=[QUANTISED],
    fixes=[put(gradient_accumulation_fusion=False, gives_up="fused gradient accumulation")],
)
def bridge_quantised_model_excludes_fused_accumulation(view: View) -> Check:
    """What it checks: a ModelOpt state is restored while gradient accumulation is fused.

    Why: quantised layers have no such kernel; `ConfigContainer.validate` asserts it.

    Example: `model.restore_modelopt_state=true`; where Transformer Engine or Apex is installed, the fusion is on

    Fix: `model.gradient_accumulation_fusion=false`.
    """
    return violated(
        view[QUANTISED].on & view[FUSED].on,
        "`restore_modelopt_state` and `gradient_accumulation_fusion` are both on",
        expected="model.gradient_accumulation_fusion = false",
    )


@rule(
    "EPO946",
    "bridge-one-profiler",
    ERROR,
    enforced=[bridge()],
    source=[megatron_bridge("main", _CONFIG, "755-764"), megatron_bridge("0.2.0", _CONFIG, "894-903")],
    unknown=NOTED,
    about=[NSYS, TORCH, FIRST, LAST],
    fixes=[
        put_paths({TORCH: False, FIRST: 10, LAST: 12}, gives_up="the steps that were to be profiled"),
    ],
)
def bridge_one_profiler(view: View) -> Check:
    """What it checks: both profilers, or a range of steps that is none.

    Why: `ProfilingConfig.finalize` asserts one profiler and, also where none is on, a first step that is not after the
    last.

    Example: `profiling.use_nsys_profiler=true profiling.use_pytorch_profiler=true`

    Fix: one; `profile_step_end` at or after `profile_step_start`, whose defaults are 12 and 10.
    """
    first, last = view[FIRST], view[LAST]
    return violated_by(
        [
            (view[NSYS].on & view[TORCH].on, "both profilers are on"),
            ((first < 0) | (last < first), f"steps {first} to {last} are to be profiled"),
        ],
        expected="one profiler, 0 <= profile_step_start <= profile_step_end",
    )


@rule(
    "EPO947",
    "bridge-logger-names-its-run",
    ERROR,
    enforced=[bridge(">=0.3,<0.4", loggers=(MLFLOW,)), bridge(">=0.4", loggers=(MLFLOW, COMET))],
    source=[megatron_bridge("main", _CONFIG, "683-711"), megatron_bridge("0.3.1", _CONFIG, "1043-1046")],
    unknown=NOTED,
    about=[f"logger.{MLFLOW[0]}", f"logger.{COMET[0]}"],
    fixes=[put_paths({f"logger.{MLFLOW[0]}": None, f"logger.{COMET[0]}": None}, gives_up="the log of the run")],
)
def bridge_logger_names_its_run(view: View, *, loggers: tuple[tuple[str, str], ...]) -> Check:
    """What it checks: MLFlow's or Comet's project without a name of the run.

    Why: `LoggerConfig.finalize` raises ValueError.

    Example: `logger.mlflow_experiment=moe` without `logger.mlflow_run_name`

    Fix: name the run.
    """
    return violated_by(
        [
            (view[f"logger.{project}"].on & view[f"logger.{name}"].off, f"`{project}` is given without `{name}`")
            for project, name in loggers
        ],
        expected=" and ".join(f"logger.{name}" for _, name in loggers) + " set",
    )


@rule(
    "EPO948",
    "bridge-loop-values-fit",
    ERROR,
    enforced=[bridge()],
    source=[
        megatron_bridge("main", "training/initialize.py", "845-849"),
        megatron_bridge("main", "training/train.py", "209-213"),
    ],
    unknown=NOTED,
    about=[SEED, INTERVAL],
    fixes=[put_paths({SEED: 1234, INTERVAL: 0}, gives_up="the seed and the interval, which are yours to choose")],
)
def bridge_loop_values_fit(view: View) -> Check:
    """What it checks: a seed that is not positive, or a negative interval of the manual garbage collection.

    Why: Bridge asserts both, the seed when process groups are set up and the interval when training starts.

    Example: `rng.seed=0`

    Fix: a positive seed.
    """
    return violated_by(
        [
            (view.tells(SEED) & (view[SEED] <= 0), f"`rng.seed` is {view[SEED]}"),
            (
                view.tells(INTERVAL) & view[COLLECTS].on & (view[INTERVAL] < 0),
                f"`manual_gc_interval` is {view[INTERVAL]}",
            ),
        ],
        expected="rng.seed > 0, manual_gc_interval >= 0",
    )


@rule(
    "EPO931",
    "activation-offloading-needs-transformer-engine",
    ERROR,
    enforced=[megatron_lm(">=0.16"), bridge(">=0.3")],
    source=[arguments("0.16.1", "1222-1224"), megatron_bridge("main", _CONFIG, "2201-2207")],
    unknown=NOTED,
    about=[OFFLOADS],
    fixes=[
        put(transformer_impl="transformer_engine", gives_up="local layers"),
        put(fine_grained_activation_offloading=False, gives_up="memory: activations stay on the GPU"),
    ],
)
def activation_offloading_needs_transformer_engine(view: View) -> Check:
    """What it checks: fine-grained activation offloading with another implementation of layers than Transformer
    Engine's.

    Why: only its layers hand their inputs over; Megatron-LM asserts it and Bridge raises ValueError.

    Example: `--fine-grained-activation-offloading --transformer-impl local`

    Fix: `--transformer-impl transformer_engine`.
    """
    implementation = view[IMPLEMENTATION]
    return violated(
        view[OFFLOADS].on & (implementation != "transformer_engine"),
        f"`fine_grained_activation_offloading` is on with `transformer_impl` {implementation}",
        expected="transformer_impl = transformer_engine",
    )
