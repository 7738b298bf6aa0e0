"""Answers cut to an agent's context: what is kept, what is counted, and the limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.reports.brief import LIMIT, brief, without_empty
from ep_overlap_mcp.results.check import CheckResult

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import Finding

SLACK = 400  # the counts of what was left out, and how to get it

severities = st.sampled_from(["error", "error", "warning", "info"])
texts = st.text(alphabet="ab é\n", max_size=160)


def size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


@st.composite
def results(draw: st.DrawFn, most: int = 30) -> dict[str, Any]:
    """Findings, undecided rules and settings in any number, with texts of any length."""
    findings = [
        {"rule": f"EPO{n:03}", "name": f"rule-{n}", "severity": draw(severities), "message": draw(texts)}
        for n in range(draw(st.integers(0, most)))
    ]
    undecided = [
        {"rule": f"EPO{500 + n}", "name": f"open-{n}", "severity": draw(severities), "why": draw(texts)}
        for n in range(draw(st.integers(0, most)))
    ]
    return {"findings": findings, "undecided": undecided, "settings": draw(st.integers(0, 60)), "summary": draw(texts)}


def filled(example: CheckResult, drawn: dict[str, Any]) -> CheckResult:
    """The example's own finding and setting, as often as was drawn."""
    like: Finding = example.findings[0]
    setting = next(iter(example.settings.values()))
    return CheckResult.model_validate(
        {
            **example.model_dump(),
            "summary": drawn["summary"],
            "findings": [{**like.model_dump(), **f} for f in drawn["findings"]],
            "undecided": [{**u, "needs": [f"model.need_{n}" for n in range(6)]} for u in drawn["undecided"]],
            "settings": {f"model.setting_{n}": setting.model_dump() for n in range(drawn["settings"])},
        }
    )


FIXTURE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60, deadline=None
)


@FIXTURE
@given(drawn=results())
def test_a_brief_answer_keeps_the_limit(everything: CheckResult, drawn: dict[str, Any]) -> None:
    """Never above the limit by more than the words that say what was left out, unless errors alone take it."""
    whole = filled(everything, drawn)
    answer = brief(whole)
    errors = sum(size(f) for f in answer["findings"] if f["severity"] == "error")
    assert size(answer) <= max(LIMIT, errors + size(whole.summary)) + SLACK + size(answer["overlap"])


@FIXTURE
@given(drawn=results())
def test_no_error_loses_its_name(everything: CheckResult, drawn: dict[str, Any]) -> None:
    """Whatever is cut, every violated error rule is named, in order."""
    whole = filled(everything, drawn)
    wanted = [f.name for f in whole.findings if f.severity == "error"]
    assert [f["name"] for f in brief(whole)["findings"] if f["severity"] == "error"] == wanted


@FIXTURE
@given(drawn=results())
def test_what_is_left_out_is_counted(everything: CheckResult, drawn: dict[str, Any]) -> None:
    """Kept and omitted add up to what there is, field by field, and the answer says how to get the rest."""
    whole = filled(everything, drawn)
    answer = brief(whole)
    omitted = answer.get("omitted", {})
    for key in ("findings", "undecided", "settings"):
        assert len(answer[key]) + omitted.get(key, 0) == len(getattr(whole, key))
    assert ("more" in answer) == bool(omitted)


@FIXTURE
@given(drawn=results())
def test_an_open_error_never_reads_as_a_pass(everything: CheckResult, drawn: dict[str, Any]) -> None:
    """Where error rules are open, the verdict stands and at least one of them is shown or counted."""
    whole = filled(everything, drawn).model_copy(update={"verdict": "undetermined"})
    answer = brief(whole)
    open_errors = sum(u.severity == "error" for u in whole.undecided)
    assert answer["verdict"] == "undetermined"
    assert not open_errors or len(answer["undecided"]) + answer.get("omitted", {}).get("undecided", 0) >= open_errors


def test_a_small_answer_is_not_cut(everything: CheckResult) -> None:
    """What fits keeps its messages, fixes and places; only notes and quiet settings are counted instead."""
    answer = brief(everything)
    assert next(iter(answer)) == "summary"
    assert answer["findings"][0] == {
        "rule": "EPO104",
        "name": "pipeline-needs-virtual-stages",
        "severity": "error",
        "message": "PP is 4 without virtual stages",
        "expected": "virtual stages",
        "fix": [
            {"set": {"model.virtual_pipeline_model_parallel_size": 2}, "safe": True},
            {"set": {"model.pipeline_model_parallel_size": 1}, "safe": False, "gives_up": "the pipeline"},
        ],
        "settings": {
            "model.pipeline_model_parallel_size": "4 (jobs/pretrain moe.sh:12)",
            "model.virtual_pipeline_model_parallel_size": "null (default)",
        },
    }
    assert answer["settings"] == {"model.moe_token_dispatcher_type": "alltoall"}
    assert answer["omitted"] == {"findings": 1, "undecided": 1, "settings": 4}
    assert answer["megatron"]["agrees"] is True


def test_nulls_and_empty_parts_are_dropped_but_not_false() -> None:
    """`false`, `0` and the lists at the top stay."""
    assert without_empty({"a": None, "b": [], "c": {"d": None, "e": [], "f": 0, "g": False}}) == {
        "b": [],
        "c": {"f": 0, "g": False},
    }
