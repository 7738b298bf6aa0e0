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
    """Bridge's classes, or a `comm_overlap` object beside a model, without a recipe that fills in the rest."""
    if _recipe(root) is not None:
        return False
    model = root.table("model")
    targets = (root.scalar("_target_"), model.scalar("_target_") if model else None)
    if any(isinstance(target, str) and target.startswith("megatron.bridge") for target in targets):
        return True
    return "comm_overlap" in root


def is_bridge_overrides(root: Table) -> bool:
    """A recipe that the file starts from, or some objects of Bridge's container without a whole model."""
    model = root.table("model")
    if model is None:
        return False
    parts = any(root.table(name) is not None for name in _CONTAINER)
    return _recipe(root) is not None or ("num_layers" not in model and parts)


def read_run_config(document: Document) -> Reading:
    """A saved configuration is complete: Bridge writes every field."""
    reading = Reading("Bridge run_config", document.file, "bridge")
    model = document.root.table("model")
    if inherited := document.inherits():
        reading.partial.append(inherited)
    elif model is None or not ("num_layers" in model or "_target_" in model):
        reading.partial.append(BRIDGE.partial or "")
    document.record(reading, BRIDGE)
    _add_class(reading, "model.provider", model)
    _add_class(reading, "dataset.kind", document.root.table("dataset"))
    return reading


def _add_class(reading: Reading, path: str, table: Table | None) -> None:
    """The class that an object names in `_target_`."""
    target = table.entry("_target_") if table else None
    if target and isinstance(target.node, Leaf) and isinstance(target.node.value, str):
        name = target.node.value.rpartition(".")[2]
        reading.add(path, name, line=target.line, text=target.text, span=target.node.span)


def read_bridge_overrides(document: Document) -> Reading:
    """A file merged over a recipe, which may be named in it."""
    reading = Reading("Bridge override file", document.file, "bridge")
    recipe = _recipe(document.root)
    starts = f"starts from `{recipe}`, which the text does not hold" if recipe else None
    reading.partial.append(document.inherits() or starts or BRIDGE.partial or "")
    document.record(reading, BRIDGE)
    return reading


def _recipe(root: Table) -> str | None:
    """The recipe function of `recipe: {_target_: megatron.bridge.recipes.…}`."""
    table = root.table("recipe")
    target = table.scalar("_target_") if table else None
    return target if isinstance(target, str) and target.startswith("megatron.bridge.recipes.") else None
