"""EPO503, 504, 508, 517-519: layers on even stages, and hand-made pipeline layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules.engine import (
    ERROR,
    INFO,
    NOTED,
    WARNING,
    Fix,
    core,
    evidence,
    megatron_lm,
    put,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.pipeline import DIVIDING_STAGES, PP, VPP
from ep_overlap_mcp.rules.sources import arguments, core_config, megatron
from ep_overlap_mcp.rules.truth import derived
from ep_overlap_mcp.rules.uneven_stages import LAYERS, LAYOUT, accounted, uneven
from ep_overlap_mcp.settings.layout import mtp_faults, parse_layout, stage_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Value
    from ep_overlap_mcp.rules.view import View
    from ep_overlap_mcp.settings.layout import Layout

_LAYOUT_FILE = "core/transformer/pipeline_parallel_layer_layout.py"


@rule(
    "EPO503",
    "layers-divide-into-stages",
    ERROR,
    enforced=[run_time(), megatron_lm()],
    source=[
        megatron("0.16.1", "core/transformer/transformer_block.py", "147-178"),
        arguments("0.16.1", "554-571"),
    ],
    unknown=NOTED,
    fixes=[
        DIVIDING_STAGES,
        Fix(lambda view: [{VPP: None}] if (view["model.num_layers"] % view[PP] == 0).value else []),
    ],
)
def layers_divide_into_stages(view: View) -> Check:
    """What it checks: the layers do not divide evenly into pipeline stages and virtual stages, and nothing else says
    how to place them.

    Why: building the model asserts it (Megatron-LM already when it reads its arguments).

    Example: `--num-layers 61 --pipeline-model-parallel-size 8`

    Fix: other virtual stages, a pipeline layout, or layer counts for the first and last stage.
    """
    layers, pp, vpp = view[LAYERS], view[PP], view[VPP]
    return violated_by(
        [
            (layers % pp > 0, f"{layers} layers do not divide into {pp} stages"),
            (
                vpp.is_set & (pp > 1) & (layers % pp == 0) & (layers // pp % vpp > 0),
                f"{layers} layers on {pp} stages do not divide into {vpp} virtual stages",
            ),
        ],
        when=view[LAYOUT].unset & ~uneven(view) & ~accounted(view),
        expected="num_layers % (PP * VPP) = 0",
    )


@rule(
    "EPO504",
    "layout-fits-pipeline",
    ERROR,
    enforced=[core()],
    source=[core_config("0.16.1", "1327-1357"), megatron("0.16.1", _LAYOUT_FILE, "24-113")],
    fixes=[put(pipeline_model_parallel_layout=None, gives_up="the placement of the layers")],
)
def layout_fits_pipeline(view: View) -> Check:
    """What it checks: a pipeline layout that does not fit the pipeline or the model.

    Why: the number of its stages must be a multiple of PP and agree with the virtual stages, if these are given; it
    starts with the embedding, ends with the loss, and holds as many decoder and MTP layers as the model. Megatron-Core
    asserts each.

    Example: `Et|t|tL` with PP 2

    Fix: correct the layout, or the setting it disagrees with.
    """
    pp, vpp = view[PP], view[VPP]
    stages = _of_layout(view, lambda layout: len(layout.stages))
    decoders, mtp = _of_layout(view, lambda layout: layout.count("decoder")), _of_layout(view, _mtp_layers)
    faults = _of_layout(view, stage_faults)
    chunks = stages // pp
    return violated_by(
        [
            (view[LAYOUT].test(lambda given: parse_layout(given) is None), f"the layout {view[LAYOUT]} cannot be read"),
            (stages % pp > 0, f"the layout has {stages} stages, no multiple of the {pp} pipeline stages"),
            (vpp.is_set & (stages % pp == 0) & (chunks != vpp), f"it gives {chunks} virtual stages, but {vpp} are set"),
            (stages.is_set & (decoders != view[LAYERS]), f"it has {decoders} decoder layers (t) for {view[LAYERS]}"),
            (
                stages.is_set & (mtp != view["model.mtp_num_layers"].otherwise(0)),
                f"it has {mtp} MTP layers (m) for `mtp_num_layers` {view['model.mtp_num_layers']}",
            ),
            (faults.on, f"{faults}"),
        ],
        when=view[LAYOUT].is_set,
        expected="stages = PP * VPP, embedding first, loss last, num_layers decoder and mtp_num_layers MTP layers",
    )


@rule(
    "EPO508",
    "uneven-virtual-chunks",
    INFO,
    enforced=[evidence(">=0.14")],
    source=megatron("0.16.1", "core/models/common/model_chunk_schedule_plan.py", "466-510"),
    unknown=NOTED,
)
def uneven_virtual_chunks(view: View) -> Check:
    """What it checks: EP overlap with a layout whose chunks hold different numbers of decoder layers.

    Why: two chunks are paired layer by layer; the layers that the longer one has more run alone.

    Example: `Et|t*3|t*3|tL`

    Fix: even chunks, where memory allows.
    """
    counts = _of_layout(view, lambda layout: list(layout.decoders_per_stage))
    return violated(
        view.overlap & counts.test(lambda each: bool(each) and len(set(each)) > 1),
        f"chunks hold {counts} decoder layers; only the smaller number of a pair overlaps",
    )


@rule(
    "EPO517",
    "standalone-mtp-stage",
    WARNING,
    enforced=[evidence(bridge="<0.6")],
    source=megatron("0.16.1", _LAYOUT_FILE, "136-145"),
)
def standalone_mtp_stage(view: View) -> Check:
    """What it checks: a layout with MTP layers in a stage of their own, on Bridge before 0.6.

    Why: failures of such layouts have been reported there.

    Example: `Et*4|t*4|t*4|m|L`

    Fix: put the MTP layers beside the loss.
    """
    alone = _of_layout(view, lambda layout: int(("mtp",) in {tuple(sorted(set(stage))) for stage in layout.stages}))
    return violated(
        alone == 1,
        f"the layout {view[LAYOUT]} has MTP layers in a stage of their own",
        expected="MTP layers beside the loss",
    )


@rule(
    "EPO518",
    "layout-places-mtp-last",
    ERROR,
    enforced=[
        core("<0.15", beside_loss=False),
        core(">=0.15,<0.16", beside_loss=True),
        core(">=0.16.0rc0", beside_loss=False),
    ],
    source=[megatron("0.16.1", _LAYOUT_FILE, "110-135"), megatron("0.15.3", _LAYOUT_FILE, "107-131")],
    unknown=NOTED,
)
def layout_places_mtp_last(view: View, *, beside_loss: bool) -> Check:
    """What it checks: a layout with MTP layers before decoder layers, spread over chunks, or in an early chunk.

    Why: the MTP layers follow the decoder, together and in the last chunk of their rank; 0.15 wants them beside the
    loss. Megatron-Core asserts it.

    Example: `Et|m|t|tL`

    Fix: move the MTP layers to the end, as in `Et|t|t|tmL`.
    """
    faults = derived(
        lambda given, pp: mtp_faults(layout, pp, beside_loss=beside_loss) if (layout := parse_layout(given)) else [],
        view[LAYOUT],
        view[PP],
    )
    return violated(faults.on, f"the layout {view[LAYOUT]}: {faults}", expected="MTP layers together, at the end")


@rule(
    "EPO519",
    "layout-excludes-other-placement",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1306-1325"),
    unknown=NOTED,
    fixes=[
        put(
            num_layers_in_first_pipeline_stage=None,
            num_layers_in_last_pipeline_stage=None,
            account_for_embedding_in_pipeline_split=False,
            account_for_loss_in_pipeline_split=False,
        )
    ],
)
def layout_excludes_other_placement(view: View) -> Check:
    """What it checks: a pipeline layout beside another setting that places layers.

    Why: the layout places every layer; Megatron-Core raises ValueError when the first or last stage, or the count of
    embedding or loss as a layer, is set too.

    Example: `--pipeline-model-parallel-layout … --decoder-first-pipeline-num-layers 3`

    Fix: keep the layout alone.
    """
    return violated(
        view[LAYOUT].is_set & (uneven(view) | accounted(view)),
        "`pipeline_model_parallel_layout` is set beside another placement of the layers",
        expected="the layout alone",
    )


def _of_layout(view: View, measure: Callable[[Layout], Any]) -> Value:
    """Something measured on the layout; None without a layout that can be read."""
    return derived(lambda given: measure(layout) if (layout := parse_layout(given)) else None, view[LAYOUT])


def _mtp_layers(layout: Layout) -> int:
    return layout.count("mtp")
