"""JUnit: what a CI server counts and shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.reports.junit import as_junit

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import CheckResult


def suites(*results: CheckResult) -> list[ET.Element]:
    """The suites as a CI server reads them."""
    return list(ET.fromstring(as_junit(results).encode("utf-8")))  # noqa: S314 - our own text


def test_every_category_in_junit(everything: CheckResult) -> None:
    """Errors fail, open errors are errors, the rest is output; what XML cannot hold is dropped."""
    (suite,) = suites(everything)
    assert suite.attrib == {"name": "pretrain <moe> & more", "tests": "3", "failures": "2", "errors": "1"}
    assert [(case.get("name"), [child.tag for child in case]) for case in suite.findall("testcase")] == [
        ("pipeline-needs-virtual-stages", ["failure"]),
        ("no-full-recompute", ["failure"]),
        ("deepep-needs-supported-gpu", ["error"]),
    ]
    assert [f.attrib for f in suite.iter("failure")] == [
        {"type": "EPO104", "message": "PP is 4 without virtual stages"},
        {"type": "EPO105", "message": "granularity is full <- é"},
    ]
    assert [e.attrib for e in suite.iter("error")] == [
        {"type": "EPO602", "message": "undecided: hardware.gpu is not known"}
    ]
    assert suite.findtext("system-out") == (
        "Judged as written. INVALID for megatron-core 0.16.1. 2 errors.\n"
        "warning more-than-one-cuda-connection: one connection serialises\n"
        "info assumed-version-floor: torch taken as new enough\n"
        "undecided info too-few-microbatches-to-overlap: train.global_batch_size is not known"
    )


def test_a_failure_says_where_and_what_to_do(everything: CheckResult) -> None:
    """Its text has the places and the fixes."""
    first = next(suites(everything)[0].iter("failure"))
    assert (first.text or "").splitlines()[1:] == [
        "at jobs/pretrain moe.sh:12",
        "fix: model.virtual_pipeline_model_parallel_size=2",
        "fix: model.pipeline_model_parallel_size=1 (gives up the pipeline)",
    ]


def test_undecided_never_reads_as_a_pass(open_only: CheckResult) -> None:
    """A CI server sees an error where no rule is violated but an error rule is open."""
    (suite,) = suites(open_only)
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert [case.get("name") for case in suite.findall("testcase") if len(case) == 0] == []


def test_a_pass_is_one_case(open_only: CheckResult) -> None:
    """With nothing wrong and nothing open there is a test that passed."""
    valid = open_only.model_copy(update={"verdict": "valid", "undecided": []})
    (suite,) = suites(valid)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "0")
    assert [case.get("name") for case in suite.findall("testcase")] == ["97 rules"]


def test_a_disagreement_is_in_the_output(contradicted: CheckResult) -> None:
    """What the installed Megatron says against the rules is shown."""
    assert (suites(contradicted)[0].findtext("system-out") or "").startswith("DISAGREEMENT")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(text=st.text(alphabet=st.characters(), max_size=30))
def test_any_text_reads_back(everything: CheckResult, text: str) -> None:
    """Whatever a configuration holds, the report is XML that a parser takes."""
    (suite,) = suites(everything.model_copy(update={"configuration": text or None, "summary": text}))
    assert suite.get("tests") == "3"
