"""EPO401-407, 417, 428, 431, 432, 434, 444: which dispatcher and which flex backend carry the tokens.

What one backend asks for stands in `deepep`, `hybridep` and `ncclep`; capacity, routing and experts in `experts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    INFO,
    NOTED,
    WARNING,
    core,
    evidence,
    put,
    rule,
    run_time,
    violated,
)
from ep_overlap_mcp.rules.remedies import drop_shared_expert_overlap
from ep_overlap_mcp.rules.sources import core_config, megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View

DISPATCHER = "model.moe_token_dispatcher_type"
BACKEND = "model.moe_flex_dispatcher_backend"

_DEEPEP_ONLY = ("moe_deepep_num_sms",)
_HYBRIDEP_ONLY = (
    "moe_hybridep_num_sms",
    "moe_hybridep_num_sms_preprocessing",
    "moe_hybridep_num_blocks_permute",
    "moe_hybridep_num_blocks_unpermute",
    "moe_hybridep_pad_uneven_dispatch_inputs",
    "moe_permute_fusion_into_hybridep",
)


@rule(
    "EPO401",
    "deepep-flag-needs-flex",
    ERROR,
    enforced=[core()],
    source=core_config("0.16.1", "1063-1065"),
    fixes=[put(moe_enable_deepep=False), put(moe_token_dispatcher_type="flex")],
)
def deepep_flag_needs_flex(view: View) -> Check:
    """What it checks: `moe_enable_deepep` is on while the dispatcher is not `flex`.

    Why: DeepEP is a backend of the flex dispatcher; Megatron-Core raises ValueError.

    Example: `--moe-enable-deepep --moe-token-dispatcher-type alltoall`

    Fix: take `moe_token_dispatcher_type=flex`, or leave the flag out.
    """
    dispatcher = view[DISPATCHER]
    return violated(
        view["model.moe_enable_deepep"].on & (dispatcher != "flex"),
        f"`moe_enable_deepep` is on with dispatcher {dispatcher}; DeepEP is a backend of the flex dispatcher",
        expected="moe_token_dispatcher_type = flex",
    )


@rule(
    "EPO402",
    "one-flex-backend",
    ERROR,
    enforced=[core(">=0.16", lost="hybridep"), evidence(">=0.19", severity=WARNING, lost="ncclep")],
    source=core_config("0.16.1", "1063-1072"),
    fixes=[put(moe_enable_deepep=False)],
)
def one_flex_backend(view: View, lost: str) -> Check:
    """What it checks: `moe_enable_deepep` is on while another flex backend is asked for.

    Why: with `hybridep` Megatron-Core raises ValueError; any other backend, `ncclep` say, is silently replaced by
    DeepEP.

    Example: `--moe-enable-deepep --moe-flex-dispatcher-backend hybridep`

    Fix: leave the deprecated `moe_enable_deepep` out and name the backend alone.
    """
    asked = (view[BACKEND] == lost) | (view.requested(BACKEND) == lost)
    return violated(
        view["model.moe_enable_deepep"].on & asked,
        f"`moe_enable_deepep` is on and the flex backend is {lost}; only one backend can be used",
        expected="moe_enable_deepep = false",
    )


@rule(
    "EPO403",
    "flex-backend-must-be-known",
    ERROR,
    enforced=[
        run_time(">=0.16.0rc0,<0.19", known=("deepep", "hybridep")),
        run_time(">=0.19,!dev", known=("deepep", "hybridep", "ncclep")),
        run_time("dev", known=("deepep", "deepepv2", "hybridep", "ncclep")),
    ],
    source=[
        megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "1347-1369"),
        megatron("main", "core/transformer/moe/token_dispatcher.py", "1863-1867"),
        megatron_bridge("main", "training/flex_dispatcher_backend.py", "88-93"),
    ],
    fixes=[put(moe_flex_dispatcher_backend="hybridep"), put(moe_flex_dispatcher_backend="deepep")],
)
def flex_backend_must_be_known(view: View, known: tuple[str, ...]) -> Check:
    """What it checks: the dispatcher is `flex` and its backend is none that the release has.

    Why: the configuration is accepted, then building the first MoE layer raises ValueError. Bridge main repairs a
    missing backend to `alltoall` by itself.

    Example: `moe_token_dispatcher_type=flex moe_flex_dispatcher_backend=null`

    Fix: name `hybridep` or `deepep`, or take the `alltoall` dispatcher.
    """
    backend = view[BACKEND]
    return violated(
        view.dispatches_by("flex") & ~backend.one_of(*known),
        f"`moe_flex_dispatcher_backend` is {backend}; this release has {', '.join(known)}",
        expected=f"moe_flex_dispatcher_backend in ({', '.join(known)})",
    )


@rule(
    "EPO404",
    "flex-needs-deepep-flag",
    ERROR,
    enforced=[run_time("<0.16")],
    source=megatron("0.15.3", "core/transformer/moe/token_dispatcher.py", "1164-1167"),
    fixes=[put(moe_enable_deepep=True)],
)
def flex_needs_deepep_flag(view: View) -> Check:
    """What it checks: the dispatcher is `flex` without `moe_enable_deepep`, before 0.16.

    Why: DeepEP is the only flex backend of these releases and must be asked for; building the MoE layer asserts it.

    Example: `--moe-token-dispatcher-type flex` alone, on 0.15

    Fix: add `moe_enable_deepep`, or take `alltoall`.
    """
    return violated(
        view.dispatches_by("flex") & view["model.moe_enable_deepep"].off,
        "the flex dispatcher is used without `moe_enable_deepep`; this release has no other flex backend",
        expected="moe_enable_deepep = true",
    )


@rule(
    "EPO405",
    "deepep-excludes-pad-to-capacity",
    ERROR,
    enforced=[core("<0.16", only_deepep=False), core(">=0.16.0rc0", only_deepep=True)],
    source=[core_config("0.16.1", "1074-1081"), core_config("0.14.0", "758-762")],
    fixes=[
        put(moe_pad_expert_input_to_capacity=False, gives_up="fixed-size expert inputs"),
        put(moe_token_dispatcher_type="alltoall", gives_up="DeepEP"),
    ],
)
def deepep_excludes_pad_to_capacity(view: View, *, only_deepep: bool) -> Check:
    """What it checks: expert inputs are padded to capacity while tokens go through DeepEP.

    Why: DeepEP has no drop-and-pad mode; Megatron-Core raises ValueError (before 0.16 for any flex dispatcher).

    Example: `--moe-token-dispatcher-type flex --moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1.0`

    Fix: turn the padding off, or take HybridEP or `alltoall`.
    """
    through = view.dispatches_by("flex", "deepep") if only_deepep else view.dispatches_by("flex")
    return violated(
        through & view["model.moe_pad_expert_input_to_capacity"].on,
        "`moe_pad_expert_input_to_capacity` is on; the flex dispatcher with DeepEP has no padded mode",
        expected="moe_pad_expert_input_to_capacity = false",
    )


@rule(
    "EPO406",
    "flex-needs-larger-expert-group",
    ERROR,
    enforced=[
        run_time("<=0.17.0", backends=None),
        run_time(">=0.17.1,<0.19", backends=("deepep",)),
        run_time(">=0.19", backends=("deepep", "ncclep")),
    ],
    source=[
        megatron("0.17.0", "core/transformer/moe/token_dispatcher.py", "1360"),
        megatron("0.17.1", "core/transformer/moe/token_dispatcher.py", "1364-1365"),
        megatron("main", "core/transformer/moe/token_dispatcher.py", "1835-1854"),
    ],
    fixes=[put(moe_token_dispatcher_type="alltoall")],
)
def flex_needs_larger_expert_group(view: View, backends: tuple[str, ...] | None) -> Check:
    """What it checks: the flex dispatcher with a group of one rank (expert tensor parallel x expert parallel).

    Why: there is no one to dispatch to, and building the MoE layer asserts it. From 0.17.1 HybridEP is exempt.

    Example: `--moe-token-dispatcher-type flex --expert-model-parallel-size 1 --expert-tensor-parallel-size 1`

    Fix: use `alltoall`, or a larger `expert_model_parallel_size`.
    """
    through = view.dispatches_by("flex")
    if backends is not None:
        through = through & view[BACKEND].one_of(*backends)
    return violated(
        through & (view.expert_group <= 1),
        "the flex dispatcher is used with a group of one rank; expert tensor parallel x expert parallel must exceed 1",
        expected="expert_tensor_parallel_size * expert_model_parallel_size > 1",
    )


@rule(
    "EPO407",
    "flex-backend-ignored",
    WARNING,
    enforced=[evidence(">=0.16.0rc0")],
    source=megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "1347-1369"),
    fixes=[put(moe_token_dispatcher_type="flex", gives_up="the dispatcher that runs today")],
)
def flex_backend_ignored(view: View) -> Check:
    """What it checks: a flex backend is written while the dispatcher is not `flex`.

    Why: only the flex dispatcher reads it; the run uses the other dispatcher and nothing says so. The default of the
    field is `deepep`, so `deepep` in a configuration dump proves nothing either.

    Example: `moe_token_dispatcher_type=alltoall moe_flex_dispatcher_backend=hybridep`

    Fix: take `moe_token_dispatcher_type=flex` if the backend is meant, else drop it.
    """
    dispatcher, backend = view[DISPATCHER], view[BACKEND]
    return violated(
        view.written(BACKEND) & backend.one_of("deepep", "hybridep") & (dispatcher != "flex"),
        f"`moe_flex_dispatcher_backend` {backend} has no effect with dispatcher {dispatcher}",
        expected="moe_token_dispatcher_type = flex",
    )


@rule(
    "EPO417",
    "shared-expert-overlap-needs-dispatcher",
    ERROR,
    enforced=[core("<0.18", dispatchers=("alltoall",)), core(">=0.18", dispatchers=("alltoall", "flex"))],
    source=[
        core_config("0.16.1", "1083-1095"),
        core_config("0.18.2", "1460-1473"),
        megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "1371-1374"),
    ],
    fixes=[
        drop_shared_expert_overlap(),
        put(moe_token_dispatcher_type="alltoall", gives_up="the dispatcher in use"),
    ],
)
def shared_expert_overlap_needs_dispatcher(view: View, dispatchers: tuple[str, ...]) -> Check:
    """What it checks: shared experts are overlapped with a dispatcher that does not overlap them.

    Why: the dispatcher launches the shared experts between its steps; up to 0.17 only `alltoall` does, later `flex`
    too. Megatron-Core raises ValueError where the model has shared experts; without them the flag is not looked at.

    Example: `--moe-shared-expert-overlap --moe-token-dispatcher-type flex` on 0.17

    Fix: turn `moe_shared_expert_overlap` off, or take a dispatcher that supports it. EP overlap excludes it anyway.
    """
    dispatcher = view[DISPATCHER]
    return violated(
        view["model.moe_shared_expert_overlap"].on
        & view["model.moe_shared_expert_intermediate_size"].is_set
        & ~dispatcher.one_of(*dispatchers),
        f"`moe_shared_expert_overlap` is on with dispatcher {dispatcher}; it needs {' or '.join(dispatchers)}",
        expected=f"moe_token_dispatcher_type in ({', '.join(dispatchers)})",
    )


@rule(
    "EPO428",
    "flex-package-must-import",
    ERROR,
    enforced=[run_time()],
    source=[
        megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "996-1000"),
        megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "1148-1152"),
    ],
    unknown=NOTED,
    fixes=[put(moe_token_dispatcher_type="alltoall", gives_up="the faster dispatcher")],
)
def flex_package_must_import(view: View) -> Check:
    """What it checks: DeepEP or HybridEP carries the tokens and the `deep_ep` package is known to be absent.

    Why: both backends come with that package; without it building the MoE layer raises ImportError. The configuration
    alone does not show it.

    Example: `--moe-token-dispatcher-type flex` with `deep_ep==none`

    Fix: install DeepEP (its `hybrid-ep` branch for HybridEP) in the training environment, or take `alltoall`.
    """
    backend = view[BACKEND]
    return violated(
        view.dispatches_by("flex") & backend.one_of("deepep", "hybridep") & view.version("deep_ep").absent,
        f"the flex backend {backend} needs the deep_ep package, which is not installed",
        expected="deep_ep installed",
    )


@rule(
    "EPO431",
    "flex-router-probs-cast",
    INFO,
    enforced=[evidence()],
    source=megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "1028-1034"),
    fixes=[put(moe_router_dtype="fp32")],
)
def flex_router_probs_cast(view: View) -> Check:
    """What it checks: DeepEP or HybridEP with router probabilities in another precision than fp32.

    Why: both accept fp32 only, so each dispatch casts, and logs a line when the probabilities come in half precision.

    Example: `--moe-token-dispatcher-type flex` without `--moe-router-dtype fp32`

    Fix: `moe_router_dtype=fp32`.
    """
    dtype = view["model.moe_router_dtype"]
    return violated(
        view.dispatches_by("flex") & view[BACKEND].one_of("deepep", "hybridep") & (dtype != "fp32"),
        f"`moe_router_dtype` is {dtype}; DeepEP and HybridEP cast the probabilities to fp32 at each dispatch",
        expected="moe_router_dtype = fp32",
    )


@rule(
    "EPO432",
    "flex-dispatch-waits-on-host",
    INFO,
    enforced=[evidence()],
    source=[
        megatron("0.16.1", "core/transformer/moe/fused_a2a.py", "103-105"),
        megatron("0.16.1", "core/transformer/moe/fused_a2a.py", "365-367"),
    ],
)
def flex_dispatch_waits_on_host(view: View) -> Check:
    """What it checks: EP overlap is on and the dispatch needs a count from the GPU before the host goes on.

    Why: DeepEP always waits for the number of received tokens; HybridEP does unless the number is fixed by capacity
    and padding or by `moe_expert_rank_capacity_factor`. While the host waits it launches nothing, and part of the
    overlap is lost.

    Example: `moe_flex_dispatcher_backend=deepep` with EP overlap

    Fix: nothing is wrong; HybridEP with a rank capacity avoids the wait.
    """
    fixed = view["model.moe_expert_rank_capacity_factor"].is_set | (
        view["model.moe_expert_capacity_factor"].is_set & view["model.moe_pad_expert_input_to_capacity"].on
    )
    waits = view.dispatches_by("flex", "deepep") | (view.dispatches_by("flex", "hybridep") & ~fixed)
    return violated(
        view.overlap & waits,
        f"{view[BACKEND]} makes the host wait for token counts at each dispatch; part of the overlap is lost",
    )


@rule(
    "EPO434",
    "backend-tuning-without-effect",
    INFO,
    enforced=[evidence(">=0.16.0rc0,<0.19", sms=True), evidence(">=0.19", sms=False)],
    source=[
        megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "1347-1363"),
        core_config("0.19.0", "1616-1636"),
    ],
)
def backend_tuning_without_effect(view: View, *, sms: bool) -> Check:
    """What it checks: a setting of one flex backend is written while another backend runs.

    Why: nothing reads it. From 0.19 the two SM counts are one setting, so those count for either backend.

    Example: `moe_hybridep_num_sms=32` with `moe_flex_dispatcher_backend=deepep` on 0.18

    Fix: remove it, or set the one of the backend that runs.
    """
    lost, named = FALSE, []
    for backend, fields in (("hybridep", _DEEPEP_ONLY), ("deepep", _HYBRIDEP_ONLY)):
        for field in fields:
            if sms or not field.endswith("ep_num_sms"):
                idle = view.dispatches_by("flex", backend) & view.written(f"model.{field}")
                named += [field] if idle.value else []
                lost = lost | idle
    return violated(lost, f"no effect with flex backend {view[BACKEND]}: {', '.join(named)}")


@rule(
    "EPO444",
    "variable-lengths-need-alltoall",
    ERROR,
    enforced=[core()],
    unknown=NOTED,
    source=core_config("0.16.1", "1827-1832"),
    fixes=[put(moe_token_dispatcher_type="alltoall")],
)
def variable_lengths_need_alltoall(view: View) -> Check:
    """What it checks: `variable_seq_lengths` with the `allgather` dispatcher.

    Why: gathering needs equal shapes on all ranks; Megatron-Core raises ValueError.

    Example: `variable_seq_lengths: true` with the default dispatcher

    Fix: `moe_token_dispatcher_type=alltoall`.
    """
    return violated(
        view.dispatches_by("allgather") & view["model.variable_seq_lengths"].on,
        "`variable_seq_lengths` is on with dispatcher allgather, which needs equal lengths",
        expected="moe_token_dispatcher_type = alltoall",
    )
