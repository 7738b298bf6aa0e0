"""Megatron-Bridge's `CommOverlapConfig` and providers as judges."""

from __future__ import annotations

import importlib
import math
from typing import Any

from .arguments import MODEL_AXES, Settings, arguments_of, known_only, part, size, stand_in
from .core import effective
from .exceptions import NotJudged, told


def with_bridge(settings: Settings, result: dict[str, Any], strict: bool) -> None:  # noqa: FBT001
    """Megatron-Bridge's order: `CommOverlapConfig.finalize`, `.setup`, then the model's own `finalize`.

    `ConfigContainer.validate`, repository NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py.
    """
    try:
        bridge = importlib.import_module("megatron.bridge.training.comm_overlap")
    except Exception as problem:  # noqa: BLE001
        raise NotJudged(f"megatron.bridge cannot be imported: {told(problem)}") from None
    model = bridge.GPTModelProvider(
        **arguments_of(bridge.GPTModelProvider, part(settings, "model"), result, strict=strict)
    )
    ddp = known_only(bridge.DistributedDataParallelConfig, settings, "ddp", result)
    optimizer = known_only(bridge.OptimizerConfig, settings, "optimizer", result)
    if part(settings, "comm_overlap"):
        overlap = known_only(
            bridge.CommOverlapConfig, {"comm_overlap.tp_comm_overlap": False} | settings, "comm_overlap", result
        )
        set_data_parallel_size(overlap, settings, result)
        getattr(overlap, "finalize", lambda: None)()
        overlap.setup(model, optimizer, ddp)
    getattr(model, "finalize", lambda: None)()
    result["effective"] = effective("model", model) | effective("ddp", ddp)


def set_data_parallel_size(overlap: Any, settings: Settings, result: dict[str, Any]) -> None:
    """What the container derives from the world size; without one, the least that holds the experts."""
    if overlap.data_parallel_size is not None:
        return
    model = part(settings, "model")
    ranks = math.prod(size(model, f"{axis}_parallel_size") for axis in MODEL_AXES)
    world = settings.get("hardware.world_size")
    overlap.data_parallel_size = world // ranks if world else size(model, "expert_model_parallel_size")
    if not world:
        stand_in(result, "comm_overlap.data_parallel_size", overlap.data_parallel_size)
