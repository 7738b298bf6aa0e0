"""Check results as JUnit XML, for test reports in CI."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.results.check import CheckResult


def as_junit(results: Sequence[CheckResult]) -> str:
    """A suite a configuration: errors fail, undecided errors are errors of the run, warnings are output."""
    suites = ET.Element("testsuites", name="ep-overlap-mcp")
    for result in results:
        suites.append(_suite(result))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _suite(result: CheckResult) -> ET.Element:
    errors = [f for f in result.findings if f.severity == "error"]
    undecided = [u for u in result.undecided if u.severity == "error"]
    suite = ET.Element("testsuite", name=result.configuration or "configuration")
    suite.set("tests", str(max(1, len(errors) + len(undecided))))
    suite.set("failures", str(len(errors)))
    suite.set("errors", str(len(undecided)))
    for finding in errors:
        case = ET.SubElement(suite, "testcase", classname="ep-overlap", name=finding.name)
        ET.SubElement(case, "failure", type=finding.rule, message=_printable(finding.message))
    for rule in undecided:
        case = ET.SubElement(suite, "testcase", classname="ep-overlap", name=rule.name)
        ET.SubElement(case, "error", type=rule.rule, message=_printable(f"undecided: {rule.why}"))
    if not errors and not undecided:
        ET.SubElement(suite, "testcase", classname="ep-overlap", name=f"{result.rules_checked} rules")
    notes = [f"{f.severity} {f.name}: {f.message}" for f in result.findings if f.severity != "error"]
    ET.SubElement(suite, "system-out").text = _printable("\n".join([result.summary, *notes]))
    return suite


def _printable(text: str) -> str:
    """XML 1.0 allows no control characters but tab and line ends."""
    return "".join(c for c in text if c in "\t\n\r" or ord(c) >= 0x20)
