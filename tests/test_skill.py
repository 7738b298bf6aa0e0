"""The skill: found where installers look, valid by the specification, short, and true of the tool as it is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from mcp import Client

from ep_overlap_mcp import __version__
from ep_overlap_mcp.rules.explain import list_rules
from ep_overlap_mcp.server import build_server

TOP = Path(__file__).parents[1]
SKILL = TOP / "skills" / "ep-overlap" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
_, FRONT, BODY = TEXT.split("---\n", 2)
META = yaml.safe_load(FRONT)


def test_there_is_one_text_in_the_two_places_where_installers_look() -> None:
    """`npx skills`, `gh skill` and `gemini skills` read `skills/NAME`; people, and some tools, read the top."""
    assert (TOP / "SKILL.md").resolve() == SKILL.resolve()


def test_the_front_matter_is_the_specifications() -> None:
    """Only the keys of agentskills.io, within its lengths, and the name is the folder's."""
    assert META.keys() <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert META["name"] == SKILL.parent.name == "ep-overlap"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", META["name"])
    assert 1 <= len(META["description"]) <= 1024
    assert len(META["compatibility"]) <= 500
    assert all(isinstance(value, str) for value in META["metadata"].values())
    assert META["metadata"]["version"] == __version__


@pytest.mark.skipif(shutil.which("agentskills") is None, reason="`agentskills` (PyPI skills-ref) is not installed")
def test_the_reference_validator_accepts_it() -> None:
    """The specification's own validator has the last word."""
    done = subprocess.run(["agentskills", "validate", str(SKILL.parent)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_short_and_has_its_sections() -> None:
    """Under 5,000 tokens by the cautious count of three characters each, with what evaluators look for."""
    assert len(TEXT) / 3 < 5000
    assert len(TEXT.splitlines()) < 500
    assert {"## Instructions", "## Examples"} <= set(BODY.splitlines())


@pytest.mark.anyio
async def test_the_tools_and_rules_it_names_exist() -> None:
    """A skill that names what is not there sends the agent nowhere."""
    async with Client(build_server()) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
    named = set(
        re.findall(r"`((?:check|propose|detect|start|get|cancel|analyze|estimate|diagnose|explain)_\w+)`", BODY)
    )
    rules = {rule.name for rule in list_rules().rules}
    assert named == tools
    mentioned = {"no-full-recompute", "no-recompute-method", "no-recompute-num-layers", "more-than-one-cuda-connection"}
    assert all(f"`{name}`" in BODY for name in mentioned)
    assert mentioned <= rules


def _commands(page: str) -> list[tuple[str, int]]:
    """The lines of shell blocks that state their exit status in a comment."""
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("ep-overlap-mcp ")]
    return [(line.partition("  #")[0], int(line.rpartition("# exit ")[2] or 0)) for line in lines]


README = TOP / "README.md"
PAGES = [SKILL, README, *sorted((TOP / "docs").glob("*.md"))]
COMMANDS = [(page.name, *command) for page in PAGES for command in _commands(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "command", "status"), COMMANDS)
def test_the_commands_it_shows_end_as_it_says(page: str, command: str, status: int, tmp_path: Path) -> None:
    """Every example is run, with the exit status written beside it; set-ups go to an empty home and project."""
    if " smoke " in command and find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    program, *arguments = shlex.split(command)
    assert program == "ep-overlap-mcp"
    place = tmp_path if arguments[0] == "setup" else TOP
    ran = subprocess.run(
        [sys.executable, "-m", "ep_overlap_mcp", *arguments],
        cwd=place, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == status, f"{page}: {command}\n{ran.stdout}{ran.stderr}"


def test_the_readme_shows_what_its_first_command_prints() -> None:
    """The recording in README is the answer of today."""
    page = README.read_text(encoding="utf-8")
    command = [sys.executable, "-m", "ep_overlap_mcp", *shlex.split(_commands(page)[0][0])[1:]]
    printed = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False).stdout
    (shown,) = re.findall(r"What the first of these prints:\n\n```text\n(.*?)```", page, re.DOTALL)
    assert printed.rstrip() == shown.rstrip()


def test_the_examples_say_what_the_tool_says() -> None:
    """What the page reports of its examples is what the commands print."""
    command = [sys.executable, "-m", "ep_overlap_mcp", *shlex.split(_commands(TEXT)[0][0])[1:], "--format", "json"]
    answer = json.loads(subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False).stdout)
    found = {finding["name"] for finding in answer["findings"] if finding["severity"] != "info"}
    assert found == {
        "no-full-recompute",
        "no-recompute-method",
        "no-recompute-num-layers",
        "more-than-one-cuda-connection",
    }


@pytest.mark.parametrize(
    "claim",
    [
        "`undecided` is not a pass",
        "Hidden is not gain",
        "says nothing about the GPUs",
        "that nobody measured there",
        "because the flag is set",
    ],
)
def test_it_says_what_never_to_claim(claim: str) -> None:
    """The five claims that would mislead a user most."""
    assert claim in BODY
