"""Documents of Megatron-Bridge: the `run_config.yaml` it saves, and files of overrides for a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.sources.names import BRIDGE
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.sources.tree import Leaf, Table

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.document import Document

_CONTAINER = ("train", "checkpoint", "logger", "tokenizer", "scheduler", "optimizer", "ddp", "dataset", "dist", "rng")


def is_run_config(root: Table) -> bool:
    """Bridge's classes, or a `comm_overlap` object beside a model."""
    model = root.table("model")
    targets = (root.scalar("_target_"), model.scalar("_target_") if model else None)
    if any(isinstance(target, str) and target.startswith("megatron.bridge") for target in targets):
        return True
    return "comm_overlap" in root


def is_bridge_overrides(root: Table) -> bool:
    """Some objects of Bridge's container, without a whole model."""
    model = root.table("model")
    return (
        model is not None and "num_layers" not in model and sum(root.table(name) is not None for name in _CONTAINER) > 0
    )


def read_run_config(document: Document) -> Reading:
    """A saved configuration is complete: Bridge writes every field."""
    reading = Reading("Bridge run_config", document.file, "bridge")
    model = document.root.table("model")
    if inherited := document.inherits():
        reading.partial.append(inherited)
    elif model is None or not ("num_layers" in model or "_target_" in model):
        reading.partial.append(BRIDGE.partial or "")
    document.record(reading, BRIDGE)
    target = model.entry("_target_") if model else None
    if target and isinstance(target.node, Leaf) and isinstance(target.node.value, str):
        provider = target.node.value.rpartition(".")[2]
        reading.add("model.provider", provider, line=target.line, text=target.text, span=target.node.span)
    return reading


def read_bridge_overrides(document: Document) -> Reading:
    """A file merged over a recipe."""
    reading = Reading("Bridge override file", document.file, "bridge")
    reading.partial.append(document.inherits() or BRIDGE.partial or "")
    document.record(reading, BRIDGE)
    return reading
