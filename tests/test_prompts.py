"""Prompts: each can be asked for with its arguments, names what is missing, and speaks of tools that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mcp import Client, MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from ep_overlap_mcp.prompt_files import load_prompts
from ep_overlap_mcp.server import build_server

pytestmark = pytest.mark.anyio
PROMPTS = Path(__file__).parents[1] / "prompts"
# name: its arguments, the required ones first
NAMES = {
    "can-i-enable-overlap": (["configuration"], ["stack", "gpu"]),
    "minimal-without-full-recompute": (["configuration"], ["stack"]),
    "read-this-profile": (["profile"], ["before"]),
    "throughput-fell": (["change"], ["before", "after", "log", "stack"]),
    "wgrad-with-graphs-and-te": (["configuration", "stack"], []),
    "which-dispatcher": (["configuration", "gpu"], ["nodes", "gpus_per_node", "stack"]),
}


@pytest.fixture(params=["auto", "legacy"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(build_server(), mode=request.param)


async def test_the_prompts_and_their_arguments(client: Client) -> None:
    """Clients see six prompts with title, description and arguments."""
    async with client:
        prompts = (await client.list_prompts()).prompts
    found = {
        prompt.name: (
            [a.name for a in prompt.arguments or [] if a.required],
            [a.name for a in prompt.arguments or [] if not a.required],
        )
        for prompt in prompts
    }
    assert found == NAMES
    assert all(prompt.title and prompt.description for prompt in prompts)
    assert all(argument.description for prompt in prompts for argument in prompt.arguments or [])


@pytest.mark.parametrize("name", NAMES)
async def test_a_prompt_holds_what_it_was_given(client: Client, name: str) -> None:
    """Every argument stands in the text, and what is not given says so."""
    required, optional = NAMES[name]
    async with client:
        filled = await client.get_prompt(name, {a: f"<{a}>" for a in [*required, *optional]})
        bare = await client.get_prompt(name, dict.fromkeys(required, "{stack} & more"))
    assert all(f"<{a}>" in filled.messages[0].content.text for a in [*required, *optional])
    assert bare.messages[0].content.text.count("{stack} & more") >= len(required)
    assert bool(optional) == ("not given" in bare.messages[0].content.text)


@pytest.mark.parametrize("name", NAMES)
async def test_a_missing_argument_is_a_usable_error(client: Client, name: str) -> None:
    """Both protocol eras say which argument the prompt wants, as invalid parameters."""
    async with client:
        with pytest.raises(MCPError, match=f"needs the argument {NAMES[name][0][0]}") as refused:
            await client.get_prompt(name, {})
    assert refused.value.error.code == -32602


async def test_prompts_name_tools_that_exist() -> None:
    """A renamed tool would leave a prompt that sends the agent nowhere."""
    async with Client(build_server()) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
    for path in PROMPTS.glob("*.md"):
        named = set(
            re.findall(
                r"`((?:check|propose|detect|start|get|cancel|analyze|estimate|diagnose|explain)_\w+)`", path.read_text()
            )
        )
        assert named, path.name
        assert named <= tools, path.name


def test_every_place_in_a_prompt_is_an_argument() -> None:
    """A place without an argument would reach the agent as braces; an argument without a place would be lost."""
    for prompt in load_prompts():
        body = (PROMPTS / f"{prompt.name}.md").read_text().split("---\n", 2)[2]
        assert set(re.findall(r"\{(\w+)\}", body)) == {a.name for a in prompt.arguments or []}, prompt.name


async def completed(client: Client, prompt: str, argument: str, typed: str) -> list[str]:
    reference = PromptReference(type="ref/prompt", name=prompt)
    async with client:
        answer = await client.complete(reference, {"name": argument, "value": typed})
    return list(answer.completion.values)


async def test_gpus_are_completed(client: Client) -> None:
    """Case does not matter; only GPUs that rules know are offered."""
    assert await completed(client, "which-dispatcher", "gpu", "gb") == ["GB200", "GB300"]


async def test_versions_are_completed_one_after_the_other(client: Client) -> None:
    """What was typed before the last comma stays."""
    typed = "megatron-core==0.16.1,trans"
    assert await completed(client, "can-i-enable-overlap", "stack", typed) == [
        "megatron-core==0.16.1,transformer-engine=="
    ]


async def test_files_are_completed_under_the_roots_only(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders end in a slash, hidden files need their dot, and nothing outside the roots is listed."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "train.sh").touch()
    (tmp_path / "run.yaml").touch()
    (tmp_path / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    async with client:
        answers = {
            typed: (
                await client.complete(
                    PromptReference(type="ref/prompt", name="can-i-enable-overlap"),
                    {"name": "configuration", "value": typed},
                )
            ).completion.values
            for typed in ("", "ru", "runs/", "../", "/etc/", "absent/")
        }
    assert answers == {
        "": ["run.yaml", "runs/"],
        "ru": ["run.yaml", "runs/"],
        "runs/": ["runs/train.sh"],
        "../": [],
        "/etc/": [],
        "absent/": [],
    }


async def test_free_text_is_not_completed(client: Client) -> None:
    """Nothing is offered for a number of nodes."""
    assert await completed(client, "which-dispatcher", "nodes", "") == []


async def test_addresses_of_resources_are_completed(client: Client) -> None:
    """Rules by code and by name, settings by path; a long list is cut and says so."""
    rules = ResourceTemplateReference(type="ref/resource", uri="epo://rules/{code}")
    fields = ResourceTemplateReference(type="ref/resource", uri="epo://fields/{path}")
    async with client:
        code = await client.complete(rules, {"name": "code", "value": "EPO104"})
        named = await client.complete(rules, {"name": "code", "value": "pipeline-needs"})
        path = await client.complete(fields, {"name": "path", "value": "model.moe_token_dispatcher"})
        long = await client.complete(rules, {"name": "code", "value": ""})
    assert code.completion.values == ["EPO104"]
    assert named.completion.values == ["pipeline-needs-virtual-stages"]
    assert path.completion.values == ["model.moe_token_dispatcher_type"]
    assert (len(long.completion.values), long.completion.has_more) == (100, True)
