"""Detectors of failed runs: signatures weighed against the settings, versions and memory of the same log.

Each takes the evidence and says what speaks for or against causes; none changes it, their order is free.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from ep_overlap_mcp.diagnosis.command_line import refused_arguments
from ep_overlap_mcp.diagnosis.evidence import earliest, not_finite
from ep_overlap_mcp.diagnosis.findings import CONFIRMS, LIKELY, POSSIBLE, STRONG, Against, Support
from ep_overlap_mcp.diagnosis.symptoms import fitting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.diagnosis.evidence import Evidence, Hit, Line

    Findings = Iterator[Support | Against]

FULL = 0.97  # of device memory: allocations begin to fail or stall (public write-up: 99.6 %)
ROOMY = 0.90
_SCHEDULE = re.compile(r"combined_1f1b|model_chunk_schedule_plan|fine_grained_callables")
_VALIDATES = re.compile(
    r"(?:transformer_config|model_parallel_config|comm_overlap|flex_dispatcher_backend|megatron/training/arguments"
    r"|bridge/training/config|_provider)\.py"
)
_DEEPEP = re.compile(r"[Dd]eep_?EP/|deep_ep(?:\.cpp|/buffer|/csrc)|csrc/kernels/inter")
_REFUSES = re.compile(r"support|must|requir|disabl|cannot|incompatib|need|not allowed|exclusive|only works")
_NAMES_A_SETTING = re.compile(
    r"\b(?:overlap_moe_expert_parallel_comm|delay_wgrad_compute|moe_[a-z_]{3,50}|cuda_graph_[a-z_]{3,20}"
    r"|recompute_[a-z_]{3,20}|[a-z_]{3,40}_parallel_size|mtp_num_layers)\b"
    r"|--moe-|--overlap-moe|--delay-wgrad|(?i:\b(?:a2a|ep) overlap)"
)
_LAST = "last collective"
_LAST_OP = re.compile(r"last collective(?: was| is)?[ :=]{1,3}(\w{1,40})")
_PACKED = ("variable_seq_lengths", "packing", "padding_free", "sequence_packing")
_OP = re.compile(r"SeqNum=(\d{1,9}), OpType=(\w{1,40})")


def signatures(evidence: Evidence) -> Findings:
    """What the signature rows themselves say; of several causes pointed to only the first is likely."""
    for hit in evidence.hits:
        row = hit.signature
        for cause in row.confirms:
            yield Support(cause, CONFIRMS, (hit.line,), row.rules)
        for place, cause in enumerate(row.points_to):
            yield Support(cause, POSSIBLE if place else LIKELY, (hit.line,), row.rules)


def nvshmem_versions(evidence: Evidence) -> Findings:
    """A DeepEP timeout with two NVSHMEM versions, or one of 3.5.19 and later, is a build mismatch.

    Only timeouts of the host, which reports say of the mismatch, confirm it.
    """
    said = lines_of(evidence, "deepep-nvshmem-mismatch")
    waiting = said or lines_of(evidence, "deepep-transport-timeout")
    if not waiting:
        return
    prints = [v for v in evidence.versions if v.component == "nvshmem"]
    lines = (*waiting[:3], *(v.line for v in prints))
    found = sorted({v.version for v in prints} | set(_stack(evidence, "nvshmem")))
    if len(found) > 1:
        yield Support("deepep-nvshmem-mismatch", CONFIRMS if said else STRONG, lines)
        if said:
            yield Against("deepep-transport-timeout", f"NVSHMEM {' and '.join(found)} are mixed, which explains it")
    elif found and _at_least(found[0], "3.5.19"):
        yield Support("deepep-nvshmem-mismatch", STRONG if said else POSSIBLE, lines)
    elif found and said:
        yield Against("deepep-nvshmem-mismatch", f"the only NVSHMEM version printed is {found[0]}, below 3.5.19")


def deepep_on_grace_blackwell(evidence: Evidence) -> Findings:
    """DeepEP's normal kernels assume 8 GPUs a node: they fail on GB200 and GB300."""
    gpus = [v.line for v in evidence.versions if v.component == "gpu" and re.search(r"GB[23]00", v.version)]
    named = any(re.search(r"GB[23]00", gpu) for gpu in _stack(evidence, "gpu"))
    waiting = lines_of(evidence, "deepep-transport-timeout")
    asserted = [f.line for f in evidence.failures if _DEEPEP.search(f.line.text) or any(map(_DEEPEP.search, f.frames))]
    if (waiting or asserted) and (gpus or named):
        yield Support("deepep-unsupported-gpu", STRONG, (*gpus[:1], *(waiting or asserted)[:2]))


def late_rank_with_context_parallelism(evidence: Evidence) -> Findings:
    """Barrier time-outs were reported with the expert group folded over context parallelism."""
    lines = lines_of(evidence, "deepep-barrier-late-rank")
    if lines and number(evidence, "context_parallel_size") > 1:
        yield Support("deepep-barrier-late-rank", STRONG, (*lines[:3], *evidence.where("context_parallel_size")))


def memory(evidence: Evidence) -> Findings:
    """Time-outs and CUDA failures inside NCCL with a full device are memory; with a roomy one they are not."""
    if not evidence.memory or lines_of(evidence, "out-of-memory"):
        return
    fullest = max(evidence.memory, key=lambda use: use.share)
    symptoms = (
        *lines_of(evidence, "gpu-memory-exhausted-looks-like-hang"),
        *(hit.line for hit in evidence.hits if hit.signature.waits),
        *(hit.line for hit in evidence.hits if hit.signature.literal == "ncclUnhandledCudaError"),
    )
    percent = f"{100 * fullest.share:.1f} % of device memory in use"
    if fullest.share >= FULL and symptoms:
        yield Support("gpu-memory-exhausted-looks-like-hang", CONFIRMS, (fullest.line, *symptoms[:4]))
        for hit in evidence.hits:
            for cause in hit.signature.points_to if hit.signature.waits else ():
                yield Against(cause, f"{percent}: the time-outs are a consequence")
    elif fullest.share >= FULL and (slow := _collapse(evidence)):
        yield Support("gpu-memory-exhausted-looks-like-hang", STRONG, (fullest.line, slow))
    elif fullest.share >= FULL and not evidence.failures:
        asked = "gpu-memory-exhausted-looks-like-hang" in fitting(evidence.symptom)
        yield Support("gpu-memory-exhausted-looks-like-hang", LIKELY if asked else POSSIBLE, (fullest.line,))
    elif fullest.share < ROOMY:
        for cause in ("gpu-memory-exhausted-looks-like-hang", "out-of-memory"):
            yield Against(cause, f"at most {percent}")


def attention_graph(evidence: Evidence) -> Findings:
    """NaN or exploding gradients with a Transformer Engine graph on attention and overlap: an open report."""
    lines = [hit.line for hit in evidence.hits if hit.signature.literal.startswith(("found NaN", "found Inf"))]
    lines += [step.line for step in evidence.iterations if not_finite(step)]
    if not lines:
        return
    impl, modules = evidence.setting("cuda_graph_impl"), graph_modules(evidence)
    if overlap(evidence) and impl == "transformer_engine" and "attn" in modules:
        exploded = [i.line for i in evidence.iterations if (i.grad_norm or 0) > 1e4]
        settings = evidence.where("cuda_graph_impl", "cuda_graph_modules", "cuda_graph_scope")
        yield Support("attention-graph-nan", CONFIRMS, (*lines[:2], *exploded[:2], *settings[-2:]))
    elif evidence.where("cuda_graph_impl"):
        yield Against("attention-graph-nan", f"cuda_graph_impl is {impl or 'none'}, modules {modules or 'none'}")


def local_experts(evidence: Evidence) -> Findings:
    """The early release needs alltoall, one local expert and core 0.14 to 0.16.1: two-rank runs confirm these."""
    lines = lines_of(evidence, "expert-input-freed-early")
    if not lines:
        return
    core, experts = evidence.version("megatron-core"), number(evidence, "num_experts", "num_moe_experts")
    group = number(evidence, "expert_model_parallel_size")
    if core and core >= Version("0.17"):
        yield Against("expert-input-freed-early", f"megatron-core {core} keeps the input")
    elif experts and group and experts > group:
        yield Against("expert-input-freed-early", f"{experts} experts over EP {group}: more than one a rank")
    elif experts and experts == group:
        where = evidence.where("num_experts", "num_moe_experts", "expert_model_parallel_size")
        alltoall = evidence.setting("moe_token_dispatcher_type") == "alltoall"
        sure = bool(alltoall and core and core >= Version("0.14"))
        rules = ("alltoall-needs-two-local-experts",)
        yield Support("expert-input-freed-early", CONFIRMS if sure else STRONG, (*lines[:2], *where), rules)
    if evidence.setting("use_megatron_fsdp") is not True:
        yield Against("fsdp-hooks-bypassed", "no sign of Megatron-FSDP in the log")


def megatron_fsdp(evidence: Evidence) -> Findings:
    """Before core 0.18 the combined schedule never runs Megatron-FSDP's hooks."""
    lines = lines_of(evidence, "fsdp-hooks-bypassed")
    core = evidence.version("megatron-core")
    in_schedule = tuple(f.line for f in evidence.failures if any(_SCHEDULE.search(frame) for frame in f.frames))
    if core and core >= Version("0.18"):
        yield Against("fsdp-hooks-bypassed", f"megatron-core {core} runs the hooks")
    elif evidence.setting("use_megatron_fsdp") is True and (lines or (in_schedule and overlap(evidence))):
        failed = lines or in_schedule
        yield Support("fsdp-hooks-bypassed", STRONG, (*failed[:2], *evidence.where("use_megatron_fsdp")))


def stale_backend(evidence: Evidence) -> Findings:
    """The GPU refusal although alltoall was asked for, or announced as the fallback."""
    refused = [h.line for h in evidence.hits if "deepep-unsupported-gpu" in h.signature.confirms]
    announced = [h.line for h in evidence.hits if "deepep-fell-back-to-alltoall" in h.signature.confirms]
    asked = [p.line for p in evidence.of("moe_token_dispatcher_type") if p.value == "alltoall"]
    if refused and (announced or asked):
        yield Support("stale-flex-backend-metadata", CONFIRMS, (*refused[:1], *announced[:1], *asked[:1]))
        yield Against("deepep-unsupported-gpu", "alltoall was asked for: the backend is a leftover")
        yield Against("deepep-fell-back-to-alltoall", "the run stopped: the fallback did not last")


def graph_with_expandable_segments(evidence: Evidence) -> Findings:
    """An illegal access in a graphed run with expandable segments, unless another failure came first."""
    lines = [h.line for h in evidence.hits if h.signature.literal.startswith("illegal memory access")]
    if not lines:
        return
    first = earliest(f.line for f in evidence.failures if not f.follows)
    if first and first.order < lines[0].order:
        where = "" if first.rank is None else f" of rank {first.rank}"
        yield Against(
            "illegal-access-expandable-segments",
            f"the illegal access follows the failure{where} at {first.file}:{first.number}",
        )
        return
    graphs = evidence.setting("cuda_graph_impl") not in (None, "none")
    segments = "expandable_segments:True" in str(evidence.setting("PYTORCH_CUDA_ALLOC_CONF"))
    if graphs and segments and evidence.setting("NCCL_GRAPH_REGISTER") != 0:
        where_set = evidence.where("PYTORCH_CUDA_ALLOC_CONF", "cuda_graph_impl")
        yield Support("illegal-access-expandable-segments", STRONG, (*lines[:1], *where_set))


def collective_order(evidence: Evidence) -> Findings:
    """Ranks that wait in different collectives at one sequence number launched them in different orders."""
    waiting = [h for h in evidence.hits if h.signature.literal in ("Watchdog caught collective operation", _LAST)]
    if not waiting:
        return
    if is_packed(evidence) and evidence.setting("moe_flex_dispatcher_backend") == "hybridep":
        yield Against("shared-event-orders-collectives", "unequal token counts of HybridEP show the same picture")
        return
    if overlap(evidence) is False:
        yield Against("shared-event-orders-collectives", "overlap is off in this run")
        if evidence.setting("moe_token_dispatcher_type") == "alltoall":
            yield Support("network-not-overlap", LIKELY, tuple(h.line for h in waiting[:2]))
    elif overlap(evidence) and _orders_differ(waiting):
        yield Support("shared-event-orders-collectives", STRONG, tuple(h.line for h in waiting[:4]))
    elif overlap(evidence) and any("ALLTOALL" in h.line.text for h in waiting):
        yield Support("shared-event-orders-collectives", POSSIBLE, tuple(h.line for h in waiting[:2]))


def unequal_tokens(evidence: Evidence) -> Findings:
    """HybridEP with packed or variable lengths and no padding: hangs, or wrong logprobs from step 1."""
    lines = lines_of(evidence, "hybridep-unequal-token-counts")
    padded = evidence.setting("moe_hybridep_pad_uneven_dispatch_inputs", "moe_hybridep_prepad_packed_inputs")
    packed = is_packed(evidence)
    watchdog = [h.line for h in evidence.hits if h.signature.waits]
    hybridep = evidence.setting("moe_flex_dispatcher_backend") == "hybridep"
    if padded is True:
        yield Against("hybridep-unequal-token-counts", "the token counts are padded (setting in the log)")
    elif hybridep and packed and (lines or watchdog):
        where = evidence.where(*_PACKED, "moe_flex_dispatcher_backend")
        yield Support("hybridep-unequal-token-counts", STRONG, (*(lines or watchdog)[:3], *where))
    elif lines and evidence.where("variable_seq_lengths") and not packed:
        yield Against("hybridep-unequal-token-counts", "variable_seq_lengths is off")


def refused_configuration(evidence: Evidence) -> Findings:
    """An assertion raised while a configuration is validated, or one that names a setting and refuses it."""
    for failure in evidence.failures:
        text = failure.line.text
        refused = re.match(r"(?:AssertionError|ValueError|NotImplementedError)\b", text)
        named = _NAMES_A_SETTING.search(text) and _REFUSES.search(text)
        validating = any(_VALIDATES.search(frame) for frame in failure.frames[-3:])
        if refused and not (failure.recognised or failure.in_own_program) and (validating or named):
            yield Support("config-rule-violated", LIKELY, (failure.line,))


def fused_permutation(evidence: Evidence) -> Findings:
    """The fused permutation cannot fail when it is off."""
    if evidence.setting("moe_permute_fusion") is False:
        yield Against("triton-permute-fusion", "moe_permute_fusion is off")


def lines_of(evidence: Evidence, cause: str) -> tuple[Line, ...]:
    """The lines whose signature confirms or points to a cause."""
    return tuple(
        hit.line for hit in evidence.hits if cause in hit.signature.confirms or cause in hit.signature.points_to
    )


def overlap(evidence: Evidence) -> bool | None:
    """The effective overlap switch; None when the log does not say."""
    value = evidence.setting("overlap_moe_expert_parallel_comm")
    return value if isinstance(value, bool) else None


def number(evidence: Evidence, *names: str) -> int:
    """An integer setting; 0 when the log does not say."""
    value = evidence.setting(*names)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def is_packed(evidence: Evidence) -> bool:
    """Whether sequences have different lengths on different ranks, in any framework's spelling."""
    return any(evidence.setting(name) is True for name in _PACKED)


def graph_modules(evidence: Evidence) -> list[str]:
    """What the CUDA graph covers, whichever of the two spellings was printed."""
    value = evidence.setting("cuda_graph_modules") or evidence.setting("cuda_graph_scope") or []
    return re.findall(r"\w{1,40}", " ".join(map(str, value)) if isinstance(value, list) else str(value))


def _collapse(evidence: Evidence) -> Line | None:
    """The first step that took more than twice the median of those before it."""
    times = [(i.ms, i.line) for i in evidence.iterations if i.ms]
    for place in range(2, len(times)):
        before = sorted(ms for ms, _ in times[:place])
        if times[place][0] > 2 * before[len(before) // 2]:
            return times[place][1]
    return None


def _orders_differ(waiting: list[Hit]) -> bool:
    operations: dict[str, set[str]] = {}
    for hit in waiting:
        if found := _OP.search(hit.line.text):
            operations.setdefault(found[1], set()).add(found[2])
        elif found := _LAST_OP.search(hit.line.text):
            operations.setdefault(_LAST, set()).add(found[1].lower())
    return any(len(kinds) > 1 for kinds in operations.values())


def _stack(evidence: Evidence, component: str) -> tuple[str, ...]:
    return (evidence.stack[component],) if component in evidence.stack else ()


def _at_least(text: str, floor: str) -> bool:
    from ep_overlap_mcp.diagnosis.evidence import parsed

    version = parsed(text)
    return bool(version and version >= Version(floor))


FAILED_RUN = (
    signatures,
    nvshmem_versions,
    deepep_on_grace_blackwell,
    late_rank_with_context_parallelism,
    memory,
    attention_graph,
    local_experts,
    megatron_fsdp,
    stale_backend,
    graph_with_expandable_segments,
    collective_order,
    unequal_tokens,
    refused_configuration,
    refused_arguments,
    fused_permutation,
)
