"""Check results as SARIF 2.1.0, for code scanning in CI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.results.check import CheckResult, Finding, Undecided

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(results: Sequence[CheckResult], exit_code: int) -> str:
    """One run with every finding; an undecided rule is a result of kind `open`, never left out."""
    named: dict[str, str] = {}
    for result in results:
        named |= {f.rule: f.name for f in result.findings} | {u.rule: u.name for u in result.undecided}
    index = {code: position for position, code in enumerate(sorted(named))}
    found = [
        entry
        for result in results
        for entry in (
            *(_finding(f, index) for f in result.findings),
            *(_undecided(u, index) for u in result.undecided),
        )
    ]
    run = {
        "tool": {"driver": _driver(named)},
        "invocations": [{"executionSuccessful": True, "exitCode": exit_code}],
        "results": found,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _driver(named: dict[str, str]) -> dict[str, Any]:
    rules = [
        {"id": code, "name": named[code], "shortDescription": {"text": named[code].replace("-", " ")}}
        for code in sorted(named)
    ]
    return {"name": "ep-overlap-mcp", "semanticVersion": __version__, "rules": rules}


def _finding(finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index[finding.rule],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.name}: {finding.message}"},
    }
    places = [s.origin for s in finding.settings if s.origin.file]
    if places:
        first = places[0]
        location: dict[str, Any] = {"artifactLocation": {"uri": first.file}}
        if first.line:
            location["region"] = {"startLine": first.line}
        result["locations"] = [{"physicalLocation": location}]
    return result


def _undecided(undecided: Undecided, index: dict[str, int]) -> dict[str, Any]:
    return {
        "ruleId": undecided.rule,
        "ruleIndex": index[undecided.rule],
        "kind": "open",
        "level": "none",
        "message": {"text": f"{undecided.name}: undecided, {undecided.why}"},
    }
