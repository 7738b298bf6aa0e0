"""A symptom in words -> candidate causes, each with the test that separates it from the others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.findings import POSSIBLE, Against, Support

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.diagnosis.evidence import Evidence

ENOUGH = 200  # failures to look at for a symptom


@dataclass(frozen=True)
class SymptomRow:
    """Words that name a symptom, what tells its causes apart, and these, the most frequent in public reports first."""

    name: str
    words: re.Pattern[str]
    evidence: str
    causes: tuple[str, ...]


def _row(name: str, words: str, evidence: str, *causes: str) -> SymptomRow:
    return SymptomRow(name, re.compile(words, re.IGNORECASE), evidence, causes)


SYMPTOMS = (
    _row(
        "out of memory",
        r"out.of.memory|\boom\b|memory (?:grew|grows|full|exhausted)",
        "the allocator's error and the memory in use on each GPU (nvidia-smi), with the switch on and off",
        "out-of-memory",
        "gpu-memory-exhausted-looks-like-hang",
    ),
    _row(
        "import",
        r"^\s*import\s*$|import ?error|not installed|no module|undefined symbol|cannot import",
        "the ImportError of the worker and the versions of torch, transformer-engine and deep_ep ({stack})",
        "flex-package-not-importable",
        "te-version-unknown-crash",
    ),
    _row(
        "slower",
        r"slow|regress|throughput (?:drop|fell|lower)|tflops? (?:drop|fell|lower)|takes longer",
        "two logs with step times, the settings they print, or the configurations ({before}, {after})",
        "one-cuda-connection-serialises",
        "gpu-memory-exhausted-looks-like-hang",
        "too-few-microbatches",
        "deepep-fell-back-to-alltoall",
        "hybridep-domain-size-wrong",
        "bridge-reset-the-flag",
        "harness-false-ignored",
    ),
    _row(
        "no gain",
        r"no (?:gain|speed-?up|benefit|overlap|effect|improvement)|not (?:faster|overlapp\w+)|"
        r"(?:without|zero) (?:gain|effect|benefit)|does not pay|serial",
        "the settings that the log prints after setup (overlap, dispatcher, batch), the environment, a profile",
        "one-cuda-connection-serialises",
        "too-few-microbatches",
        "bridge-reset-the-flag",
        "deepep-fell-back-to-alltoall",
        "harness-false-ignored",
    ),
    _row(
        "hang",
        r"\bhang|\bhung|stuck|deadlock|time(?:s|d)?[- ]?out|stall|freez",
        "the logs of all ranks: time-outs, last collectives, memory in use, NVSHMEM versions, dispatcher and packing",
        "gpu-memory-exhausted-looks-like-hang",
        "deepep-transport-timeout",
        "deepep-nvshmem-mismatch",
        "hybridep-unequal-token-counts",
        "hybridep-peer-late",
        "deepep-barrier-late-rank",
        "shared-event-orders-collectives",
        "pipeline-shape-exchange-deadlock",
        "network-not-overlap",
    ),
    _row(
        "nan",
        r"\bnan\b|\binf\b|explod|diverg|loss spike|grad(?:ient)? norm (?:jump|explo|spike)",
        "loss and gradient norm of the steps, and the printed CUDA-graph modules, moe_layer_freq and wgrad settings",
        "attention-graph-nan",
        "last-layer-dense-drops-final-norm",
        "hybridep-unequal-token-counts",
        "delayed-wgrad-tied-weights",
    ),
    _row(
        "wrong numbers",
        r"wrong (?:loss|grad|number|result)|loss (?:is |was )?(?:differ|mismatch|change|off|wrong)|"
        r"different loss|logprob|\bkl\b|"
        r"accuracy|numeric|gradient (?:too small|differ)",
        "losses with overlap on and off, and the printed moe_layer_freq, LoRA, packing and tied weights",
        "last-layer-dense-drops-final-norm",
        "hybridep-unequal-token-counts",
        "delayed-wgrad-tied-weights",
        "lora-adapter-shape",
    ),
    _row(
        "crash",
        r"crash|illegal (?:memory )?access|segfault|abort|assert|exception|traceback",
        "the first exception of every rank with its stack, the settings printed before it, and versions ({stack})",
        "config-rule-violated",
        "expert-input-freed-early",
        "graph-capture-host-copy",
        "illegal-access-expandable-segments",
        "delayed-wgrad-fp8-bias-crash",
        "transformer-engine-too-old",
    ),
)
# a word that narrows: a symptom that names no graph, LoRA, … is still open to the rest
_ONLY_WITH = {
    "attention-graph-nan": re.compile(r"graph|\bnan\b|explod", re.IGNORECASE),
    "lora-adapter-shape": re.compile(r"lora|adapter|peft|wrong|differ", re.IGNORECASE),
}
_PREFERS = (
    (re.compile(r"hybrid[-_ ]?ep", re.IGNORECASE), "hybridep-"),
    (re.compile(r"deep[-_ ]?ep", re.IGNORECASE), "deepep-"),
    (re.compile(r"delay_?ed?[-_ ]wgrad|delay_wgrad", re.IGNORECASE), "delayed-wgrad-"),
    (re.compile(r"\bmemory\b", re.IGNORECASE), "gpu-memory"),
    (re.compile(r"\bpack|variable", re.IGNORECASE), "hybridep-unequal"),
)


def candidates(symptom: str) -> Iterator[Support | Against]:
    """Possible causes for a symptom in words; none for words that name no known symptom."""
    for place, cause in enumerate(fitting(symptom)):
        yield Support(cause, POSSIBLE - place / 100)


def to_choose_from(evidence: Evidence) -> list[SymptomRow]:
    """The symptoms that can be named, those that the log shows first."""
    said = [failure.line.text for failure in evidence.failures[:ENOUGH]]
    if any(step.nan or _is_nan(step.loss) or _is_nan(step.grad_norm) for step in evidence.iterations):
        said.append("nan")
    return sorted(SYMPTOMS, key=lambda row: not any(row.words.search(text) for text in said))


def _is_nan(value: float | None) -> bool:
    return value is not None and not isfinite(value)


def named(symptom: str) -> list[str]:
    """The symptoms that the words name."""
    return [row.name for row in SYMPTOMS if row.words.search(symptom)]


def fitting(symptom: str) -> list[str]:
    """Causes of the symptoms that the words name, those that the words prefer first."""
    causes = dict.fromkeys(cause for row in SYMPTOMS if row.words.search(symptom) for cause in row.causes)
    open_ones = [c for c in causes if c not in _ONLY_WITH or _ONLY_WITH[c].search(symptom)]
    preferred = [start for words, start in _PREFERS if words.search(symptom)]
    return sorted(open_ones, key=lambda cause: not any(cause.startswith(start) for start in preferred))
