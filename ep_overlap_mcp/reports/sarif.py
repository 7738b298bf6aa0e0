"""Check results as SARIF 2.1.0, for code scanning in CI."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ep_overlap_mcp import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ep_overlap_mcp.results.check import CheckResult, Finding, Undecided

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(results: Sequence[CheckResult], exit_code: int) -> str:
    """One run with every finding; an undecided rule is a result of kind `open`, never left out."""
    named: dict[str, str] = {}
    for result in results:
        named |= {f.rule: f.name for f in result.findings} | {u.rule: u.name for u in result.undecided}
    index = {code: position for position, code in enumerate(sorted(named))}
    run = {
        "tool": {"driver": _driver(named)},
        "invocations": [_invocation(results, exit_code)],
        "results": [entry for result in results for entry in _entries(result, index)],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _driver(named: dict[str, str]) -> dict[str, Any]:
    rules = [
        {"id": code, "name": named[code], "shortDescription": {"text": named[code].replace("-", " ")}}
        for code in sorted(named)
    ]
    return {"name": "ep-overlap-mcp", "semanticVersion": __version__, "rules": rules}


def _invocation(results: Iterable[CheckResult], exit_code: int) -> dict[str, Any]:
    """The summaries as notifications; a verdict that the installed Megatron contradicts is a warning."""
    notes = [
        {
            "level": "warning" if result.megatron and result.megatron.agrees is False else "note",
            "message": {
                "text": f"{result.configuration}: {result.summary}" if result.configuration else result.summary
            },
        }
        for result in results
    ]
    return {"executionSuccessful": True, "exitCode": exit_code, "toolExecutionNotifications": notes}


def _entries(result: CheckResult, index: dict[str, int]) -> Iterator[dict[str, Any]]:
    for finding in result.findings:
        yield _finding(finding, index)
    for undecided in result.undecided:
        yield _undecided(undecided, index)


def _finding(finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index[finding.rule],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.name}: {finding.message}"},
    }
    lines = dict.fromkeys((s.origin.file, s.origin.line) for s in finding.settings if s.origin.file and s.origin.line)
    places = [_location(file, line) for file, line in lines]
    if places:
        entry["locations"] = places[:1]
    if places[1:]:
        entry["relatedLocations"] = places[1:]
    return entry


def _location(file: str, line: int) -> dict[str, Any]:
    """A line of a file, which SARIF names by a URI reference."""
    uri = PurePosixPath(file).as_uri() if file.startswith("/") else quote(file)
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}}


def _undecided(undecided: Undecided, index: dict[str, int]) -> dict[str, Any]:
    return {
        "ruleId": undecided.rule,
        "ruleIndex": index[undecided.rule],
        "kind": "open",
        "level": "none",
        "message": {"text": f"{undecided.name}: undecided, {undecided.why}"},
    }
