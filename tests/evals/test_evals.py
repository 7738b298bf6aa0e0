"""Questions that users ask: the calls of a good answer are replayed, and the facts of the answers graded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import replay

pytestmark = pytest.mark.anyio
QUESTIONS = replay.load()
NEGATIVE = [question for question in QUESTIONS if not question["expected_calls"]]


@pytest.fixture(autouse=True)
def _at_the_top(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(replay.TOP)
    monkeypatch.setenv("EP_OVERLAP_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("EP_OVERLAP_PYTHON", raising=False)
    monkeypatch.delenv("EP_OVERLAP_ROOTS", raising=False)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
async def test_the_expected_calls_give_the_facts(question: dict[str, Any]) -> None:
    """The server answers the calls of a good agent with what the answer must say."""
    if missing := replay.lacks(question):
        pytest.skip(f"{missing} is not installed")
    assert await replay.failures(question) == []


def test_the_questions_are_many_and_of_all_kinds() -> None:
    """At least thirty, among them some that are not ours and some that cannot be decided."""
    ids = [question["id"] for question in QUESTIONS]
    assert len(ids) == len(set(ids)) >= 30
    assert {"may-overlap-be-enabled", "alltoall-or-hybridep-on-16-h100", "drop-after-delay-wgrad"} <= set(ids)
    undecided = [q for q in QUESTIONS for c in q["expected_calls"] for f in c["facts"] if f.get("is") == "undetermined"]
    assert (len(NEGATIVE) >= 5, len(undecided) >= 5) == (True, True)


def test_every_question_is_complete() -> None:
    """Evaluators of skills find what they read, and the files that a question names exist."""
    for question in QUESTIONS:
        assert all(question[key] for key in ("prompt", "expected_output", "expectations")), question["id"]
        assert all((replay.TOP / file).is_file() for file in question["files"]), question["id"]
        assert all(call["facts"] for call in question["expected_calls"]), question["id"]


async def test_every_tool_is_asked_for() -> None:
    """A tool without a question would be one that nobody shows to be of use."""
    from mcp import Client

    from ep_overlap_mcp.server import build_server

    async with Client(build_server()) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
    asked = {call["tool"] for question in QUESTIONS for call in question["expected_calls"]}
    assert tools == asked


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ({"at": "verdict", "is": "valid"}, "verdict is 'valid' does not hold, it is ['invalid']"),
        ({"at": "findings.name", "has": ["a", "c"]}, "findings.name has ['a', 'c'] does not hold, it is ['a', 'b']"),
        ({"at": "findings.name", "lacks": ["b"]}, "findings.name lacks ['b'] does not hold, it is ['a', 'b']"),
        ({"at": "findings.name", "first": "b"}, "findings.name first 'b' does not hold, it is ['a', 'b']"),
        ({"at": "findings", "at_least": 3}, "findings at_least 3 does not hold, it is [{'name': 'a'}, {'name': 'b'}]"),
        ({"at": "ms", "near": 1.2}, "ms near 1.2 does not hold, it is [1.25]"),
        ({"at": "absent.way", "says": "x"}, "absent.way says 'x' does not hold, it is []"),
        ({"error": "not found"}, "no refusal with `not found`: text"),
    ],
)
def test_a_fact_that_does_not_hold_is_reported(fact: dict[str, Any], problem: str) -> None:
    """Each kind of fact can fail, and says what was found instead."""
    answer = {"verdict": "invalid", "findings": [{"name": "a"}, {"name": "b"}], "ms": 1.25}
    assert replay.grade(fact, answer, "text") == problem


def test_a_refusal_fails_every_fact_but_its_own() -> None:
    """An error result is an answer only to the question that expects it."""
    assert replay.grade({"at": "verdict", "is": "valid"}, None, "no such file") == "refused: no such file"
    assert replay.grade({"error": "no such"}, None, "no such file") is None


def test_the_export_is_what_other_evaluators_take() -> None:
    """A list with question, skill, truth and behaviour; what is not ours expects no skill."""
    command = [sys.executable, str(Path(replay.__file__)), "--export"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [row["id"] for row in rows] == [question["id"] for question in QUESTIONS]
    assert {row["id"] for row in rows if row["expected_skill"] is None} == {question["id"] for question in NEGATIVE}
    assert all(row["question"] and row["ground_truth"] and row["expected_behavior"] for row in rows)
