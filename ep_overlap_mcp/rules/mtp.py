"""EPO111, EPO112, EPO116, EPO119, EPO123: multi-token prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, WARNING, bridge, core, megatron_lm, put, rule, run_time, violated
from ep_overlap_mcp.rules.remedies import one_mtp_layer, unset_zero_mtp
from ep_overlap_mcp.rules.sources import arguments, bridge_setup, core_config, megatron

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View


_NO_MTP = put(mtp_num_layers=None, gives_up="multi-token prediction")


@rule(
    "EPO111",
    "mtp-at-most-one-layer",
    ERROR,
    enforced=[
        core(">=0.14,<0.19", allowed=(None, 1)),
        core("dev", allowed=(None, 1)),
        core(">=0.19,!dev", allowed=(None, 0, 1)),
        bridge("<0.6", allowed=(None, 1)),
        bridge(">=0.6", allowed=(None, 0, 1)),
    ],
    source=[
        core_config("0.16.1", "1889-1891"),
        core_config("main", "3042-3046"),
        core_config("dev", "3464-3466"),
        bridge_setup("0.4.2", "503-505"),
        bridge_setup("main", "516-518"),
    ],
    fixes=[
        unset_zero_mtp(),
        one_mtp_layer(),
        _NO_MTP,
    ],
)
def mtp_at_most_one_layer(view: View, *, allowed: tuple[int | None, ...]) -> Check:
    """What it checks: EP overlap is on with more than one MTP layer; before 0.19, and on dev, also with 0.

    Why: the combined schedule plans at most one prediction layer. Zero meant something wrong until 0.19 took it for
    none.

    Example: `--mtp-num-layers 2 --overlap-moe-expert-parallel-comm`

    Fix: `mtp_num_layers=1`, or leave it unset.
    """
    layers = view["model.mtp_num_layers"]
    shown = ", ".join("unset" if number is None else str(number) for number in allowed)
    return violated(
        view.overlap & ~layers.one_of(*allowed),
        f"`mtp_num_layers` is {layers}; EP overlap takes {shown}",
        expected=f"mtp_num_layers in ({shown})",
    )


@rule(
    "EPO112",
    "mtp-needs-pipeline",
    ERROR,
    enforced=[core(">=0.16,<0.18")],
    source=core_config("0.16.1", "1892-1896"),
    fixes=[_NO_MTP],
)
def mtp_needs_pipeline(view: View) -> Check:
    """What it checks: EP overlap and one MTP layer without pipeline parallelism, on 0.16 and 0.17.

    Why: these releases assert a pipeline; 0.14, 0.15 and 0.18 on do not.

    Example: `--mtp-num-layers 1 --pipeline-model-parallel-size 1` on 0.16.1

    Fix: leave MTP out, add pipeline stages, or run 0.18.
    """
    layers, pp = view["model.mtp_num_layers"], view["model.pipeline_model_parallel_size"]
    return violated(
        view.overlap & (layers == 1) & (pp <= 1),
        f"`mtp_num_layers` is {layers} with `pipeline_model_parallel_size` {pp}",
        expected="pipeline_model_parallel_size > 1 with one MTP layer",
    )


@rule(
    "EPO116",
    "mtp-excludes-packed-sequences",
    ERROR,
    enforced=[run_time(">=0.14")],
    unknown=NOTED,
    source=megatron("0.16.1", "core/models/gpt/fine_grained_callables.py", "642-645"),
    fixes=[_NO_MTP],
)
def mtp_excludes_packed_sequences(view: View) -> Check:
    """What it checks: EP overlap and one MTP layer with packed sequences.

    Why: the prediction layer inside the combined schedule asserts that there are no packed sequence parameters.

    Example: `--mtp-num-layers 1 --overlap-moe-expert-parallel-comm` with `packing: true`

    Fix: leave MTP out, or train on unpacked sequences.
    """
    packed = view["dataset.packed_sequences"].on | view["dataset.packing_buffer_size"].is_set
    packed = packed | view["model.variable_seq_lengths"].on
    return violated(
        view.overlap & (view["model.mtp_num_layers"] == 1) & packed,
        "one MTP layer with packed sequences; its part of the schedule takes none",
        expected="no MTP, or unpacked sequences",
    )


@rule(
    "EPO119",
    "mtp-excludes-learned-positions",
    ERROR,
    enforced=[megatron_lm(written=True), megatron_lm(severity=WARNING, written=False)],
    source=[arguments("0.16.1", "1228-1234"), arguments("0.17.1", "728-734"), arguments("main", "881-887")],
    fixes=[put(position_embedding_type="rope", gives_up="learned position embeddings: another model"), _NO_MTP],
)
def mtp_excludes_learned_positions(view: View, *, written: bool) -> Check:
    """What it checks: MTP layers with position embeddings other than `rope` and `none` in Megatron-LM.

    Why: the prediction layers shift the sequence and reuse the embedding; `learned_absolute`, Megatron-LM's default,
    is asserted away. Where the text does not write the type it is a warning: launchers and model files around such
    texts add it, and Megatron-LM ends at start-up where they do not.

    Example: `--mtp-num-layers 1 --position-embedding-type learned_absolute`

    Fix: `--position-embedding-type rope`.
    """
    layers, positions = view["model.mtp_num_layers"], view["model.position_embedding_type"]
    stated = view.written("model.position_embedding_type")
    return violated(
        layers.on & ~positions.one_of("rope", "none") & (stated if written else ~stated),
        f"`position_embedding_type` is {positions} with `mtp_num_layers` {layers}; MTP takes rope or none",
        expected="position_embedding_type in (rope, none)",
    )


@rule(
    "EPO123",
    "mtp-hidden-state-mixing-needs-two-layers",
    ERROR,
    enforced=[core(">=0.20,!dev")],
    unknown=NOTED,
    source=core_config("main", "1416-1417"),
    fixes=[put(mtp_hsm=False)],
)
def mtp_hidden_state_mixing_needs_two_layers(view: View) -> Check:
    """What it checks: `mtp_hsm` with fewer than two MTP layers.

    Why: it combines the hidden states of several prediction layers. EP overlap takes at most one, so the two exclude
    each other.

    Example: `--mtp-hsm --mtp-num-layers 1`

    Fix: remove `mtp_hsm`.
    """
    mixing, layers = view["model.mtp_hsm"], view["model.mtp_num_layers"]
    return violated(
        mixing.on & (layers.unset | (layers < 2)),
        f"`mtp_hsm` is on with `mtp_num_layers` {layers}",
        expected="mtp_hsm=false, or mtp_num_layers >= 2",
    )
