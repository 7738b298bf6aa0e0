"""EPO701-705, 720, 722, 724: what Bridge's setup and harness, verl and Primus do with the switch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    INFO,
    WARNING,
    bridge,
    evidence,
    put_paths,
    rule,
    violated,
)
from ep_overlap_mcp.rules.environment import HELPER, splits_layers
from ep_overlap_mcp.rules.sources import bridge_setup, megatron_bridge
from ep_overlap_mcp.rules.truth import Truth, truth
from ep_overlap_mcp.settings.request import BRIDGE_SWITCH, MODEL_SWITCH

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

HARNESS = "bridge.moe_a2a_overlap"
OVERRIDES = "NVIDIA-NeMo/Megatron-Bridge@067f987df:scripts/performance/utils/overrides.py:"


@rule(
    "EPO701",
    "bridge-needs-comm-overlap-flag",
    WARNING,
    enforced=[bridge()],
    source=[bridge_setup("main", "432-463"), bridge_setup("main", "585-603")],
    fixes=[put_paths({BRIDGE_SWITCH: True})],
)
def bridge_needs_comm_overlap_flag(view: View) -> Check:
    """What it checks: the model's own switch is on and `comm_overlap` resets it.

    Why: where a `comm_overlap` object exists, Bridge's setup writes its value over the model's flag, also when it is
    unset. Training runs without overlap and nothing is logged.

    Example: `model.overlap_moe_expert_parallel_comm=True` and `comm_overlap=CommOverlapConfig(tp_comm_overlap=False)`

    Fix: `comm_overlap.overlap_moe_expert_parallel_comm=True`.
    """
    wished = view[BRIDGE_SWITCH]
    reset = view.requested(MODEL_SWITCH).on & view[MODEL_SWITCH].off & view.requested(BRIDGE_SWITCH).off
    return violated(
        reset,
        f"`model.overlap_moe_expert_parallel_comm` is on, but `comm_overlap` ({wished}) resets it to false",
        expected="comm_overlap.overlap_moe_expert_parallel_comm = true",
    )


@rule(
    "EPO702",
    "harness-flag-brings-delayed-wgrad",
    INFO,
    enforced=[bridge(">=0.3")],
    source=OVERRIDES + "189-199",
)
def harness_flag_brings_delayed_wgrad(view: View) -> Check:
    """What it checks: the performance harness is asked for `--moe_a2a_overlap true`.

    Why: it also turns on `delay_wgrad_compute`, with all its conditions, and turns shared-expert overlap off.

    Example: `--moe_a2a_overlap true`

    Fix: nothing is wrong; `comm_overlap.delay_wgrad_compute=false` keeps plain overlap.
    """
    return violated(
        view[HARNESS] == True,  # noqa: E712
        "--moe_a2a_overlap true also sets `delay_wgrad_compute` on and `moe_shared_expert_overlap` off",
    )


@rule(
    "EPO703",
    "harness-false-does-not-disable",
    WARNING,
    enforced=[bridge(">=0.3")],
    source=OVERRIDES + "189-199",
    fixes=[put_paths({BRIDGE_SWITCH: False}, gives_up="EP overlap")],
)
def harness_false_does_not_disable(view: View) -> Check:
    """What it checks: `--moe_a2a_overlap false` while a recipe or an override turns overlap on.

    Why: false only means that the harness adds nothing; overlap stays on, and an A/B compares a run with itself.

    Example: `--moe_a2a_overlap false comm_overlap.overlap_moe_expert_parallel_comm=true`

    Fix: `comm_overlap.overlap_moe_expert_parallel_comm=false`.
    """
    return violated(
        (view[HARNESS] == False) & view.overlap,  # noqa: E712
        "--moe_a2a_overlap false does not turn overlap off; `comm_overlap` keeps it on",
        expected="comm_overlap.overlap_moe_expert_parallel_comm = false",
    )


@rule(
    "EPO704",
    "harness-false-sets-one-connection",
    WARNING,
    enforced=[bridge(">=0.3")],
    source=OVERRIDES + "248-263",
    fixes=[put_paths({"env.CUDA_DEVICE_MAX_CONNECTIONS": 32})],
)
def harness_false_sets_one_connection(view: View) -> Check:
    """What it checks: `--moe_a2a_overlap false` on Hopper with tensor or context parallelism, while overlap is on.

    Why: the harness takes false at its word when it chooses `CUDA_DEVICE_MAX_CONNECTIONS` and sets 1, which lines up
    the streams that overlap needs side by side.

    Example: `--moe_a2a_overlap false` on H100 with TP 2 and overlap from the recipe

    Fix: `env_vars.CUDA_DEVICE_MAX_CONNECTIONS=32`.
    """
    kept = ~view.written("env.CUDA_DEVICE_MAX_CONNECTIONS")
    return violated(
        (view[HARNESS] == False)  # noqa: E712
        & view.overlap
        & splits_layers(view)
        & kept
        & view.gpu_capability.test(lambda cc: cc[0] == 9),
        f"--moe_a2a_overlap false sets CUDA_DEVICE_MAX_CONNECTIONS=1 on {view.gpu_name}, though overlap is on",
        expected="CUDA_DEVICE_MAX_CONNECTIONS = 32",
    )


@rule(
    "EPO705",
    "packing-disables-overlap",
    WARNING,
    enforced=[bridge(">=0.7")],
    source=megatron_bridge("main", "training/config.py", "1218-1253"),
    fixes=[put_paths({"dataset.packing_buffer_size": None}, gives_up="packing in the data loader")],
)
def packing_disables_overlap(view: View) -> Check:
    """What it checks: overlap is asked for while the data set packs sequences itself (Energon), on Bridge main.

    Why: Bridge clears overlap and delayed weight gradients then; a warning is the only trace.

    Example: `dataset.packing_buffer_size=64` with overlap

    Fix: pack offline, or train without overlap.
    """
    return violated(
        view["dataset.packing_buffer_size"].on & view.overlap_requested,
        f"`packing_buffer_size` is {view['dataset.packing_buffer_size']}; Bridge clears EP overlap",
        expected="packing_buffer_size unset",
    )


@rule(
    "EPO720",
    "verl-needs-fused-kernels",
    ERROR,
    enforced=[evidence()],
    source="https://github.com/verl-project/verl/pull/3522",
    fixes=[put_paths({"verl.use_fused_kernels": True})],
)
def verl_needs_fused_kernels(view: View) -> Check:
    """What it checks: EP overlap in a verl actor whose fused kernels are off.

    Why: only verl's fused forward hands over the schedule plan that overlap asks for; the plain one fails at the
    first step, as reported when overlap was added there. Where a verl text does not say, its base files decide.

    Example: `actor_rollout_ref.model.use_fused_kernels=False`

    Fix: `actor_rollout_ref.model.use_fused_kernels=True`.
    """
    fused = view["verl.use_fused_kernels"]
    unsaid = fused.unset & truth(any(reading.dialect == "verl" for reading in view.request.readings))
    open_ = Truth(None, frozenset(["verl.use_fused_kernels"])) & unsaid
    return violated(
        view.overlap & ((fused == False) | open_),  # noqa: E712
        "`use_fused_kernels` is false; verl's overlap needs its fused forward",
        expected="use_fused_kernels = true",
    )


@rule(
    "EPO722",
    "flex-helper-without-effect",
    WARNING,
    enforced=[bridge(">=0.2")],
    source=megatron_bridge("main", "training/flex_dispatcher_backend.py", "33-85"),
    fixes=[put_paths({HELPER: "deepep"}), put_paths({HELPER: "hybridep"})],
)
def flex_helper_without_effect(view: View) -> Check:
    """What it checks: `apply_flex_dispatcher_backend` is called with a value it does not know, or for a dense model.

    Why: it then logs a line and leaves the configuration untouched; the run keeps its dispatcher.

    Example: `apply_flex_dispatcher_backend(cfg.model, None)`, also with `ncclep` or a misspelling

    Fix: pass `deepep` or `hybridep`.
    """
    backend, experts = view[HELPER], view["model.num_moe_experts"]
    dense = view.written("model.num_moe_experts") & experts.off
    return violated(
        view.written(HELPER) & (~backend.one_of("deepep", "hybridep") | dense),
        f"`apply_flex_dispatcher_backend` with {backend} and {experts} experts changes nothing",
        expected="deepep or hybridep, in a model with experts",
    )


@rule(
    "EPO724",
    "vendor-deepep-with-overlap",
    WARNING,
    enforced=[evidence()],
    source="https://github.com/AMD-AGI/Primus/pull/244",
    fixes=[put_paths({"primus.use_turbo_deepep": False}, gives_up="the vendor's dispatcher")],
)
def vendor_deepep_with_overlap(view: View) -> Check:
    """What it checks: EP overlap with Primus's own DeepEP dispatcher.

    Why: the combined schedule knows Megatron's dispatchers; a failure with this one has been reported.

    Example: `use_turbo_deepep: true` with overlap

    Fix: Megatron's own dispatcher.
    """
    return violated(
        view.overlap & view["primus.use_turbo_deepep"].on,
        "`use_turbo_deepep` replaces Megatron's dispatcher; EP overlap with it is reported to fail",
        expected="use_turbo_deepep = false",
    )
