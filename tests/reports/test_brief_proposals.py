"""Short proposals: every dispatcher stays, and what a change sets is never lost."""

from __future__ import annotations

import json

from ep_overlap_mcp.reports.brief import brief, without_empty
from ep_overlap_mcp.results.propose import Change, DispatcherCandidate, Patch, ProposeResult, Step


def _proposal(measurements: int = 1) -> ProposeResult:
    candidates = [
        DispatcherCandidate(
            dispatcher="flex" if backend else "alltoall",
            backend=backend,
            supported=supported,
            why="a reason " * 8,
            evidence=["a published measurement " * 4] * measurements,
            needs=["a package " * 5],
            ab_test="everything else fixed " * 5,
        )
        for backend, supported in ((None, "yes"), ("deepep", "unknown"), ("hybridep", "unknown"), ("ncclep", "no"))
    ]
    change = Change(path="model.recompute_method", before="uniform", to=None, rules=["no-recompute-method"], safe=True)
    step = Step(name="baseline", settings={"model.recompute_method": None}, compare_with=None, why="overlap off")
    return ProposeResult(
        summary="1 change.",
        assume="overlap",
        verdict_before="invalid",
        verdict_after="valid",
        changes=[change],
        alternatives=[[change], [change]],
        blocked_by=[],
        patch=Patch(format="flags", text="--x", verified=True),
        dispatchers=candidates,
        plan=[step],
        next="apply",
    )


def test_a_setting_that_is_taken_away_says_so() -> None:
    """Null is the value of a setting that goes; dropping it would leave a change without an outcome."""
    for answer in (brief(_proposal()), without_empty(_proposal().model_dump(mode="json"))):
        assert answer["changes"][0]["to"] is None
        assert answer["plan"][0]["settings"] == {"model.recompute_method": None}
        assert "backend" not in answer["dispatchers"][0]


def test_a_short_proposal_keeps_every_dispatcher() -> None:
    """The question which dispatcher to take is answered from the short form: all candidates, one measurement each."""
    answer = brief(_proposal(measurements=6))
    assert len(json.dumps(answer).encode()) <= 4100
    shown = [(d.get("backend"), d["supported"], len(d.get("evidence", []))) for d in answer["dispatchers"]]
    assert shown == [(None, "yes", 1), ("deepep", "unknown", 1), ("hybridep", "unknown", 1), ("ncclep", "no", 0)]
    assert answer["omitted"] == {"alternatives": 1}
