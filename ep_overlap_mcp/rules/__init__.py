"""The rules: a module a family, a function a rule. `all_rules()` loads and lists them, by code."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import registered

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Rule

FAMILIES = (
    "overlap",
    "overlap_recompute",
    "mtp",
    "recompute",
    "offloading",
    "wgrad",
    "graphed_wgrad",
    "precision",
    "activations",
    "inference",
    "graphs",
    "graph_choice",
    "graph_needs",
    "dispatcher",
    "deepep",
    "hybridep",
    "ncclep",
    "experts",
    "moe_layer",
    "routing",
    "pipeline",
    "stages",
    "uneven_stages",
    "layer_kinds",
    "parallelism",
    "environment",
    "sharding",
    "checkpoints",
    "optimizers",
    "sizes",
    "training_loop",
    "attention",
    "model_choice",
    "benefit",
    "bridge_schedule",
    "bridge_checkpoints",
    "bridge_data",
    "bridge_start",
    "frameworks",
    "reading",
)


@lru_cache(maxsize=1)
def all_rules() -> dict[str, Rule]:
    """Every rule by code, in the order of the codes."""
    for family in FAMILIES:
        import_module(f"ep_overlap_mcp.rules.{family}")
    return dict(sorted(registered().items()))


def find_rule(code_or_name: str) -> Rule | None:
    """The rule of a code or a name, in any case."""
    wanted = code_or_name.strip()
    by_code = all_rules().get(wanted.upper())
    return by_code or next((r for r in all_rules().values() if r.name == wanted.lower()), None)
