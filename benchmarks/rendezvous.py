"""How torchrun's c10d rendezvous grows with nodes: agents as threads around one store, no training.

    python benchmarks/rendezvous.py [--agents 8 32 128]

128 agents of eight ranks each are 1,024 GPUs. Threads of one process stand for hosts: the store's traffic is real, the
network is loopback, and imports and process starts are left out.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

MOST_SECONDS = 120.0


def main() -> int:
    """A line for each number of agents; 1 when one did not join."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[8, 32, 128])
    for count in parser.parse_args().agents:
        if not _fits(count):
            return 1
    return 0


def _fits(count: int) -> bool:
    """Measured in a process of its own, because agents leave threads behind."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import rendezvous"
    words = [sys.executable, "-c", f"{program}; rendezvous.join({count})"]
    return subprocess.run(words, check=False, timeout=MOST_SECONDS).returncode == 0


def join(count: int) -> None:
    """Print how long the slowest agent waited."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters  # noqa: PLC0415, TID251
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler  # noqa: PLC0415, TID251

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    times: dict[int, float] = {}
    handlers = []  # kept: the first one holds the store

    def agent(number: int) -> None:
        begun = time.monotonic()
        store = {"is_host": number == 0, "read_timeout": 60, "join_timeout": 100}
        parameters = RendezvousParameters(
            "c10d", f"127.0.0.1:{port}", "bench", count, count, local_addr="127.0.0.1", **store
        )
        handlers.append(handler := get_rendezvous_handler(parameters))
        info = handler.next_rendezvous()
        times[info.rank] = time.monotonic() - begun

    threads = [threading.Thread(target=agent, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_SECONDS)
    print(f"{count} agents: {len(times)} joined, the slowest after {max(times.values(), default=0):.1f} s", flush=True)
    os._exit(0 if len(times) == count else 1)


if __name__ == "__main__":
    sys.exit(main())
