"""What the protocol's own tools say, where Node 22 and they are at hand.

npm install @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/conformance@0.2.0-alpha.12, and their `.bin` on
PATH.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = [sys.executable, "-m", "ep_overlap_mcp"]
SCENARIOS = [  # those that ask for no fixture tools
    "tools-list",
    "resources-list",
    "prompts-list",
    "completion-complete",
    "caching",
    "http-header-validation",
    "dns-rebinding-protection",
    "sep-2164-resource-not-found",
]
pytestmark = pytest.mark.slow
inspector = pytest.mark.skipif(shutil.which("mcp-inspector") is None, reason="MCP Inspector 2 is not installed")
conformance = pytest.mark.skipif(shutil.which("conformance") is None, reason="MCP conformance is not installed")


def inspected(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["mcp-inspector", "--cli", *SERVER, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@inspector
def test_inspector_finds_the_schemas_portable() -> None:
    """`--strict` ends with 6 where a schema uses what some client does not read."""
    done = inspected("--method", "tools/list", "--strict")
    assert done.returncode == 0, done.stderr
    assert "check_overlap_config" in [tool["name"] for tool in json.loads(done.stdout)["tools"]]


@inspector
@pytest.mark.parametrize(("rule", "status"), [("EPO104", 0), ("EPO999", 5)])
def test_inspector_sees_an_answer_and_a_refusal(rule: str, status: int) -> None:
    """A refusal is an error result, 5 for Inspector, and not a broken connection."""
    arguments = json.dumps({"rule": rule})
    done = inspected("--method", "tools/call", "--tool-name", "explain_rule", "--tool-args-json", arguments)
    assert done.returncode == status, done.stdout + done.stderr


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = [*SERVER, "serve", "--http", "--port", str(port)]
    with subprocess.Popen(serving, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 30
        while not _listens(port) and time.monotonic() < until:
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@conformance
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_scenario_passes(address: str, scenario: str) -> None:
    """Every check of the scenario holds, the wire against the specification's schema among them."""
    command = ["conformance", "server", "--url", address, "--scenario", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert ", 0 failed, 0 warnings" in done.stdout
