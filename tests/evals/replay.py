"""Replays the calls that `evals.json` expects against the server and grades the facts of the answers. Needs no model.

    python tests/evals/replay.py            every question, a line each; exit 1 when a fact does not hold
    python tests/evals/replay.py ID…        some of them
    python tests/evals/replay.py --export   the questions as a list for evaluators that take {id, question,
                                            expected_skill, ground_truth, expected_behavior}

`evals.json` itself is of the form {skill_name, evals: [{id, prompt, expected_output, files, expectations}]}, with three
additions: `expected_calls`, the tool calls of a good answer; for questions that are not ours `if_called`, what the
server answers to an agent that asks it all the same; and `needs`, a package without which a question is passed over.

A call has `facts`: `at` is a path into the structured answer, through lists as well, and `is`, `first`, `has`, `lacks`,
`says`, `near`, `at_least` or `at_most` says what stands there; `error` is a part of the text of a refusal. Files are
named from the top of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

from ep_overlap_mcp.server import build_server

EVALS = Path(__file__).with_name("evals.json")
TOP = Path(__file__).parents[2]
SHORT = 4500  # bytes of a default answer


def load() -> list[dict[str, Any]]:
    """The questions, in order."""
    return list(json.loads(EVALS.read_text(encoding="utf-8"))["evals"])


def lacks(question: dict[str, Any]) -> str | None:
    """The package that a question needs and this Python does not have."""
    needed = question.get("needs")
    return needed if needed and find_spec(needed) is None else None


async def failures(question: dict[str, Any]) -> list[str]:
    """What does not hold of the answers that the server gives to one question."""
    wrong = []
    async with Client(build_server()) as client:
        for call in [*question["expected_calls"], *question.get("if_called", [])]:
            result = await client.call_tool(call["tool"], call["arguments"])
            text = "".join(part.text for part in result.content if part.type == "text")
            answer = None if result.is_error else result.structured_content
            facts = [grade(fact, answer, text) for fact in call["facts"]]
            wrong += [f"{call['tool']}: {problem}" for problem in [*facts, _shape(call, answer, text)] if problem]
    return wrong


def _shape(call: dict[str, Any], answer: dict[str, Any] | None, text: str) -> str | None:
    """What every answer owes its reader: the summary first, in both forms, and a default answer is short."""
    if answer is None:
        return None
    if next(iter(answer)) != "summary" or not text.startswith(answer["summary"].partition(":")[0]):
        return "the summary does not come first in both forms"
    size = len(json.dumps(answer, ensure_ascii=False).encode())
    short = call["arguments"].get("detail") != "full" and "results" not in answer
    return f"a default answer of {size} bytes" if short and size > SHORT else None


def grade(fact: dict[str, Any], answer: dict[str, Any] | None, text: str) -> str | None:
    """None when the fact holds, else what was found instead."""
    if "error" in fact:
        holds = answer is None and fact["error"] in text
        return None if holds else f"no refusal with `{fact['error']}`: {text[:200]}"
    if answer is None:
        return f"refused: {text[:300]}"
    found = at(answer, fact["at"].split("."))
    kind = next(key for key in fact if key != "at")
    holds = _HOLDS[kind](found, fact[kind])
    return None if holds else f"{fact['at']} {kind} {fact[kind]!r} does not hold, it is {found!r}"


def at(value: Any, path: list[str]) -> list[Any]:
    """All values at a path: through every element of a list on the way, and the elements of a list at its end."""
    if isinstance(value, list):
        return [found for item in value for found in at(item, path)]
    if not path:
        return [value]
    return at(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else []


def _amount(found: list[Any]) -> float:
    """A number itself; of anything else how many there are."""
    if len(found) == 1 and isinstance(found[0], (int, float)):
        return float(found[0])
    return float(len(found[0]) if len(found) == 1 and isinstance(found[0], (dict, str)) else len(found))


_HOLDS = {
    "is": lambda found, wanted: found == [wanted],
    "first": lambda found, wanted: found[:1] == [wanted],
    "has": lambda found, wanted: all(value in found for value in wanted),
    "lacks": lambda found, wanted: not any(value in found for value in wanted),
    "says": lambda found, wanted: any(wanted in str(value) for value in found),
    "near": lambda found, wanted: [abs(value - wanted) < 0.001 for value in found] == [True],
    "at_least": lambda found, wanted: _amount(found) >= wanted,
    "at_most": lambda found, wanted: _amount(found) <= wanted,
}


def exported() -> list[dict[str, Any]]:
    """The questions in the list form of other evaluators; a question that is not ours expects no skill."""
    return [
        {
            "id": question["id"],
            "question": question["prompt"],
            "expected_skill": "ep-overlap" if question["expected_calls"] else None,
            "expected_script": None,
            "ground_truth": question["expected_output"],
            "expected_behavior": [
                *(f"Calls {call['tool']}" for call in question["expected_calls"]),
                *question["expectations"],
            ],
        }
        for question in load()
    ]


def main() -> int:
    """Replay the questions named on the command line, or all."""
    parser = argparse.ArgumentParser(description="Replay the expected calls and grade their answers.")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--export", action="store_true")
    options = parser.parse_args()
    if options.export:
        sys.stdout.write(json.dumps(exported(), indent=1, ensure_ascii=False) + "\n")
        return 0
    os.chdir(TOP)
    chosen = [q for q in load() if not lacks(q) and (not options.ids or q["id"] in options.ids)]
    failed = 0
    for question in chosen:
        wrong = anyio.run(failures, question)
        failed += bool(wrong)
        sys.stdout.write("\n    ".join([f"{'FAIL' if wrong else 'ok  '} {question['id']}", *wrong]) + "\n")
    sys.stdout.write(f"{len(chosen) - failed} passed, {failed} failed\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
