"""EPO927-930, 932-934: what saving and loading, PEFT, Megatron-FSDP and process groups ask of a Megatron-Bridge run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, bridge, put_paths, rule, violated, violated_by
from ep_overlap_mcp.rules.sources import megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, TRUE, Truth, any_of

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

SAVE, LOAD, FORMAT = "checkpoint.save", "checkpoint.load", "checkpoint.ckpt_format"
PRETRAINED, STEP, ASYNC = "checkpoint.pretrained_checkpoint", "checkpoint.ckpt_step", "checkpoint.async_save"
WORKER, HF = "checkpoint.use_persistent_ckpt_worker", "checkpoint.also_save_hf_checkpoint"
MAIN_PARAMS, OPTIMIZER = "checkpoint.load_main_params_from_ckpt", "checkpoint.load_optim"
RESHARDABLE = "checkpoint.dist_ckpt_optim_fully_reshardable"
LEAN = "checkpoint.distrib_optim_fully_reshardable_mem_efficient"
NON_PERSISTENT = "checkpoint.non_persistent_ckpt_type"
MEGATRON_FSDP, OTHER_FLAG, TORCH_FSDP2 = "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", "dist.use_torch_fsdp2"
VERSION = "ddp.megatron_fsdp_version"
GLOO, DECENTRALIZED = "dist.use_gloo_process_groups", "dist.use_decentralized_pg"
MAPPING, REGISTERED = "dist.use_tp_pp_dp_mapping", "ddp.fsdp_manual_registration"
HASHES = "train.check_weight_hash_across_dp_replicas_interval"
LEVELS = "model.hierarchical_context_parallel_sizes"
_CONFIG = "training/config.py"
_NO_FSDP = put_paths({MEGATRON_FSDP: False}, gives_up="sharded parameters")


@rule(
    "EPO927",
    "bridge-async-save-fits",
    ERROR,
    enforced=[
        bridge("<0.5", formats=("torch_dist",)),
        bridge(">=0.5", formats=("torch_dist", "fsdp_dtensor")),
    ],
    source=[
        megatron_bridge("main", _CONFIG, "601-603"),
        megatron_bridge("main", _CONFIG, "1535-1539"),
        megatron_bridge("0.4.2", _CONFIG, "1156-1160"),
    ],
    unknown=NOTED,
    about=[ASYNC],
    fixes=[put_paths({ASYNC: False}, gives_up="saving beside the training")],
)
def bridge_async_save_fits(view: View, *, formats: tuple[str, ...]) -> Check:
    """What it checks: `async_save` without `save`, without the persistent worker, or in a format that is not saved so.

    Why: `CheckpointConfig.finalize` and `ConfigContainer.validate` assert them. Before Bridge 0.5 only `torch_dist` is
    saved so, from then on `fsdp_dtensor` too.

    Example: `checkpoint.async_save=true` with `checkpoint.save` unset

    Fix: `checkpoint.save=/checkpoints`, or save in the training loop.
    """
    form = view[FORMAT]
    return violated_by(
        [
            (view[SAVE].unset, "`async_save` is on without `save`"),
            (view[WORKER].off, "`async_save` is on without `use_persistent_ckpt_worker`"),
            (~form.one_of(*formats), f"`async_save` is on with `ckpt_format` {form}"),
        ],
        when=view[ASYNC].on,
        expected="save set, use_persistent_ckpt_worker = true, ckpt_format = " + " or ".join(formats),
    )


@rule(
    "EPO928",
    "bridge-checkpoint-options-fit",
    ERROR,
    enforced=[bridge()],
    source=[megatron_bridge("main", _CONFIG, "598-629"), megatron_bridge("0.2.0", _CONFIG, "722-744")],
    unknown=NOTED,
    about=[STEP, MAIN_PARAMS, RESHARDABLE],
    fixes=[
        put_paths({STEP: None, MAIN_PARAMS: False, LEAN: False}, gives_up="the options that do not fit"),
    ],
)
def bridge_checkpoint_options_fit(view: View) -> Check:
    """What it checks: `ckpt_step` without `load`, `load_main_params_from_ckpt` while the optimizer is loaded, or both
    kinds of a fully reshardable optimizer.

    Why: `CheckpointConfig.finalize` refuses them.

    Example: `checkpoint.ckpt_step=1000` with `checkpoint.load` unset

    Fix: `checkpoint.load=/checkpoints`; `load_optim=false` for the main parameters.
    """
    return violated_by(
        [
            (view[STEP].is_set & view[LOAD].unset, f"`ckpt_step` is {view[STEP]} without `load`"),
            (
                view[MAIN_PARAMS].on & view[OPTIMIZER].on,
                "`load_main_params_from_ckpt` is on and the optimizer's state is loaded as well",
            ),
            (
                view[RESHARDABLE].on & view[LEAN].on,
                "`dist_ckpt_optim_fully_reshardable` with `distrib_optim_fully_reshardable_mem_efficient`",
            ),
        ],
        expected="load set with ckpt_step, load_optim = false with load_main_params_from_ckpt",
    )


@rule(
    "EPO929",
    "bridge-hf-export-fits",
    ERROR,
    enforced=[bridge(">=0.6")],
    source=[megatron_bridge("main", _CONFIG, "605-616"), megatron_bridge("main", _CONFIG, "1200-1216")],
    unknown=NOTED,
    about=[HF],
    fixes=[put_paths({HF: False}, gives_up="the export to Hugging Face's format beside each checkpoint")],
)
def bridge_hf_export_fits(view: View) -> Check:
    """What it checks: `also_save_hf_checkpoint` with `fsdp_dtensor` or local checkpoints, or without a source of the
    model's Hugging Face files.

    Why: the export gathers full weights and copies configuration and tokenizer; Bridge raises ValueError.

    Example: `checkpoint.also_save_hf_checkpoint=true checkpoint.ckpt_format=fsdp_dtensor`

    Fix: `ckpt_format=torch_dist`, `checkpoint.hf_source_path=…`; or export after the run.
    """
    sources = ("checkpoint.hf_source_path", "model.hf_model_id", "tokenizer.tokenizer_model")
    return violated_by(
        [
            (view[FORMAT] == "fsdp_dtensor", "the export with `ckpt_format` fsdp_dtensor"),
            (view[NON_PERSISTENT] == "local", "the export with local non-persistent checkpoints"),
            (~any_of(view[path].on for path in sources), "the export without a source of Hugging Face files"),
        ],
        when=view[HF].on,
        expected="ckpt_format = torch_dist, hf_source_path set",
    )


@rule(
    "EPO930",
    "bridge-peft-needs-pretrained-checkpoint",
    ERROR,
    enforced=[bridge()],
    source=[megatron_bridge("main", _CONFIG, "1626-1627"), megatron_bridge("0.2.0", _CONFIG, "1343-1344")],
    unknown=NOTED,
    about=["peft.scheme"],
    fixes=[put_paths({"peft.scheme": None}, gives_up="adapters: all weights are trained")],
)
def bridge_peft_needs_pretrained_checkpoint(view: View) -> Check:
    """What it checks: LoRA or another adapter without `checkpoint.pretrained_checkpoint`.

    Why: adapters are put on weights that exist; `ConfigContainer.validate` asserts the path. A recipe's null waits for
    the path of whoever runs it.

    Example: `peft: {_target_: megatron.bridge.peft.lora.LoRA}` without the path

    Fix: `checkpoint.pretrained_checkpoint=/checkpoints/model`.
    """
    missing = view[PRETRAINED].unset
    awaited = Truth(None, frozenset([PRETRAINED]))
    return violated(
        view["peft.scheme"].is_set & missing & (view.complete | awaited),
        f"`peft` is {view['peft.scheme']} without `pretrained_checkpoint`",
        expected="checkpoint.pretrained_checkpoint set",
    )


@rule(
    "EPO932",
    "bridge-fsdp-limits",
    ERROR,
    enforced=[bridge("<0.5", guarded=False), bridge(">=0.5", guarded=True)],
    source=[
        megatron_bridge("main", _CONFIG, "1113-1124"),
        megatron_bridge("main", _CONFIG, "1480-1482"),
        megatron_bridge("0.2.0", _CONFIG, "1234-1243"),
    ],
    unknown=NOTED,
    about=[MEGATRON_FSDP, OTHER_FLAG],
    fixes=[
        put_paths({TORCH_FSDP2: False, MAPPING: False, HASHES: None, REGISTERED: False}, gives_up="the other option"),
        _NO_FSDP,
    ],
)
def bridge_fsdp_limits(view: View, *, guarded: bool) -> Check:
    """What it checks: Megatron-FSDP with torch FSDP2 or `use_tp_pp_dp_mapping`; from Bridge 0.5 also with
    `fsdp_manual_registration` without `nccl_ub`, or with a check of weight hashes over fully sharded parameters.

    Why: `ConfigContainer.validate` refuses each.

    Example: `ddp.use_megatron_fsdp=true dist.use_tp_pp_dp_mapping=true`

    Fix: leave the other one out.
    """
    guards: Truth = TRUE if guarded else FALSE
    whole = view["ddp.data_parallel_sharding_strategy"] == "optim_grads_params"
    return violated_by(
        [
            (view[TORCH_FSDP2].on, "Megatron-FSDP with torch FSDP2"),
            (view[MAPPING].on, "Megatron-FSDP with `use_tp_pp_dp_mapping`"),
            (
                guards & view[REGISTERED].on & view["ddp.nccl_ub"].off,
                "`fsdp_manual_registration` is on without `nccl_ub`",
            ),
            (
                guards & whole & view[HASHES].is_set,
                "weight hashes are compared over ranks, which hold different shards",
            ),
        ],
        when=view[MEGATRON_FSDP].on,
        expected="Megatron-FSDP alone",
    )


@rule(
    "EPO933",
    "bridge-fsdp-v2-excludes-model-parallelism",
    ERROR,
    enforced=[bridge(">=0.7")],
    source=megatron_bridge("main", _CONFIG, "1126-1188"),
    unknown=NOTED,
    about=[VERSION],
    fixes=[put_paths({VERSION: 1}, gives_up="the second version of Megatron-FSDP"), _NO_FSDP],
)
def bridge_fsdp_v2_excludes_model_parallelism(view: View) -> Check:
    """What it checks: the second version of Megatron-FSDP with experts or any model parallelism, or with a checkpoint.

    Why: Bridge raises ValueError; that version trains dense models by data parallelism, so that EP overlap cannot run.

    Example: `ddp.use_megatron_fsdp=true ddp.megatron_fsdp_version=2` in an MoE model

    Fix: `megatron_fsdp_version=1`.
    """
    names = ("tensor", "pipeline", "context", "expert")
    sizes = {name: view[f"model.{name}{'' if name == 'context' else '_model'}_parallel_size"] for name in names}
    return violated_by(
        [
            (view["model.num_moe_experts"].is_set, "the second version of Megatron-FSDP in an MoE model"),
            *((size > 1, f"{name} parallel size {size}") for name, size in sizes.items()),
            (any_of(view[path].is_set for path in (SAVE, LOAD, PRETRAINED)), "a checkpoint is saved or loaded"),
        ],
        when=view[MEGATRON_FSDP].on & (view[VERSION] == 2),
        expected="megatron_fsdp_version = 1",
    )


@rule(
    "EPO934",
    "bridge-process-groups-fit",
    ERROR,
    enforced=[
        bridge("<0.3", decentral=False, levels=False, formats=("torch_dist",)),
        bridge(">=0.3,<0.4", decentral=True, levels=False, formats=("torch_dist",)),
        bridge(">=0.4,<0.5", decentral=True, levels=True, formats=("torch_dist",)),
        bridge(">=0.5", decentral=True, levels=True, formats=("torch_dist", "fsdp_dtensor")),
    ],
    source=[
        megatron_bridge("main", _CONFIG, "1550-1565"),
        megatron_bridge("main", "training/initialize.py", "407-416"),
        megatron_bridge("0.2.0", _CONFIG, "1292-1299"),
    ],
    unknown=NOTED,
    about=[GLOO, DECENTRALIZED],
    fixes=[
        put_paths({DECENTRALIZED: False, GLOO: True}, gives_up="process groups of the run's own"),
        put_paths({GLOO: False, FORMAT: "torch_dist", LEVELS: None}, gives_up="checkpoints in the other format"),
    ],
)
def bridge_process_groups_fit(view: View, *, decentral: bool, levels: bool, formats: tuple[str, ...]) -> Check:
    """What it checks: decentralised process groups beside Gloo's, which are on by default, or from Bridge 0.4 with
    levels of context parallelism; without Gloo's, the distributed optimizer with checkpoints that are no distributed
    ones.

    Why: decentralised groups are NCCL's alone, and the old formats gather the optimizer's state over Gloo; Bridge
    asserts them.

    Example: `dist.use_decentralized_pg=true` alone

    Fix: `dist.use_gloo_process_groups=false` with it.
    """
    groups = view[DECENTRALIZED].on if decentral else FALSE
    nested = view[LEVELS].is_set if levels else FALSE
    form = view[FORMAT]
    return violated_by(
        [
            (groups & view[GLOO].on, "`use_decentralized_pg` is on with Gloo's process groups"),
            (groups & nested, "`use_decentralized_pg` is on with levels of context parallelism"),
            (
                view[GLOO].off & view["ddp.use_distributed_optimizer"].on & ~form.one_of(*formats),
                f"`ckpt_format` is {form}, which saves the distributed optimizer over Gloo's groups",
            ),
        ],
        expected="use_gloo_process_groups = false with use_decentralized_pg",
    )
