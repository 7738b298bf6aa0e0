"""Gradient reduction and optimizer: what Megatron's DDP and optimizer of the run are given, and what they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.smoke import Reduction
from ep_overlap_mcp.smoke.draft import UNKNOWN_TEXT

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.draft import Draft

DDP_KEPT = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "grad_reduce_in_fp32",
            "average_in_collective")  # fmt: skip
DDP_WITHOUT = {
    "bucket_size": "the reduced model's gradients fill one bucket",
    "num_buckets": "the reduced model's gradients fill one bucket",
    "num_distributed_optimizer_instances": "there is one",
    "use_megatron_fsdp": "the run has Megatron's DDP",
    "use_custom_fsdp": "the run has Megatron's DDP",
}
OPTIMIZER_KEPT = ("clip_grad", "weight_decay", "lr", "adam_beta1", "adam_beta2", "adam_eps")
SETTLED = frozenset(  # follow from the model, from DDP and from the variant, or change nothing that is compared
    (
        "ddp.delay_wgrad_compute", "optimizer.bf16", "optimizer.fp16", "optimizer.params_dtype",
        "optimizer.overlap_param_gather", "optimizer.timers", "optimizer.config_logger_dir",
        "optimizer.log_num_zeros_in_grad", "optimizer.barrier_with_L1_time",
        "ddp.check_for_nan_in_grad", "ddp.check_for_large_grads",
    )
)  # fmt: skip
SCHEDULED = ("min_lr", "decoupled_lr", "decoupled_min_lr")


def pass_on_gradients(draft: Draft) -> None:
    """Settings of DistributedDataParallelConfig; what is kept is what is sent."""
    stated = draft.stated("ddp")
    for name in DDP_KEPT:
        value = draft.value(f"ddp.{name}")
        if draft.exists(f"ddp.{name}") and isinstance(value, bool) and (value or name in stated):
            draft.ddp[name] = value
    if draft.ddp.get("overlap_param_gather") and not draft.ddp.get("use_distributed_optimizer"):
        _without_distributed_optimizer(draft)
    draft.kept.update(
        {f"ddp.{name}": value for name, value in draft.ddp.items() if f"ddp.{name}" not in _reduced(draft)}
    )
    for name, value in stated.items():
        if name not in DDP_KEPT:
            _leave_out(draft, f"ddp.{name}", value, DDP_WITHOUT.get(name, "the run has Megatron's DDP without it"))
    if draft.value("dist.use_torch_fsdp2") is True:
        draft.leave_out("dist.use_torch_fsdp2", value=True, why="the run has Megatron's DDP")


def _without_distributed_optimizer(draft: Draft) -> None:
    """Parameters are gathered by the distributed optimizer only: taken where the text leaves it open."""
    path = "ddp.use_distributed_optimizer"
    if draft.open_in(path):
        draft.ddp["use_distributed_optimizer"] = True
        draft.reduced.append(
            Reduction(setting=path, before=UNKNOWN_TEXT, to=True, why="stand-in: overlap_param_gather needs it")
        )
        return
    draft.ddp.pop("overlap_param_gather")
    draft.leave_out("ddp.overlap_param_gather", value=True, why="needs use_distributed_optimizer, which is off")


def _reduced(draft: Draft) -> set[str]:
    return {row.setting for row in draft.reduced}


def pass_on_optimizer(draft: Draft) -> None:
    """Settings of OptimizerConfig; Adam where the optimizer is neither that nor SGD."""
    kind = draft.value("optimizer.optimizer", "adam")
    draft.optimizer["optimizer"] = kind if kind in ("adam", "sgd") else "adam"
    for name, value in draft.stated("optimizer").items():
        path = f"optimizer.{name}"
        if name == "optimizer":
            if kind not in ("adam", "sgd"):
                draft.leave_out(path, kind, "Adam stands in")
            elif not draft.is_default(path, kind):
                draft.kept[path] = kind
        elif name in OPTIMIZER_KEPT and isinstance(value, (int, float)) and not isinstance(value, bool):
            draft.optimizer[name] = draft.kept[path] = value
        elif name in SCHEDULED:
            draft.leave_out(path, value, "the run has no schedule of the learning rate")
        else:
            why = (
                "needs Transformer Engine's Adam"
                if "precision_aware" in name
                else "the run has its optimizer without it"
            )
            _leave_out(draft, path, value, why)


def _leave_out(draft: Draft, path: str, value: Any, why: str) -> None:
    """List it, unless it is what the class has anyway, or settled elsewhere."""
    off = value is False and not draft.is_default(path, True)  # noqa: FBT003 - a value
    if path not in SETTLED and not off and not draft.is_default(path, value):
        draft.leave_out(path, value, why)
