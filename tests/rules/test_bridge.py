"""What Megatron-Bridge's own classes refuse at start-up: `ConfigContainer.validate` and each `finalize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.verbs import Question, check_configuration
from tests.rules.tables import Tables, ThreeTables

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rules.tables import Case, OpenCase

B2, B30, B31, B4, B5, B6, B7 = (
    {"stack": f"megatron-bridge=={release},transformer-engine==2.9.0,torch==2.9.0"}
    for release in ("0.2.0", "0.3.0", "0.3.1", "0.4.2", "0.5.1", "0.6.0", "main")
)
ITERS, SAMPLES, EPOCHS = "train.train_iters", "train.train_samples", "train.num_epochs"
DECAY, WARMUP, STYLE = "scheduler.lr_decay_iters", "scheduler.lr_warmup_iters", "scheduler.lr_decay_style"
SCHEDULE: dict[str, Any] = {
    ITERS: 1000,
    "optimizer.lr": 1e-4,
    "optimizer.min_lr": 1e-5,
    "scheduler.start_weight_decay": 0.033,
    "scheduler.end_weight_decay": 0.033,
}
SAVE, LOAD, FORMAT = "checkpoint.save", "checkpoint.load", "checkpoint.ckpt_format"
ASYNC, STEP, HF = "checkpoint.async_save", "checkpoint.ckpt_step", "checkpoint.also_save_hf_checkpoint"
MAIN, OPTIM = "checkpoint.load_main_params_from_ckpt", "checkpoint.load_optim"
FSDP, OTHER_FLAG = "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"
GLOO, DECENTRAL = "dist.use_gloo_process_groups", "dist.use_decentralized_pg"
KIND, LENGTH, MICRO = "dataset.kind", "dataset.seq_length", "train.micro_batch_size"
GPT = {KIND: "GPTDatasetConfig", "model.seq_length": 4096}
MASKS = {f"dataset.{name}": False for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")}
SPECS, SIZE = "dataset.offline_packing_specs", "dataset.packed_sequence_specs.packed_sequence_size"
PACKED: dict[str, Any] = {SPECS: "PackedSequenceSpecs", SIZE: 4096, "dataset.enable_offline_packing": True}
IN_BATCH, WHOLE, PADDED = (
    "dataset.enable_in_batch_packing",
    "dataset.pad_to_max_length",
    "dataset.packed_sequence_specs.pad_cu_seqlens",
)
ENERGON = {KIND: "EnergonDatasetConfig", "dataset.micro_batch_size": 1, MICRO: 1}
LOADER = {**ENERGON, "dataset.packing_buffer_size": 64, "model.calculate_per_token_loss": True}
SFT_CP = {KIND: "FinetuningDatasetConfig", "model.context_parallel_size": 2}
AWARE, MXFP8 = "optimizer.use_precision_aware_optimizer", {"mixed_precision.fp8_recipe": "mxfp8"}
GATHER, REUSED = "mixed_precision.fp8_param_gather", "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"
EVALUATION = {"hardware.world_size": 8, MICRO: 1, "train.global_batch_size": 16}
OFFLOADS = {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]}
BATCH = "dataset.dataloader_type"
FINITE = {EPOCHS: 2, KIND: "GPTSFTDatasetConfig"}
EXPERTS = {"num_layers": 8, "num_moe_experts": 8}

LENGTH_RULE, MEASURE_RULE, FITS_RULE = (
    "bridge-training-has-one-length",
    "bridge-schedule-in-one-measure",
    "bridge-schedule-fits",
)
DATA_RULE, SFT_RULE = "bridge-data-length-is-the-models", "bridge-fine-tuning-over-context-parallel-ranks"
SHARDS_RULE, FORMAT_RULE = "megatron-fsdp-needs-fsdp-dtensor", "fsdp-dtensor-needs-megatron-fsdp"
GROUPS_RULE = "bridge-process-groups-fit"
PRECISION_RULE, OFFLINE_RULE = "bridge-optimizer-has-the-models-precision", "bridge-offline-packing-fits"
PACKED_RULE, ENERGON_RULE = "bridge-packed-data-take-one-sequence", "bridge-energon-data-fit"

VIOLATED: list[Case] = [
    (LENGTH_RULE, {ITERS: 100, SAMPLES: 3200}, B2),
    (LENGTH_RULE, {ITERS: None}, B5),
    (LENGTH_RULE, {SAMPLES: 3200, "train.rampup_batch_size": [8, 8, 100]}, B5),
    (LENGTH_RULE, {**FINITE, ITERS: 100}, B6),
    (LENGTH_RULE, {EPOCHS: 2, KIND: "GPTDatasetConfig"}, B6),
    (LENGTH_RULE, {**FINITE, BATCH: "cyclic"}, B6),
    (MEASURE_RULE, {DECAY: 100, "scheduler.lr_warmup_samples": 10}, B2),
    (MEASURE_RULE, {"scheduler.lr_warmup_fraction": 0.1, WARMUP: 10}, B5),
    (MEASURE_RULE, {SAMPLES: 3200, WARMUP: 10}, B5),
    (MEASURE_RULE, {ITERS: 100, "scheduler.lr_decay_samples": 3200}, B7),
    (MEASURE_RULE, {SAMPLES: 3200, "scheduler.max_steps": 10}, B6),
    (FITS_RULE, {**SCHEDULE, "scheduler.start_weight_decay": None, WARMUP: 10}, B5),
    (FITS_RULE, {**SCHEDULE, "scheduler.end_weight_decay": 0.1}, B5),
    (FITS_RULE, {**SCHEDULE, "optimizer.min_lr": None, WARMUP: 10}, B5),
    (FITS_RULE, {**SCHEDULE, "scheduler.lr_warmup_init": 1e-3}, B5),
    (FITS_RULE, {**SCHEDULE, DECAY: 0}, B5),
    (FITS_RULE, {**SCHEDULE, WARMUP: 2000}, B30),
    (FITS_RULE, {**SCHEDULE, STYLE: "WSD"}, B31),
    (FITS_RULE, {**SCHEDULE, "scheduler.max_steps": 500}, B6),
    ("bridge-async-save-fits", {ASYNC: True}, B5),
    ("bridge-async-save-fits", {ASYNC: True, SAVE: "/c", FORMAT: "fsdp_dtensor"}, B4),
    ("bridge-async-save-fits", {ASYNC: True, SAVE: "/c", "checkpoint.use_persistent_ckpt_worker": False}, B5),
    ("bridge-checkpoint-options-fit", {STEP: 100}, B2),
    ("bridge-checkpoint-options-fit", {MAIN: True}, B5),
    ("bridge-hf-export-fits", {HF: True, FORMAT: "fsdp_dtensor", "model.hf_model_id": "m"}, B6),
    ("bridge-hf-export-fits", {HF: True}, B7),
    ("bridge-peft-needs-pretrained-checkpoint", {"peft.scheme": "lora"}, B2),
    (SHARDS_RULE, {FSDP: True, SAVE: "/c"}, B5),
    (SHARDS_RULE, {OTHER_FLAG: True, FSDP: False, LOAD: "/c"}, B6),
    (FORMAT_RULE, {FORMAT: "fsdp_dtensor", SAVE: "/c"}, B2),
    ("bridge-fsdp-limits", {FSDP: True, "dist.use_tp_pp_dp_mapping": True}, B2),
    ("bridge-fsdp-limits", {FSDP: True, "ddp.fsdp_manual_registration": True}, B5),
    ("bridge-fsdp-v2-excludes-model-parallelism", {**EXPERTS, FSDP: True, "ddp.megatron_fsdp_version": 2}, B7),
    (GROUPS_RULE, {DECENTRAL: True}, B31),
    (GROUPS_RULE, {DECENTRAL: True, GLOO: False, "hierarchical_context_parallel_sizes": [2, 1]}, B4),
    (GROUPS_RULE, {GLOO: False, "ddp.use_distributed_optimizer": True, FORMAT: "torch"}, B2),
    (DATA_RULE, {**GPT, LENGTH: 8192}, B2),
    (DATA_RULE, {**GPT, KIND: "GPTSFTDatasetConfig", LENGTH: 8192}, B6),
    (PACKED_RULE, {**PACKED, KIND: "FinetuningDatasetConfig", MICRO: 2}, B5),
    (PACKED_RULE, {**PACKED, MICRO: 2}, B6),
    ("bridge-in-batch-packing-needs-two-sequences", {IN_BATCH: True, MICRO: 1}, B31),
    (SFT_RULE, SFT_CP, B2),
    (SFT_RULE, {**SFT_CP, "model.calculate_per_token_loss": True, "ddp.average_in_collective": True}, B6),
    (OFFLINE_RULE, {**PACKED, SPECS: None}, B6),
    (OFFLINE_RULE, {**PACKED, SIZE: -1}, B6),
    (OFFLINE_RULE, {**PACKED, "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["moe_router"]}, B6),
    (
        OFFLINE_RULE,
        {**PACKED, WHOLE: True, "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]},
        B6,
    ),
    (ENERGON_RULE, {**ENERGON, MICRO: 2}, B6),
    (ENERGON_RULE, {**LOADER, "mtp_num_layers": 1}, B7),
    (
        "bridge-fine-tuning-length-divides",
        {KIND: "DirectHFSFTDatasetConfig", LENGTH: 4098, "context_parallel_size": 2},
        B6,
    ),
    ("bridge-pretraining-data-stated", {KIND: "GPTDatasetConfig"}, B5),
    ("bridge-pretraining-data-stated", {**MASKS, KIND: "MockGPTDatasetConfig", "dataset.blend": [["/a"], None]}, B5),
    (PRECISION_RULE, {"optimizer.bf16": True, "optimizer.fp16": True}, B31),
    (PRECISION_RULE, {"bf16": True, "optimizer.bf16": False, AWARE: True}, B5),
    ("bridge-mxfp8-gather-needs-reused-buffer", {**MXFP8, GATHER: True}, B5),
    ("bridge-mxfp8-gather-needs-reused-buffer", {**MXFP8, GATHER: True, FSDP: True}, B4),
    (
        "bridge-quantised-model-excludes-fused-accumulation",
        {"restore_modelopt_state": True, "gradient_accumulation_fusion": True},
        B2,
    ),
    ("bridge-one-profiler", {"profiling.use_nsys_profiler": True, "profiling.use_pytorch_profiler": True}, B2),
    ("bridge-one-profiler", {"profiling.profile_step_start": 20}, B6),
    ("bridge-logger-names-its-run", {"logger.mlflow_experiment": "moe"}, B31),
    ("bridge-logger-names-its-run", {"logger.comet_project": "moe"}, B4),
    ("bridge-loop-values-fit", {"rng.seed": 0}, B2),
    ("activation-offloading-needs-transformer-engine", {**OFFLOADS, "transformer_impl": "local"}, B31),
    (
        "activation-offloading-needs-transformer-engine",
        {**OFFLOADS, "transformer_impl": "local"},
        {"stack": "megatron-lm==0.16.1"},
    ),
    # rules of Megatron-LM's and of core that Bridge enforces as well
    ("sequence-divides-by-context-parallel", {"model.seq_length": 4098, "context_parallel_size": 2}, B2),
    ("context-parallel-levels-fit", {"cp_comm_type": ["a2a+p2p"], "context_parallel_size": 4}, B4),
    ("evaluation-batch-divides", {**EVALUATION, "validation.eval_global_batch_size": 12}, B5),
    (
        "offloading-needs-v1-env",
        {**OFFLOADS, "env.NVTE_CPU_OFFLOAD_V1": 0, "runtime.transformer_engine": "2.10.0"},
        {"stack": "megatron-bridge==0.5.1,te==2.10.0"},
    ),
    ("min-lr-at-most-lr", {"optimizer.lr": 1e-5, "optimizer.min_lr": 1e-4}, B2),
    ("deterministic-mode-limits", {"deterministic_mode": True}, B5),
    (
        "deterministic-mode-limits",
        {"deterministic_mode": True, "cross_entropy_loss_fusion": False, "attention_backend": "flash"},
        B4,
    ),
    ("deterministic-mode-needs-nccl-algorithm", {"deterministic_mode": True, "env.NCCL_ALGO": "NVLS"}, B7),
    ("reused-grad-buffer-needs-fp8-param-gather", {"ddp.reuse_grad_buf_for_mxfp8_param_ag": True, FSDP: True}, B6),
    ("small-optimizer-states-need-precision-aware-optimizer", {"optimizer.exp_avg_dtype": "bf16"}, B2),
    ("precision-aware-optimizer-needs-distributed-adam", {AWARE: True, "optimizer.optimizer": "sgd"}, B2),
    ("bridge-local-graph-is-full-iteration", {"cuda_graph_impl": "local"}, B6),
    ("sequence-parallel-needs-tp", {"sequence_parallel": True}, B31),
]

SILENT: list[Case] = [
    (LENGTH_RULE, {ITERS: 100}, B2),
    (LENGTH_RULE, {"num_layers": 8}, B5),
    (LENGTH_RULE, {**FINITE, BATCH: "batch"}, B6),
    (MEASURE_RULE, {ITERS: 100, DECAY: 100, WARMUP: 10}, B2),
    (MEASURE_RULE, {SAMPLES: 3200, "scheduler.lr_warmup_samples": 10}, B5),
    (FITS_RULE, {**SCHEDULE, WARMUP: 2000}, B31),
    (FITS_RULE, {**SCHEDULE, STYLE: "WSD"}, B4),
    (FITS_RULE, {**SCHEDULE, "scheduler.end_weight_decay": 0.1, "scheduler.weight_decay_incr_style": "linear"}, B5),
    ("bridge-async-save-fits", {ASYNC: True, SAVE: "/c", FORMAT: "fsdp_dtensor"}, B5),
    ("bridge-checkpoint-options-fit", {STEP: 100, LOAD: "/c", MAIN: True, OPTIM: False}, B5),
    ("bridge-hf-export-fits", {HF: True, "model.hf_model_id": "m"}, B6),
    (
        "bridge-peft-needs-pretrained-checkpoint",
        {"peft.scheme": "lora", "checkpoint.pretrained_checkpoint": "/c"},
        B2,
    ),
    (SHARDS_RULE, {FSDP: True}, B5),
    (FORMAT_RULE, {OTHER_FLAG: True, SAVE: "/c", FORMAT: "fsdp_dtensor"}, B5),
    ("bridge-fsdp-limits", {FSDP: True, "ddp.fsdp_manual_registration": True}, B4),
    ("bridge-fsdp-v2-excludes-model-parallelism", {FSDP: True, "ddp.megatron_fsdp_version": 1}, B7),
    (GROUPS_RULE, {DECENTRAL: True, GLOO: False}, B4),
    (GROUPS_RULE, {GLOO: False, "ddp.use_distributed_optimizer": True, FORMAT: "fsdp_dtensor"}, B5),
    (DATA_RULE, {**GPT, LENGTH: 4096}, B2),
    (DATA_RULE, {**GPT, KIND: "HFDatasetProvider", LENGTH: 8192}, B5),
    (PACKED_RULE, {**PACKED, KIND: "FinetuningDatasetConfig", SIZE: -1, MICRO: 2}, B5),
    ("bridge-in-batch-packing-needs-two-sequences", {IN_BATCH: True, MICRO: 2}, B6),
    (SFT_RULE, {**SFT_CP, "model.calculate_per_token_loss": True}, B2),
    (SFT_RULE, {**SFT_CP, KIND: "DirectHFSFTDatasetConfig"}, B5),
    (OFFLINE_RULE, PACKED, B6),
    (
        OFFLINE_RULE,
        {**PACKED, WHOLE: True, "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["moe_router"]},
        B6,
    ),
    (ENERGON_RULE, LOADER, B7),
    (
        "bridge-fine-tuning-length-divides",
        {KIND: "DirectHFSFTDatasetConfig", LENGTH: 4096, "context_parallel_size": 2},
        B6,
    ),
    ("bridge-pretraining-data-stated", {**MASKS, KIND: "GPTDatasetConfig"}, B5),
    (PRECISION_RULE, {"bf16": True, "optimizer.bf16": True, AWARE: True}, B5),
    ("bridge-mxfp8-gather-needs-reused-buffer", {**MXFP8, GATHER: True, FSDP: True}, B5),
    ("bridge-mxfp8-gather-needs-reused-buffer", {**MXFP8, GATHER: True, REUSED: True}, B4),
    (
        "bridge-quantised-model-excludes-fused-accumulation",
        {"restore_modelopt_state": True, "gradient_accumulation_fusion": False},
        B2,
    ),
    ("bridge-one-profiler", {"profiling.use_nsys_profiler": True}, B2),
    ("bridge-logger-names-its-run", {"logger.mlflow_experiment": "moe", "logger.mlflow_run_name": "1"}, B4),
    ("bridge-logger-names-its-run", {"logger.comet_project": "moe"}, B31),
    ("bridge-loop-values-fit", {"rng.seed": 1, "train.manual_gc_interval": -1}, B2),
    ("activation-offloading-needs-transformer-engine", OFFLOADS, B31),
    ("evaluation-batch-divides", {**EVALUATION, "validation.eval_global_batch_size": 24}, B5),
    ("deterministic-mode-limits", {"deterministic_mode": True, "cross_entropy_loss_fusion": False}, B4),
    ("precision-aware-optimizer-needs-distributed-adam", {AWARE: True, "ddp.use_distributed_optimizer": False}, B5),
    ("sequence-parallel-needs-tp", {"sequence_parallel": True}, B4),
    ("setting-unknown-to-version", {"use_transformer_engine_op_fuser": True}, B2),
]

UNDECIDED: list[OpenCase] = [
    (LENGTH_RULE, {SAMPLES: 3200}, {**B5, "partial": True}, {ITERS}),
    (MEASURE_RULE, {DECAY: 100, "scheduler.lr_warmup_samples": ...}, B5, {"scheduler.lr_warmup_samples"}),
    (FITS_RULE, {**SCHEDULE, WARMUP: 10, "optimizer.min_lr": ...}, B5, {"optimizer.min_lr"}),
    ("bridge-async-save-fits", {ASYNC: True, SAVE: ...}, B5, {SAVE}),
    ("bridge-checkpoint-options-fit", {STEP: 100, LOAD: ...}, B5, {LOAD}),
    ("bridge-hf-export-fits", {HF: True, "model.hf_model_id": ...}, B6, {"model.hf_model_id"}),
    (
        "bridge-peft-needs-pretrained-checkpoint",
        {"peft.scheme": "lora"},
        {**B5, "partial": True},
        {"checkpoint.pretrained_checkpoint"},
    ),
    (SHARDS_RULE, {FSDP: True, SAVE: "/c", FORMAT: ...}, B5, {FORMAT}),
    ("bridge-fsdp-limits", {FSDP: ..., "dist.use_tp_pp_dp_mapping": True}, B5, {FSDP}),
    (
        "bridge-fsdp-v2-excludes-model-parallelism",
        {**EXPERTS, FSDP: True, "ddp.megatron_fsdp_version": ...},
        B7,
        {"ddp.megatron_fsdp_version"},
    ),
    (GROUPS_RULE, {DECENTRAL: True, GLOO: ...}, B31, {GLOO}),
    (DATA_RULE, {LENGTH: 8192, "model.seq_length": 4096}, {**B5, "partial": True}, {KIND}),
    (PACKED_RULE, {**PACKED, MICRO: ...}, B6, {MICRO}),
    ("bridge-in-batch-packing-needs-two-sequences", {IN_BATCH: True, MICRO: ...}, B6, {MICRO}),
    (SFT_RULE, {**SFT_CP, "model.calculate_per_token_loss": ...}, B5, {"model.calculate_per_token_loss"}),
    (OFFLINE_RULE, {**PACKED, IN_BATCH: ...}, B6, {IN_BATCH}),
    (ENERGON_RULE, {**ENERGON, MICRO: ...}, B6, {MICRO}),
    (
        "bridge-fine-tuning-length-divides",
        {KIND: "DirectHFSFTDatasetConfig", LENGTH: 4098, "context_parallel_size": ...},
        B6,
        {"model.context_parallel_size"},
    ),
    ("bridge-pretraining-data-stated", {**MASKS, KIND: ..., "dataset.eod_mask_loss": None}, B5, {KIND}),
    (PRECISION_RULE, {"bf16": True, "optimizer.bf16": False, AWARE: ...}, B5, {AWARE}),
    ("bridge-mxfp8-gather-needs-reused-buffer", {**MXFP8, GATHER: True, REUSED: ...}, B5, {REUSED}),
    (
        "bridge-quantised-model-excludes-fused-accumulation",
        {"restore_modelopt_state": True, "gradient_accumulation_fusion": ...},
        B2,
        {"model.gradient_accumulation_fusion"},
    ),
    ("bridge-one-profiler", {"profiling.profile_step_end": ...}, B5, {"profiling.profile_step_end"}),
    (
        "bridge-logger-names-its-run",
        {"logger.mlflow_experiment": "moe", "logger.mlflow_run_name": ...},
        B5,
        {"logger.mlflow_run_name"},
    ),
    ("bridge-loop-values-fit", {"rng.seed": ...}, B5, {"rng.seed"}),
    (
        "activation-offloading-needs-transformer-engine",
        {**OFFLOADS, "transformer_impl": ...},
        B5,
        {"model.transformer_impl"},
    ),
]


class TestRules(ThreeTables):
    """The tables above, row by row."""

    tables = Tables(VIOLATED, SILENT, UNDECIDED)


SAVED = """
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 8
  num_moe_experts: 8
  expert_model_parallel_size: 4
  moe_token_dispatcher_type: alltoall
  bf16: true
  seq_length: 4096
comm_overlap:
  _target_: megatron.bridge.training.comm_overlap.CommOverlapConfig
  overlap_moe_expert_parallel_comm: true
dataset:
  _target_: megatron.bridge.training.config.FinetuningDatasetConfig
  seq_length: 8192
  packed_sequence_specs:
    _target_: megatron.bridge.data.datasets.packed_sequence.PackedSequenceSpecs
    packed_sequence_size: 8192
train: {micro_batch_size: 2, global_batch_size: 32, train_iters: 100}
checkpoint: {async_save: true}
"""


def test_a_saved_configuration_is_held_to_bridges_own_checks(tmp_path: Path) -> None:
    """All that start-up would end with, one at a time, is said at once, with the place of the class that decides."""
    (tmp_path / "run_config.yaml").write_text(SAVED)
    question = Question(files=(tmp_path / "run_config.yaml",), roots=(tmp_path,), **B5)
    (result,) = check_configuration(question)
    errors = {finding.name for finding in result.findings if finding.severity == "error"}
    assert errors == {DATA_RULE, PACKED_RULE, "bridge-async-save-fits"}


@pytest.mark.parametrize(
    "overrides",
    [
        "dataset.seq_length=8192 model.seq_length=4096",
        "checkpoint.async_save=true",
        "scheduler.lr_warmup_iters=100 train.train_iters=50",
        "ddp.use_megatron_fsdp=false checkpoint.save=/c",
        "dataset.packed_sequence_specs.packed_sequence_size=4096 train.micro_batch_size=2",
    ],
)
def test_overrides_leave_what_the_recipe_has_open(overrides: str) -> None:
    """What a recipe that is not in the text sets is a note, and never changes the verdict."""
    legal = ["comm_overlap.overlap_moe_expert_parallel_comm=true"]
    (before,) = check_configuration(Question(text="\n".join(legal), **B5))
    (after,) = check_configuration(Question(text="\n".join([*legal, *overrides.split()]), **B5))
    assert (after.verdict, [u.rule for u in after.undecided if u.severity == "error"]) == (
        before.verdict,
        [u.rule for u in before.undecided if u.severity == "error"],
    )
