"""The batch script of a smoke run on a Slurm cluster, and how ranks are laid out on nodes. No I/O."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ep_overlap_mcp.smoke.errors import SmokeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ep_overlap_mcp.smoke.planning import SmokePlan
    from ep_overlap_mcp.training_env import Cluster

START_MIN = 5  # for containers to be pulled and torch to be imported, beyond the run's own limit

# Runs on the first node. A requeued job starts anew: what the first attempt left is no evidence. Nodes are reached by
# the address that Slurm reaches them by; where that is loopback, so is what torchrun tells its ranks.
_RUN = """\
date +%s > "$out/slurm.started"
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then rm -f "$out"/rank* "$out"/result.json "$out"/progress.jsonl; fi
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
address=${address:-$first}
port=$((20000 + SLURM_JOB_ID % 20000))
local=(); case $address in 127.*) local=(--local-addr "$address") ;; esac
"""
_RENDEZVOUS = (
    '--nnodes="$nodes" --nproc-per-node="$per_node" --rdzv-backend=c10d --rdzv-endpoint="$address:$port"'
    ' --rdzv-id="$SLURM_JOB_ID" "${local[@]}"'
)
_END = """\
code=$?
echo "$code" > "$out/slurm.exit"
exit "$code"
"""


@dataclass(frozen=True)
class Shape:
    """Nodes, and ranks on each."""

    nodes: int
    per_node: int


def shape_of(ranks: int, cluster: Cluster) -> Shape:
    """The fewest nodes that hold the ranks evenly; SmokeError when the cluster has not so many."""
    most = ranks_per_node(cluster)
    for nodes in range(math.ceil(ranks / most), cluster.nodes + 1):
        if ranks % nodes == 0:
            return Shape(nodes, ranks // nodes)
    raise SmokeError(
        f"{ranks} ranks do not fit evenly on {cluster.nodes} nodes of {most} ranks each; take another number of"
        f" ranks, or give [slurm.{cluster.name}] more nodes"
    )


def ranks_per_node(cluster: Cluster) -> int:
    """One a GPU, or one a CPU where there are none."""
    return cluster.gpus_per_node or cluster.cpus_per_node


def batch_script(plans: Sequence[SmokePlan], cluster: Cluster, folder: Path, name: str) -> str:
    """The script; `folder` is the run's, or holds those of an array's tasks by number."""
    several = len(plans) > 1
    out = shlex.quote(str(folder)) + ('/"$SLURM_ARRAY_TASK_ID"' if several else "")
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {line}" for line in _directives(plans, cluster, folder, name)),
        "set -u",
        f"out={out}",
        'cd "$out" || exit 1',
        ". ./shape.sh",
        *cluster.setup,
    ]
    return "\n".join(lines) + "\n" + _RUN + f"{_srun(plans[0].python, cluster)}\n" + _END


def shape_script(shape: Shape, variables: Mapping[str, str]) -> str:
    """What differs between the tasks of an array: shell lines that the batch script reads."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([f"nodes={shape.nodes}", f"per_node={shape.per_node}", *exports]) + "\n"


def _directives(plans: Sequence[SmokePlan], cluster: Cluster, folder: Path, name: str) -> list[str]:
    shapes = [shape_of(plan.shown.world_size, cluster) for plan in plans]
    minutes = math.ceil(max(plan.shown.limit_s for plan in plans) / 60) + START_MIN
    several = len(plans) > 1
    given = {
        "job-name": name,
        "nodes": max(shape.nodes for shape in shapes),
        "ntasks-per-node": 1,
        "gpus-per-node": cluster.gpus_per_node or None,
        "cpus-per-task": None if cluster.gpus_per_node else max(shape.per_node for shape in shapes),
        "time": cluster.time_min or minutes,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "array": f"0-{len(plans) - 1}" if several else None,
        "output": str(folder / "%a" / "log.txt") if several else str(folder / "log.txt"),
    }
    ours = [f"--{option}={value}" for option, value in given.items() if value is not None]
    return [*ours, "--open-mode=append", "--no-requeue", *cluster.sbatch]


def _srun(python: str, cluster: Cluster) -> str:
    container = [f"--container-image={cluster.container_image}"] if cluster.container_image else []
    if cluster.container_mounts:
        container.append(f"--container-mounts={','.join(cluster.container_mounts)}")
    words = shlex.join([*container, *cluster.prefix, python, "-m", "torch.distributed.run"])
    tasks = '--nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1'
    program = 'program/smoke_train.py --request "$out/request.json" --out "$out"'
    return f"srun {tasks} {words} {_RENDEZVOUS} {program}"
