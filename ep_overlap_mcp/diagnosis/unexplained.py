"""What to do about a failure that no signature explains, by its kind: a Python exception is no matter of NCCL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ep_overlap_mcp.diagnosis.evidence import Evidence, Failure

# exceptions of files, sockets, packages and people: no setting of overlap raises them
FOREIGN = re.compile(
    r"(?:[\w.]{0,60}\.)?(?:FileNotFound|Permission|IsADirectory|Connection\w{0,20}|ModuleNotFound|Unicode\w{0,20}"
    r"|KeyboardInterrupt|JSONDecode|Key)(?:Error)?(?::|$)"
)
_PYTHON = re.compile(r"(?:[A-Za-z_][\w.]{0,120}\.)?[A-Z]\w{0,60}(?:Error|Exception)\b")
_DEVICE = re.compile(r"NCCL|nccl|CUDA|cuda|c10d|Gloo|gloo|cu[A-Z]{3,8}_STATUS|DeepEP|HybridEP|nvshmem|NVSHMEM")


class Advice(NamedTuple):
    """What finds the cause, and what to do meanwhile."""

    test: str
    fix: str


_OUTSIDE = Advice(
    "look for the file, package, key or process that the exception names, on the rank and node that it names",
    "what the exception names; no setting of overlap raises it",
)
_STACK = "read the stack of the first exception: its innermost frame in megatron/ is the condition that failed; "
_AT_START = Advice(
    _STACK + "then run check_overlap_config on the configuration, with the Python of the training environment (its own "
    "Megatron then judges as well)",
    "none until the condition is known; the run ended before its first step, so nothing about communication",
)
_IN_TRAINING = Advice(
    _STACK + "then run the same job with overlap off and alltoall: if it fails as well, overlap is not involved",
    "none until the cause is known",
)


def advice(evidence: Evidence, first: Failure | None) -> Advice | None:
    """For the Python exception that came first; None for hangs, devices and logs without a failure of their own."""
    if first is None or first.follows or first.waits or not _PYTHON.match(first.line.text):
        return None
    if FOREIGN.match(first.line.text):
        return _OUTSIDE
    if _DEVICE.search(first.line.text):
        return None
    trained = any(step.line.order < first.line.order for step in evidence.iterations)
    return _IN_TRAINING if trained else _AT_START
