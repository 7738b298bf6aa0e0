"""SARIF 2.1.0, as code scanning takes it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import jsonschema
import pytest

from ep_overlap_mcp.reports.sarif import as_sarif

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import CheckResult

SCHEMA = os.environ.get("EP_OVERLAP_SARIF_SCHEMA")  # OASIS sarif-schema-2.1.0.json


def run(*results: CheckResult, exit_code: int = 1) -> dict[str, Any]:
    """The one run of the log."""
    log = json.loads(as_sarif(results, exit_code))
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    found: dict[str, Any] = log["runs"][0]
    return found


def test_every_category_in_sarif(everything: CheckResult) -> None:
    """A result for each finding and each undecided rule, with level and kind."""
    assert [(r["ruleId"], r.get("kind", "fail"), r["level"]) for r in run(everything)["results"]] == [
        ("EPO104", "fail", "error"),
        ("EPO105", "fail", "error"),
        ("EPO606", "fail", "warning"),
        ("EPO809", "fail", "note"),
        ("EPO602", "open", "none"),
        ("EPO507", "open", "none"),
    ]


def test_undecided_never_reads_as_a_pass(open_only: CheckResult) -> None:
    """An open rule is of kind `open`, never `pass`, and is not left out."""
    found = run(open_only, exit_code=3)
    assert [(r["ruleId"], r["kind"]) for r in found["results"]] == [("EPO602", "open"), ("EPO507", "open")]
    assert found["invocations"][0]["exitCode"] == 3
    assert "UNDETERMINED" in found["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_a_disagreement_is_a_warning_of_the_run(everything: CheckResult, contradicted: CheckResult) -> None:
    """What the installed Megatron says against the rules is shown; agreement is no warning."""
    notes = run(everything, contradicted)["invocations"][0]["toolExecutionNotifications"]
    assert [note["level"] for note in notes] == ["note", "warning"]
    assert "DISAGREEMENT" in notes[1]["message"]["text"]


def test_places_are_uri_references_with_lines(everything: CheckResult) -> None:
    """The first place is the result's, the others are related; what is in no file has none."""
    first, second, _, fourth, *_ = run(everything)["results"]
    assert first["locations"] == [at("jobs/pretrain%20moe.sh", 12)]
    assert "relatedLocations" not in first
    assert (second["locations"], second["relatedLocations"]) == (
        [at("jobs/pretrain%20moe.sh", 20)],
        [at("jobs/pretrain%20moe.sh", 12)],
    )
    assert "locations" not in fourth


def test_an_absolute_path_is_a_file_uri(everything: CheckResult) -> None:
    """As the standard asks for a path that is not relative to the checkout."""
    text = as_sarif([everything], 1).replace("jobs/pretrain%20moe.sh", "x")
    assert "file:" not in text
    moved = everything.model_validate_json(
        everything.model_copy(update={"findings": everything.findings[:1]})
        .model_dump_json()
        .replace("jobs/pretrain moe.sh", "/home/me/a b#1.sh")
    )
    (uri,) = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run(moved)["results"][:1]]
    assert uri == "file:///home/me/a%20b%231.sh"


def at(uri: str, line: int) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}}


def test_rules_are_listed_once_and_results_point_at_them(everything: CheckResult, open_only: CheckResult) -> None:
    """Section 3.52.4 and 3.27.6: `ruleIndex` is the place of the rule whose id is `ruleId`."""
    found = run(everything, open_only)
    rules = found["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) == 6
    assert [rules[r["ruleIndex"]]["id"] for r in found["results"]] == [r["ruleId"] for r in found["results"]]


def test_the_structure_follows_the_standard(everything: CheckResult, contradicted: CheckResult) -> None:
    """What sections 3.13 to 3.28 require of the properties used here."""
    found = run(everything, contradicted)
    driver = found["tool"]["driver"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", driver["semanticVersion"])
    assert all(invocation["executionSuccessful"] is True for invocation in found["invocations"])
    for result in found["results"]:
        assert set(result) <= {"ruleId", "ruleIndex", "level", "kind", "message", "locations", "relatedLocations"}
        assert result["message"]["text"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert (result["level"] == "none") == (result.get("kind", "fail") != "fail")  # section 3.27.10
        for location in (*result.get("locations", ()), *result.get("relatedLocations", ())):
            place = location["physicalLocation"]
            assert place["region"]["startLine"] >= 1
            parts = urlsplit(place["artifactLocation"]["uri"])
            assert unquote(parts.path) == "jobs/pretrain moe.sh"
            assert not parts.fragment


@pytest.mark.skipif(not SCHEMA, reason="EP_OVERLAP_SARIF_SCHEMA names no copy of OASIS sarif-schema-2.1.0.json")
def test_the_published_schema_takes_it(
    everything: CheckResult, contradicted: CheckResult, open_only: CheckResult
) -> None:
    """The whole log against the schema of the standard, formats included."""
    schema = json.loads(Path(SCHEMA or "").read_text(encoding="utf-8"))
    log = json.loads(as_sarif([everything, contradicted, open_only], 1))
    checker = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
    assert [error.message for error in checker.iter_errors(log)] == []
