"""Situations of users as whole commands: each folder of `cases/` holds the input and `expected.json`.

`arguments` are those of the command line, run inside the folder; only the keys present are compared. `errors` are all
error findings; `absent` may not appear at any severity; in `changes`, "*" is any value. Names that end in `-ready` are
silent: nothing stands in the way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ep_overlap_mcp.cli import main

CASES = sorted(path.parent for path in (Path(__file__).parent / "cases").glob("*/expected.json"))
ACCEPTANCE = os.environ.get("EP_OVERLAP_CASES")  # a folder with run_cases.py and its cases


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_situation_has_its_answer(
    case: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command answers the case as a person who knows the sources would."""
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    monkeypatch.chdir(case)
    code = main([*expected["arguments"], "--format", "json"])
    output = capsys.readouterr()
    if "says" in expected:
        assert (code, output.out, output.err.count("\n")) == (2, "", 1)
        assert [text for text in expected["says"] if text not in output.err] == [], output.err
        return
    assert differences(expected, {"exit": code, **json.loads(output.out)}) == {}


def differences(expected: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """What the answer has where it differs from what the case expects, by key."""
    named = {f["name"] for f in answer.get("findings", ())}
    undecided = {u["name"] for u in answer.get("undecided", ())}
    changed = {c["path"]: c["to"] for c in answer.get("changes", ())}
    got = {
        **{key: answer.get(key) for key in ("exit", "verdict", "verdict_after")},
        "errors": sorted(f["name"] for f in answer.get("findings", ()) if f["severity"] == "error"),
        "warnings_include": [n for n in expected.get("warnings_include", ()) if n in named],
        "absent": [n for n in expected.get("absent", ()) if n not in named | undecided],
        "undecided_include": [n for n in expected.get("undecided_include", ()) if n in undecided],
        "settings": {
            p: answer.get("settings", {}).get(p, {"value": "?"})["value"] for p in expected.get("settings", ())
        },
        "overlap": {key: answer.get("overlap", {}).get(key) for key in expected.get("overlap", ())},
        "changes": {p: "*" if expected.get("changes", {}).get(p) == "*" else to for p, to in changed.items()},
    }
    wanted = {**expected, "errors": sorted(expected.get("errors", ()))}
    return {key: value for key, value in got.items() if key in expected and value != wanted[key]}


def test_there_are_many_cases_and_many_silent_ones() -> None:
    """Forty situations at least; fifteen of them valid without an error, and some undecided."""
    expected = [json.loads((case / "expected.json").read_text(encoding="utf-8")) for case in CASES]
    silent = [case for case, e in zip(CASES, expected, strict=True) if case.name.endswith("-ready")]
    assert len(CASES) >= 40
    assert len(silent) >= 15
    assert all(json.loads((case / "expected.json").read_text())["verdict"] == "valid" for case in silent)
    assert sum(e.get("verdict") == "undetermined" for e in expected) >= 8


@pytest.mark.skipif(not ACCEPTANCE, reason="EP_OVERLAP_CASES names no folder of acceptance cases")
def test_the_acceptance_cases_pass() -> None:
    """Every case of the folder that EP_OVERLAP_CASES names passes, by the runner that stands beside them."""
    command = f"{sys.executable} -m ep_overlap_mcp"
    runner = [sys.executable, str(Path(ACCEPTANCE or "") / "run_cases.py"), "--command", command]
    done = subprocess.run(runner, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
