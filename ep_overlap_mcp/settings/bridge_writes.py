"""What Megatron-Bridge writes before core sees the configuration: the recipe helper, then `CommOverlapConfig.setup`.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987df src/megatron/bridge/training/comm_overlap.py:405-643 (the same logic from
v0.3.0), src/megatron/bridge/training/flex_dispatcher_backend.py (v0.2.0 to main),
src/megatron/bridge/training/config.py:1066-1069, 1218-1253 (FSDP; packing, main only) and
src/megatron/bridge/models/transformer_config.py:80-88, 174-178 (sequence parallelism from v0.4.0, experts' tensor
parallelism from v0.6.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.hardware import find_gpu
from ep_overlap_mcp.settings.setting import UNKNOWN

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.effective import Effective

_OVERLAP, _DELAY = "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"
_HELPER = "bridge.apply_flex_dispatcher_backend"


def bridge_writes(settings: Effective) -> None:
    """Apply all of them, in the order of the real code."""
    _flex_helper(settings)
    if _has_comm_overlap(settings):
        _packing(settings)
        _model_fields(settings)
        _distributed_optimizer_fields(settings)
    _missing_backend(settings)
    _sizes(settings)
    _megatron_fsdp(settings)


def flex_backend_allowed(backend: str, gpu: str, settings: Effective) -> bool | None:
    """Whether this Bridge release admits the backend on a GPU; None for a GPU that is not in the table."""
    known = find_gpu(gpu)
    if known is None:
        return None
    major, name, release = known.capability[0], known.name, settings.release
    if backend == "deepep":
        exact = release.bridge_within("<0.4")
        named = ("NVIDIA B200", "NVIDIA B300")
        return major in (8, 9) or (name in named if exact else name.startswith(named))
    if release.bridge_within("<0.3"):
        return name in ("NVIDIA GB200", "NVIDIA GB300")
    return major in (8, 9, 10)


def _flex_helper(settings: Effective) -> None:
    """`apply_flex_dispatcher_backend`: flex on a GPU it admits; else alltoall since 0.6, nothing before."""
    call = settings[_HELPER]
    if call.value not in ("deepep", "hybridep"):
        return
    if settings.value("model.num_moe_experts") in (None, 0) and settings["model.num_moe_experts"].written:
        return
    gpu = settings["hardware.gpu"]
    allowed = flex_backend_allowed(call.value, gpu.value, settings) if isinstance(gpu.value, str) else None
    if allowed in (True, None):  # without a known GPU, as asked; EPO615 is then undecided
        _helper_write(settings, call.origin.order, "flex", call.value, "apply_flex_dispatcher_backend")
    elif settings.release.bridge_within(">=0.6"):
        why = f"apply_flex_dispatcher_backend refuses {call.value} on {gpu.value}"
        _helper_write(settings, call.origin.order, "alltoall", None, why)


def _helper_write(settings: Effective, order: int, dispatcher: str, backend: str | None, why: str) -> None:
    values: dict[str, Any] = {"moe_token_dispatcher_type": dispatcher, "moe_flex_dispatcher_backend": backend}
    if dispatcher == "flex":
        values["moe_shared_expert_overlap"] = False
    for name, value in values.items():
        if settings[f"model.{name}"].origin.order < order:
            settings.write(f"model.{name}", value, why)


def _has_comm_overlap(settings: Effective) -> bool:
    """Whether there is a comm_overlap object: stated, or implied by a field written after it was taken away."""
    present = settings["comm_overlap.present"]
    fields = [
        s.origin.order
        for path, s in settings.request.settings.items()
        if path.startswith("comm_overlap.") and path != present.path and s.written
    ]
    if present.value is False and present.written:
        return any(order > present.origin.order for order in fields)
    return present.value is True or bool(fields)


def _missing_backend(settings: Effective) -> None:
    """`validate_flex_dispatcher_backend` on main: flex without any backend becomes alltoall."""
    flex = settings.value("model.moe_token_dispatcher_type") == "flex"
    backend, flag = settings.value("model.moe_flex_dispatcher_backend"), settings.value("model.moe_enable_deepep")
    if flex and backend is None and flag is not True and settings.release.bridge_within(">=0.7"):
        settings.write("model.moe_token_dispatcher_type", "alltoall", "flex without a backend")


def _sizes(settings: Effective) -> None:
    """`TransformerConfig.finalize`: no sequence parallelism at TP 1; experts that EP splits are not split by TP."""
    tp, sp = settings["model.tensor_model_parallel_size"], settings["model.sequence_parallel"]
    if sp.value is True and tp.known and tp.value <= 1 and settings.release.bridge_within(">=0.4"):
        settings.write(sp.path, value=False, why="cleared at TP 1")
    etp, ep = settings["model.expert_tensor_parallel_size"], settings["model.expert_model_parallel_size"]
    if etp.value is None and ep.value not in (0, 1) and settings.release.bridge_within(">=0.6"):
        settings.write(etp.path, 1, "1 with expert parallelism", *ep.needs)


def _megatron_fsdp(settings: Effective) -> None:
    """Either of the two flags turns it on; the one that is stated counts where the other is not."""
    flag, other = settings["ddp.use_megatron_fsdp"], settings["dist.use_megatron_fsdp"]
    if other.written and flag.value is not True and not (flag.written and other.value is False):
        settings.write(flag.path, other.value, other.path, *other.needs)


def _packing(settings: Effective) -> None:
    """Energon packing clears overlap and delayed wgrad everywhere, in Bridge main."""
    if settings.value("dataset.packing_buffer_size") and settings.release.bridge_within(">=0.7"):
        for path in (
            f"model.{_OVERLAP}",
            f"comm_overlap.{_OVERLAP}",
            f"model.{_DELAY}",
            f"comm_overlap.{_DELAY}",
        ):
            if settings.value(path):
                settings.write(path, value=False, why="Energon packing clears it")


def _model_fields(settings: Effective) -> None:
    """Every field of the scratch object that the model has is assigned, also False: the user's None is no wish."""
    for name in (_OVERLAP, _DELAY):
        wish = settings[f"comm_overlap.{name}"]
        value = False if wish.value is None else wish.value
        settings.write(f"model.{name}", value, "CommOverlapConfig.setup", *wish.needs)
    _tensor_parallel_overlap(settings)
    _point_to_point(settings)


def _tensor_parallel_overlap(settings: Effective) -> None:
    wish = settings["comm_overlap.tp_comm_overlap"]
    tp, sp = settings["model.tensor_model_parallel_size"], settings["model.sequence_parallel"]
    if wish.value is not True or (tp.known and tp.value < 2) or sp.value is False:
        value = UNKNOWN if wish.value is UNKNOWN else False
        settings.write("model.tp_comm_overlap", value, "CommOverlapConfig.setup", *wish.needs)
    else:
        settings.write("model.tp_comm_overlap", True, "CommOverlapConfig.setup", *(tp.needs | sp.needs))  # noqa: FBT003


def _point_to_point(settings: Effective) -> None:
    pp, vpp = (
        settings["model.pipeline_model_parallel_size"],
        settings["model.virtual_pipeline_model_parallel_size"],
    )
    interleaved = pp.known and vpp.known and pp.value > 1 and (vpp.value or 1) > 1
    batched = pp.known and vpp.known and pp.value > 1 and not interleaved
    needs = () if pp.known and (vpp.known or pp.value <= 1) else tuple(pp.needs | vpp.needs)
    for name, default in (("overlap_p2p_comm", interleaved), ("batch_p2p_comm", batched)):
        wish = settings[f"comm_overlap.{name}"]
        if wish.value is None:
            settings.write(f"model.{name}", default, "CommOverlapConfig.setup", *needs)
        else:
            settings.write(f"model.{name}", wish.value, "CommOverlapConfig.setup", *wish.needs)


def _distributed_optimizer_fields(settings: Effective) -> None:
    """Only with the distributed optimizer is the wish carried to ddp; the unset wish arrives there as None."""
    distributed = settings["ddp.use_distributed_optimizer"]
    if distributed.value is False:
        return
    delay = settings[f"comm_overlap.{_DELAY}"]
    settings.write(f"ddp.{_DELAY}", delay.value, "CommOverlapConfig.setup", *(delay.needs | distributed.needs))
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        wish = settings[f"comm_overlap.{name}"]
        if wish.known and wish.value is not None:
            settings.write(f"ddp.{name}", wish.value, "CommOverlapConfig.setup", *distributed.needs)
