"""Finds the lines worth reading in a block of log: plain substring searches, no pattern at all.

Each gate is searched over the whole block, which runs at memory speed; only lines that hold one are read.
No gate holds a digit, so two lines that differ in numbers alone pass the same gates.
"""

from __future__ import annotations

_FAILURES = (
    "rror",
    "ssert",
    "xception",
    "Traceback",
    'File "',
    "imeout",
    "TIMEOUT",
    "ailure",
    "Failed to",
    "DeepEP",
    "ybridEP",
    "nvshmem",
    "NVSHMEM",
    "communicate_shapes",
    "allgather_routing",
    "update_template",
    " in local",
    "Got completion",
    "(local_rank:",
    "exitcode",
    "egmentation fault",
    "oom_kill",
    "CANCELLED AT",
    "Killed",
    "NVRM: Xid",
    "estarting worker",
    "raining is done",
    "Trainer.fit",
    "train_runtime",
    "saved checkpoint",
)
_FACTS = (
    "iteration ",
    "Step Time",
    "step:",
    "step time",
    "step_time",
    "MiB",
    " .....",
    "overlap",
    "model:",
    "CUDA_DEVICE_MAX",
    "dispatcher",
)
GATES: tuple[bytes, ...] = tuple(gate.encode() for gate in (*_FAILURES, *_FACTS))


def suspicious(lines: list[bytes]) -> list[int]:
    """Indices of the lines that hold a gate, in order."""
    block, starts, at = b"\n".join(lines), {}, 0
    for index, line in enumerate(lines):
        starts[at] = index
        at += len(line) + 1
    found: set[int] = set()
    for gate in GATES:
        at = block.find(gate)
        while at >= 0:
            found.add(starts[block.rfind(b"\n", 0, at) + 1])
            end = block.find(b"\n", at)
            at = block.find(gate, end) if end >= 0 else -1
    return sorted(found)
