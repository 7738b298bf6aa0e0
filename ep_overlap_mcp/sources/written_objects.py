"""Objects as Bridge saves them: `_target_` tables for enums, dtypes, functions and instances.

Source: NVIDIA/Megatron-LM@d98e8a64dd megatron/training/config/yaml_utils.py:159-171 and core_v0.16.1, core_v0.18.2
megatron/core/transformer/enums.py for the members' numbers.
"""

from __future__ import annotations

from typing import Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.tree import Items, Leaf, Node, Table

_MEMBERS = {
    "CudaGraphScope": ("full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
    "CudaGraphModule": ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
    "LayerType": ("embedding", "loss", "encoder", "decoder", "mtp"),
    "AttnBackend": ("flash", "fused", "unfused", "local", "auto"),
}


def written_value(node: Node) -> Any:
    """The plain value of a node; an object is named where its name says it all, and is UNKNOWN elsewhere."""
    if isinstance(node, Leaf):
        return node.value
    if isinstance(node, Items):
        values = [written_value(item) for item in node.items]
        return UNKNOWN if UNKNOWN in values else values
    target = node.scalar("_target_")
    if not isinstance(target, str):
        return UNKNOWN
    return _object(target.rpartition(".")[2], node)


def _object(name: str, node: Table) -> Any:
    member = node.scalar("_name_")
    if isinstance(member, str):
        return member
    arguments = node.get("_args_")
    number = arguments.items[0] if isinstance(arguments, Items) and arguments.items else None
    if name in _MEMBERS and isinstance(number, Leaf) and isinstance(number.value, int):
        names = _MEMBERS[name]
        return names[number.value - 1] if 0 < number.value <= len(names) else UNKNOWN
    return name if node.scalar("_call_") is False else UNKNOWN
