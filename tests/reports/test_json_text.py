"""JSON: the same object that the tool returns."""

from __future__ import annotations

import json

from ep_overlap_mcp.reports.json_text import as_json
from ep_overlap_mcp.results.check import CheckResult


def test_one_answer_is_an_object_that_reads_back_equal(everything: CheckResult) -> None:
    """Nothing is lost on the way, and `summary` comes first."""
    answer = json.loads(as_json([everything]))
    assert next(iter(answer)) == "summary"
    assert CheckResult.model_validate(answer) == everything


def test_several_answers_are_a_list(everything: CheckResult, open_only: CheckResult) -> None:
    """One object a configuration, in their order."""
    answers = json.loads(as_json([everything, open_only]))
    assert [a["verdict"] for a in answers] == ["invalid", "undetermined"]


def test_undecided_never_reads_as_a_pass(open_only: CheckResult) -> None:
    """The verdict and the open rules stand beside each other."""
    answer = json.loads(as_json([open_only]))
    assert answer["verdict"] == "undetermined"
    assert [(u["name"], u["severity"], u["needs"]) for u in answer["undecided"]] == [
        ("deepep-needs-supported-gpu", "error", ["hardware.gpu"]),
        ("too-few-microbatches-to-overlap", "info", ["train.global_batch_size"]),
    ]


def test_the_judge_is_kept(contradicted: CheckResult) -> None:
    """A disagreement is data as well."""
    assert json.loads(as_json([contradicted]))["megatron"]["agrees"] is False


def test_the_writer_changes_nothing(everything: CheckResult) -> None:
    """Writers are pure: the answer is the same afterwards."""
    before = everything.model_copy(deep=True)
    as_json([everything])
    assert everything == before
