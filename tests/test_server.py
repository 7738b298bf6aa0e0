"""The server as clients meet it: the real client, in process in both protocol eras and over stdio."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from ep_overlap_mcp.server import build_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
GOLDEN = Path(__file__).parent / "golden"
VALID = {
    "num_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_moe_experts": 32,
    "expert_model_parallel_size": 8,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "overlap_moe_expert_parallel_comm": True,
    "bf16": True,
}


@pytest.fixture(params=["auto", "legacy"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(build_server(), mode=request.param)


@pytest.fixture
def server_process() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "ep_overlap_mcp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_valid_configuration_is_data_with_a_summary(client: Client) -> None:
    """A verdict comes as structured content that starts with its summary, and as text that says the same."""
    async with client:
        result = await client.call_tool(
            "check_overlap_config", {"config": VALID, "stack": "megatron-core==0.18.2,torch==2.9.0"}
        )
    assert not result.is_error
    assert result.structured_content is not None
    assert next(iter(result.structured_content)) == "summary"
    assert result.structured_content["verdict"] == "valid"
    assert result.content[0].text.startswith(result.structured_content["summary"])


async def test_findings_are_data_not_errors(client: Client) -> None:
    """An invalid configuration is an answer, not a failure of the tool."""
    async with client:
        result = await client.call_tool(
            "check_overlap_config", {"config": {**VALID, "expert_model_parallel_size": 1}, "stack": "mcore==0.18.2"}
        )
    assert not result.is_error
    assert result.structured_content is not None
    assert result.structured_content["verdict"] == "invalid"
    assert "needs-expert-parallelism" in [f["name"] for f in result.structured_content["findings"]]


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("explain_rule", {"rule": "EPO101", "verbose": True}, "verbose"),
        ("explain_rule", {"rule": "needs-expert-paralelism"}, "needs-expert-parallelism"),
        ("check_overlap_config", {}, "no configuration given"),
        ("check_overlap_config", {"files": ["absent.sh"]}, "not found"),
        ("check_overlap_config", {"config": VALID, "stack": "tensorflow==2.0"}, "tensorflow"),
        (
            "check_overlap_config",
            {"config": VALID, "settings": {"model.expert_paralel_size": 8}},
            "expert_paralel_size",
        ),
        ("check_overlap_config", {"config": VALID, "nodes": 0}, "nodes"),
    ],
)
async def test_bad_arguments_are_refused_by_name(
    client: Client, tool: str, arguments: dict[str, Any], told: str
) -> None:
    """A refusal is an error result whose text names what is wrong."""
    async with client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert told in result.content[0].text


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        (
            "get_smoke_run",
            {"run_id": "smoke-1"},
            "the argument `id` is missing; there is no argument `run_id`; it takes",
        ),
        ("get_smoke_run", {"id": "smoke-1", "wait_s": 60}, "`wait_s` is 60; it takes less than or equal to 25"),
        ("start_smoke_run", {"pairs": "many"}, "`pairs` is 'many'; it takes a valid integer"),
        ("start_smoke_run", {"pairs": True}, "`pairs` is True; it takes a valid integer"),
        ("check_overlap_config", {"config": VALID, "nodes": True}, "`nodes` is True; it takes a valid integer"),
        ("get_smoke_run", {"id": "smoke-1", "wait_s": False}, "`wait_s` is False; it takes a valid number"),
        ("get_smoke_run", {"id": "smoke-1", "x" * 100_000: 1}, "…`; it takes id, wait_s, detail"),
        ("explain_rule", {"rule": "no such rule"}, "no rule is called `no such rule`; epo://rules lists them all"),
        ("start_smoke_run", {"engine": "cpu"}, "`engine` is 'cpu'; it takes 'gloo-cpu', 'gloo-gpu' or 'nccl-gpu'"),
        (
            "start_smoke_run",
            {"variants": ["foo"]},
            "`variants.0` is 'foo'; it takes 'overlap' or 'overlap_delay_wgrad'",
        ),
        ("start_smoke_run", {"config": 7}, "`config` is 7; it takes a valid string or a valid dictionary"),
        ("cancel_smoke_run", {"id": "x" * 10, "detail": {"a": "b" * 900}}, "…; it takes 'short' or 'full'"),
        (
            "check_overlap_config",
            {"config": VALID, "settings": {"model.num_layers": "many"}},
            "settings model.num_layers",
        ),
        ("check_overlap_config", {"config": VALID, "gpu": "H1"}, " gpu `H1` is not known"),
    ],
)
async def test_wrong_arguments_are_told_in_a_sentence(tool: str, arguments: dict[str, Any], told: str) -> None:
    """One clear sentence in the tool's own words: no library's text, no address, no option of the command line."""
    async with Client(build_server()) as client:
        result = await client.call_tool(tool, arguments)
    said = result.content[0].text
    assert result.is_error
    assert told in said
    assert [word for word in ("pydantic", "http", "validation error", "\n", "--") if word in said] == []
    assert len(said) < 400


@pytest.mark.parametrize(
    ("tool", "argument", "remedy"),
    [
        ("explain_rule", "rule", "lists them all"),
        ("check_overlap_config", "stack", "NAME==none for what is absent"),
        ("check_overlap_config", "gpu", "what rests on the GPU stays undecided"),
        ("get_smoke_run", "id", ""),
    ],
)
async def test_a_refusal_is_no_echo(tool: str, argument: str, remedy: str) -> None:
    """Of an argument without end the refusal shows where it begins, and still says what to do."""
    given = {"config": VALID} if tool == "check_overlap_config" else {}
    async with Client(build_server()) as client:
        result = await client.call_tool(tool, {**given, argument: "y" * 100_000})
    said = result.content[0].text
    assert result.is_error
    assert "yyy" in said
    assert len(said) < 2500
    assert remedy in said


async def test_default_answers_fit_an_agent_context(client: Client) -> None:
    """A configuration with many violations still answers in about 4 KB, counts what it cut and says how to get it."""
    bad = {
        **VALID,
        "expert_model_parallel_size": 1,
        "moe_shared_expert_overlap": True,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "pipeline_model_parallel_size": 4,
        "mtp_num_layers": 3,
        "bf16": False,
    }
    async with client:
        short = await client.call_tool("check_overlap_config", {"config": bad, "stack": "mcore==0.18.2"})
        full = await client.call_tool(
            "check_overlap_config", {"config": bad, "stack": "mcore==0.18.2", "detail": "full"}
        )
    assert short.structured_content is not None
    assert full.structured_content is not None
    assert len(json.dumps(short.structured_content)) < 4500
    assert short.structured_content["omitted"]
    assert len(full.structured_content["findings"]) >= 8


async def test_a_missing_prompt_argument_is_named(client: Client) -> None:
    """Clients of both eras see which argument a prompt wants."""
    async with client:
        with pytest.raises(MCPError, match="needs the argument configuration"):
            await client.get_prompt("can-i-enable-overlap", {})


async def test_prompts_are_filled_in(client: Client) -> None:
    """Arguments replace their places; what is not given says so."""
    async with client:
        prompt = await client.get_prompt("can-i-enable-overlap", {"configuration": "train.sh"})
    assert "train.sh" in prompt.messages[0].content.text
    assert "Versions: not given" in prompt.messages[0].content.text


async def test_rules_and_fields_are_resources(client: Client) -> None:
    """A rule's page and a setting's page are read by URI; an unknown one is not found."""
    async with client:
        rule = await client.read_resource("epo://rules/EPO101")
        field = await client.read_resource("epo://fields/model.moe_token_dispatcher_type")
        with pytest.raises(MCPError, match="no setting"):
            await client.read_resource("epo://fields/model.moe_token_dispatcher")
    assert "needs-expert-parallelism" in rule.contents[0].text
    assert '"allgather" from 0.14' in field.contents[0].text


async def test_tool_schemas_are_as_recorded() -> None:
    """A schema changes only on purpose: EP_OVERLAP_ACCEPT=1 records what is offered now."""
    async with Client(build_server()) as client:
        tools = (await client.list_tools()).tools
    offered = [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in tools]
    recorded = GOLDEN / "tools.json"
    if os.environ.get("EP_OVERLAP_ACCEPT"):
        recorded.write_text(json.dumps(offered, indent=1) + "\n", encoding="utf-8")
    assert json.loads(recorded.read_text(encoding="utf-8")) == offered


async def test_the_tool_list_is_small_and_described() -> None:
    """`tools/list` stays under 12 KB; every tool says what it returns and when to use it, and sets all hints."""
    async with Client(build_server()) as client:
        tools = (await client.list_tools()).tools
    sent = [t.model_dump(by_alias=True, exclude_none=True, mode="json") for t in tools]
    assert len(json.dumps(sent, separators=(",", ":"))) < 12_000
    for tool in tools:
        assert tool.description is not None
        assert len(tool.description) > 80, tool.name
        assert tool.annotations is not None
        hints = tool.annotations.model_dump(exclude_none=True)
        assert {"read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint"} <= hints.keys(), tool.name
        assert len(f"mcp__ep-overlap__{tool.name}") < 64


async def test_over_stdio_with_the_real_client() -> None:
    """The console program answers a real client over pipes."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "ep_overlap_mcp"])
    async with Client(server) as client:
        result = await client.call_tool("explain_rule", {"rule": "EPO103"})
    assert result.structured_content is not None
    assert result.structured_content["name"] == "dispatcher-alltoall-or-flex"


def _initialize(process: subprocess.Popen[bytes]) -> bytes:
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_the_first_bytes_on_stdout_are_the_protocol(server_process: subprocess.Popen[bytes]) -> None:
    """Nothing is printed before the first message."""
    first = _initialize(server_process)
    assert first.startswith(b"{")
    assert json.loads(first)["result"]["serverInfo"]["name"] == "ep-overlap"


def test_closing_stdin_ends_the_server(server_process: subprocess.Popen[bytes]) -> None:
    """A client that leaves ends the server with status 0."""
    _initialize(server_process)
    assert server_process.stdin is not None
    server_process.stdin.close()
    assert server_process.wait(timeout=10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_server_at_once(server_process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """SIGTERM and SIGINT end the process although its stdin is still open."""
    _initialize(server_process)
    server_process.send_signal(number)
    assert server_process.wait(timeout=5) == 128 + number
