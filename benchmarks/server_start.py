"""Start of the server to its first `tools/list`, against a one-tool server on the same SDK, in turns.

python benchmarks/server_start.py [--rounds 15]

Both are driven by bare JSON-RPC over stdio, so that no client's own start is measured. Budget: at most 1.15 x.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ONE_TOOL = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("one")


@server.tool()
def add(a: int, b: int) -> int:
    "The sum."
    return a + b


server.run("stdio")
"""
MESSAGES = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "benchmark", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
)
BUDGET = 1.15


def main() -> int:
    """Print the numbers as JSON; exit 1 when the ratio is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="starts of each server")
    rounds = parser.parse_args().rounds
    ours, one_tool = [], []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "one_tool.py"
        program.write_text(ONE_TOOL, encoding="utf-8")
        for _ in range(rounds + 1):
            ours.append(first_tools([sys.executable, "-m", "ep_overlap_mcp"]))
            one_tool.append(first_tools([sys.executable, str(program)]))
    # The first round fills the file cache; ratios of neighbours bear a machine that is busy with other work.
    ratio = statistics.median(mine / other for mine, other in zip(ours[1:], one_tool[1:], strict=True))
    numbers = {
        "ours_median_ms": round(1e3 * statistics.median(ours[1:]), 1),
        "one_tool_median_ms": round(1e3 * statistics.median(one_tool[1:]), 1),
        "ours_best_ms": round(1e3 * min(ours[1:]), 1),
        "one_tool_best_ms": round(1e3 * min(one_tool[1:]), 1),
        "ratio": round(ratio, 3),
        "budget": BUDGET,
    }
    sys.stdout.write(json.dumps(numbers, indent=2) + "\n")
    return int(ratio > BUDGET)


def first_tools(command: list[str]) -> float:
    """Seconds from the start of the process to the answer that holds its tools."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        if server.stdin is None or server.stdout is None:
            raise SystemExit("the server has no pipes")
        for message in MESSAGES:
            server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        for line in server.stdout:
            answer = json.loads(line)
            if answer.get("id") == 2:
                taken = time.perf_counter() - begin
                if not answer["result"]["tools"]:
                    raise SystemExit(f"{command} lists no tools")
                server.kill()
                return taken
    raise SystemExit(f"{command} ended before it listed its tools")


if __name__ == "__main__":
    sys.exit(main())
