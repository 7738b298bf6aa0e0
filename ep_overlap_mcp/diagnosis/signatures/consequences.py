"""Lines that say how a process ended and not why: those that follow another rank's failure are never a first cause."""

from __future__ import annotations

import re

from ep_overlap_mcp.diagnosis.signatures.row import Signature, follows

FOLLOWS = (
    follows("onnection closed by", "torch, NCCL: a peer's socket closed"),
    follows("onnection reset by peer", "torch, NCCL: a peer's socket closed"),
    follows("failed to recv, got", "torch TCPStore: the rank that keeps it is gone"),
    follows("Broken pipe", "torch TCPStore: a peer's socket closed"),
    follows("exitcode", "torch elastic: ended by the launcher", r"exitcode {0,8}: {0,4}-(?:15|9|6)\b"),
    follows("SignalException", "torch elastic: ended from outside"),
    follows("SIGTERM", "torch elastic, Slurm: ended by the launcher"),
    follows("ChildFailedError", "torch elastic: summary of the ranks"),
    follows("failed (exitcode", "torch elastic: a rank ended"),
    follows("will restart worker group", "torch elastic: another attempt follows"),
    follows("srun: error:", "Slurm: summary of the tasks"),
    follows("last collective", "flight recorder or stack dump, summarised", waits=True),
    follows("Watchdog caught collective operation", "NVIDIA/Megatron-LM#1207", waits=True),
    follows("watchdog got stuck", "verl-project/verl#1158", waits=True),
    follows("taking the entire process down", "torch ProcessGroupNCCL"),
    follows("taking the whole process down", "torch ProcessGroupNCCL"),
    follows("Process group watchdog thread terminated", "torch ProcessGroupNCCL"),
    follows("NCCL communicator was aborted", "torch ProcessGroupNCCL"),
    follows("ncclRemoteError", "NCCL: a peer exited"),
    follows("illegal memory access was encountered", "NVIDIA-NeMo/RL#4027"),
    follows("unspecified launch failure", "pytorch/torchtitan#3877"),
    follows("terminate called after throwing", "C++ runtime"),
    follows("Fatal Python error: Aborted", "CPython faulthandler"),
    follows("DistBackendError", "torch ProcessGroupNCCL"),
    follows("ActorDiedError", "Ray: an actor's process ended"),
)

ENDED = (
    Signature("egmentation fault", "CPython faulthandler, glibc, UCX", pattern=re.compile(r"^(?!.{0,200}srun: error)")),
    Signature("oom_kill event", "Slurm: the host's memory was exhausted"),
    Signature("DUE TO TIME LIMIT", "Slurm: the job's time was up"),
)
