"""Which numbers of virtual stages a model's layers divide into, whatever else is said about its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.view import View

FIRST, LAST = "model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage"
_LARGEST = 512  # of what is offered
EMBEDDING, LOSS = "model.account_for_embedding_in_pipeline_split", "model.account_for_loss_in_pipeline_split"


def virtual_stage_options(view: View, most: int = 3) -> list[int]:
    """Virtual stages a rank that divide the layers of every stage, the fewest first; none where layers are unknown."""
    return (fitting_virtual_stages(view) or [])[:most]


def fitting_virtual_stages(view: View) -> list[int] | None:
    """Every number from 2 that divides the layers of every stage; None where layers or stages are not known."""
    layers = view.effective["model.num_layers"].value
    pp = view.effective["model.pipeline_model_parallel_size"].value
    if not (isinstance(layers, int) and isinstance(pp, int) and layers > 0 and pp > 0):
        return None
    return [count for count in range(2, min(layers // pp + 1, _LARGEST) + 1) if _divide(view, layers, pp, count)]


def _divide(view: View, layers: int, pp: int, count: int) -> bool:
    """Whether every stage's layers divide; the ends may have their own, embedding and loss may count as layers."""
    first, last = (end if isinstance(end := view.effective[path].value, int) else "unset" for path in (FIRST, LAST))
    if (first, last) != ("unset", "unset"):
        return not uneven_fault(layers, pp, count, first, last, ends_may_leave=False)
    counted = layers + sum(view.effective[path].value is True for path in (EMBEDDING, LOSS))
    return counted % (pp * count) == 0


def uneven_fault(
    layers: int, pp: int, vpp: int, first: int | str, last: int | str, *, ends_may_leave: bool
) -> list[str]:
    """Why layer counts of the first and last stage do not fit; empty when they do. Unset counts are "unset", VPP 0.

    Before 0.16 layers may be left without stages between (`ends_may_leave`). Source: core_v0.16.1
    megatron/core/transformer/transformer_config.py:1359-1433.
    """
    ends = [(name, count) for name, count in (("first", first), ("last", last)) if isinstance(count, int)]
    for name, count in ends:
        if count <= 0:
            return [f"the {name} stage has {count} layers"]
        if vpp and count % vpp:
            return [f"{count} layers of the {name} stage do not divide into {vpp} virtual stages"]
    between, stages = layers - sum(count for _, count in ends), pp - len(ends)
    if not ends_may_leave and bool(between) != bool(stages):
        return [f"{between} layers are left for {stages} stages between"]
    if stages and between % stages:
        return [f"{between} layers between do not divide over {stages} stages"]
    if stages and vpp and between // stages % vpp:
        return [f"{between // stages} layers of a stage between do not divide into {vpp} virtual stages"]
    return []
