"""Megatron-Core's `TransformerConfig` as a judge."""

from __future__ import annotations

from typing import Any

from .arguments import Settings, arguments_of, part
from .installed import installed

REPORTED = (
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "virtual_pipeline_model_parallel_size",
)


def with_core(settings: Settings, result: dict[str, Any], strict: bool) -> None:  # noqa: FBT001
    """Construct the real `TransformerConfig`; its `__post_init__` validates."""
    found = installed()
    config_class = found.latent if settings.get("model.multi_latent_attention") is True else found.plain
    config = config_class(**arguments_of(config_class, part(settings, "model"), result, strict=strict))
    result["effective"] = effective("model", config)


def effective(head: str, config: Any) -> Settings:
    """What the overlap's settings are after Megatron's own changes, where a configuration has them."""
    names = (*REPORTED, "overlap_grad_reduce")
    return {f"{head}.{name}": getattr(config, name) for name in names if hasattr(config, name)}
