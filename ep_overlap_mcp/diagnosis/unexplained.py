"""What to do about a failure that no signature explains, by its kind: an exception of Python is no matter of NCCL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ep_overlap_mcp.diagnosis.evidence import Evidence, Line

# exceptions of files, sockets, packages and people: no setting of overlap raises them
FOREIGN = re.compile(
    r"(?:[\w.]{0,60}\.)?(?:FileNotFound|Permission|IsADirectory|Connection\w{0,20}|ModuleNotFound|Import|Unicode\w{0,20}"
    r"|KeyboardInterrupt|JSONDecode|Key)(?:Error)?(?::|$)"
)
_PYTHON = re.compile(r"(?:[A-Za-z_][\w.]{0,120}\.)?[A-Z]\w{0,60}(?:Error|Exception)\b")
_COMMUNICATES = re.compile(r"NCCL|nccl|c10d|Gloo|gloo|DeepEP|HybridEP|nvshmem|NVSHMEM")
_MEETS = re.compile(r"Dist(?:Store|Network)Error|RendezvousTimeoutError")
_DEVICE = re.compile(r"CUDA error|AcceleratorError|cuda runtime error|device-side assert")


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
    _STACK + "then run {check_overlap_config} on the configuration, with the Python of the training environment (its "
    "own Megatron then judges as well)",
    "none until the condition is known; the run ended before its first step, so nothing about communication",
)
_ON_DEVICE = Advice(
    "the same job with CUDA_LAUNCH_BLOCKING=1 and without CUDA graphs: the stack then ends in the kernel that failed; "
    "`compute-sanitizer` on one rank, and the assertion that the device printed before the exception",
    "none until the kernel is known; then the same job with overlap off and alltoall tells whether overlap is involved",
)
_NOT_ALL_CAME = Advice(
    "how many ranks joined, which the exception says, and the logs of the nodes that did not; MASTER_ADDR, the port "
    "and the interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) on every node",
    "what keeps the missing ranks away; no code of the model has run, so no setting of it matters",
)
_KILLED = Advice(
    "why the system ended it: `dmesg` on its node and `sacct` of the job (host memory exhausted, a limit, an operator) "
    "and the memory of the host before the end",
    "what ended it; a killed process raises nothing, so that no setting of overlap can be read from its log",
)
_CRASHED = Advice(
    "the native stack: PYTHONFAULTHANDLER=1 and a core file (`ulimit -c unlimited`); then the same job without overlap "
    "and with alltoall",
    "none until the library that crashed is known: match the builds of torch, NCCL, transformer-engine and deep_ep",
)
_TIME_WAS_UP = Advice(
    "the last step that was logged against the end: a job that still made steps only needs more time, one that had "
    "stopped making them hangs (`py-spy dump` of every rank next time)",
    "a longer time limit, or a checkpoint before it",
)
_SILENT = Advice(
    "the output of that rank alone (`torchrun --log-dir DIR --redirects 3 --tee 3` keeps one a rank): it ended with an "
    "exit code and no exception in this log",
    "none until its own words are known",
)
_BY_WORDS = (
    (re.compile(r"oom_kill|exitcode {0,8}: {0,4}-9\b"), _KILLED),
    (re.compile(r"egmentation fault|exitcode {0,8}: {0,4}-(?:4|6|7|8|11)\b"), _CRASHED),
    (re.compile(r"DUE TO TIME LIMIT"), _TIME_WAS_UP),
    (re.compile(r"^exitcode\b"), _SILENT),
)
_IN_TRAINING = Advice(
    _STACK + "then run the same job with overlap off and alltoall: if it fails as well, overlap is not involved",
    "none until the cause is known",
)


def advice(evidence: Evidence, first: Line | None) -> Advice | None:
    """By the line that came first; None for hangs and for logs without a failure of their own."""
    if first is None or first in (failure.line for failure in evidence.failures if failure.follows or failure.waits):
        return None
    for words, said in _BY_WORDS:
        if words.search(first.text):
            return said
    if not _PYTHON.match(first.text) or _COMMUNICATES.search(first.text):
        return None
    if FOREIGN.match(first.text):
        return _OUTSIDE
    if _DEVICE.search(first.text):
        return _ON_DEVICE
    if any(step.line.order < first.order for step in evidence.iterations):
        return _IN_TRAINING
    return _NOT_ALL_CAME if _MEETS.search(first.text) else _AT_START
