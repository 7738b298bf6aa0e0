"""EPO618-620, 622-625, 951: checkpoint formats and what saving asks of the rest of a Megatron-LM command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, megatron_lm, put_paths, rule, violated, violated_by
from ep_overlap_mcp.rules.sources import arguments

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

FORMAT = "args.ckpt_format"
MEGATRON_FSDP, TORCH_FSDP2 = "ddp.use_megatron_fsdp", "dist.use_torch_fsdp2"
SAVE, INTERVAL, RETAIN = "args.save", "args.save_interval", "args.save_retain_interval"
GLOO = "args.enable_gloo_process_groups"
NON_PERSISTENT, LOCAL_FOLDER = "args.non_persistent_ckpt_type", "args.non_persistent_local_ckpt_dir"

_TO_TORCH_DIST = put_paths({FORMAT: "torch_dist"}, gives_up="checkpoints in the other format")


@rule(
    "EPO618",
    "fsdp-dtensor-needs-megatron-fsdp",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "1048-1050"),
    about=[FORMAT],
    fixes=[_TO_TORCH_DIST, put_paths({MEGATRON_FSDP: True}, gives_up="unsharded parameters")],
)
def fsdp_dtensor_needs_megatron_fsdp(view: View) -> Check:
    """What it checks: checkpoints in the format `fsdp_dtensor` without Megatron-FSDP.

    Why: the format stores the shards that Megatron-FSDP keeps; Megatron-LM asserts it.

    Example: `--ckpt-format fsdp_dtensor` left behind after `--use-megatron-fsdp` was removed

    Fix: `--ckpt-format torch_dist`.
    """
    return violated(
        (view[FORMAT] == "fsdp_dtensor") & view[MEGATRON_FSDP].off,
        "`ckpt_format` is fsdp_dtensor without Megatron-FSDP",
        expected="ckpt_format = torch_dist, or use_megatron_fsdp = true",
    )


@rule(
    "EPO619",
    "megatron-fsdp-needs-fsdp-dtensor",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "690-691"),
    about=[MEGATRON_FSDP],
    fixes=[
        put_paths({FORMAT: "fsdp_dtensor"}, gives_up="checkpoints in the other format"),
        put_paths({MEGATRON_FSDP: False}, gives_up="sharded parameters"),
    ],
)
def megatron_fsdp_needs_fsdp_dtensor(view: View) -> Check:
    """What it checks: Megatron-FSDP with another checkpoint format than `fsdp_dtensor`; the default is another.

    Why: no other format can hold its shards; Megatron-LM asserts it, also for a run that saves nothing.

    Example: `--use-megatron-fsdp` without `--ckpt-format`

    Fix: `--ckpt-format fsdp_dtensor`.
    """
    return violated(
        view[MEGATRON_FSDP].on & (view[FORMAT] != "fsdp_dtensor"),
        f"`ckpt_format` is {view[FORMAT]}; Megatron-FSDP takes fsdp_dtensor alone",
        expected="ckpt_format = fsdp_dtensor",
    )


@rule(
    "EPO620",
    "torch-dcp-needs-torch-fsdp2",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "1040-1046"),
    about=[FORMAT],
    fixes=[_TO_TORCH_DIST],
)
def torch_dcp_needs_torch_fsdp2(view: View) -> Check:
    """What it checks: checkpoints in the format `torch_dcp` without torch FSDP2, or with tensor or pipeline
    parallelism.

    Why: the format was tested with torch FSDP2 alone; Megatron-LM asserts it. FSDP2 excludes expert parallelism, so
    an MoE run has no use for the format.

    Example: `--ckpt-format torch_dcp --expert-model-parallel-size 8`

    Fix: `--ckpt-format torch_dist`.
    """
    tp, pp = view["model.tensor_model_parallel_size"], view["model.pipeline_model_parallel_size"]
    return violated_by(
        [
            (view[TORCH_FSDP2].off, "`ckpt_format` is torch_dcp without torch FSDP2"),
            (tp > 1, f"`ckpt_format` is torch_dcp with tensor parallel size {tp}"),
            (pp > 1, f"`ckpt_format` is torch_dcp with {pp} pipeline stages"),
        ],
        when=view[FORMAT] == "torch_dcp",
        expected="ckpt_format = torch_dist",
    )


@rule(
    "EPO622",
    "saving-needs-an-interval",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "837-842"),
    unknown=NOTED,
    about=[SAVE],
    fixes=[put_paths({INTERVAL: 1000, RETAIN: None}, gives_up="the interval, which is yours to choose")],
)
def saving_needs_an_interval(view: View) -> Check:
    """What it checks: `save` without a positive `save_interval`, or a `save_retain_interval` that is no multiple of it.

    Why: Megatron-LM asserts both, without a text.

    Example: `--save /checkpoints` alone

    Fix: `--save-interval 1000`, or no `--save`.
    """
    interval, retain = view[INTERVAL], view[RETAIN]
    uneven = retain.is_set & ((retain <= 0) | (retain % interval > 0))
    return violated_by(
        [
            (interval.unset | (interval <= 0), f"`save` is given and `save_interval` is {interval}"),
            (uneven, f"`save_retain_interval` {retain} is no multiple of `save_interval` {interval}"),
        ],
        when=view[SAVE].is_set,
        expected="save_interval > 0, save_retain_interval a multiple of it",
    )


@rule(
    "EPO623",
    "gloo-free-optimizer-needs-distributed-checkpoints",
    ERROR,
    enforced=[megatron_lm()],
    source=[arguments("0.16.1", "1095-1100"), arguments("0.18.2", "1578-1583")],
    about=[GLOO],
    fixes=[_TO_TORCH_DIST, put_paths({GLOO: True})],
)
def gloo_free_optimizer_needs_distributed_checkpoints(view: View) -> Check:
    """What it checks: the distributed optimizer without Gloo process groups and with `torch` checkpoints.

    Why: that format gathers the optimizer's state over Gloo; Megatron-LM asserts a distributed format, without a text.

    Example: `--disable-gloo-process-groups --use-distributed-optimizer --ckpt-format torch`

    Fix: `--ckpt-format torch_dist`.
    """
    return violated(
        (view[GLOO] == False) & view["ddp.use_distributed_optimizer"].on & (view[FORMAT] == "torch"),  # noqa: E712
        "`ckpt_format` is torch, which saves the distributed optimizer over the Gloo groups that are disabled",
        expected="ckpt_format = torch_dist",
    )


@rule(
    "EPO624",
    "local-checkpoints-need-a-folder",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "1200-1204"),
    about=[NON_PERSISTENT, "args.replication"],
    fixes=[put_paths({NON_PERSISTENT: None, "args.replication": False}, gives_up="local checkpoints")],
)
def local_checkpoints_need_a_folder(view: View) -> Check:
    """What it checks: local non-persistent checkpoints without their folder, replication without them, or the type
    `in_memory`.

    Why: Megatron-LM's parser takes `in_memory` and its validation does not. It asserts the folder, and for
    `replication` local checkpoints and `replication_jump`.

    Example: `--non-persistent-ckpt-type local` without `--non-persistent-local-ckpt-dir`

    Fix: name the folder.
    """
    local = view[NON_PERSISTENT] == "local"
    replicated = view["args.replication"].on
    return violated_by(
        [
            (local & view[LOCAL_FOLDER].unset, "`non_persistent_ckpt_type` is local without a folder for it"),
            (view[NON_PERSISTENT] == "in_memory", "`non_persistent_ckpt_type` is in_memory"),
            (replicated & ~local, "`replication` without local checkpoints"),
            (replicated & view["args.replication_jump"].unset, "`replication` without `replication_jump`"),
        ],
        expected="non_persistent_local_ckpt_dir set",
    )


@rule(
    "EPO625",
    "main-parameters-load-without-optimizer",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "1135-1136"),
    about=["args.load_main_params_from_ckpt"],
    fixes=[put_paths({"args.no_load_optim": True}, gives_up="the optimizer's state of the checkpoint")],
)
def main_parameters_load_without_optimizer(view: View) -> Check:
    """What it checks: `load_main_params_from_ckpt` while the optimizer's state is loaded too.

    Why: the main parameters are part of that state; Megatron-LM asserts that it is left out.

    Example: `--load-main-params-from-ckpt` alone

    Fix: `--no-load-optim`.
    """
    left_out = view["args.no_load_optim"].on | (view["args.load_optim"] == False)  # noqa: E712
    return violated(
        view["args.load_main_params_from_ckpt"].on & ~left_out,
        "`load_main_params_from_ckpt` is on and the optimizer's state is loaded as well",
        expected="no_load_optim = true",
    )


@rule(
    "EPO951",
    "converted-checkpoint-needs-its-places",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.18.2", "402-405"),
    about=["args.ckpt_convert_format"],
    fixes=[put_paths({"args.ckpt_convert_format": None}, gives_up="the conversion of the checkpoint")],
)
def converted_checkpoint_needs_its_places(view: View) -> Check:
    """What it checks: `ckpt_convert_format` without `ckpt_convert_save` or `load`.

    Why: Megatron-LM asserts both, without a text.

    Example: `--ckpt-convert-format torch_dist` alone

    Fix: `--load FROM --ckpt-convert-save TO`; a training run converts nothing.
    """
    asked = view["args.ckpt_convert_format"]
    return violated_by(
        [(view[f"args.{name}"].unset, f"`ckpt_convert_format` is {asked} without `{name}`") for name in _PLACES],
        when=asked.is_set,
        expected="load and ckpt_convert_save",
    )


_PLACES = ("load", "ckpt_convert_save")
