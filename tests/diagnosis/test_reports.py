"""Public failure reports as small paraphrased logs: NAME.log beside NAME.json (source, first cause)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ep_overlap_mcp.diagnosis import diagnose

REPORTS = sorted((Path(__file__).parent / "reports").glob("*.json"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_first_cause_of_a_public_report(report: Path) -> None:
    """The report's cause comes first, no other is called confirmed, and none that its thread only guessed."""
    known = json.loads(report.read_text())
    result = diagnose([report.with_suffix(".log")])
    confirmed = {cause.cause for cause in result.causes if cause.confidence == "confirmed"}
    assert result.causes[0].cause == known["first"]
    assert confirmed <= ({known["first"]} if known["established"] else set())
    if "rules" in known:
        assert result.causes[0].rules == known["rules"]


def test_there_are_thirty_reports_of_many_kinds() -> None:
    """Thirty reports at least, with their sources, over twenty causes."""
    reports = [json.loads(path.read_text()) for path in REPORTS]
    assert len(reports) >= 30
    assert len({report["source"] for report in reports}) >= 30
    assert len({report["first"] for report in reports}) >= 20
