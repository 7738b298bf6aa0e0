"""EPO2xx: delayed weight gradients, and what they ask of Transformer Engine, DDP and CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    MET,
    NOTED,
    WARNING,
    bridge,
    core,
    evidence,
    megatron_lm,
    put,
    put_paths,
    rule,
    run_time,
    violated,
)
from ep_overlap_mcp.rules.remedies import no_delayed_wgrad
from ep_overlap_mcp.rules.sources import arguments, bridge_setup, core_config, megatron
from ep_overlap_mcp.rules.truth import FALSE
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_SWITCH

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import View


@rule(
    "EPO201",
    "delayed-wgrad-needs-overlap",
    ERROR,
    enforced=[core(">=0.14"), bridge()],
    source=[core_config("0.16.1", "1909-1911"), bridge_setup("main", "532-535")],
    fixes=[no_delayed_wgrad(), put_paths({MODEL_SWITCH: True}, gives_up="the plain schedule: overlap is switched on")],
)
def delayed_wgrad_needs_overlap(view: View) -> Check:
    """What it checks: `delay_wgrad_compute` without EP overlap.

    Why: the weight gradients are delayed into slots of the combined schedule; without it nothing would compute them.
    Megatron-Core asserts it.

    Example: `--delay-wgrad-compute` without `--overlap-moe-expert-parallel-comm`

    Fix: switch delayed weight gradients off, or overlap on.
    """
    return violated(
        view.delay & ~view.overlap & ~_reset_by_bridge(view),
        "`delay_wgrad_compute` is on without EP overlap",
        expected="overlap_moe_expert_parallel_comm=true with delay_wgrad_compute",
    )


@rule(
    "EPO202",
    "bridge-delay-needs-comm-overlap-flag",
    ERROR,
    enforced=[bridge()],
    source=[bridge_setup("main", "532-535"), bridge_setup("main", "588-592"), core_config("main", "3074-3077")],
    fixes=[put_paths({BRIDGE_SWITCH: True}), no_delayed_wgrad()],
)
def bridge_delay_needs_comm_overlap_flag(view: View) -> Check:
    """What it checks: in Bridge, delayed weight gradients are asked for in `comm_overlap` and EP overlap only in
    `model`.

    Why: Bridge's own check accepts the model's flag, then `CommOverlapConfig.setup` writes its own unset field over it
    as False, and Megatron-Core rejects delayed weight gradients without overlap.

    Example: `model.overlap_moe_expert_parallel_comm=true comm_overlap.delay_wgrad_compute=true`

    Fix: `comm_overlap.overlap_moe_expert_parallel_comm=true`.
    """
    return violated(
        view.delay & _reset_by_bridge(view),
        "`comm_overlap.delay_wgrad_compute` is on while EP overlap is asked for in `model` only, which Bridge resets",
        expected="comm_overlap.overlap_moe_expert_parallel_comm=true",
    )


@rule(
    "EPO203",
    "delayed-wgrad-needs-te-2-3",
    ERROR,
    enforced=[run_time(">=0.14")],
    unknown=MET,
    source=megatron("0.16.1", "core/extensions/transformer_engine.py", "525-529"),
    fixes=[no_delayed_wgrad()],
)
def delayed_wgrad_needs_te_2_3(view: View) -> Check:
    """What it checks: delayed weight gradients with Transformer Engine before 2.3, or without it.

    Why: its linear layers learned to keep the weight gradient for later in 2.3; building them raises RuntimeError.

    Example: `--delay-wgrad-compute` with Transformer Engine 2.2

    Fix: upgrade Transformer Engine, or switch delayed weight gradients off.
    """
    return violated(
        view.delay & view.te.below("2.3"),
        f"Transformer Engine is {view.te}; delayed weight gradients need 2.3",
        expected="transformer-engine >= 2.3",
    )


@rule(
    "EPO204",
    "delayed-wgrad-with-grad-reduce-needs-te",
    ERROR,
    enforced=[
        megatron_lm("<0.15", floor="2.7"),
        megatron_lm(">=0.15", floor="2.8"),
        bridge(floor="2.7", at_setup=True),
    ],
    source=[arguments("0.14.0", "1083-1086"), arguments("0.16.1", "1212-1215"), bridge_setup("main", "521-525")],
    fixes=[no_delayed_wgrad()],
)
def delayed_wgrad_with_grad_reduce_needs_te(view: View, *, floor: str, at_setup: bool = False) -> Check:
    """What it checks: delayed weight gradients with overlapped gradient reduction and an older Transformer Engine.

    Why: the reduction must wait for the delayed gradient, for which newer versions tell DDP when it is there.
    Megatron-LM asks for 2.8 (2.7 in 0.14), Bridge for 2.7.

    Example: `--delay-wgrad-compute --overlap-grad-reduce` with Transformer Engine 2.7 on Megatron-LM

    Fix: upgrade Transformer Engine, or switch delayed weight gradients off.
    """
    return violated(
        delays(view, at_setup=at_setup) & reduces_overlapped(view, at_setup=at_setup) & view.te.below(floor),
        f"Transformer Engine is {view.te}; delayed weight gradients with overlapped gradient reduction need {floor}",
        expected=f"transformer-engine >= {floor}",
    )


@rule(
    "EPO205",
    "delayed-wgrad-fusion-needs-te",
    ERROR,
    enforced=[megatron_lm(">=0.14", fused=False), bridge(fused=True)],
    source=[arguments("0.16.1", "1216-1220"), bridge_setup("main", "526-530")],
    fixes=[no_delayed_wgrad()],
)
def delayed_wgrad_fusion_needs_te(view: View, *, fused: bool) -> Check:
    """What it checks: delayed weight gradients with Transformer Engine before 2.7, without gradient accumulation
    fusion in Megatron-LM, with it in Bridge.

    Why: the two frameworks guard opposite sides. Transformer Engine's own source speaks for Megatron-LM's: before 2.8
    the unfused path drops gradients.

    Example: `--delay-wgrad-compute --no-gradient-accumulation-fusion` with Transformer Engine 2.6

    Fix: upgrade Transformer Engine, or switch delayed weight gradients off.
    """
    fusion = view["model.gradient_accumulation_fusion"]
    return violated(
        delays(view, at_setup=fused) & (fusion.on if fused else fusion.off) & view.te.below("2.7"),
        f"Transformer Engine is {view.te} and `gradient_accumulation_fusion` is {fusion}; delayed weight gradients "
        "then need 2.7",
        expected="transformer-engine >= 2.7",
    )


@rule(
    "EPO206",
    "delayed-wgrad-needs-transformer-engine",
    ERROR,
    enforced=[megatron_lm(">=0.14")],
    source=[arguments("0.16.1", "1210-1211"), arguments("main", "1904-1905")],
    fixes=[put(transformer_impl="transformer_engine", gives_up="the local layers"), no_delayed_wgrad()],
)
def delayed_wgrad_needs_transformer_engine(view: View) -> Check:
    """What it checks: delayed weight gradients with another `transformer_impl` than `transformer_engine`.

    Why: only Transformer Engine's layers keep the weight gradient for later; Megatron-LM asserts it.

    Example: `--delay-wgrad-compute --transformer-impl local`

    Fix: `--transformer-impl transformer_engine`, or switch delayed weight gradients off.
    """
    layers = view["model.transformer_impl"]
    return violated(
        view.delay & (layers != "transformer_engine"),
        f"`transformer_impl` is {layers}; delayed weight gradients need transformer_engine",
        expected="transformer_impl=transformer_engine",
    )


@rule(
    "EPO207",
    "delayed-wgrad-excludes-legacy-grouped-gemm",
    ERROR,
    enforced=[core(">=0.14,<0.17"), bridge("<0.4")],
    source=[core_config("0.16.1", "1912-1915"), bridge_setup("0.3.0", "508-512")],
    fixes=[put(moe_use_legacy_grouped_gemm=False), no_delayed_wgrad()],
)
def delayed_wgrad_excludes_legacy_grouped_gemm(view: View) -> Check:
    """What it checks: delayed weight gradients with `moe_use_legacy_grouped_gemm`.

    Why: the legacy experts compute their weight gradient at once; Megatron-Core asserts it until 0.17 removes them.

    Example: `--delay-wgrad-compute --moe-use-legacy-grouped-gemm`

    Fix: remove the legacy flag.
    """
    return violated(
        view.delay & view["model.moe_use_legacy_grouped_gemm"].on,
        "`moe_use_legacy_grouped_gemm` is on with delayed weight gradients",
        expected="moe_use_legacy_grouped_gemm=false",
    )


@rule(
    "EPO208",
    "te-graph-with-delayed-wgrad-needs-te-2-10",
    ERROR,
    enforced=[core(">=0.16")],
    source=[core_config("0.16.1", "1916-1920"), core_config("main", "3078-3082")],
    fixes=[no_delayed_wgrad()],
)
def te_graph_with_delayed_wgrad_needs_te_2_10(view: View) -> Check:
    """What it checks: delayed weight gradients with `cuda_graph_impl=transformer_engine` and Transformer Engine before
    2.10, whatever the graph's modules.

    Why: its graphs capture the weight gradient apart since 2.10; Megatron-Core asserts it.

    Example: `--delay-wgrad-compute --cuda-graph-impl transformer_engine --cuda-graph-scope attn` with 2.9

    Fix: upgrade Transformer Engine, or switch one of the two off.
    """
    graphs = view["model.cuda_graph_impl"] == "transformer_engine"
    return violated(
        view.delay & graphs & view.te.below("2.10"),
        f"Transformer Engine is {view.te}; its CUDA graphs with delayed weight gradients need 2.10",
        expected="transformer-engine >= 2.10",
    )


@rule(
    "EPO212",
    "delayed-wgrad-excludes-tp-bulk-wgrad",
    ERROR,
    enforced=[run_time(">=0.14")],
    source=[
        megatron("0.16.1", "core/extensions/transformer_engine.py", "781-800"),
        "NVIDIA/TransformerEngine@v2.12:transformer_engine/pytorch/module/_common.py:206-207",
    ],
    fixes=[put(tp_comm_bulk_wgrad=False), no_delayed_wgrad()],
)
def delayed_wgrad_excludes_tp_bulk_wgrad(view: View) -> Check:
    """What it checks: delayed weight gradients with tensor-parallel overlap of bulk weight gradients, on by default.

    Why: Transformer Engine asserts that a weight gradient is not both delayed and used to hide tensor-parallel
    communication; building the first layer fails.

    Example: `--delay-wgrad-compute --tp-comm-overlap --tensor-model-parallel-size 2 --sequence-parallel`

    Fix: `tp_comm_bulk_wgrad=false` (`--disable-tp-comm-bulk-wgrad`).
    """
    tp, overlapped = view["model.tensor_model_parallel_size"], view["model.tp_comm_overlap"]
    bulk = view["model.tp_comm_bulk_wgrad"]
    return violated(
        view.delay & (tp > 1) & overlapped.on & bulk.on,
        f"`tp_comm_bulk_wgrad` is {bulk} with `tp_comm_overlap` at `tensor_model_parallel_size` {tp}",
        expected="tp_comm_bulk_wgrad=false",
    )


@rule(
    "EPO213",
    "delayed-wgrad-needs-ddp-flag",
    WARNING,
    enforced=[evidence(on=("bridge",))],
    source=[
        bridge_setup("main", "634-643"),
        megatron("main", "core/distributed/distributed_data_parallel.py", "440-455"),
    ],
    fixes=[put_paths({"ddp.use_distributed_optimizer": True}, gives_up="the plain optimizer"), no_delayed_wgrad()],
)
def delayed_wgrad_needs_ddp_flag(view: View) -> Check:
    """What it checks: in Bridge, delayed weight gradients are on in the model and `ddp.delay_wgrad_compute` is not.

    Why: only with that flag does DDP hook the reduction to the delayed gradient. Bridge sets it with the distributed
    optimizer and through `comm_overlap` only; otherwise a reduction may start before its gradient exists.

    Example: `comm_overlap.delay_wgrad_compute=true ddp.use_distributed_optimizer=false`

    Fix: use the distributed optimizer and `comm_overlap.delay_wgrad_compute`.
    """
    carried = view["ddp.delay_wgrad_compute"]
    return violated(
        view.delay & carried.off,
        f"`ddp.delay_wgrad_compute` is {carried} while the model delays its weight gradients",
        expected="ddp.delay_wgrad_compute=true, by way of comm_overlap and the distributed optimizer",
    )


@rule(
    "EPO214",
    "delayed-wgrad-hooks-need-te-2-7",
    WARNING,
    enforced=[evidence(on=("megatron-core",)), evidence(on=("bridge",), by_default=True)],
    source=[
        bridge_setup("main", "578-586"),
        megatron("main", "core/distributed/distributed_data_parallel.py", "440-455"),
    ],
    fixes=[no_delayed_wgrad()],
)
def delayed_wgrad_hooks_need_te_2_7(view: View, *, by_default: bool = False) -> Check:
    """What it checks: delayed weight gradients with gradient reduction that overlaps where no layer checks the
    version: with Megatron-Core alone, or because Bridge turns it on by itself; and Transformer Engine before 2.7.

    Why: DDP can tell a delayed parameter from 2.7 on. Bridge checks the version before it sets
    `ddp.overlap_grad_reduce`, which it does with the distributed optimizer and more than one data-parallel rank.

    Example: `comm_overlap.delay_wgrad_compute=true` with Transformer Engine 2.5 and `overlap_grad_reduce` unset

    Fix: upgrade Transformer Engine, or switch delayed weight gradients off.
    """
    reduces = view["ddp.overlap_grad_reduce"].on
    if by_default:
        unset = view["comm_overlap.overlap_grad_reduce"].unset & view.requested("ddp.overlap_grad_reduce").off
        reduces = unset & view["ddp.use_distributed_optimizer"].on
    return violated(
        view.delay & reduces & view.te.below("2.7"),
        f"Transformer Engine is {view.te}; gradient reduction overlaps unchecked, and its hooks need 2.7",
        expected="transformer-engine >= 2.7",
    )


@rule(
    "EPO215",
    "delayed-wgrad-drops-unfused-grads",
    WARNING,
    enforced=[evidence(">=0.14")],
    source="NVIDIA/TransformerEngine@v2.7:transformer_engine/pytorch/module/base.py:backward_dw",
    fixes=[put(gradient_accumulation_fusion=True)],
)
def delayed_wgrad_drops_unfused_grads(view: View) -> Check:
    """What it checks: delayed weight gradients without gradient accumulation fusion, on Transformer Engine 2.3 to 2.7
    or with tied embeddings.

    Why: those versions store a delayed gradient only where none is there yet, and drop it otherwise. With tied weights
    too small gradients are reported for newer ones as well.

    Example: `gradient_accumulation_fusion: false` with `delay_wgrad_compute: true` on Transformer Engine 2.7

    Fix: `gradient_accumulation_fusion=true`.
    """
    fusion = view["model.gradient_accumulation_fusion"]
    drops = view.te.at_least("2.3") & view.te.below("2.8")
    untied = view["args.untie_embeddings_and_output_weights"]
    tied = untied.off if view.framework == "megatron-lm" else FALSE
    return violated(
        view.delay & fusion.off & (drops | tied),
        f"`gradient_accumulation_fusion` is {fusion} with delayed weight gradients",
        expected="gradient_accumulation_fusion=true",
    )


@rule(
    "EPO216",
    "delayed-wgrad-with-fp8-bias",
    WARNING,
    enforced=[evidence(">=0.14")],
    source="NVIDIA/TransformerEngine@v2.7:transformer_engine/pytorch/module/base.py:backward_dw",
    fixes=[no_delayed_wgrad()],
)
def delayed_wgrad_with_fp8_bias(view: View) -> Check:
    """What it checks: delayed weight gradients with FP8 and biases in the linear layers.

    Why: a crash in the delayed backward is reported ("'NoneType' object has no attribute 'to'"); from which to which
    version of Transformer Engine is not established.

    Example: `--delay-wgrad-compute --fp8-format hybrid --add-qkv-bias`

    Fix: switch delayed weight gradients off, or try one step before a long run.
    """
    bias, qkv_bias = view["model.add_bias_linear"], view["model.add_qkv_bias"]
    return violated(
        view.delay & view["model.fp8"].on & (bias.on | qkv_bias.on),
        f"`add_bias_linear` is {bias} and `add_qkv_bias` is {qkv_bias} with FP8 and delayed weight gradients",
        expected="no bias, no FP8 or no delayed weight gradients",
    )


@rule(
    "EPO226",
    "transformer-engine-layers-need-te",
    ERROR,
    enforced=[run_time(on=("megatron-lm", "bridge"))],
    unknown=NOTED,
    source=megatron("0.16.1", "core/models/gpt/gpt_layer_specs.py", "222-223"),
)
def transformer_engine_layers_need_te(view: View) -> Check:
    """What it checks: `transformer_impl` is `transformer_engine`, the default, and Transformer Engine is absent.

    Why: the layer specification names Transformer Engine's modules; building the model ends in a NameError or an
    ImportError.

    Example: a container without Transformer Engine and no `--transformer-impl local`

    Fix: install Transformer Engine; `transformer_impl=local` is another implementation of the layers.
    """
    implementation = view["model.transformer_impl"]
    return violated(
        (implementation == "transformer_engine") & view.te.absent,
        "`transformer_impl` is transformer_engine, and Transformer Engine is not installed",
        expected="Transformer Engine installed",
    )


@rule(
    "EPO217",
    "fsdp-v2-excludes-delayed-wgrad",
    ERROR,
    enforced=[run_time(">=0.20,!dev")],
    source=megatron("main", "core/distributed/fsdp/mcore_fsdp_adapter.py", "690-691"),
    fixes=[no_delayed_wgrad()],
)
def fsdp_v2_excludes_delayed_wgrad(view: View) -> Check:
    """What it checks: Megatron-FSDP version 2 with `ddp.delay_wgrad_compute`.

    Why: its reduction hooks do not wait for a delayed gradient; the adapter raises ValueError.

    Example: `--use-megatron-fsdp --megatron-fsdp-version 2 --delay-wgrad-compute`

    Fix: switch delayed weight gradients off.
    """
    version = view["ddp.megatron_fsdp_version"]
    return violated(
        view["ddp.use_megatron_fsdp"].on & (version == 2) & view["ddp.delay_wgrad_compute"].on,
        f"`megatron_fsdp_version` is {version} with `ddp.delay_wgrad_compute`",
        expected="delay_wgrad_compute=false",
    )


def _reset_by_bridge(view: View) -> Truth:
    """Whether overlap is asked for in the model only and Bridge writes over it."""
    if view.framework != "bridge":
        return FALSE
    return view[BRIDGE_DELAY].on & ~view[BRIDGE_SWITCH].on & view.requested(MODEL_SWITCH).on


def delays(view: View, *, at_setup: bool) -> Truth:
    """Delayed weight gradients as Bridge's setup sees them, or as the model runs with them."""
    return view[BRIDGE_DELAY].on if at_setup else view.delay


def reduces_overlapped(view: View, *, at_setup: bool) -> Truth:
    """Whether gradient reduction overlaps; Bridge's setup looks before it turns it on itself."""
    if at_setup:
        return view.requested("ddp.overlap_grad_reduce").on | view["comm_overlap.overlap_grad_reduce"].on
    return view["ddp.overlap_grad_reduce"].on
