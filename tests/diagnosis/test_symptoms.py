"""Symptoms in words: candidates with the tests that separate them, never more than possible."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.diagnosis import diagnose
from ep_overlap_mcp.diagnosis.symptoms import SYMPTOMS, SymptomRow, named
from ep_overlap_mcp.reports.text import as_text


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


NAN = " iteration 10/ 100 | lm loss: NaN | grad norm: nan | number of nan iterations: 1\n"
STEP = " iteration 10/ 100 | lm loss: 8.1 | grad norm: 1.0 | number of nan iterations: 0\n"
WATCHDOG = "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12) ran for 600010 milliseconds\n"


@pytest.mark.parametrize(
    ("log", "first"), [(NAN, "nan"), (WATCHDOG, "hang"), ("RuntimeError: an Exception of ours\n", "crash")]
)
def test_what_is_unknown_names_the_symptoms_that_can_be_given(log: str, first: str) -> None:
    """Nothing is guessed; the symptom that the log shows comes first, each with what tells its causes apart."""
    result = diagnose(text=log)
    assert [cause.cause for cause in result.causes] == ["unknown"]
    assert result.symptoms[0].symptom == first
    assert {row.symptom for row in result.symptoms} >= {"nan", "hang", "slower", "no gain", "crash", "wrong numbers"}
    assert all(row.evidence and row.causes for row in result.symptoms)
    assert f"--symptom, likeliest first: {first}, " in result.summary
    assert f"--symptom {first}: looks at {result.symptoms[0].evidence}" in as_text([result])


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.name)
def test_every_name_that_is_offered_is_understood(row: SymptomRow) -> None:
    """Passing it gives its causes, and nothing is offered then."""
    result = diagnose(text=WATCHDOG, symptom=row.name)
    assert named(row.name) == [row.name]
    assert {cause.cause for cause in result.causes} & set(row.causes)
    assert result.symptoms == []


def test_a_healthy_step_shows_no_symptom() -> None:
    """Megatron-LM counts NaN steps on every line, mostly none."""
    assert diagnose(text=STEP).symptoms[0].symptom == SYMPTOMS[0].name


def test_words_that_name_no_symptom_are_answered_with_those_that_do() -> None:
    """The words are repeated, cut to a length."""
    result = diagnose(symptom="it is green")
    assert "`it is green` names no symptom that is known." in result.summary
    assert len(result.symptoms) == len(SYMPTOMS)


def test_a_cause_that_is_known_needs_no_symptom() -> None:
    """The rows are for an answer that is none."""
    assert diagnose(text="CUDA out of memory. Tried to allocate 2.00 GiB\n").symptoms == []
