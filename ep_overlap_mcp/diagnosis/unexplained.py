"""What to do about a failure that no signature explains, by its kind: an exception of Python is no matter of NCCL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ep_overlap_mcp.diagnosis.evidence import not_finite
from ep_overlap_mcp.surface import filled

if TYPE_CHECKING:
    from ep_overlap_mcp.diagnosis.evidence import Evidence, Line
    from ep_overlap_mcp.results.diagnose import Cause

# exceptions of files, sockets, packages and people: no setting of overlap raises them
FOREIGN = re.compile(
    r"(?:[\w.]{0,60}\.)?(?:FileNotFound|Permission|IsADirectory|Connection\w{0,20}|ModuleNotFound|Import|Unicode\w{0,20}"
    r"|KeyboardInterrupt|JSONDecode|Key|OS)(?:Error)?(?::|$)"
)
_PYTHON = re.compile(r"(?:[A-Za-z_][\w.]{0,120}\.)?[A-Z]\w{0,60}(?:Error|Exception)\b")
_COMMUNICATES = re.compile(r"NCCL|nccl|c10d|Gloo|gloo|DeepEP|HybridEP|nvshmem|NVSHMEM")
_MEETS = re.compile(r"Dist(?:Store|Network)Error|RendezvousTimeoutError")
_DEVICE = re.compile(r"CUDA error|AcceleratorError|cuda runtime error|device-side assert")


class Advice(NamedTuple):
    """What finds the cause, what to do meanwhile, and what is seen; what is empty is the unknown cause's."""

    test: str = ""
    fix: str = ""
    title: str = ""

    def given(self, cause: Cause) -> Cause:
        """The unknown cause with this advice."""
        return cause.model_copy(update={name: filled(said) for name, said in self._asdict().items() if said})


_OUTSIDE = Advice(
    "look for the file, package, key or process that the exception names, on the rank and node that it names",
    "what the exception names; no setting of overlap raises it",
    "the exception is about a file, a package, a key or a connection",
)
_INTERRUPTED = Advice(
    "who or what interrupted it: Ctrl-C, or a signal of the shell or the notebook",
    "none is needed; a run that was interrupted because it hung needs a `py-spy dump` of every rank before the end",
    "somebody interrupted the program",
)
_OWN_PROGRAM = Advice(
    "read the code at the innermost frame of the stack: the program's own check failed, with what it looks at",
    "what that code asks for; it is no rule of Megatron, and no setting of overlap is known to be involved",
    "the program's own code raised it, outside Megatron and its libraries",
)
_STACK = "read the stack of the first exception: its innermost frame in megatron/ is the condition that failed; "
_AT_START = Advice(
    _STACK + "then run {check_overlap_config} on the configuration, with the Python of the training environment (its "
    "own Megatron then judges as well)",
    "none until the condition is known; no step is logged before it: where the log is whole, nothing about "
    "communication",
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
    "the system killed a process",
)
_CRASHED = Advice(
    "the native stack: PYTHONFAULTHANDLER=1 and a core file (`ulimit -c unlimited`); then the same job without overlap "
    "and with alltoall",
    "none until the library that crashed is known: match the builds of torch, NCCL, transformer-engine and deep_ep",
    "a process crashed in native code",
)
_TIME_WAS_UP = Advice(
    "the last step that was logged against the end: a job that still made steps only needs more time, one that had "
    "stopped making them hangs (`py-spy dump` of every rank next time)",
    "a longer time limit, or a checkpoint before it",
    "the scheduler's time limit ended the job",
)
_PREEMPTED = Advice(
    "`sacct` of the job: its state and who took the nodes",
    "resume from the last checkpoint (requeue); checkpoint more often, or ask for a queue that is not preempted",
    "the scheduler preempted the job for another one",
)
_NODE_FAILED = Advice(
    "`sacct` of the job and `scontrol show node` of the node that the line names; `dmesg` there, once it is back",
    "resume from the last checkpoint without that node",
    "a node failed under the job",
)
_CANCELLED = Advice(
    "who cancelled it: `sacct` of the job; and whether it still made steps before: one that did not hangs",
    "none, where it was meant; a job that was cancelled because it hung needs a `py-spy dump` of every rank first",
    "the job was cancelled from outside (scancel), which is no failure of its own",
)
_GPU_FAULT = Advice(
    "`nvidia-smi -q` and `dmesg` on the node that printed it (Xid, ECC, retired rows); NVIDIA's table of Xid errors",
    "drain the node and run on others; no setting of overlap mends a device",
    "a GPU or its link failed (the driver or CUDA says so)",
)
_ODD_RANK = Advice(
    "the stack of the rank that is named, beside those of the others: the run's folder holds them",
    "what that rank waits for; the others only wait for it",
    "one rank keeps the others waiting",
)
_LIMIT = Advice(
    "the stacks of the ranks in the run's folder, or the same run with a longer {limit_s}",
    "a longer limit where every rank still moved; else what the rank that stands still waits for",
    "the run reached its time limit",
)
_LOST = Advice(
    "whether the machine was restarted or the process killed: `dmesg` and the end of the run's log",
    "start the run again; nothing that it left says anything about overlap",
    "what supervised the run is gone",
)
TIMED_OUT = Advice(
    title="a collective timed out: a rank did not come to it, or its peers did not",
)
NOT_FINITE = Advice(
    "the last healthy checkpoint with the same data and overlap off: where it stays finite overlap is involved; then "
    "the first step and rank whose gradient is not finite",
    "none until the cause is known; the steps below the first one count for nothing",
    "the loss or the gradients are not finite (NaN or Inf)",
)
_SILENT = Advice(
    "the output of that rank alone (`torchrun --log-dir DIR --redirects 3 --tee 3` keeps one a rank): it ended with an "
    "exit code and no exception in this log",
    "none until its own words are known",
    "a rank ended with an exit code and without a word",
)
SHOWN_BY = {TIMED_OUT.title: "hang", NOT_FINITE.title: "nan"}  # the symptom that a log shows by itself
EMPTY = Advice(
    "the log of the rank that failed, or the launcher's with stdout and stderr in one file (`> run.log 2>&1`)",
    "none: there was nothing to read",
    "an empty log holds nothing to diagnose",
)
COMPLETED = Advice(
    "say what is not right about it ({symptom}), or give the run that was right ({before}): a run that completes can "
    "still be slower, or wrong",
    "none is needed where nothing is wrong",
    "nothing in the log of this completed run is known to be wrong",
)
WENT_ON = Advice(
    "the rest of the log, where it went on further; else say what is not right about the run ({symptom})",
    "none is known to be needed",
    "nothing that the log reports is known to have ended the run",
)
QUIET = Advice(title="the log shows no failure; where the job hangs or is wrong, it does not say why")
MEASURED = Advice(
    "what the smoke run says to do next, which the facts hold; or say what is not right ({symptom})",
    "none: the smoke run did not fail",
    "the smoke run did not fail",
)
_BY_WORDS = (
    (re.compile(r"oom_kill|exitcode {0,8}: {0,4}-9\b|^Killed$|was killed by SIGKILL"), _KILLED),
    (re.compile(r"egmentation fault|exitcode {0,8}: {0,4}-(?:4|6|7|8|11)\b|was killed by SIG|died without"), _CRASHED),
    (re.compile(r"keeps? the others waiting|kept the others waiting|did not answer at the limit"), _ODD_RANK),
    (re.compile(r"\blimit of \S{1,20} s was reached"), _LIMIT),
    (re.compile(r"supervisor is gone"), _LOST),
    (re.compile(r"DUE TO TIME LIMIT"), _TIME_WAS_UP),
    (re.compile(r"DUE TO PREEMPTION"), _PREEMPTED),
    (re.compile(r"DUE TO NODE FAILURE"), _NODE_FAILED),
    (re.compile(r"CANCELLED AT"), _CANCELLED),
    (re.compile(r"NVRM: Xid|ECC error|fallen off the bus"), _GPU_FAULT),
    (re.compile(r"^exitcode\b"), _SILENT),
    (re.compile(r"^KeyboardInterrupt\b"), _INTERRUPTED),
    (re.compile(r"found (?:NaN|Inf) in local"), NOT_FINITE),
    (re.compile(r"Watchdog caught collective operation|watchdog got stuck"), TIMED_OUT),
)
_IN_TRAINING = Advice(
    _STACK + "then run the same job with overlap off and alltoall: if it fails as well, overlap is not involved",
    "none until the cause is known",
)


def advice(evidence: Evidence, first: Line | None) -> Advice | None:
    """By the line that came first, else by steps that are not finite; None for what nothing more can be said of."""
    if first is None:
        return NOT_FINITE if any(map(not_finite, evidence.iterations)) else None
    for words, said in _BY_WORDS:
        if words.search(first.text):
            return said
    failure = next((failure for failure in evidence.failures if failure.line is first), None)
    if failure and (failure.follows or failure.waits):
        return None
    if not _PYTHON.match(first.text) or _COMMUNICATES.search(first.text):
        return None
    return _of_exception(evidence, first, own_program=bool(failure and failure.in_own_program))


def _of_exception(evidence: Evidence, first: Line, *, own_program: bool) -> Advice:
    if FOREIGN.match(first.text):
        return _OUTSIDE
    if _DEVICE.search(first.text):
        return _ON_DEVICE
    if own_program:
        return _OWN_PROGRAM
    if any(step.line.order < first.order for step in evidence.iterations):
        return _IN_TRAINING
    return _NOT_ALL_CAME if _MEETS.search(first.text) else _AT_START
