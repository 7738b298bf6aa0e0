"""Many clients checking over HTTP on loopback: p99 against one client in the same run, and memory over many calls.

    python benchmarks/http_load.py [--clients 50] [--rate 0.5] [--calls 10000]

Each client keeps a session and asks at `rate` a second, as agents do; then `calls` follow one another as fast as they
are answered. Fails on an error, a p99 above the budget, or memory that grows with calls.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from mcp import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = (Path(__file__).parents[1] / "examples" / "qwen3_30b_a3b_16xh100.sh").read_text()
CALL = {"config": SCRIPT, "stack": "megatron-core==0.16.1"}
P99_BUDGET_MS = 100.0
GROWTH_BUDGET_MIB = 16.0
SECONDS = 20.0  # of load from many clients
MOST_SECONDS = 480.0  # of the whole benchmark


def main() -> int:
    """Print the numbers; 0 when all budgets hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.5, help="calls a second of each client")
    parser.add_argument("--calls", type=int, default=10_000)
    options = parser.parse_args()
    with _server() as (url, process):
        return asyncio.run(asyncio.wait_for(_measured(url, process, options), MOST_SECONDS))


async def _measured(url: str, process: psutil.Process, options: argparse.Namespace) -> int:
    async with Client(url) as client:
        await _times(client, 50)
        alone = await _times(client, 200)
    many = await _together(url, options.clients, options.rate)
    after_first, after_all, made = await _memory(url, process, options.calls)
    growth = after_all - after_first
    print(f"one client:  {len(alone)} calls, median {statistics.median(alone):.1f} ms, p99 {_p99(alone):.1f} ms")
    print(
        f"{options.clients} clients at {options.rate:g}/s: {len(many)} calls, median {statistics.median(many):.1f} ms,"
        f" p99 {_p99(many):.1f} ms, {_p99(many) / _p99(alone):.1f} x one client (budget {P99_BUDGET_MS:g} ms)"
    )
    print(f"memory: {after_first:.1f} MiB after a tenth, {after_all:.1f} MiB after {made} calls ({growth:+.1f} MiB)")
    return 0 if _p99(many) < P99_BUDGET_MS and growth < GROWTH_BUDGET_MIB and made == options.calls else 1


async def _together(url: str, clients: int, rate: float) -> list[float]:
    """Times of all calls of all clients, from the moment when every one is connected and has asked once."""
    async with contextlib.AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(Client(url)) for _ in range(clients)]
        for client in connected:
            await _times(client, 1)
        found = await asyncio.gather(*(_one_of_many(client, rate) for client in connected))
    return [ms for times in found for ms in times]


async def _one_of_many(client: Client, rate: float) -> list[float]:
    """Asks at random moments, `rate` a second on average."""
    times: list[float] = []
    end = time.monotonic() + SECONDS
    await asyncio.sleep(random.random() / rate)  # noqa: S311 - no secret
    while time.monotonic() < end:
        times += await _times(client, 1)
        await asyncio.sleep(random.expovariate(rate))
    return times


async def _times(client: Client, calls: int) -> list[float]:
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        result = await client.call_tool("check_overlap_config", CALL)
        times.append(1000 * (time.perf_counter() - begun))
        if result.is_error or not result.structured_content:
            raise RuntimeError(f"a check failed under load: {result.content}")
    return times


async def _memory(url: str, process: psutil.Process, calls: int) -> tuple[float, float, int]:
    """Resident MiB after a tenth of the calls and after all, over four sessions."""

    async def some(count: int) -> None:
        async with Client(url) as client:
            await _times(client, count)

    await asyncio.gather(*(some(calls // 40) for _ in range(4)))
    first = process.memory_info().rss / 2**20
    for _ in range(9):
        await asyncio.gather(*(some(calls // 40) for _ in range(4)))
    return first, process.memory_info().rss / 2**20, 40 * (calls // 40)


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


@contextlib.contextmanager
def _server() -> Iterator[tuple[str, psutil.Process]]:
    """A server of its own on a free port of loopback."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = [sys.executable, "-m", "ep_overlap_mcp", "serve", "--http", "--port", str(port)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("EP_OVERLAP_")}
    with subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp", psutil.Process(server.pid)
        finally:
            server.kill()


if __name__ == "__main__":
    sys.exit(main())
