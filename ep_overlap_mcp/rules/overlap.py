"""EPO1xx: what EP overlap itself asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules.engine import ERROR, NOTED, Fix, bridge, core, put, rule, run_time, violated
from ep_overlap_mcp.rules.remedies import (
    add_virtual_stages,
    drop_shared_expert_overlap,
    even_virtual_stages,
    many_virtual_stages,
    no_pipeline,
    split_stages,
    spread_experts,
)
from ep_overlap_mcp.rules.sources import bridge_setup, core_config, megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import any_of
from ep_overlap_mcp.settings.request import BRIDGE_SWITCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

VPP = "model.virtual_pipeline_model_parallel_size"


@rule(
    "EPO101",
    "needs-expert-parallelism",
    ERROR,
    enforced=[core(">=0.14"), bridge()],
    source=[core_config("0.16.1", "1863-1865"), bridge_setup("main", "479-481")],
    fixes=[spread_experts()],
)
def needs_expert_parallelism(view: View) -> Check:
    """What it checks: EP overlap is on and `expert_model_parallel_size` is 1.

    Why: without expert parallelism no token leaves its rank, so there is no all-to-all to hide. Megatron-Core
    asserts it when the configuration is built.

    Example: `--overlap-moe-expert-parallel-comm --expert-model-parallel-size 1`

    Fix: use an `expert_model_parallel_size` of 2 or more that divides the number of experts. It changes the layout
    of the experts over GPUs.
    """
    ep = view["model.expert_model_parallel_size"]
    return violated(
        view.overlap & (ep <= 1),
        f"`expert_model_parallel_size` is {ep}; EP overlap needs at least 2",
        expected="expert_model_parallel_size > 1",
    )


@rule(
    "EPO102",
    "needs-experts",
    ERROR,
    enforced=[core(), bridge(at_setup=True)],
    unknown=NOTED,
    source=[core_config("0.16.1", "1048-1049"), bridge_setup("main", "482-485")],
    fixes=[put(expert_model_parallel_size=1, gives_up="expert parallelism, and EP overlap with it")],
)
def needs_experts(view: View, *, at_setup: bool = False) -> Check:
    """What it checks: expert parallelism without experts. Bridge also refuses EP overlap with a single expert.

    Why: there is nothing to distribute. Megatron-Core and Megatron-LM reject EP > 1 with `num_moe_experts` unset;
    `CommOverlapConfig.setup` compares the number with 1 and breaks with TypeError when it is unset.

    Example: `--expert-model-parallel-size 8` without `--num-experts`

    Fix: give the number of experts, or set `expert_model_parallel_size=1` for a dense model.
    """
    experts, ep = view["model.num_moe_experts"], view["model.expert_model_parallel_size"]
    missing = experts.unset & (ep > 1)
    if at_setup:
        missing = view[BRIDGE_SWITCH].on & (experts.unset | (experts <= 1))
    return violated(
        missing,
        f"`num_moe_experts` is {experts} with `expert_model_parallel_size` {ep}",
        expected="num_moe_experts > 1",
    )


@rule(
    "EPO103",
    "dispatcher-alltoall-or-flex",
    ERROR,
    enforced=[core(">=0.14"), bridge()],
    source=[core_config("0.16.1", "1866-1869"), bridge_setup("main", "486-489")],
    fixes=[put(moe_token_dispatcher_type="alltoall")],
)
def dispatcher_alltoall_or_flex(view: View) -> Check:
    """What it checks: EP overlap is on and the token dispatcher is neither `alltoall` nor `flex`.

    Why: only these two dispatchers split dispatch and combine into the steps that the combined schedule interleaves.
    Megatron-Core's own default is `allgather`, so the switch alone, with nothing else written, fails.

    Example: `--overlap-moe-expert-parallel-comm` without `--moe-token-dispatcher-type`

    Fix: `moe_token_dispatcher_type=alltoall`, or `flex` with a backend that the GPU supports.
    """
    dispatcher = view["model.moe_token_dispatcher_type"]
    return violated(
        view.overlap & ~dispatcher.one_of("alltoall", "flex"),
        f"`moe_token_dispatcher_type` is {dispatcher}; EP overlap works with alltoall or flex",
        expected="moe_token_dispatcher_type in (alltoall, flex)",
    )


@rule(
    "EPO104",
    "pipeline-needs-virtual-stages",
    ERROR,
    enforced=[core(">=0.14"), bridge(at_setup=True)],
    source=[
        core_config("0.16.1", "1857-1861"),
        bridge_setup("main", "494-498"),
        megatron_bridge("main", "training/config.py", "2027-2032"),
        megatron_bridge("main", "models/transformer_config.py", "156-179"),
    ],
    fixes=[
        add_virtual_stages(),
        split_stages(),
        many_virtual_stages(),
        even_virtual_stages(),
        no_pipeline(),
    ],
)
def pipeline_needs_virtual_stages(view: View, *, at_setup: bool = False) -> Check:
    """What it checks: EP overlap is on, the pipeline has more than one stage and VPP is unset.

    Why: with a pipeline, overlap works in the interleaved schedule only, which virtual stages select. A layout of
    more than PP stages sets VPP by itself in Megatron-Core and on Megatron-LM's command line. It does not in Bridge:
    `CommOverlapConfig.setup` runs before the model is finalised and looks at the field as written. Megatron-LM turns
    a VPP of 1 into unset.

    Example: `--pipeline-model-parallel-size 4 --overlap-moe-expert-parallel-comm`

    Fix: `virtual_pipeline_model_parallel_size=2` or another number that divides the layers of a stage (in
    Megatron-LM `--num-virtual-stages-per-pipeline-rank 2`). Where no small number divides the layers of every stage,
    a pipeline layout of two virtual stages a rank.
    """
    switch = view[BRIDGE_SWITCH].on if at_setup else view.overlap
    pp = view["model.pipeline_model_parallel_size"]
    stages = view.requested(VPP) if at_setup else view[VPP]
    known_to = " when `CommOverlapConfig.setup` looks, before the layout counts" if at_setup else _works_out(view)
    return violated(
        switch & (pp > 1) & stages.unset,
        f"`pipeline_model_parallel_size` is {pp} and `virtual_pipeline_model_parallel_size` is unset{known_to}",
        expected="virtual_pipeline_model_parallel_size >= 2 (unless pipeline_model_parallel_size is 1)",
    )


def _works_out(view: View) -> str:
    """What was written to get virtual stages, where it comes to one, which counts as none."""
    names = (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "virtual_pipeline_model_parallel_size",
        "pipeline_model_parallel_layout",
    )
    written = [name for name in names if view.effective.requested(f"model.{name}").written]
    known = [name for name in written if view.effective.requested(f"model.{name}").value is not None]
    return f": `{known[0]}` works out to one, which counts as unset" if known else ""


@rule(
    "EPO109",
    "needs-half-precision",
    ERROR,
    enforced=[core(">=0.14"), bridge()],
    source=[core_config("0.16.1", "1881-1884"), bridge_setup("main", "490-492")],
    fixes=[put(bf16=True, gives_up="fp32 arithmetic: parameters and activations become bf16")],
)
def needs_half_precision(view: View) -> Check:
    """What it checks: EP overlap is on and the model is neither bf16 nor fp16.

    Why: the combined schedule is written for half-precision models; Megatron-Core asserts it.

    Example: `--overlap-moe-expert-parallel-comm` without `--bf16`

    Fix: `bf16=true`.
    """
    bf16, fp16 = view["model.bf16"], view["model.fp16"]
    return violated(
        view.overlap & bf16.off & fp16.off,
        f"`bf16` is {bf16} and `fp16` is {fp16}; EP overlap needs one of them",
        expected="bf16 or fp16",
    )


@rule(
    "EPO110",
    "no-shared-expert-overlap",
    ERROR,
    enforced=[core(">=0.14"), bridge()],
    source=[core_config("0.16.1", "1886-1888"), bridge_setup("main", "513-515")],
    fixes=[drop_shared_expert_overlap()],
)
def no_shared_expert_overlap(view: View) -> Check:
    """What it checks: EP overlap is on together with `moe_shared_expert_overlap`.

    Why: both want the time of the all-to-all: one fills it with the shared expert, the other with another
    microbatch. Megatron-Core asserts that the flag is off, also for models without shared experts.

    Example: `--overlap-moe-expert-parallel-comm --moe-shared-expert-overlap`

    Fix: `moe_shared_expert_overlap=false`. Shared experts themselves stay; the schedule runs them as compute.
    """
    shared = view["model.moe_shared_expert_overlap"]
    return violated(
        view.overlap & shared.on,
        f"`moe_shared_expert_overlap` is {shared}; EP overlap excludes it",
        expected="moe_shared_expert_overlap=false",
    )


@rule(
    "EPO113",
    "early-attention-release-needs-overlap",
    ERROR,
    enforced=[core(">=0.16")],
    source=core_config("0.16.1", "1922-1926"),
    fixes=[put(ep_overlap_early_attn_memory_release=False)],
)
def early_attention_release_needs_overlap(view: View) -> Check:
    """What it checks: `ep_overlap_early_attn_memory_release` without EP overlap.

    Why: the flag reorders the combined schedule, which does not run without overlap; Megatron-Core asserts it.

    Example: `--ep-overlap-early-attn-memory-release`

    Fix: remove the flag, or switch EP overlap on.
    """
    early = view["model.ep_overlap_early_attn_memory_release"]
    return violated(
        early.on & ~view.overlap,
        "`ep_overlap_early_attn_memory_release` is on without EP overlap",
        expected="ep_overlap_early_attn_memory_release=false",
    )


@rule(
    "EPO114",
    "only-gpt-models-overlap",
    ERROR,
    enforced=[run_time(">=0.14")],
    unknown=NOTED,
    source=[
        megatron("0.16.1", "core/models/gpt/gpt_model.py", "739"),
        megatron("0.16.1", "core/pipeline_parallel/combined_1f1b.py", "329-340"),
    ],
    fixes=[Fix(lambda view: _no_legacy_models(view), gives_up="the legacy model classes")],  # noqa: PLW0108
)
def only_gpt_models_overlap(view: View) -> Check:
    """What it checks: EP overlap is on for a model class that cannot plan its schedule.

    Why: the schedule asks the model for `build_schedule_plan`, which only `GPTModel` has. Hybrid and Mamba models,
    T5, BERT, LLaVA, the vision-language wrappers and the legacy classes fail in the first training step.

    Example: `--hybrid-layer-pattern "M-M*-" --overlap-moe-expert-parallel-comm`

    Fix: run such a model without EP overlap.
    """
    hybrid = any_of(view.written(path) & view[path].on for path in (*_HYBRID, _LEGACY))
    other = view.written("model.provider") & view["model.provider"].test(_plans_nothing)
    return violated(
        view.overlap & (hybrid | other),
        f"the model is {_named(view)}; only GPT models build the schedule plan that EP overlap runs",
        expected="a GPT model",
    )


@rule(
    "EPO115",
    "forward-step-must-return-plan",
    ERROR,
    enforced=[run_time(">=0.14")],
    unknown=NOTED,
    source=[
        megatron("0.16.1", "core/pipeline_parallel/combined_1f1b.py", "341-350"),
        megatron_bridge("main", "training/megatron_mimo_step.py", "149-160"),
    ],
    fixes=[Fix(lambda view: _gpt_step(view), safe=False, gives_up="the inputs that the other step feeds")],  # noqa: PLW0108
)
def forward_step_must_return_plan(view: View) -> Check:
    """What it checks: EP overlap is on with a forward step that cannot return a schedule plan.

    Why: the schedule calls the step with `return_schedule_plan=True` and asserts that a plan comes back. Bridge's
    MIMO, audio, omni and vision-language steps do not return one; nor do those of Megatron-LM's `train_rl.py`,
    `examples/multimodal/train.py`, `examples/mimo/train.py` and `examples/post_training/modelopt/finetune.py`.

    Example: `--step_func vlm_step` with `comm_overlap.overlap_moe_expert_parallel_comm=true`

    Fix: use the GPT step with a text model, or switch EP overlap off.
    """
    step = view["bridge.forward_step"]
    return violated(
        view.overlap & step.test(_returns_no_plan),
        f"the forward step is `{step}`, which returns no schedule plan",
        expected="gpt_step",
    )


@rule(
    "EPO117",
    "overlap-field-needs-core-0-14",
    ERROR,
    enforced=[core("<0.14")],
    source=core_config("0.14.0", "1298-1338"),
)
def overlap_field_needs_core_0_14(view: View) -> Check:
    """What it checks: EP overlap is asked for on a megatron-core older than 0.14.

    Why: the field and the combined schedule came with 0.14.0; before, the configuration class does not know it.

    Example: `--overlap-moe-expert-parallel-comm` with megatron-core 0.13

    Fix: upgrade megatron-core.
    """
    return violated(
        view.overlap_requested,
        f"megatron-core {view.release.core.label} has no EP overlap",
        expected="megatron-core >= 0.14",
    )


@rule(
    "EPO118",
    "dispatch-backward-wgrad-excludes-overlap",
    ERROR,
    enforced=[core(">=0.18")],
    source=[core_config("0.18.2", "2464-2475"), core_config("main", "3084-3095")],
    fixes=[put(overlap_dispatch_backward_with_experts_wgrad=False)],
)
def dispatch_backward_wgrad_excludes_overlap(view: View) -> Check:
    """What it checks: `overlap_dispatch_backward_with_experts_wgrad` together with EP overlap, with delayed weight
    gradients, or with Transformer Engine older than 2.3.

    Why: it hides the backward of the dispatch under the experts' own weight gradients, an alternative to EP overlap
    that uses the same delayed computation; Megatron-Core asserts that only one of them is on.

    Example: `--overlap-dispatch-backward-with-experts-wgrad --overlap-moe-expert-parallel-comm`

    Fix: remove the flag.
    """
    flag = view["model.overlap_dispatch_backward_with_experts_wgrad"]
    return violated(
        flag.on & (view.overlap | view.delay | view.te.below("2.3")),
        "`overlap_dispatch_backward_with_experts_wgrad` is on; it excludes EP overlap and delayed wgrad and needs "
        "Transformer Engine 2.3",
        expected="overlap_dispatch_backward_with_experts_wgrad=false",
    )


_LEGACY = "args.use_legacy_models"
_HYBRID = ("model.is_hybrid_model", "model.hybrid_layer_pattern", "model.hybrid_override_pattern")
_STEPS_WITHOUT_PLAN = (
    "mimo", "audio_lm", "omni", "vlm", "llava", "qwen3_vl", "step37", "train_rl", "multimodal", "modelopt",
)  # fmt: skip
_MODELS_WITHOUT_PLAN = ("mamba", "hybrid", "t5", "bert", "llava", "vlm", "vision", "mimo", "omni")


def _plans_nothing(provider: Any) -> bool:
    name = str(provider)
    return "VL" in name or any(kind in name.lower() for kind in _MODELS_WITHOUT_PLAN)


def _returns_no_plan(step: Any) -> bool:
    return any(kind in str(step).lower() for kind in _STEPS_WITHOUT_PLAN)


def _gpt_step(view: View) -> Iterable[Mapping[str, str]]:
    """A step that can be named; a program of Megatron-LM is its own."""
    if view.framework != "megatron-lm":
        yield {"bridge.forward_step": "gpt_step"}


def _no_legacy_models(view: View) -> Iterable[Mapping[str, bool]]:
    if view.effective[_LEGACY].value is True:
        yield {_LEGACY: False}


def _named(view: View) -> str:
    provider = view["model.provider"]
    if provider.known and provider.raw:
        return f"`{provider}`"
    return "a legacy class" if view[_LEGACY].on.value else "hybrid"
