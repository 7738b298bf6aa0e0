"""Symptoms in words: candidates with the tests that separate them, never more than possible."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.diagnosis import diagnose


@pytest.mark.parametrize(
    ("symptom", "first", "among"),
    [
        ("slower after delay_wgrad_compute", "one-cuda-connection-serialises", "too-few-microbatches"),
        ("no gain from overlap", "one-cuda-connection-serialises", "bridge-reset-the-flag"),
        ("hang", "gpu-memory-exhausted-looks-like-hang", "pipeline-shape-exchange-deadlock"),
        ("hangs with HybridEP and packed sequences", "hybridep-unequal-token-counts", "hybridep-peer-late"),
        ("DeepEP job is stuck", "deepep-transport-timeout", "deepep-nvshmem-mismatch"),
        ("nan", "attention-graph-nan", "last-layer-dense-drops-final-norm"),
        ("the loss is different with overlap on", "last-layer-dense-drops-final-norm", "lora-adapter-shape"),
        ("OOM", "out-of-memory", "gpu-memory-exhausted-looks-like-hang"),
    ],
)
def test_words_give_candidates(symptom: str, first: str, among: str) -> None:
    """The most frequent cause first, all of them possible, each with its test."""
    causes = diagnose(symptom=symptom).causes
    assert causes[0].cause == first
    assert among in [cause.cause for cause in causes]
    assert {cause.confidence for cause in causes} == {"possible"}
    assert len({cause.test for cause in causes}) == len(causes)


def test_words_that_name_no_symptom_are_unknown() -> None:
    """Never a guess."""
    assert [cause.cause for cause in diagnose(symptom="it is green").causes] == ["unknown"]


def test_a_log_overrules_the_words() -> None:
    """Thirty-two connections in the log: that candidate is ruled out; what the log shows comes first."""
    log = "overlap_moe_expert_parallel_comm=True CUDA_DEVICE_MAX_CONNECTIONS=32\n--moe_a2a_overlap false\n"
    dump = "comm_overlap:\n  overlap_moe_expert_parallel_comm: true\n"
    result = diagnose(text=log + dump, symptom="no gain")
    assert result.causes[0].cause == "harness-false-ignored"
    assert "one-cuda-connection-serialises" in {item.cause for item in result.ruled_out}
