"""Lines that say how a process ended and not why: those that follow another rank's failure are never a first cause.

Also those that say that a job is well, or was started again.
"""

from __future__ import annotations

import re

from ep_overlap_mcp.diagnosis.signatures.row import Signature, follows

# what a launcher prints when an attempt is over; steps after it are another attempt's
RESTARTED = (
    follows("will restart worker group", "torch elastic: another attempt follows"),
    follows("Restarting worker group", "torch elastic: another attempt follows"),
)
OVER = (
    *RESTARTED,
    follows("SignalException", "torch elastic: ended from outside"),
    follows("ChildFailedError", "torch elastic: summary of the ranks"),
    follows("failed (exitcode", "torch elastic: a rank ended"),
    follows("srun: error:", "Slurm: summary of the tasks"),
)

FOLLOWS = (
    *OVER,
    follows("onnection closed by", "torch, NCCL: a peer's socket closed"),
    follows("onnection reset by peer", "torch, NCCL: a peer's socket closed"),
    follows("failed to recv, got", "torch TCPStore: the rank that keeps it is gone"),
    follows("Broken pipe", "torch TCPStore: a peer's socket closed"),
    follows("exitcode", "torch elastic: ended by the launcher", r"exitcode {0,8}: {0,4}-(?:15|9|6)\b"),
    follows("SIGTERM", "torch elastic, Slurm: ended by the launcher"),
    follows("CANCELLED AT", "Slurm: ended from outside", r"CANCELLED AT(?!.{0,60} DUE TO)"),
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
    Signature("DUE TO PREEMPTION", "Slurm: another job took the nodes"),
    Signature("DUE TO NODE FAILURE", "Slurm: a node was lost"),
    Signature("Killed", "bash: a process of a script was killed", pattern=re.compile(r"^Killed$")),
    Signature(
        "NVRM: Xid",
        "NVIDIA's table of Xid errors: those of the device or its link, not of the program",
        pattern=re.compile(r"\): (?:48|62|63|64|74|79|92|94|95|119|120|140)\b"),
    ),
)

COMPLETED = (
    Signature("after training is done", "megatron/training/training.py", stops=False),
    Signature("Trainer.fit` stopped", "PyTorch Lightning", stops=False),
    Signature("train_runtime", "Hugging Face's trainer", stops=False),
)
SAVED = (Signature("successfully saved checkpoint", "megatron/training/checkpointing.py", stops=False),)
