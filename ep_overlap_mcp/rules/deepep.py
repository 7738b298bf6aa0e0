"""EPO416, 418-420, 429: what the DeepEP library asks for.

Source: deepseek-ai/DeepEP at v1.2.1, the release that Megatron's DeepEP path is written for; main (dd758ca) where said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import ERROR, NOTED, Fix, put, rule, run_time, violated, violated_by
from ep_overlap_mcp.rules.sources import megatron
from ep_overlap_mcp.rules.truth import derived

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Truth, Value
    from ep_overlap_mcp.rules.view import View

DEEPEP = "deepseek-ai/DeepEP@v1.2.1:"
DEEPEP_MAIN = "deepseek-ai/DeepEP@dd758ca:"

GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128, 144, 160)
GROUP_SIZES_OF_MAIN = (24, 48, 96)

_NODE = 8  # ranks that DeepEP reaches over NVLink; more go over RDMA


@rule(
    "EPO416",
    "deepep-sms-even",
    ERROR,
    enforced=[run_time()],
    source=DEEPEP + "deep_ep/buffer.py:152",
    fixes=[Fix(lambda view: _even_sms(view))],  # noqa: PLW0108
)
def deepep_sms_even(view: View) -> Check:
    """What it checks: DeepEP is given an odd number of SMs.

    Why: it uses them in pairs of a sender and a receiver and asserts an even count when its buffer is made.

    Example: `moe_deepep_num_sms=21`

    Fix: use an even number.
    """
    sms = _sms(view)
    return violated(
        view.dispatches_by("flex", "deepep") & (sms % 2 == 1),
        f"DeepEP is given {sms} SMs; the count must be even",
        expected="an even SM count",
    )


@rule(
    "EPO418",
    "deepep-group-size",
    ERROR,
    enforced=[run_time()],
    source=[
        DEEPEP + "deep_ep/buffer.py:232-245",
        DEEPEP + "csrc/kernels/launch.cuh:62-71",
        DEEPEP_MAIN + "csrc/kernels/legacy/launch.cuh:66-87",
    ],
    fixes=[put(moe_token_dispatcher_type="alltoall", gives_up="DeepEP")],
)
def deepep_group_size(view: View) -> Check:
    """What it checks: DeepEP with a group (expert tensor parallel x expert parallel) that its kernels do not have.

    Why: the kernels are compiled for fixed group sizes; another one fails an assertion at the first dispatch. DeepEP
    v1.2.1 lists 24 but has no kernel for it; 24, 48 and 96 need a newer DeepEP.

    Example: `--expert-model-parallel-size 12 --expert-tensor-parallel-size 1` with DeepEP

    Fix: choose an `expert_model_parallel_size` that makes the group one of the sizes, or `alltoall`.
    """
    group = view.expert_group
    newer = view.version("deep_ep").at_least("2.0")
    has_kernel = group.one_of(*GROUP_SIZES) | (group.one_of(*GROUP_SIZES_OF_MAIN) & newer)
    sizes = ", ".join(str(size) for size in GROUP_SIZES)
    return violated(
        view.dispatches_by("flex", "deepep") & (group > 1) & ~has_kernel,
        f"the expert group has {group} ranks; DeepEP has kernels for {sizes}",
        expected=f"expert_tensor_parallel_size * expert_model_parallel_size in ({sizes})",
    )


@rule(
    "EPO419",
    "deepep-topk-limit",
    ERROR,
    enforced=[run_time()],
    source=[
        DEEPEP + "csrc/kernels/intranode.cu:187",
        DEEPEP + "csrc/kernels/internode.cu:408",
        megatron("0.16.1", "core/transformer/moe/token_dispatcher.py", "1347-1353"),
    ],
)
def deepep_topk_limit(view: View) -> Check:
    """What it checks: a token goes to more than 32 places: expert tensor parallel x `moe_router_topk`.

    Why: DeepEP keeps one choice a lane of a warp and traps on the device beyond 32.

    Example: `--moe-router-topk 10 --expert-tensor-parallel-size 4` with DeepEP

    Fix: `expert_tensor_parallel_size=1`, or another dispatcher.
    """
    choices = view["model.expert_tensor_parallel_size"] * view["model.moe_router_topk"]
    return violated(
        view.dispatches_by("flex", "deepep") & (choices > 32),
        f"each token has {choices} destinations (expert tensor parallel x top-k); DeepEP takes at most 32",
        expected="expert_tensor_parallel_size * moe_router_topk <= 32",
    )


@rule(
    "EPO420",
    "deepep-hidden-limit",
    ERROR,
    enforced=[run_time()],
    source=[
        DEEPEP + "csrc/kernels/intranode.cu:226-235",
        DEEPEP + "csrc/kernels/internode.cu:45-47",
        DEEPEP + "csrc/kernels/internode.cu:443-453",
        DEEPEP + "csrc/kernels/internode.cu:1249",
    ],
    fixes=[put(moe_flex_dispatcher_backend="hybridep"), put(moe_token_dispatcher_type="alltoall")],
)
def deepep_hidden_limit(view: View) -> Check:
    """What it checks: the BF16 rows that DeepEP carries are longer than its buffers, or not a multiple of its steps.

    Why: rows must be whole 16-byte words. On Hopper and newer half a row and a barrier share 8 KiB inside a node, so
    8,176 is the largest width; across nodes a row with its top-k data shares 16 KiB and rows move in steps of 256.
    Beyond that the kernels trap. With latent projections the latent width counts.

    Example: `--hidden-size 8192` with DeepEP on H100

    Fix: HybridEP or `alltoall`.
    """
    hidden = view["model.hidden_size"]
    width = derived(lambda latent, full: latent or full, view["model.moe_latent_size"].otherwise(0), hidden)
    modern = view.gpu_capability.test(lambda capability: capability >= (9, 0))
    return violated_by(
        [
            (width % 8 != 0, f"rows of {width} are no multiple of 8"),
            (
                modern & _over_node(view, width),
                f"rows of {width} exceed 8176 or are no multiple of 16",
            ),
            (modern & _over_network(view, width), f"rows of {width} do not fit DeepEP between nodes"),
        ],
        when=view.dispatches_by("flex", "deepep"),
        expected="a width of at most 8176, across nodes at most 7936 in multiples of 256",
    )


@rule(
    "EPO429",
    "deepep-2-not-importable",
    ERROR,
    enforced=[run_time()],
    source=[
        megatron("main", "core/transformer/moe/fused_a2a.py", "11-18"),
        DEEPEP_MAIN + "deep_ep/utils/__init__.py:1-3",
    ],
    unknown=NOTED,
)
def deepep_2_not_importable(view: View) -> Check:
    """What it checks: the flex backend is DeepEP and the installed `deep_ep` is 2.0 or newer.

    Why: Megatron imports `EventOverlap` from `deep_ep.utils`, where DeepEP 2 no longer has it; the guard around the
    import then reports that DeepEP is not installed, although it is.

    Example: `deep_ep==2.1.0` with `moe_flex_dispatcher_backend=deepep`

    Fix: install DeepEP v1.2.1.
    """
    version = view.version("deep_ep")
    return violated(
        view.dispatches_by("flex", "deepep") & version.at_least("2.0"),
        f"deep_ep {version} is installed; Megatron can import DeepEP 1.x only and will say it is not installed",
        expected="deep_ep 1.2.1",
    )


def fits_in_node(width: int) -> bool:
    """Whether a BF16 row of this width fits DeepEP's 8 KiB buffers inside a node on SM90 and newer."""
    half_row_bytes = width
    return width % 16 == 0 and half_row_bytes + 8 <= 8192


def fits_between_nodes(width: int, topk: int) -> bool:
    """Whether a BF16 row of this width with the data of `topk` choices fits DeepEP's 16 KiB buffers between nodes."""
    row_bytes = 2 * width + 8 + 8 * topk
    return width % 256 == 0 and (row_bytes + 15) // 16 * 16 + 8 <= 16384


def _over_node(view: View, width: Value) -> Truth:
    return (view.expert_group <= _NODE) & width.test(lambda w: w is not None and not fits_in_node(w))


def _over_network(view: View, width: Value) -> Truth:
    fits = derived(lambda w, k: int(fits_between_nodes(w, k)), width, view["model.moe_router_topk"])
    return (view.expert_group > _NODE) & (fits == 0)


def _sms(view: View) -> Value:
    """The unified count where the release has it and it is set, else DeepEP's own."""
    unified = view["model.moe_flex_dispatcher_num_sms"].otherwise(0)
    return derived(lambda one, own: one or own, unified, view["model.moe_deepep_num_sms"].otherwise(0))


def _even_sms(view: View) -> Iterable[Mapping[str, int]]:
    for name in ("model.moe_flex_dispatcher_num_sms", "model.moe_deepep_num_sms"):
        current = view.effective[name]
        if current.known and current.value:
            yield {name: current.value - current.value % 2}
            return
