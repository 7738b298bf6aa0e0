"""Proof that it can say no: evidence of real runs with faults and known defects, recorded and live."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from planted import CASES, run

from ep_overlap_mcp.smoke.asked import Asked
from ep_overlap_mcp.smoke.nodes import overlap_ran
from ep_overlap_mcp.smoke.numerics import numerics
from ep_overlap_mcp.smoke.speed import slow_rank, speed
from ep_overlap_mcp.training_env import TrainingEnvironment

RECORDED = Path(__file__).parent / "recorded"
HAS_MEGATRON = importlib.util.find_spec("megatron") is not None
needs_megatron = pytest.mark.skipif(not HAS_MEGATRON, reason="megatron-core is not installed in this Python")


def recorded(name):
    """The evidence of a run, and what it was asked."""
    evidence = json.loads((RECORDED / f"{name}.json").read_text())
    variants = CASES[name].options.get("variants", ("overlap",))
    return evidence, Asked("gloo-cpu", evidence["world_size"], 2, 8, variants)


@pytest.mark.parametrize("name", CASES)
def test_recorded_evidence_gives_the_right_answers(name):
    """Each fault gives its answer in every variant, and none of them a pass."""
    evidence, asked = recorded(name)
    for variant in asked.variants:
        ran, same, fast = (answer(evidence, asked, variant) for answer in (overlap_ran, numerics, speed))
        assert (ran.verdict, same.verdict) == (CASES[name].overlap, CASES[name].numerics)
        assert fast.verdict in CASES[name].speed
    assert (evidence["status"] != "completed") == CASES[name].failed


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("drop_wgrad", "1 of 27 gradients differ, first chunk0.module.module.decoder.layers.0.mlp.experts."),
        ("missing_wait", "27 of 27 gradients differ"),
        ("dense_last", "24 of 24 gradients differ"),
        ("nan_loss", "numbers that are not finite"),
        ("overlap_silently_off", "a rank ran no node of the combined schedule: overlap was off"),
    ],
)
def test_the_evidence_says_what_was_wrong(name, evidence):
    """Not only the verdict: the line that an engineer would look for."""
    found, asked = recorded(name)
    assert any(evidence in line for line in numerics(found, asked, "overlap").evidence)


def test_the_slow_rank_is_named():
    """Its own work takes far longer than the other's, with overlap and without."""
    found, _ = recorded("slow_rank")
    assert [slow_rank(found, "overlap", side)[0] for side in ("baseline", "variant")] == [1, 1]
    healthy, _ = recorded("sound")
    assert [slow_rank(healthy, "overlap", side) for side in ("baseline", "variant")] == [None, None]


@needs_megatron
@pytest.mark.megatron
@pytest.mark.slow
def test_a_real_run_answers_the_three_questions():
    """The installed megatron-core on two CPU ranks: overlap ran, and every number is the same bit for bit."""
    result = run(CASES["sound"], TrainingEnvironment(sys.executable))
    assert (result.status, result.overlap_ran.verdict, result.numerics.verdict) == ("done", "yes", "unchanged")
    assert (result.numerics.loss_equal, result.numerics.max_abs_grad_diff, result.numerics.steps) == (True, 0.0, 2)
    assert result.speed.verdict in ("faster", "slower", "no_difference_shown")
    assert (result.speed.pairs, "no forecast for GPUs" in result.speed.applies_to) == (8, True)
    assert result.hidden.hidden_pct > 0
    assert result.stack["megatron_core"]
    assert len(result.model_dump_json()) < 4000


@needs_megatron
@pytest.mark.megatron
@pytest.mark.slow
def test_a_real_rank_that_hangs_is_named_with_its_stack():
    """Rank 1 sleeps in a step; the stall is found, its stack and its last collective are shown, the limit ends it."""
    result = run(CASES["hang"], TrainingEnvironment(sys.executable), pairs=0, stall_s=4, limit_s=45)
    assert (result.status, result.failure.rank) == ("failed", 1)
    assert any("rank 1: in parity overlap step 1; is in no collective" in line for line in result.failure.evidence)
    assert any("in at_step_start" in line for line in result.failure.evidence)
    assert (result.overlap_ran.verdict, result.numerics.verdict) == ("unknown", "unknown")
