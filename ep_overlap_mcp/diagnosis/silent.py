"""Detectors of runs that do not fail: overlap is off, or on without effect, or changes the numbers."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from packaging.version import Version

from ep_overlap_mcp.diagnosis.detectors import number, overlap
from ep_overlap_mcp.diagnosis.findings import CONFIRMS, LIKELY, Against, Support
from ep_overlap_mcp.diagnosis.symptoms import fitting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.diagnosis.evidence import Evidence, Printed

    Findings = Iterator[Support | Against]

_OVERLAP = "overlap_moe_expert_parallel_comm"
_SPLITS = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel")
_DISPATCHER = "moe_token_dispatcher_type"


def switch_reset(evidence: Evidence) -> Findings:
    """The overlap flag was asked for, yet the dump after it says it is off (Bridge, traps T01 and T02)."""
    asked = [p for p in evidence.of(_OVERLAP, "override", "flag") if p.value is True]
    dumped = [p for p in _dump(evidence, _OVERLAP) if p.section in ("", "model")]
    if asked and dumped and dumped[-1].value is not True and asked[-1].line.order < dumped[-1].line.order:
        yield Support("bridge-reset-the-flag", CONFIRMS, (asked[-1].line, dumped[-1].line))


def harness_switch(evidence: Evidence) -> Findings:
    """`--moe_a2a_overlap false` with overlap on in the dump (trap T10)."""
    refused = [p for p in evidence.of("moe_a2a_overlap") if p.value is False]
    on = [p for p in _dump(evidence, _OVERLAP) if p.value is True]
    if refused and on:
        yield Support("harness-false-ignored", CONFIRMS, (refused[-1].line, on[-1].line))


def dispatcher_fallback(evidence: Evidence) -> Findings:
    """Flex was asked for, the dump after it says alltoall."""
    asked = [p for p in evidence.of(_DISPATCHER, "override", "flag") if p.value == "flex"]
    dumped = _dump(evidence, _DISPATCHER)
    if asked and dumped and dumped[-1].value == "alltoall":
        yield Support("deepep-fell-back-to-alltoall", LIKELY, (asked[-1].line, dumped[-1].line))


def one_connection(evidence: Evidence) -> Findings:
    """Overlap is on and the environment allows one connection."""
    connections = number(evidence, "CUDA_DEVICE_MAX_CONNECTIONS")
    if overlap(evidence) and connections == 1:
        where = evidence.where("CUDA_DEVICE_MAX_CONNECTIONS", _OVERLAP)
        yield Support("one-cuda-connection-serialises", LIKELY, where)
    elif connections > 1:
        yield Against("one-cuda-connection-serialises", f"CUDA_DEVICE_MAX_CONNECTIONS is {connections}")


def microbatches(evidence: Evidence) -> Findings:
    """Overlap is on and some rank overlaps no pair of micro-batches (rule R27)."""
    count = _microbatches(evidence)
    stages = number(evidence, "pipeline_model_parallel_size") or 1
    chunks = number(evidence, "virtual_pipeline_model_parallel_size") or 1
    if not count or not overlap(evidence):
        return
    pairs = overlapped_pairs(count, stages, chunks)
    if min(pairs) == 0:
        where = evidence.where("global_batch_size", "micro_batch_size", "pipeline_model_parallel_size")
        yield Support("too-few-microbatches", LIKELY, where)
    else:
        yield Against("too-few-microbatches", f"{count} micro-batches overlap at least {min(pairs)} pairs a rank")


def domain_size(evidence: Evidence) -> Findings:
    """HybridEP with fewer ranks per NVLink domain than the GPU's domain holds."""
    ranks = number(evidence, "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN")
    group = number(evidence, "expert_model_parallel_size")
    gpu = evidence.stack.get("gpu") or next((v.version for v in evidence.versions if v.component == "gpu"), "")
    domain = 72 if re.search(r"GB[23]00", gpu) else 8
    if ranks and group and gpu and ranks < min(group, domain):
        where = evidence.where("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN")
        yield Support("hybridep-domain-size-wrong", LIKELY, where)


def dense_last_layer(evidence: Evidence) -> Findings:
    """Overlap is on and the last decoder layer is dense: its final norm is skipped on core 0.16 and later.

    Two-rank runs confirm it for releases; what is asked about must not be something else, such as speed.
    """
    core = evidence.version("megatron-core")
    dense = _last_layer_dense(evidence.setting("moe_layer_freq"), number(evidence, "num_layers"))
    if overlap(evidence) and dense and not (core and core < Version("0.16")):
        asked = fitting(evidence.symptom)
        sure = core is not None and (not asked or "last-layer-dense-drops-final-norm" in asked)
        where = evidence.where("moe_layer_freq", _OVERLAP)
        yield Support("last-layer-dense-drops-final-norm", CONFIRMS if sure else LIKELY, where)


def tied_weights(evidence: Evidence) -> Findings:
    """Delayed wgrad without fusion, and a weight that two layers share (rule delayed-wgrad-drops-unfused-grads)."""
    tied = (
        evidence.setting("share_embeddings_and_output_weights") is True
        or evidence.setting("untie_embeddings_and_output_weights") is False
    )
    delayed, fused = evidence.setting("delay_wgrad_compute"), evidence.setting("gradient_accumulation_fusion")
    if tied and delayed is True and fused is False:
        where = evidence.where("delay_wgrad_compute", "gradient_accumulation_fusion")
        yield Support("delayed-wgrad-tied-weights", LIKELY, where)


def adapters_beside_shared_overlap(evidence: Evidence) -> Findings:
    """LoRA with shared-expert overlap and tensor parallelism trains wrong numbers without an error."""
    lora = evidence.setting("lora_rank", "lora_dim") or "lora" in str(evidence.setting("tuner_type", "peft_scheme"))
    split = max(number(evidence, "tensor_model_parallel_size"), number(evidence, "expert_tensor_parallel_size")) > 1
    if lora and split and evidence.setting("moe_shared_expert_overlap") is True:
        yield Support(
            "lora-adapter-shape", LIKELY, evidence.where("lora_rank", "lora_dim", "moe_shared_expert_overlap")
        )


def overlapped_pairs(microbatches: int, stages: int, chunks: int) -> list[int]:
    """Forward/backward pairs that overlap, per pipeline rank.

    Source: NVIDIA/Megatron-LM megatron/core/pipeline_parallel/schedules.py@d98e8a64dd:949-979.
    """
    if stages == 1:
        return [microbatches - 1]
    warmup = [2 * (stages - 1 - rank) + (chunks - 1) * stages + 1 for rank in range(stages)]
    return [max(0, microbatches * chunks - before) for before in warmup]


def _dump(evidence: Evidence, name: str) -> list[Printed]:
    return list(evidence.of(name, "table", "yaml"))


def _microbatches(evidence: Evidence) -> int:
    """Micro-batches per step, printed or computed; 0 when the log does not say."""
    size, micro = number(evidence, "global_batch_size"), number(evidence, "micro_batch_size")
    split = [number(evidence, f"{kind}_size") or 1 for kind in _SPLITS]
    replicas = number(evidence, "data_parallel_size") or number(evidence, "world_size") // prod(split)
    printed = number(evidence, "num_microbatches")
    return printed or (size // (micro * replicas) if size and micro and replicas else 0)


def _last_layer_dense(frequency: object, layers: int) -> bool:
    if isinstance(frequency, list):
        return bool(frequency) and str(frequency[-1]) == "0"
    if isinstance(frequency, int) and frequency >= 2 and layers:
        return (layers - 1) % frequency != 0
    return bool(re.search(r"\[0\](?:\*\d{1,4})?\)?$|, ?0\]\)?$", str(frequency)))


QUIET_RUN = (
    switch_reset,
    harness_switch,
    dispatcher_fallback,
    one_connection,
    microbatches,
    domain_size,
    dense_last_layer,
    tied_weights,
    adapters_beside_shared_overlap,
)
