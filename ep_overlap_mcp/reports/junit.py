"""Check results as JUnit XML, for test reports in CI."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.text_of.check import finding_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.results.check import CheckResult


# XML 1.0 allows no control characters but tab and line ends, no surrogates and neither U+FFFE nor U+FFFF.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(results: Sequence[CheckResult]) -> str:
    """A suite a configuration: errors fail, undecided errors are errors of the run, all else is output."""
    suites = ET.Element("testsuites", name="ep-overlap-mcp")
    for result in results:
        suites.append(_suite(result))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _suite(result: CheckResult) -> ET.Element:
    errors = [f for f in result.findings if f.severity == "error"]
    undecided = [u for u in result.undecided if u.severity == "error"]
    suite = ET.Element("testsuite", name=_printable(result.configuration or "configuration"))
    suite.set("tests", str(max(1, len(errors) + len(undecided))))
    suite.set("failures", str(len(errors)))
    suite.set("errors", str(len(undecided)))
    for finding in errors:
        case = ET.SubElement(suite, "testcase", classname="ep-overlap", name=finding.name)
        failure = ET.SubElement(case, "failure", type=finding.rule, message=_printable(finding.message))
        failure.text = _printable("\n".join(line.text.strip() for line in finding_lines(finding)))
    for rule in undecided:
        case = ET.SubElement(suite, "testcase", classname="ep-overlap", name=rule.name)
        ET.SubElement(case, "error", type=rule.rule, message=_printable(f"undecided: {rule.why}"))
    if not errors and not undecided:
        ET.SubElement(suite, "testcase", classname="ep-overlap", name=f"{result.rules_checked} rules")
    notes = [f"{f.severity} {f.name}: {f.message}" for f in result.findings if f.severity != "error"]
    notes += [f"undecided {u.severity} {u.name}: {u.why}" for u in result.undecided if u.severity != "error"]
    ET.SubElement(suite, "system-out").text = _printable("\n".join([result.summary, *notes]))
    return suite


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("", text)
