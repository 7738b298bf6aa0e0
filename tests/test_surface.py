"""Each surface speaks its own language: what a message tells to call exists, with these arguments, where it is told."""

from __future__ import annotations

import ast
import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client

from ep_overlap_mcp import cli
from ep_overlap_mcp.server import build_server
from ep_overlap_mcp.surface import COMMANDS, PROGRAM, everywhere, for_agents, for_people

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PACKAGE = Path(cli.__file__).parent
ONE_SURFACE = ("commands/", "cli.py", "server.py", "surface.py", "rules/docs.py", "clients/")  # never told elsewhere
OWN_OPTIONS = re.compile(r"--(set|select|assume|stack|symptom|force|dry-run)\b(?!-)")
CALL = re.compile(r"\b(\w+)\((\w+=[^)]*)\)")


@lru_cache(maxsize=1)
def messages() -> tuple[str, ...]:
    """Every text in the package but its docs, with X for what is filled in."""
    return tuple(
        text
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(ONE_SURFACE)
        for text in _texts(ast.parse(path.read_text(encoding="utf-8")))
    )


def _texts(tree: ast.AST) -> Iterator[str]:
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - docs
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inner:
            yield node.value


def sentences() -> list[str]:
    """Messages of more than a word."""
    return [text for text in messages() if " " in text]


def test_people_are_told_no_tools_and_commands_that_parse() -> None:
    """Whatever names a tool names a command on the command line, and every command named is one."""
    told = [for_people(text) for text in sentences()]
    tools = re.compile(rf"\b({'|'.join(COMMANDS)})\b|\bforce=true|\bdry_run\b")
    assert [text for text in told if tools.search(text)] == []
    named = [words for text in told for words in re.findall(rf"`{PROGRAM} ([^`]*)`", text)]
    assert "smoke status X" in named
    assert "smoke cancel X" in named
    for words in named:
        _parse(words)


def _parse(words: str) -> argparse.Namespace:
    """The command line, with FILE for the files that a message leaves open."""
    verb = words.split(maxsplit=1)[0]
    files = {"check": "FILE", "propose": "FILE", "conflicts": "FILE", "profile": "FILE"}.get(verb, "")
    missing = "FILE" if words.startswith("smoke run") else files if len(words.split()) == 1 else ""
    return cli._parser().parse_args(shlex.split(f"{words} {missing}"))


@pytest.mark.anyio
async def test_agents_are_told_no_options_and_calls_that_validate() -> None:
    """Every call named has its tool's arguments; what people type as an option is an argument there."""
    async with Client(build_server()) as client:
        schemas = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    assert schemas.keys() == COMMANDS.keys()
    told = [for_agents(text) for text in sentences()]
    assert [text for text in told if OWN_OPTIONS.search(re.sub(r"`[^`]*`", "", text))] == []
    calls = [call for text in told for call in CALL.findall(text) if call[0] in schemas]
    assert {"get_smoke_run", "cancel_smoke_run", "diagnose_run"} <= {tool for tool, _ in calls}
    for tool, given in calls:
        named = re.findall(r"(\w+)=", given)
        assert set(named) <= schemas[tool]["properties"].keys(), (tool, given)
        assert set(schemas[tool].get("required", ())) <= set(named), (tool, given)


@pytest.mark.parametrize(
    ("message", "people", "agents"),
    [
        ('call get_smoke_run(id="smoke-1", wait_s=25)', "call `ep-overlap-mcp smoke status smoke-1`", None),
        ("propose_overlap_config helps; force=true runs it", "`ep-overlap-mcp propose` helps; --force runs it", None),
        ('take assume="overlap" or "overlap_delay_wgrad"', "take --assume overlap or overlap_delay_wgrad", None),
        ("the same call without dry_run", "the same call without --dry-run", None),
        ("limit_s is 1; it takes 5 to 900", "--limit is 1; it takes 5 to 900", None),
        ("give it with --set PATH=VALUE", None, "give it with settings"),
        ("such as --stack torch==2.9.0,mcore==0.18", None, 'such as stack="torch==2.9.0,mcore==0.18"'),
        ("--gpu `H1` is not known. Without --gpu, open", None, "gpu `H1` is not known. Without gpu, open"),
        ("--gpu h100 of a launcher stays", None, None),
    ],
)
def test_a_message_in_both_languages(message: str, people: str | None, agents: str | None) -> None:
    """What belongs to neither surface stays as it is."""
    assert for_people(message) == (people or message)
    assert for_agents(message) == (agents or message)


def test_an_answer_keeps_its_keys() -> None:
    """Only texts are told anew, wherever they stand."""
    answer: dict[str, Any] = {"dry_run": ["without dry_run", 1, None, {"next": "force=true"}]}
    assert everywhere(for_people, answer) == {"dry_run": ["without --dry-run", 1, None, {"next": "--force"}]}


@pytest.mark.parametrize("command", COMMANDS.values())
@pytest.mark.usefixtures("capsys")
def test_every_tool_has_a_command(command: str) -> None:
    """Its verb and its action are there."""
    with pytest.raises(SystemExit) as asked:
        cli._parser().parse_args([*command.removesuffix(" ID").split(), "--help"])
    assert asked.value.code == 0
