"""The ceiling and the band of what overlap could gain."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.hardware import UnknownGpuError
from ep_overlap_mcp.profiles import ProfileError, estimate
from ep_overlap_mcp.profiles.gain_model import Layout
from ep_overlap_mcp.profiles.published_gains import PUBLISHED, error_table

QWEN3_30B: dict[str, Any] = {
    "tokens_per_rank": 4096,
    "hidden_size": 2048,
    "topk": 8,
    "expert_parallel": 16,
    "moe_layers": 48,
    "microbatches": 64,
}


@pytest.mark.parametrize("case", error_table(), ids=lambda case: case.case)
def test_no_published_ab_exceeds_its_ceiling_or_leaves_its_band(case):
    """Four matched A/Bs with overlap off and on."""
    assert case.band[0] <= case.actual <= case.band[1] <= case.ceiling


def test_the_error_table():
    """Ceiling, band, what was measured, and the share of the modelled communication that was saved."""
    assert [(row.ceiling, row.band, row.actual, row.realised) for row in error_table()] == [
        (1.78, (1.05, 1.36), 1.317, 0.54),
        (1.36, (1.03, 1.19), 1.177, 0.56),
        (1.44, (1.03, 1.24), 1.119, 0.33),
        (1.43, (1.03, 1.24), 1.078, 0.23),
    ]


@pytest.mark.parametrize(
    ("case", "seconds"), list(zip(PUBLISHED, [18.33, 6.62, 6.32, 0.88], strict=True)), ids=lambda value: str(value)[:30]
)
def test_communication_of_the_published_runs(case, seconds: float):
    """Seconds of a step, from bytes of a transfer, transfers and bandwidth."""
    modelled = case.layout.transfer_bytes() * case.layout.transfers() / (case.bandwidth_gb_s * 1e9)
    assert round(modelled, 2) == seconds


def test_alltoall_sends_a_copy_for_every_expert():
    """tokens x topk x hidden x 2 bytes, of which every other leaves a node of two."""
    layout = Layout(4096, 2048, 8, 16, moe_layers=48, microbatches=64, dispatcher="alltoall")
    assert layout.transfer_bytes() == 4096 * 8 * 2048 * 2 / 2


def test_deduplication_sends_one_copy_to_a_node():
    """Eight experts of a token lie on 3.6 of 4 nodes; the bandwidth counts the copy that stays."""
    layout = Layout(2048, 7168, 8, 64, moe_layers=58, microbatches=16, dispatcher="deepep", node_groups=4)
    assert round(layout.transfer_bytes() / (2048 * 7168 * 2), 1) == 3.6


@pytest.mark.parametrize(
    ("pipeline", "virtual", "microbatches", "share"),
    [(1, None, 1, 0.0), (1, None, 4, 0.75), (4, None, 8, 1 - 1 / 8), (4, 2, 8, 1 - 5 / 16), (8, 4, 8, 1 - 25 / 32)],
)
def test_microbatches_that_pair(pipeline: int, virtual: int | None, microbatches: int, share: float):
    """The first forward and the last backward have no partner, nor has the pipeline's warm-up."""
    layout = Layout(
        4096,
        2048,
        8,
        16,
        moe_layers=1,
        microbatches=microbatches,
        dispatcher="alltoall",
        pipeline_parallel=pipeline,
        virtual_pipeline=virtual,
    )
    assert layout.pairable() == share


def test_an_estimate_says_what_it_rests_on():
    """Every value with its origin; the verdict is a class, the numbers a ceiling and a band."""
    result = estimate(**QWEN3_30B, dispatcher="hybridep", gpu="NVIDIA H100 80GB HBM3", step_ms=24_714)
    assert (result.verdict, result.ceiling, result.band) == ("worth_an_ab", 1.351, (1.027, 1.188))
    assert (result.comm_ms, result.overlappable_ms) == (6519.147, 6417.285)
    assert {each.name: (each.value, each.origin) for each in result.assumptions} == {
        "tokens_per_rank": (4096, "given"),
        "hidden_size": (2048, "given"),
        "topk": (8, "given"),
        "expert_parallel": (16, "given"),
        "moe_layers": (48, "given"),
        "microbatches": (64, "given"),
        "dispatcher": ("hybridep", "given"),
        "gpus_per_node": (8, "derived: NVLink domain of NVIDIA H100 80GB HBM3"),
        "node_groups": (None, "default"),
        "bytes_per_value": (2.0, "default"),
        "full_recompute": (False, "default"),
        "pipeline_parallel": (1, "default"),
        "virtual_pipeline": (None, "default"),
        "step_ms": (24_714, "given"),
        "nodes": (2, "derived: expert_parallel / gpus_per_node"),
        "pairable share": (0.984, "derived: microbatches that run forward beside another's backward"),
        "routing": ("balanced", "assumed: imbalance makes communication longer"),
        "bandwidth_gb_s": (
            63,
            "published: HybridEP tables (deepseek-ai/DeepEP @ 94a9f8f), H100, lower end, EP16; +-30 %",
        ),
        "transfer_mb": (33.42, "derived: model"),
        "transfers": (12_288, "derived: per step and rank"),
        "model error": ("20 to 48 % less communication than measured", "published: two profiles"),
    }
    assert result.summary == (
        "worth_an_ab: at most 1.35x, planning band 1.03x to 1.19x, from 6519.1 ms communication in a step of"
        " 24714.0 ms; only a matched A/B of unprofiled steps tells the gain. The band was read off four published"
        " A/Bs on H100, all positive."
    )


def test_measured_exposed_communication_replaces_the_model():
    """From a profile with overlap off: no bandwidth is asked for."""
    result = estimate(**QWEN3_30B, step_ms=1000, exposed_ms=200)
    assert (result.comm_ms, result.ceiling, result.band) == (200, 1.245, (1.02, 1.136))
    assert [each.origin for each in result.assumptions if each.name == "exposed_ms"] == ["measured: replaces the model"]


@pytest.mark.parametrize(
    ("changes", "verdict", "why"),
    [
        ({"expert_parallel": 1}, "not_worth_it", "EP is 1"),
        ({"microbatches": 1, "bandwidth_gb_s": 45}, "not_worth_it", "too few microbatches"),
        ({"expert_parallel": 4, "gpu": "H100"}, "not_worth_it", "flat or slower"),
        (
            {"bandwidth_gb_s": 4500},
            "not_worth_it",
            "even hiding all that the schedule can pair",
        ),
        ({"exposed_ms": 100}, "not_worth_it", "even hiding all that the schedule can pair"),
        ({"bandwidth_gb_s": 700}, "unknown", "as underestimated as it can be"),
        ({}, "unknown", "no bandwidth is known"),
        ({"gpu": "V100"}, "unknown", "no bandwidth is known"),
        ({"dispatcher": "ncclep", "gpu": "H100"}, "unknown", "no bandwidth is known"),
        ({"bandwidth_gb_s": 45, "step_ms": None}, "unknown", "give step_ms"),
        ({"bandwidth_gb_s": 1}, "unknown", "longer than the step"),
        ({"exposed_ms": 41_250}, "unknown", "exposed_ms is the whole step"),
        ({"exposed_ms": 41_000}, "not_worth_it", "leaves 250.0 ms of the step for computation, too little to hide it"),
        ({"bandwidth_gb_s": 20.1}, "unknown", "ms of the step for computation: check bandwidth, layers, microbatches"),
        ({"bandwidth_gb_s": 45}, "worth_an_ab", "only a matched A/B"),
    ],
)
def test_verdicts(changes: dict[str, Any], verdict: str, why: str):
    """What decides each class; what is not known is `unknown`, with what to give."""
    result = estimate(**{**QWEN3_30B, "step_ms": 41_250, **changes})
    assert result.verdict == verdict
    assert why in result.summary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk": 0}, "`topk` is 0; give a number above 0"),
        ({"step_ms": math.nan, "exposed_ms": 5}, "`step_ms` is nan; give a number above 0"),
        ({"step_ms": math.inf}, "`step_ms` is inf; give a number above 0"),
        ({"moe_layers": math.nan}, "`moe_layers` is nan"),
        ({"hidden_size": 10**400}, "`hidden_size` is 10+; give a number above 0, at most 1e"),
        ({"step_ms": 100, "exposed_ms": math.nan}, "`exposed_ms` is nan"),
        ({"exposed_ms": math.inf}, "`exposed_ms` is inf"),
        ({"step_ms": -1}, "`step_ms` is -1"),
        ({"step_ms": 100, "exposed_ms": 200}, "`exposed_ms` is 200 and `step_ms` 100"),
    ],
)
def test_impossible_values_are_refused(changes: dict[str, Any], message: str):
    """By name and value."""
    with pytest.raises(ProfileError, match=message):
        estimate(**{**QWEN3_30B, **changes})


@pytest.mark.parametrize("others", [{}, {"gpus_per_node": 8}, {"exposed_ms": 100}])
def test_an_unknown_gpu_is_refused(others: dict[str, Any]):
    """Also where nothing is read from it: a misspelled name is no answer about another GPU."""
    with pytest.raises(UnknownGpuError, match=r"`H1000` is not known; known: A100.* Did you mean H100\?"):
        estimate(**{**QWEN3_30B, "gpu": "H1000", **others})


@settings(deadline=None)
@given(
    step_ms=st.floats(1, 1e5),
    share=st.floats(0, 1),
    microbatches=st.integers(1, 64),
    pipeline=st.sampled_from([1, 2, 8]),
    virtual=st.sampled_from([None, 1, 4]),
)
def test_the_ceiling_is_never_below_the_band_nor_the_gain_below_nothing(
    step_ms: float, share: float, microbatches: int, pipeline: int, virtual: int | None
):
    """1 <= low <= high <= ceiling, whatever the shares."""
    layout = {**QWEN3_30B, "microbatches": microbatches, "pipeline_parallel": pipeline, "virtual_pipeline": virtual}
    result = estimate(**layout, step_ms=step_ms, exposed_ms=share * step_ms)
    if result.ceiling is not None and result.band is not None:
        assert 1 <= result.band[0] <= result.band[1] <= result.ceiling
