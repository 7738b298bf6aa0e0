"""EPO520-522, 525: first and last stages of their own size, embedding and loss counted as layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    core,
    megatron_lm,
    put,
    rule,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.pipeline import PP, VPP
from ep_overlap_mcp.rules.sources import arguments, core_config
from ep_overlap_mcp.rules.truth import derived
from ep_overlap_mcp.rules.virtual_stages import EMBEDDING, FIRST, LAST, LOSS, uneven_fault

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth, Value
    from ep_overlap_mcp.rules.view import View

LAYERS, LAYOUT = "model.num_layers", "model.pipeline_model_parallel_layout"


@rule(
    "EPO520",
    "uneven-stages-exclude-split-accounting",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1294-1304"),
    unknown=NOTED,
    fixes=[put(account_for_embedding_in_pipeline_split=False, account_for_loss_in_pipeline_split=False)],
)
def uneven_stages_exclude_split_accounting(view: View) -> Check:
    """What it checks: layer counts of the first or last stage beside embedding or loss counted as a layer.

    Why: these are two ways to even out the stages; Megatron-Core raises ValueError for both at once.

    Example: `--decoder-first-pipeline-num-layers 3 --account-for-embedding-in-pipeline-split`

    Fix: keep one of them.
    """
    return violated(
        uneven(view) & accounted(view),
        "layers of the first or last stage are given, and embedding or loss counts as a layer",
        expected="one of the two",
    )


@rule(
    "EPO521",
    "uneven-stages-fit",
    ERROR,
    enforced=[core("<=0.16.0rc0", ends_may_leave=True), core(">=0.16", ends_may_leave=False)],
    source=[core_config("0.16.1", "1359-1433")],
    unknown=NOTED,
)
def uneven_stages_fit(view: View, *, ends_may_leave: bool) -> Check:
    """What it checks: layer counts of the first or last stage that leave no even split of the rest.

    Why: the layers between must divide over the stages between and over their virtual stages, and so must the counts
    themselves. Megatron-Core raises ValueError.

    Example: 61 layers on 8 stages with `--decoder-first-pipeline-num-layers 5`: 56 over 7 fit; with 6 they do not

    Fix: other counts, or a pipeline layout.
    """
    fault = derived(
        lambda layers, pp, vpp, first, last: uneven_fault(layers, pp, vpp, first, last, ends_may_leave=ends_may_leave),
        view[LAYERS],
        view[PP],
        view[VPP].otherwise(0),
        view[FIRST].otherwise("unset"),
        view[LAST].otherwise("unset"),
    )
    return violated(
        uneven(view) & view[LAYOUT].unset & fault.on,
        f"{fault}",
        expected="the layers between divide over the stages between",
    )


@rule(
    "EPO522",
    "accounted-layers-divide",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1435-1477"),
    unknown=NOTED,
)
def accounted_layers_divide(view: View) -> Check:
    """What it checks: layers, with embedding or loss counted as one, do not divide into stages and virtual stages.

    Why: Megatron-Core raises ValueError.

    Example: 30 layers on 4 stages with `--account-for-embedding-in-pipeline-split` alone

    Fix: count both embedding and loss, or change the layers or the stages.
    """
    pp, vpp, layers = view[PP], view[VPP], _counted_layers(view)
    return violated_by(
        [
            (layers % pp > 0, f"{layers} layers, with embedding or loss, do not divide into {pp} stages"),
            (
                vpp.is_set & (layers % pp == 0) & (layers // pp % vpp > 0),
                f"{layers} layers, with embedding or loss, on {pp} stages do not divide into {vpp} virtual stages",
            ),
        ],
        when=accounted(view) & ~uneven(view) & view[LAYOUT].unset,
        expected="(num_layers + 1 or 2) % (PP * VPP) = 0",
    )


@rule(
    "EPO525",
    "layers-per-virtual-stage-divide",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "528-550"),
    unknown=NOTED,
    fixes=[put(num_layers_per_virtual_pipeline_stage=None, num_virtual_stages_per_pipeline_rank=2)],
)
def layers_per_virtual_stage_divide(view: View) -> Check:
    """What it checks: `--num-layers-per-virtual-pipeline-stage` that does not divide the layers of a stage, or beside
    layer counts of the first or last stage.

    Why: Megatron-LM derives the virtual stages from it and asserts that everything divides.

    Example: `--num-layers 24 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4`

    Fix: a divisor of the layers of a stage, or `--num-virtual-stages-per-pipeline-rank`.
    """
    each, pp, layers = view["model.num_layers_per_virtual_pipeline_stage"], view[PP], _counted_layers(view)
    alone = view["model.num_virtual_stages_per_pipeline_rank"].unset & view[LAYOUT].unset
    return violated_by(
        [
            (uneven(view), "--num-layers-per-virtual-pipeline-stage is given with an uneven first or last stage"),
            (layers % pp > 0, f"{layers} layers do not divide into {pp} stages"),
            (
                (layers % pp == 0) & (layers // pp % each > 0),
                f"{layers} layers on {pp} stages do not divide into virtual stages of {each}",
            ),
        ],
        when=each.is_set & alone,
        expected="(num_layers / PP) % num_layers_per_virtual_pipeline_stage = 0",
    )


def uneven(view: View) -> Truth:
    """Whether the first or the last stage has a layer count of its own."""
    return view[FIRST].is_set | view[LAST].is_set


def accounted(view: View) -> Truth:
    """Whether the embedding or the loss counts as a layer."""
    return view[EMBEDDING].on | view[LOSS].on


def _counted_layers(view: View) -> Value:
    extra = derived(lambda embedding, loss: int(embedding) + int(loss), view[EMBEDDING], view[LOSS])
    return view[LAYERS] + extra
