"""Lines that follow another rank's failure: never a first cause."""

from __future__ import annotations

from ep_overlap_mcp.diagnosis.signatures.row import follows

FOLLOWS = (
    follows("onnection closed by", "torch, NCCL: a peer's socket closed"),
    follows("onnection reset by peer", "torch, NCCL: a peer's socket closed"),
    follows("Broken pipe", "torch TCPStore: a peer's socket closed"),
    follows("exitcode", "torch elastic: ended by the launcher", r"exitcode {0,8}: {0,4}-(?:15|9|6)\b"),
    follows("SIGTERM", "torch elastic, Slurm: ended by the launcher"),
    follows("ChildFailedError", "torch elastic: summary of the ranks"),
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
