"""A setting as a log prints it -> its canonical path, by the field table."""

from __future__ import annotations

from functools import lru_cache

from ep_overlap_mcp.settings.fields import field_table

PACKED = "dataset.packed_sequences"  # on where any of its spellings is
# printed by runs, yet no name of their own in the field table
_PRINTED_AS = {
    "world_size": "hardware.world_size",
    "moe_a2a_overlap": "bridge.moe_a2a_overlap",
    "sequence_packing": PACKED,
    "padding_free": PACKED,
    "packing": PACKED,
    "apply_flex_dispatcher_backend": "bridge.apply_flex_dispatcher_backend",
}


@lru_cache(maxsize=4096)
def canonical(name: str, section: str = "") -> str:
    """The path of a printed name; one that the table does not know stays under its section, or under `model`.

    Capitals are the environment's. Without a section Megatron-LM's flags come first, then fields by bare name.
    """
    if name.isupper():
        return f"env.{name}"
    if name in _PRINTED_AS:
        return _PRINTED_AS[name]
    table = field_table()
    if section and section != "model":
        found = table.get(f"{section}.{name}")
        return found.path if found else f"{section}.{name}"
    flag = table.flag(f"--{name}")
    own = table.get(f"model.{name}") or (flag[0] if flag and not flag[1] else None)
    known = own or table.bare(name)
    if known is None or known.path.startswith("comm_overlap."):
        return f"model.{name}"
    return known.path
