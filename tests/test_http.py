"""The HTTP transport for a team: loopback, tokens, host names, users."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from ep_overlap_mcp import access
from ep_overlap_mcp.cli import main
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.store import Store
from tests.conftest import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ALICE, BOB = "alice-secret-of-alice", "bob-secret-of-bobby"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., str]]:
    """Start a server with these arguments and variables; its address on loopback."""
    with contextlib.ExitStack() as stack:

        def start(*words: str, **variables: str) -> str:
            port = free_port()
            env = {**os.environ, "EP_OVERLAP_STATE_DIR": str(tmp_path), **variables}
            command = [sys.executable, "-m", "ep_overlap_mcp", "serve", "--http", "--port", str(port), *words]
            process = stack.enter_context(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
            stack.callback(process.kill)
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    return f"http://127.0.0.1:{port}/mcp"
                time.sleep(0.05)
            raise AssertionError("the server does not listen")

        yield start


def answer(url: str, **headers: str) -> int:
    """The HTTP status of an initialize request."""
    given = {"accept": "application/json, text/event-stream", **headers}
    return httpx2.post(url, json=INITIALIZE, headers=given).status_code


async def called(url: str, tool: str, arguments: dict[str, Any], token: str | None = None) -> Any:
    """A tool's result, asked with the real client."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        return await client.call_tool(tool, arguments)


@pytest.mark.anyio
async def test_loopback_needs_no_token_and_answers_no_other_name(serve):
    """A page in a browser that leads its own name here is refused; so is its origin."""
    url = serve()
    assert answer(url) == 200
    assert answer(url, host="evil.example") == 421
    assert answer(url, origin="https://evil.example") == 403
    result = await called(url, "explain_rule", {"rule": "EPO103"})
    assert result.structured_content["name"] == "dispatcher-alltoall-or-flex"


@pytest.mark.anyio
async def test_every_address_is_served_with_a_token_only(serve):
    """Without, with a wrong and with the right one; the name of a request is checked all the same."""
    url = serve("--host", "0.0.0.0", "--allow-host", "mcp.example", EP_OVERLAP_TOKEN=ALICE)  # noqa: S104 - the case
    right = {"authorization": f"Bearer {ALICE}"}
    assert (answer(url), answer(url, authorization=f"Bearer {ALICE}x"), answer(url, **right)) == (401, 401, 200)
    assert answer(url, **right, host="evil.example") == 421
    assert answer(url, **right, host="mcp.example") == 200
    assert answer(url, **right, host="mcp.example:8443") == 200
    result = await called(url, "explain_rule", {"rule": "EPO103"}, ALICE)
    assert not result.is_error


@pytest.mark.anyio
async def test_users_with_a_token_choose_among_named_environments_only(serve, tmp_path):
    """A path would start any program of the server's host."""
    url = serve(EP_OVERLAP_TOKEN=f"alice:{ALICE} bob:{BOB}", EP_OVERLAP_CONFIG=str(tmp_path / "none.toml"))
    refused = await called(url, "check_environment", {"python": "/bin/true"}, BOB)
    assert "python `/bin/true`: over HTTP name a training environment of this server" in refused.content[0].text
    unknown = await called(url, "check_environment", {"python": "@nemo"}, BOB)
    assert "`@nemo` is not in" in unknown.content[0].text


@pytest.mark.anyio
async def test_a_user_ends_only_own_runs(serve, tmp_path, monkeypatch):
    """The other is told whose it is."""
    monkeypatch.setenv("EP_OVERLAP_STATE_DIR", str(tmp_path))
    lists = {"kept": {}, "reduced": [], "not_tested": [], "emulated": [], "variants": ["baseline", "overlap"]}
    shown = {"engine": "gloo-cpu", "device": "CPU", "world_size": 2, "stack": {}}
    plan = {"plan": {**lists, "steps": 1, "pairs": 0}, **shown}
    run = Store().add("cpu", plan, 60.0, user="alice")
    url = serve(EP_OVERLAP_TOKEN=f"alice:{ALICE} bob:{BOB}")
    refused = await called(url, "cancel_smoke_run", {"id": run.id}, BOB)
    assert f"{run.id} is not yours: alice started it, and can end it" in refused.content[0].text
    done = await called(url, "cancel_smoke_run", {"id": run.id}, ALICE)
    assert done.structured_content["status"] == "cancelled"


def test_a_user_has_so_many_open_runs(tmp_path):
    """The bound counts each user's own."""
    store = Store(tmp_path)
    first = store.add("cpu", {}, 60.0, user="alice")
    store.refuse_more_than(2, "alice")
    store.refuse_more_than(1, "bob")
    with pytest.raises(SmokeError, match=f"alice has 1 open smoke runs of at most 1: {first.id}; end one first"):
        store.refuse_more_than(1, "alice")
    store.end(first.id, "done", {})
    store.refuse_more_than(1, "alice")


def test_other_addresses_are_refused_without_a_token(monkeypatch):
    """Before anything is bound."""
    monkeypatch.delenv("EP_OVERLAP_TOKEN", raising=False)
    with pytest.raises(access.AccessError, match=r"--host 10.0.0.1 is not loopback: set EP_OVERLAP_TOKEN to serve it"):
        access.security("10.0.0.1", [], access.tokens())
    assert access.security("::1", [], None).enable_dns_rebinding_protection


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("short", "the token of `shared` is shorter than 16 characters"),
        (f"alice:{ALICE} alice:{BOB}", "give each user once"),
        (f"a/b:{ALICE}", "give each user once"),
    ],
)
def test_tokens_that_protect_nothing_are_refused(monkeypatch, given, said):
    """Named by the user, never shown."""
    monkeypatch.setenv("EP_OVERLAP_TOKEN", given)
    with pytest.raises(access.AccessError, match=said):
        access.tokens()


@pytest.mark.parametrize(("given", "known"), [("", None), (ALICE, ["shared"]), (f"a:{ALICE} b:{BOB}", ["a", "b"])])
def test_tokens_are_read_from_the_variable(monkeypatch, given, known):
    """One for all, or one a user."""
    monkeypatch.setenv("EP_OVERLAP_TOKEN", given)
    found = access.tokens()
    assert (found and list(found.users)) == known


def test_the_bound_of_runs_is_a_number(monkeypatch):
    """A wrong one is refused, not taken as no bound."""
    monkeypatch.setenv("EP_OVERLAP_RUNS_PER_USER", "many")
    with pytest.raises(access.AccessError, match="EP_OVERLAP_RUNS_PER_USER is `many`; it takes 1 to 1000"):
        access.runs_per_user()


@pytest.mark.parametrize("port", ["65536", "-1", "http", "²"])
def test_what_is_no_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal says which numbers are ports."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--http", f"--port={port}"])
    assert ended.value.code == 2
    assert f"`{port}` is no port; it takes 0 to 65535" in capsys.readouterr().err


@pytest.mark.usefixtures("_signals_as_before")
def test_a_port_that_is_taken_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2; 3 would be read as undetermined."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--http", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in capsys.readouterr().err


@pytest.fixture
def _signals_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests keeps its own answer to signals."""
    monkeypatch.setattr("ep_overlap_mcp.server.signal.signal", lambda _number, _answer: None)
