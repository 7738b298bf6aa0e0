"""EPO421-427, 430: what the HybridEP library asks for.

Source: deepseek-ai/DeepEP, branch hybrid-ep (94a9f8f).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from ep_overlap_mcp.rules.engine import (
    ERROR,
    NOTED,
    WARNING,
    Fix,
    evidence,
    put,
    put_paths,
    rule,
    run_time,
    violated,
    violated_by,
)
from ep_overlap_mcp.rules.sources import megatron, megatron_bridge
from ep_overlap_mcp.rules.truth import FALSE, TRUE, Truth, derived

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.truth import Value
    from ep_overlap_mcp.rules.view import View

HYBRIDEP = "deepseek-ai/DeepEP@94a9f8f:"
DOMAIN = "env.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
CHUNK = "env.NUM_OF_TOKENS_PER_CHUNK_COMBINE_API"

MOST_TOKENS = 21844
"""Largest token count a rank: 3 x count + 1 must stay below 65,536 queue entries."""


@rule(
    "EPO421",
    "hybridep-domain-divides-group",
    ERROR,
    enforced=[run_time(">=0.16.0rc0")],
    source=HYBRIDEP + "deep_ep/hybrid_ep_buffer.py:62-76",
    unknown=NOTED,
    fixes=[put_paths({DOMAIN: None})],
)
def hybridep_domain_divides_group(view: View) -> Check:
    """What it checks: the NVLink domain size given to HybridEP does not divide the expert group.

    Why: HybridEP forms whole domains and asserts it when its buffer is made. Unset, it detects the domain itself.

    Example: `NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=6` with a group of 16

    Fix: leave the variable unset, or set a size that divides the group.
    """
    domain = view[DOMAIN]
    return violated(
        _hybridep(view) & view.written(DOMAIN) & (view.expert_group % domain != 0),
        f"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN is {domain}; it must divide the group of {view.expert_group} ranks",
        expected="a divisor of expert_tensor_parallel_size * expert_model_parallel_size",
    )


@rule(
    "EPO422",
    "hybridep-domain-at-most-72",
    ERROR,
    enforced=[run_time(">=0.16.0rc0")],
    source=HYBRIDEP + "csrc/hybrid_ep/config.cuh:15-17",
    unknown=NOTED,
    fixes=[put_paths({DOMAIN: None})],
)
def hybridep_domain_at_most_72(view: View) -> Check:
    """What it checks: the NVLink domain size given to HybridEP exceeds 72.

    Why: the kernels hold at most 72 ranks of one domain, as many as a GB200 NVL72 rack has.

    Example: `NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=128`

    Fix: leave the variable unset, or use the real domain size.
    """
    domain = view[DOMAIN]
    return violated(
        _hybridep(view) & view.written(DOMAIN) & (domain > 72),
        f"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN is {domain}; HybridEP holds at most 72 ranks of a domain",
        expected="at most 72",
    )


@rule(
    "EPO423",
    "hybridep-domain-below-hardware",
    WARNING,
    enforced=[evidence(">=0.16.0rc0")],
    source=[
        HYBRIDEP + "deep_ep/hybrid_ep_buffer.py:62-72",
        "NVIDIA-NeMo/Megatron-Bridge@067f987df:scripts/performance/utils/overrides.py:265-283",
    ],
    unknown=NOTED,
    fixes=[put_paths({DOMAIN: None})],
)
def hybridep_domain_below_hardware(view: View) -> Check:
    """What it checks: the NVLink domain size given to HybridEP is smaller than what the hardware connects.

    Why: ranks that share NVLink then talk over the network: slow, and on a rack without that network an error.
    Setting it to the GPUs of a node on a GB200 NVL72 rack is the usual slip.

    Example: `NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=4` on GB200 with a group of 32

    Fix: leave the variable unset, or set it to the smaller of the group and the NVLink domain.
    """
    domain, group, hardware = view[DOMAIN], view.expert_group, view.nvlink_domain
    largest = derived(min, group, hardware)
    return violated(
        _hybridep(view) & view.written(DOMAIN) & (domain < largest),
        f"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN is {domain}; {largest} ranks of the group share NVLink here",
        expected=f"{largest}, or unset",
    )


@rule(
    "EPO424",
    "hybridep-hidden-multiple",
    ERROR,
    enforced=[run_time(">=0.16.0rc0")],
    source=HYBRIDEP + "csrc/hybrid_ep/config.cuh:84-93",
)
def hybridep_hidden_multiple(view: View) -> Check:
    """What it checks: shapes that HybridEP's buffer configuration refuses.

    Why: its bulk copies move whole 16-byte pieces: the BF16 row width must be a multiple of 16, and the experts of an
    NVLink domain (experts a rank x ranks a domain) a multiple of 4.

    Example: `--hidden-size 1000` with HybridEP

    Fix: other sizes, or another dispatcher.
    """
    latent = view["model.moe_latent_size"].otherwise(0)
    width = derived(lambda narrow, full: narrow or full, latent, view["model.hidden_size"])
    local = view["model.num_moe_experts"] // view["model.expert_model_parallel_size"]
    together = local * ranks_per_domain(view)
    return violated_by(
        [
            (width.is_set & (width % 16 != 0), f"rows of {width} are no multiple of 16"),
            (together.is_set & (together % 4 != 0), f"{together} experts in an NVLink domain are no multiple of 4"),
        ],
        when=_hybridep(view),
        expected="hidden_size % 16 = 0 and (experts a rank x ranks a domain) % 4 = 0",
    )


@rule(
    "EPO425",
    "hybridep-tokens-per-rank-limit",
    ERROR,
    enforced=[run_time(">=0.16.0rc0")],
    source=[HYBRIDEP + "csrc/hybrid_ep/config.cuh:18-62", HYBRIDEP + "csrc/hybrid_ep/config.cuh:383-388"],
    unknown=NOTED,
    fixes=[Fix(lambda view: _smaller_micro_batch(view), safe=False, gives_up="the micro batch size")],  # noqa: PLW0108
)
def hybridep_tokens_per_rank_limit(view: View) -> Check:
    """What it checks: HybridEP across several NVLink domains with more than 21,844 tokens a rank.

    Why: every token takes three entries of a network queue of 65,536; beyond that HybridEP refuses its configuration
    or fails at the queue depth. The count is rounded up to the combine chunk first.

    Example: `--seq-length 8192 --micro-batch-size 8` on two 8-GPU nodes

    Fix: a smaller micro batch, or more context parallelism.
    """
    tokens, chunk = view.tokens_per_rank, _chunk(view)
    rounded = derived(lambda t, c: -(-t // c) * c if c > 0 else t, tokens, chunk)
    several = view.expert_group > ranks_per_domain(view)
    return violated(
        _hybridep(view) & several & (rounded > MOST_TOKENS),
        f"each rank dispatches {tokens} tokens; HybridEP takes at most {MOST_TOKENS} across NVLink domains",
        expected=f"seq_length * micro_batch_size / (CP * TP under sequence parallel) <= {MOST_TOKENS}",
    )


@rule(
    "EPO426",
    "hybridep-tokens-multiple-of-chunk",
    WARNING,
    enforced=[evidence(">=0.16.0rc0")],
    source=[HYBRIDEP + "csrc/hybrid_ep/executor/executor.cu:71-82", HYBRIDEP + "csrc/hybrid_ep/config.cuh:383-388"],
    unknown=NOTED,
)
def hybridep_tokens_multiple_of_chunk(view: View) -> Check:
    """What it checks: tokens a rank are no multiple of HybridEP's chunk (64 unless set by the environment).

    Why: a partial last chunk must itself be aligned, and kernels compiled for a smaller count than the chunk have
    failed to build.

    Example: `--seq-length 1000 --micro-batch-size 1`

    Fix: pad to a multiple of the chunk, or set the `NUM_OF_TOKENS_PER_CHUNK_…` variables alike.
    """
    tokens, chunk = view.tokens_per_rank, _chunk(view)
    return violated(
        _hybridep(view) & (tokens % chunk != 0),
        f"each rank dispatches {tokens} tokens, no multiple of HybridEP's chunk of {chunk}",
        expected=f"a multiple of {chunk}",
    )


@rule(
    "EPO427",
    "hybridep-needs-equal-token-counts",
    ERROR,
    enforced=[
        run_time(">=0.16.0rc0", on=("megatron-core", "megatron-lm"), pads_itself=False),
        run_time(">=0.16.0rc0", bridge="<0.7", pads_itself=False),
        run_time(">=0.16.0rc0", bridge=">=0.7", pads_itself=True),
    ],
    source=[
        megatron("main", "core/transformer/moe/token_dispatcher.py", "1063-1093"),
        megatron_bridge("main", "models/transformer_config.py", "118-130"),
        "https://github.com/modelscope/ms-swift/pull/8393",
        "https://github.com/NVIDIA-NeMo/RL/pull/4079",
    ],
    unknown=NOTED,
    fixes=[put(moe_hybridep_pad_uneven_dispatch_inputs=True)],
)
def hybridep_needs_equal_token_counts(view: View, *, pads_itself: bool) -> Check:
    """What it checks: HybridEP with packed or variable-length sequences and nothing that evens the token counts.

    Why: all ranks of the group must dispatch the same number of tokens. With unequal counts the ranks end in
    different collectives and hang, or values are silently wrong from the first step. Bridge main turns the padding on
    by itself unless CUDA graphs are used.

    Example: `variable_seq_lengths: true` with `moe_flex_dispatcher_backend: hybridep`

    Fix: `moe_hybridep_pad_uneven_dispatch_inputs=true` (from 0.19), padding in the framework, or another dispatcher.
    """
    uneven = view["model.variable_seq_lengths"].on | view["dataset.packed_sequences"].on
    padded = view["model.moe_hybridep_pad_uneven_dispatch_inputs"].on | view["dataset.pads_token_counts"].on
    if pads_itself:
        padded = padded | view["model.cuda_graph_impl"].one_of("none", None)
    return violated(
        _hybridep(view) & uneven & ~padded,
        "sequences differ in length and nothing pads the token counts; HybridEP needs the same count on every rank",
        expected="moe_hybridep_pad_uneven_dispatch_inputs = true",
    )


@rule(
    "EPO430",
    "hybridep-needs-hybrid-branch",
    ERROR,
    enforced=[run_time(">=0.16.0rc0")],
    source=[
        megatron("main", "core/transformer/moe/fused_a2a.py", "271-277"),
        "deepseek-ai/DeepEP@v1.2.1:deep_ep/__init__.py:1-7",
        HYBRIDEP + "deep_ep/__init__.py:1-10",
    ],
    unknown=NOTED,
    fixes=[put(moe_flex_dispatcher_backend="deepep")],
)
def hybridep_needs_hybrid_branch(view: View) -> Check:
    """What it checks: the flex backend is HybridEP and the installed `deep_ep` is a plain release.

    Why: `HybridEPBuffer` exists only on DeepEP's branch `hybrid-ep`; without it building the MoE layer raises
    ImportError. A version such as `1.2.1+94a9f8f` names a revision of either branch and does not tell.

    Example: `deep_ep==1.2.1` with `moe_flex_dispatcher_backend=hybridep`

    Fix: install DeepEP from the branch `hybrid-ep`, or take another backend.
    """
    version = view.version("deep_ep")
    return violated(
        _hybridep(view) & _plain_release(version),
        f"deep_ep {version} is a plain release; HybridEP comes with DeepEP's branch hybrid-ep only",
        expected="deep_ep built from the branch hybrid-ep",
    )


def ranks_per_domain(view: View) -> Value:
    """Ranks of the expert group in one NVLink domain: as the environment says, else as the GPU has it."""
    said = view.written(DOMAIN)
    domain = view[DOMAIN] if said.value else view.nvlink_domain
    return derived(min, view.expert_group, domain)


def _hybridep(view: View) -> Truth:
    return view.dispatches_by("flex", "hybridep")


def _chunk(view: View) -> Value:
    if view.written(CHUNK).value:
        return view[CHUNK]
    return derived(lambda size: size, 64)


def _plain_release(version: Value) -> Truth:
    if not version.known or version.raw is None:
        return Truth(None, version.needs) if not version.known else FALSE
    installed = Version(version.raw)
    if installed.local and installed.major < 2:
        return FALSE if "hybrid" in installed.local else Truth(None, frozenset(("runtime.deep_ep",)))
    return TRUE


def _smaller_micro_batch(view: View) -> Iterable[Mapping[str, int]]:
    """The largest divisor of the micro batch with which the tokens fit."""
    tokens, batch = view.tokens_per_rank, view["train.micro_batch_size"]
    if tokens.known and batch.known and tokens.raw and batch.raw:
        per_sample = tokens.raw // batch.raw
        fitting = [b for b in range(1, batch.raw) if batch.raw % b == 0 and b * per_sample <= MOST_TOKENS]
        if fitting:
            yield {"train.micro_batch_size": fitting[-1]}
