"""Reads what a line states: settings, versions, a training step, memory in use.

All patterns are bounded and start with a literal or a name, so that no line can make them run long.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.evidence import Iteration, Line, MemoryUse, Printed, PrintedVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

# settings taken from running text; dumps (tables, YAML) give every setting they print
_KNOWN = (
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_enable_deepep",
    "moe_a2a_overlap",
    "moe_shared_expert_overlap",
    "moe_permute_fusion",
    "moe_layer_freq",
    "moe_hybridep_pad_uneven_dispatch_inputs",
    "moe_hybridep_prepad_packed_inputs",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "data_parallel_size",
    "num_microbatches",
    "world_size",
    "num_moe_experts",
    "num_experts",
    "num_layers",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "cuda_graph_impl",
    "cuda_graph_scope",
    "cuda_graph_modules",
    "variable_seq_lengths",
    "packing",
    "padding_free",
    "sequence_packing",
    "batch_p2p_comm",
    "use_megatron_fsdp",
    "recompute_granularity",
    "gradient_accumulation_fusion",
    "share_embeddings_and_output_weights",
    "untie_embeddings_and_output_weights",
    "lora_rank",
    "lora_dim",
    "tuner_type",
    "peft_scheme",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
    "PYTORCH_CUDA_ALLOC_CONF",
    "NCCL_GRAPH_REGISTER",
)
_NAME = "|".join(_KNOWN)
_OVERRIDE = re.compile(
    rf"(?<![\w.-])\+{{0,2}}(?:[A-Za-z_]{{1,20}}\.){{0,3}}?(?:(?P<section>[a-z_]{{2,20}})\.)?(?P<name>{_NAME})(?:\.enabled)?['\"]?"
    r" {0,2}[=:] {0,2}(?P<value>\[[^\]\n]{0,80}\]|[^\s,;)|}]{1,80})"
)
_FLAG = re.compile(r"(?<!\S)--(?P<name>[A-Za-z][\w-]{1,60})(?:[= ]{1,4}(?P<value>[^\s-]\S{0,80}))?")
_TABLE = re.compile(r"^(?P<name>[A-Za-z_]\w{1,63}) \.{3,60} (?P<value>.{0,200})$")
_YAML = re.compile(r"^(?P<name>[A-Za-z_]\w{0,63}): {0,4}(?P<value>[^{}\n]{0,200})$")
SECTION = re.compile(r"^(model|comm_overlap|ddp|optimizer|train|mixed_precision|dist|rng|env_vars|peft|dataset):$")

_DOTTED = r"v?(\d{1,3}\.\d{1,4}[\w.+]{0,40})"
_VERSIONS = (
    ("torch", re.compile(rf"(?<![\w/.-])(?:torch ?={{1,2}} ?|PyTorch version:? |torch )['\"]?{_DOTTED}")),
    (
        "megatron-core",
        re.compile(
            rf"(?:megatron[-_.]core|mcore)(?: version)?['\"]?[ =:]{{1,4}}['\"]?(?:core_)?{_DOTTED}", re.IGNORECASE
        ),
    ),
    ("megatron-bridge", re.compile(rf"megatron[-_.]bridge(?: version)?[ =:]{{1,4}}{_DOTTED}", re.IGNORECASE)),
    (
        "transformer-engine",
        re.compile(rf"(?:transformer[-_ ]engine|(?<!\w)TE)(?: version)?[ =:]{{1,4}}{_DOTTED}", re.IGNORECASE),
    ),
    ("triton", re.compile(rf"(?<![\w/.])triton(?: version)?[ =:]{{1,4}}{_DOTTED}", re.IGNORECASE)),
    ("nccl", re.compile(rf"NCCL version {_DOTTED}")),
    ("deep_ep", re.compile(rf"deep_ep(?: version)?[ =:]{{1,4}}{_DOTTED}")),
    (
        "nvshmem",
        re.compile(rf"(?:NVSHMEM|nvidia-nvshmem-cu\d\d|nvshmem)(?: version)?(?:[ =:>]{{1,4}}){_DOTTED}"),
    ),
)
_NAMES_A_COMPONENT = re.compile(
    r"torch|[Mm]ega|MEGA|mcore|[Tt]ransformer|TE[ =:v]|(?i:nvshmem)|NCCL v|deep_ep|triton|GPU"
)
_DEVICE_SIDE = re.compile(r"device|built (?:with|against)|compiled (?:with|against)", re.IGNORECASE)
_GPU = re.compile(r"(?:Current GPU:|\(GPU:|GPU name:|GPU:) {0,2}(?P<name>[A-Z][\w -]{1,40})")

_STEP = re.compile(r"(?:iteration'?:? {0,12}'?|(?<!\w)step:|(?<!\w)[Ss]tep )(\d{1,9})(?= {0,12}/| - |:|,|$)")
_MS = re.compile(r"elapsed time per iteration \(ms\): {0,4}([\d.]{1,20})")
_SECONDS = re.compile(
    r"(?:Step Time : |train_step_timing in s: |timing_s/step:|Total step time: |perf/step_time'?: )"
    r"(?:np\.float64\()?([\d.]{1,20})"
)
_NUMBER = r"([-+]?(?:nan|NaN|inf|[\d.]{1,20}(?:[eE][-+]?\d{1,3})?))"
_LOSS = re.compile(rf"(?:lm loss|reduced_train_loss|actor/pg_loss|'(?:train/)?loss'|(?<!\w)[Ll]oss): {{0,4}}{_NUMBER}")
_GRAD = re.compile(rf"(?:grad norm|grad_norm'?): {{0,4}}{_NUMBER}")
_SKIPPED = re.compile(r"number of skipped iterations: {0,6}(\d{1,9})")
_NANS = re.compile(r"number of nan iterations: {0,6}(\d{1,9})")

_MIB = re.compile(r"(\d{3,8}) ?MiB ?/ ?(\d{3,8}) ?MiB")
_TOTAL_GIB = re.compile(r"total capacity of ([\d.]{1,12}) GiB of which ([\d.]{1,12}) (MiB|GiB) is free")


def settings(line: Line) -> Iterator[Printed]:
    """Settings a line prints: a row of an argument table, overrides, flags."""
    if row := _TABLE.match(line.text):
        yield Printed(row["name"], "", read_value(row["value"]), "table", line, row["value"])
        return
    for found in _OVERRIDE.finditer(line.text):
        section = found["section"] or ""
        yield Printed(found["name"], section, read_value(found["value"]), "override", line, found["value"])
    if "--" in line.text:
        for found in _FLAG.finditer(line.text):
            name = found["name"].replace("-", "_")
            if name in _KNOWN:
                given = found["value"] or "true"
                yield Printed(name, "", read_value(given), "flag", line, given)


def yaml_setting(line: Line, section: str) -> Printed | None:
    """The setting of a line inside a YAML dump, or None when the line is none."""
    if row := _YAML.match(line.text):
        return Printed(row["name"], section, read_value(row["value"]), "yaml", line, row["value"])
    return None


def read_value(text: str) -> object:
    """A printed value: true, false, null, an integer, a list of words, else the text without quotes."""
    text = text.strip().strip("'\"").strip()
    if text.startswith("["):
        return re.findall(r"\w{1,60}", text)
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null", "~", ""):
        return None
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def versions(line: Line) -> Iterator[PrintedVersion]:
    """Component versions a line prints, and the GPU's name."""
    if not _NAMES_A_COMPONENT.search(line.text):
        return
    for component, pattern in _VERSIONS:
        for found in pattern.finditer(line.text):
            device = component == "nvshmem" and _DEVICE_SIDE.search(line.text, 0, found.start())
            yield PrintedVersion(component, found[1].rstrip(".)"), "device" if device else "host", line)
    if gpu := _GPU.search(line.text):
        yield PrintedVersion("gpu", gpu["name"].strip(), "host", line)


def iteration(line: Line) -> Iteration | None:
    """A training step as Megatron-LM, Bridge, NeMo, verl, slime and swift log it; None for other lines."""
    text = line.text
    step, ms, seconds = _STEP.search(text), _MS.search(text), _SECONDS.search(text)
    loss, grad = _LOSS.search(text), _GRAD.search(text)
    if not (ms or seconds or (step and (loss or grad))):
        return None
    skipped, nans = _SKIPPED.search(text), _NANS.search(text)
    return Iteration(
        step=int(step[1]) if step else None,
        ms=_number(ms[1]) if ms else _seconds(seconds),
        loss=_number(loss[1]) if loss else None,
        grad_norm=_number(grad[1]) if grad else None,
        skipped=int(skipped[1]) if skipped else 0,
        nan=int(nans[1]) if nans else 0,
        line=line,
    )


def memory(line: Line) -> MemoryUse | None:
    """Device memory in use, from nvidia-smi's table or torch's out-of-memory text."""
    if found := _MIB.search(line.text):
        total = int(found[2])
        return MemoryUse(int(found[1]) / total, line) if total else None
    if found := _TOTAL_GIB.search(line.text):
        total_gib, free = _number(found[1]), _number(found[2])
        if total_gib and free is not None:
            return MemoryUse(1 - (free / 1024 if found[3] == "MiB" else free) / total_gib, line)
    return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(found: re.Match[str] | None) -> float | None:
    value = _number(found[1]) if found else None
    return None if value is None else value * 1000
