"""Smoke runs as agents start them: over stdio, with a real server that is left or killed."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from mcp import Client, StdioServerParameters

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.megatron]
CONFIG = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "expert_model_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "add_bias_linear": False,
    "bf16": True,
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "EP_OVERLAP_STATE_DIR": str(tmp_path / "state")}


def processes_of(run: str) -> list[psutil.Process]:
    """Processes whose environment carries the run's mark."""
    return [process for process in psutil.process_iter() if run in _environment(process).values()]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


async def test_a_run_is_started_followed_and_answered(environment: dict[str, str]) -> None:
    """start returns an id at once; polling ends with the three answers, and nothing is left running."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "ep_overlap_mcp"], env=environment)
    async with Client(server) as client:
        begun = await client.call_tool("start_smoke_run", {"config": CONFIG, "pairs": 0, "stack": "torch==2.13.0"})
        assert not begun.is_error, begun.content[0].text
        assert begun.structured_content is not None
        run = begun.structured_content["id"]
        answer: dict[str, Any] = begun.structured_content
        for _ in range(12):
            if answer["status"] not in ("queued", "running"):
                break
            answer = (await client.call_tool(*_as_told(answer["next"]))).structured_content or {}
    assert answer["status"] == "done", answer
    assert answer["overlap_ran"]["verdict"] == "yes"
    assert answer["numerics"]["verdict"] == "unchanged"
    assert answer["speed"]["verdict"] == "not_measured"
    assert len(json.dumps(answer)) < 4500
    assert processes_of(run) == []


def _as_told(said: str) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the first call that a text names."""
    call = ast.parse(said[said.index("get_smoke_run") : said.index(")") + 1], mode="eval").body
    assert isinstance(call, ast.Call)
    return ast.unparse(call.func), {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}


async def test_an_invalid_configuration_is_refused_before_anything_starts(environment: dict[str, str]) -> None:
    """The refusal carries the findings."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "ep_overlap_mcp"], env=environment)
    async with Client(server) as client:
        result = await client.call_tool(
            "start_smoke_run", {"config": {**CONFIG, "moe_shared_expert_overlap": True}, "stack": "torch==2.13.0"}
        )
    assert result.is_error
    assert "no-shared-expert-overlap" in result.content[0].text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signalled_server_ends_its_runs(environment: dict[str, str], number: signal.Signals) -> None:
    """SIGTERM and SIGINT of the server leave no process of a run behind."""
    command = [sys.executable, "-m", "ep_overlap_mcp"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as server:
        run = _start_by_hand(server)
        server.send_signal(number)
        assert server.wait(timeout=10) == 128 + number
    deadline = time.monotonic() + 15
    while processes_of(run) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(run) == []


def _start_by_hand(server: subprocess.Popen[str]) -> str:
    """The id of a run, started over the server's own pipes and really running."""
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    _send(server, {"id": 1, "method": "initialize", "params": params})
    _send(server, {"method": "notifications/initialized"}, answered=False)
    call = {"name": "start_smoke_run", "arguments": {"config": CONFIG, "stack": "torch==2.13.0"}}
    answer = _send(server, {"id": 2, "method": "tools/call", "params": call})
    run = str(answer["result"]["structuredContent"]["id"])
    deadline = time.monotonic() + 30
    while len(processes_of(run)) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(run)
    return run


def _send(server: subprocess.Popen[str], message: dict[str, Any], *, answered: bool = True) -> dict[str, Any]:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline()) if answered else {}
