"""Two configurations: every change, the intended one apart from its confounders, and the A/Bs to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.diagnosis import Configuration, diagnose, triage
from ep_overlap_mcp.diagnosis.regression import Experiment
from ep_overlap_mcp.reports.text_of.diagnose import lines

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = {
    "model.overlap_moe_expert_parallel_comm": False,
    "model.delay_wgrad_compute": False,
    "model.moe_shared_expert_overlap": True,
    "env.CUDA_DEVICE_MAX_CONNECTIONS": 32,
    "model.moe_token_dispatcher_type": "flex",
}
AFTER = {
    "model.overlap_moe_expert_parallel_comm": True,
    "model.delay_wgrad_compute": True,
    "model.moe_shared_expert_overlap": False,
    "env.CUDA_DEVICE_MAX_CONNECTIONS": 1,
    "model.moe_token_dispatcher_type": "alltoall",
}


def test_one_harness_switch_changes_more_than_the_user_asked_for() -> None:
    """Overlap was asked for; delayed wgrad, connections, shared experts and the fallback came along."""
    found = triage(BEFORE, AFTER, requested_after={"model.overlap_moe_expert_parallel_comm": True})
    assert found.intended is not None
    assert [change.path for change in found.intended.changes] == ["model.overlap_moe_expert_parallel_comm"]
    assert {group.kind for group in found.confounders} == {
        "connections",
        "dispatcher",
        "delayed wgrad",
        "shared experts",
    }
    assert all(group.why for group in found.confounders)


def test_the_sequence_of_experiments_is_short_and_legal() -> None:
    """Suspects singly, the rest by halves; what overlap forces is tried on the configuration before."""
    assert triage(BEFORE, AFTER, intent="slower after overlap_moe_expert_parallel_comm").experiments == (
        Experiment(
            "before",
            {"model.moe_shared_expert_overlap": False},
            "it is model.moe_shared_expert_overlap=False",
            "it is not that",
        ),
        Experiment(
            "after",
            {"env.CUDA_DEVICE_MAX_CONNECTIONS": 32},
            "it is env.CUDA_DEVICE_MAX_CONNECTIONS=1",
            "it is among model.moe_token_dispatcher_type=alltoall; model.delay_wgrad_compute=True; "
            "model.overlap_moe_expert_parallel_comm=True",
        ),
        Experiment(
            "after",
            {"model.moe_token_dispatcher_type": "flex"},
            "it is model.moe_token_dispatcher_type=alltoall",
            "it is among model.delay_wgrad_compute=True; model.overlap_moe_expert_parallel_comm=True",
        ),
        Experiment(
            "after",
            {"model.delay_wgrad_compute": False},
            "it is model.delay_wgrad_compute=True",
            "it is model.overlap_moe_expert_parallel_comm=True",
        ),
    )


def test_an_answer_lists_changes_and_the_likely_confounders() -> None:
    """Throughput fell after delayed wgrad: one connection and the fallback complete their signatures."""
    result = diagnose(
        before=Configuration(BEFORE), after=Configuration(AFTER), symptom="slower after delay_wgrad_compute"
    )
    assert [change.path for change in result.changed] == sorted(BEFORE)
    assert {(c.cause, c.confidence) for c in result.causes} >= {
        ("one-cuda-connection-serialises", "likely"),
        ("deepep-fell-back-to-alltoall", "likely"),
    }
    assert "intended model.delay_wgrad_compute=True" in result.summary


def test_the_triage_is_part_of_the_answer_and_of_its_text() -> None:
    """Intended change, confounders with their reasons, and the A/Bs with what either outcome says."""
    symptom = "slower after overlap_moe_expert_parallel_comm"
    result = diagnose(before=Configuration(BEFORE), after=Configuration(AFTER), symptom=symptom)
    assert result.intended is not None
    assert result.intended.settings == {"model.overlap_moe_expert_parallel_comm": True}
    assert {path for group in result.confounders for path in group.settings} == set(BEFORE) - {
        *result.intended.settings
    }
    assert [(e.base, e.settings) for e in result.experiments][:2] == [
        ("before", {"model.moe_shared_expert_overlap": False}),
        ("after", {"env.CUDA_DEVICE_MAX_CONNECTIONS": 32}),
    ]
    assert result.experiments[1].compares.startswith(
        "the difference goes away: it is env.CUDA_DEVICE_MAX_CONNECTIONS=1; it stays: it is among "
    )
    text = [line.text for line in lines(result)]
    assert "  intended: model.overlap_moe_expert_parallel_comm=true (what the comparison is about)" in text
    assert "  A/B 2: after with env.CUDA_DEVICE_MAX_CONNECTIONS=32; " + result.experiments[1].compares in text


def test_equal_configurations_leave_nothing_to_blame() -> None:
    """No setting differs: the cause is elsewhere."""
    result = diagnose(before=Configuration(BEFORE), after=Configuration(BEFORE))
    assert [cause.cause for cause in result.causes] == ["unknown"]
    assert "No setting differs." in result.summary


def test_one_change_needs_no_further_experiment() -> None:
    """A single changed setting is the whole difference."""
    found = triage({"model.x": 1}, {"model.x": 2})
    assert (found.intended is not None, found.experiments) == (True, ())


SETTINGS = st.dictionaries(
    st.sampled_from([*BEFORE, "model.x", "model.y", "env.Z", "train.micro_batch_size", "runtime.torch"]),
    st.integers(0, 2),
)


@given(SETTINGS, SETTINGS)
def test_every_difference_is_in_exactly_one_group(before: dict[str, object], after: dict[str, object]) -> None:
    """Groups partition the changes, and the experiments together touch only changed settings."""
    found = triage(before, after)
    grouped = sorted(change.path for group in found.groups for change in group.changes)
    assert grouped == [change.path for change in found.changes]
    assert {path for experiment in found.experiments for path in experiment.settings} <= set(grouped)
    assert len(found.experiments) <= max(0, len(found.groups))


def test_two_logs_are_two_runs(tmp_path: Path) -> None:
    """Settings that the logs print and their step times are compared."""
    row = "  overlap_moe_expert_parallel_comm ................ {}\n"
    step = " iteration {:8}/ 100 | elapsed time per iteration (ms): {:.1f} |\n"
    before, after = tmp_path / "before.log", tmp_path / "after.log"
    before.write_text(row.format("False") + "".join(step.format(i, 1000 + i % 7) for i in range(40)))
    after.write_text(row.format("True") + "".join(step.format(i, 1200 + i % 7) for i in range(40)))
    result = diagnose([before, after], symptom="slower")
    assert [(c.path, c.before, c.after) for c in result.changed] == [
        ("model.overlap_moe_expert_parallel_comm", False, True)
    ]
    assert "1.199x the step time" in result.summary
    assert result.step_time is not None
    assert (round(result.step_time.ratio, 3), result.step_time.verdict) == (1.199, "slower")
    assert 1.19 < result.step_time.low <= result.step_time.ratio <= result.step_time.high < 1.21
