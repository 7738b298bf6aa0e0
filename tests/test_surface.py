"""Each surface speaks its own language: what a message tells to call exists, with these arguments, where it is told."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client

from ep_overlap_mcp import cli, surface
from ep_overlap_mcp.diagnosis import unexplained
from ep_overlap_mcp.diagnosis.causes import CAUSES
from ep_overlap_mcp.diagnosis.symptoms import SYMPTOMS
from ep_overlap_mcp.diagnosis.unexplained import Advice
from ep_overlap_mcp.mcp_tool import _answer
from ep_overlap_mcp.reports.json_text import as_json
from ep_overlap_mcp.reports.junit import as_junit
from ep_overlap_mcp.reports.sarif import as_sarif
from ep_overlap_mcp.reports.text import as_text
from ep_overlap_mcp.server import build_server
from ep_overlap_mcp.surface import COMMANDS, PROGRAM, speaking_to
from ep_overlap_mcp.verbs import Question, check_configuration, diagnose_run, propose_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ep_overlap_mcp.results.base import Result

PACKAGE = Path(cli.__file__).parent
ONE_SURFACE = ("commands/", "cli.py", "server.py", "surface.py", "rules/docs.py", "clients/")  # never told elsewhere
OWN_OPTIONS = re.compile(r"--(set|select|assume|stack|symptom|force|dry-run|python|format)\b(?!-)")
ONLY_PEOPLE = {"ranks", "steps", "python"}  # no argument of a tool; for `python` agents have a variable
WORDS = ("tool", "call", "argument", "given")


@lru_cache(maxsize=1)
def trees() -> tuple[ast.Module, ...]:
    """Every module that writes for both surfaces."""
    return tuple(
        ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(ONE_SURFACE)
    )


def sentences() -> list[str]:
    """Every text in the package of more than a word, but its docs."""
    return [text for tree in trees() for text in _texts(tree) if " " in text]


def _texts(tree: ast.AST) -> Iterator[str]:
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def words_taken() -> list[tuple[str, str, set[str]]]:
    """Function of `surface`, name of the tool or argument, and what it is called with: all that messages name."""
    taken = [
        (node.func.id, node.args[0].value, {str(keyword.arg) for keyword in node.keywords})
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORDS
        and node.args and isinstance(node.args[0], ast.Constant)
    ]  # fmt: skip
    advice = [field for said in vars(unexplained).values() if isinstance(said, Advice) for field in said]
    rows = [*(text for row in CAUSES.values() for text in (row.test, row.fix)), *(row.evidence for row in SYMPTOMS)]
    named = [name for text in (*advice, *rows) for name in re.findall(r"\{(\w+)\}", text)]
    return [*taken, *(("tool" if name in COMMANDS else "argument", name, set[str]()) for name in named)]


def test_no_message_names_a_tool_or_an_option_by_itself() -> None:
    """Whatever can be called or given is named by its word for the surface."""
    plain = [re.sub(r"\{\w+\}", "", text) for text in sentences()]
    own = re.compile(rf"\b({'|'.join(COMMANDS)})\b|\bforce=true|\bdry_run\b")
    assert [text for text in plain if own.search(text) or OWN_OPTIONS.search(text)] == []


def test_people_are_told_commands_that_parse() -> None:
    """Every tool that a message names has its command, and every argument is an option of one."""
    options = _options(cli._parser())
    for kind, name, given_with in words_taken():
        if kind == "tool":
            _parse(COMMANDS[name])
        elif kind == "call":
            values = {key: ["X"] if key == "smoke_runs" else "X" for key in given_with}
            _parse(surface.call(name, **values).strip("`").removeprefix(f"{PROGRAM} "))
        else:
            assert surface.argument(name).split()[0] in options, name


def _options(parser: argparse.ArgumentParser) -> set[str]:
    inner = [action.choices.values() for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return set(parser._option_string_actions).union(*(_options(verb) for verbs in inner for verb in verbs))


def _parse(words: str) -> argparse.Namespace:
    """The command line, with FILE for the files that a message leaves open."""
    verb = words.split(maxsplit=1)[0]
    files = {"check": "FILE", "propose": "FILE", "conflicts": "FILE", "profile": "FILE"}.get(verb, "")
    missing = "FILE" if words.startswith("smoke run") else files if len(words.split()) == 1 else ""
    return cli._parser().parse_args(shlex.split(f"{words} {missing}"))


@pytest.mark.anyio
async def test_agents_are_told_calls_that_validate() -> None:
    """Every tool that a message names exists, is called as its schema says, and has the arguments named."""
    async with Client(build_server()) as client:
        schemas = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    assert schemas.keys() == COMMANDS.keys()
    every = {name for schema in schemas.values() for name in schema["properties"]} | ONLY_PEOPLE
    called = {name for kind, name, _ in words_taken() if kind == "call"}
    assert {"get_smoke_run", "cancel_smoke_run", "diagnose_run"} <= called
    for kind, name, given_with in words_taken():
        if kind == "call":
            assert given_with <= schemas[name]["properties"].keys(), name
            assert set(schemas[name].get("required", ())) <= given_with, name
        else:
            assert name in (schemas if kind == "tool" else every), name


@pytest.mark.parametrize(
    ("word", "people", "agents"),
    [
        (
            lambda: surface.call("get_smoke_run", id="smoke-1", wait_s=25),
            "`ep-overlap-mcp smoke status smoke-1`",
            'get_smoke_run(id="smoke-1", wait_s=25)',
        ),
        (
            lambda: surface.call("diagnose_run", smoke_runs=["smoke-1"]),
            "`ep-overlap-mcp diagnose --smoke-run smoke-1`",
            'diagnose_run(smoke_runs=["smoke-1"])',
        ),
        (lambda: surface.tool("propose_overlap_config"), "`ep-overlap-mcp propose`", "propose_overlap_config"),
        (lambda: surface.argument("dry_run"), "--dry-run", "dry_run"),
        (lambda: surface.argument("limit_s"), "--limit", "limit_s"),
        (lambda: surface.argument("settings"), "--set PATH=VALUE", "settings"),
        (lambda: surface.argument("python"), "--python PATH", "EP_OVERLAP_PYTHON of the server"),
        (lambda: surface.given("force"), "--force", "force=true"),
        (lambda: surface.given("symptom", "no gain"), "--symptom 'no gain'", 'symptom="no gain"'),
        (lambda: surface.given("stack", "torch==2.9.0"), "--stack torch==2.9.0", 'stack="torch==2.9.0"'),
        (surface.everything, "--format json", 'detail="full"'),
        (surface.rule_list, "`ep-overlap-mcp explain`", "epo://rules"),
        (lambda: surface.filled("{explain_rule} ({gpu})"), "`ep-overlap-mcp explain` (--gpu)", "explain_rule (gpu)"),
    ],
)  # fmt: skip
def test_a_word_in_both_languages(word: Callable[[], str], people: str, agents: str) -> None:
    """What a person types, and what an agent calls."""
    assert word() == people
    with speaking_to("agents"):
        assert word() == agents
    assert word() == people


@pytest.mark.parametrize("command", COMMANDS.values())
@pytest.mark.usefixtures("capsys")
def test_every_tool_has_a_command(command: str) -> None:
    """Its verb and its action are there."""
    with pytest.raises(SystemExit) as asked:
        cli._parser().parse_args([*command.removesuffix(" ID").split(), "--help"])
    assert asked.value.code == 0


OURS = (
    "dry_run=true launcher.force=true", "force=true", "dry_run", "limit_s is 5", "--set PATH=VALUE", "--select NAME",
    "--stack torch==2.9.0", "--stack", "--symptom", "--assume overlap", 'assume="overlap" or "as_written"',
    "--gpu `H100`", "--before, --after", "--format json has", f"`{PROGRAM} explain NAME`",
    'get_smoke_run(id="smoke-1", wait_s=25)', 'cancel_smoke_run(id="smoke-1")', "{explain_rule} {stack}", *COMMANDS,
)  # fmt: skip
LINES = st.lists(
    st.sampled_from(OURS) | st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=12),
    min_size=1,
    max_size=3,
).map(" ".join)
SCRIPT = """\
# {line}
torchrun pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 --num-experts 8 \\
  --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --bf16 \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""
ASKED_FOR = "torchrun pretrain_gpt.py --num-experts 8 --overlap-moe-expert-parallel-comm --recompute-method {word}"
ON_THE_STACK = {"stack": "megatron-core==0.16.1", "assume": "overlap"}


def told(ask: Callable[[], Sequence[Result]], *formats: Callable[[Any], str]) -> list[str]:
    """The answer as it is printed and as data, as every surface gets it; data as its texts, one below another."""
    results = ask()
    people = [as_text(results), _strings(json.loads(as_json(results))), *(form(results) for form in formats)]
    with speaking_to("agents"):
        answer = _answer(ask(), full=True)
    return [*people, answer.content[0].text, _strings(answer.structured_content)]  # type: ignore[union-attr]


def _strings(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(_strings(item) for item in value.values())
    return "\n".join(map(_strings, value)) if isinstance(value, list) else str(value)


@settings(deadline=None, max_examples=25)
@given(LINES)
def test_a_users_line_in_a_patch_comes_back_as_it_is(line: str) -> None:
    """The patch that is shown is the one that was verified: a comment of the user's may hold any words of ours."""
    question = Question(text=SCRIPT.format(line=line), **ON_THE_STACK)  # type: ignore[arg-type]
    for answer in told(lambda: propose_configuration(question)):
        assert f"\n # {line}\n" in answer


@settings(deadline=None, max_examples=25)
@given(LINES)
def test_a_users_line_as_evidence_comes_back_as_it_is(line: str) -> None:
    """A line of a log is quoted as the log has it."""
    log = f"[rank0]: RuntimeError: {line.strip()}"
    for answer in told(lambda: [diagnose_run(text=log)]):
        assert log.removeprefix("[rank0]: ")[:120] in answer


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(OURS))
def test_a_users_value_in_a_finding_comes_back_as_it_is(value: str) -> None:
    """A message of ours that quotes a value quotes it as it is written."""
    question = Question(text=ASKED_FOR.format(word=shlex.quote(f"x {value}")), **ON_THE_STACK)  # type: ignore[arg-type]
    formats = (lambda results: as_sarif(results, 1), as_junit) if value.isidentifier() else ()
    for answer in told(lambda: check_configuration(question), *formats):
        assert value in answer
