"""What is at hand: the engine, how many ranks, and the stack a run would really have."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ep_overlap_mcp.settings.setting import Origin, Setting
from ep_overlap_mcp.smoke.batch_script import ranks_per_node
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.options import MOST_CPU_RANKS
from ep_overlap_mcp.stack import Component, Core
from ep_overlap_mcp.training_env.pipe import TrainingEnvironmentError

if TYPE_CHECKING:
    from ep_overlap_mcp.results.environment import EnvironmentResult
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.training_env import Cluster, TrainingEnvironment

MOST_SHARED_RANKS = 4  # CPU ranks that may share fewer cores, and ranks that may share a GPU


@dataclass(frozen=True)
class Machine:
    """The training environment as a run sees it. `most_ranks` may be started, `most_alone` have a device each."""

    python: str
    engine: str
    device: str
    core: Core
    transformer_engine: str | None
    stack: dict[str, str | None]
    most_ranks: int
    most_alone: int
    gpus: int
    gpu_memory_gib: float | None
    deepep: bool | None
    hybridep: bool | None
    behind: str = ""  # the prefix that leads there, or the cluster
    memory_gib: float | None = None  # of another host, where what is free is not known

    @property
    def on_gpu(self) -> bool:
        """Ranks run on GPUs."""
        return self.engine != "gloo-cpu"

    @property
    def device_set(self) -> str:
        """What a run of this engine takes for itself."""
        return ("gpu" if self.on_gpu else "cpu") + (f" behind {self.behind}" if self.behind else "")


def look_around(environment: TrainingEnvironment, options: SmokeOptions) -> Machine:
    """Choose the engine for the training environment, from package versions and GPUs; imports nothing there."""
    try:
        facts = environment.describe(fast=True)
    except TrainingEnvironmentError as problem:
        raise SmokeError(str(problem)) from problem
    version = facts.components["megatron-core"].version
    if version is None or facts.components["torch"].version is None:
        raise SmokeError(
            f"{facts.python} has no {'megatron-core' if version is None else 'torch'}: name the training environment's"
            " Python, or install ep-overlap-mcp[megatron] in this one"
        )
    at_hand = environment.cluster.gpus_per_node if environment.cluster else len(facts.gpus)
    gpus = 0 if "+cpu" in (facts.components["torch"].version or "") else at_hand
    engine = options.engine or ("nccl-gpu" if gpus > 1 else "gloo-gpu" if gpus else "gloo-cpu")
    if engine != "gloo-cpu" and not gpus:
        raise SmokeError(f"engine {engine} needs a GPU and torch in {facts.python} has none ({facts.gpus_why})")
    machine = _machine(facts, _as_named(environment, facts), engine, gpus, Core(version))
    if environment.cluster is not None:
        return _of_cluster(machine, environment.cluster)
    if not environment.prefix:
        return machine
    return replace(machine, behind=shlex.join(environment.prefix), memory_gib=facts.cpu.memory_gib)


def _as_named(environment: TrainingEnvironment, facts: EnvironmentResult) -> str:
    """The Python by the path it was named by: it may be a script that sets up what the interpreter behind it lacks."""
    elsewhere = environment.prefix or environment.cluster
    named = environment.python if elsewhere else shutil.which(environment.python)
    return str(Path(named).absolute()) if named and os.sep in named else facts.python


def _machine(facts: EnvironmentResult, python: str, engine: str, gpus: int, core: Core) -> Machine:
    alone = {"gloo-cpu": min(facts.cpu.cores, MOST_CPU_RANKS), "gloo-gpu": gpus, "nccl-gpu": gpus}[engine]
    shared = alone if engine == "nccl-gpu" else max(alone, MOST_SHARED_RANKS)
    on_gpu = engine != "gloo-cpu"
    memory = [gpu.memory_gib for gpu in facts.gpus if gpu.memory_gib is not None]
    names = sorted({gpu.name for gpu in facts.gpus})
    return Machine(
        python=python,
        engine=engine,
        device=f"{gpus} x {', '.join(names)}" if on_gpu else f"CPU, {facts.cpu.cores} cores",
        core=core,
        transformer_engine=facts.components["transformer-engine"].version if on_gpu else None,
        stack={name: one.version for name, one in facts.components.items() if one.version},
        most_ranks=shared,
        most_alone=alone,
        gpus=gpus,
        gpu_memory_gib=min(memory) if on_gpu and memory else None,
        deepep=on_gpu and facts.components["deep_ep"].version is not None,
        hybridep=on_gpu and facts.components["deep_ep"].version is not None,
    )


def _of_cluster(machine: Machine, cluster: Cluster) -> Machine:
    """The nodes of a cluster: counted by its table, since where this is asked none of their devices need be."""
    ranks = cluster.nodes * ranks_per_node(cluster)
    most = ranks if machine.on_gpu else min(ranks, MOST_CPU_RANKS)
    kind = f"{cluster.gpus_per_node} GPUs" if machine.on_gpu else f"{cluster.cpus_per_node} CPUs"
    return replace(
        machine,
        device=f"Slurm cluster {cluster.name}: up to {cluster.nodes} nodes of {kind}",
        most_ranks=most,
        most_alone=most,
        gpus=ranks if machine.on_gpu else 0,
        gpu_memory_gib=cluster.gpu_memory_gib,
        behind=f"Slurm cluster {cluster.name}",
    )


def on_installed_core(request: Request, machine: Machine) -> Request:
    """The request judged for the release that will run it.

    On the CPU what is not installed there is no reason to refuse: it is stood in for, or not tested, and said.
    """
    components = {
        name: component
        for name, component in request.stack.components.items()
        if machine.on_gpu or component.origin != "installed" or component.version is not None
    }
    components["megatron-core"] = Component(machine.core.label, "installed")
    dropped = {f"runtime.{name.replace('-', '_')}" for name in request.stack.components if name not in components}
    settings = {path: setting for path, setting in request.settings.items() if path not in dropped}
    origin = Origin("explicit", note="stack, installed")
    settings["runtime.megatron_core"] = Setting("runtime.megatron_core", machine.core.label, origin)
    return replace(request, stack=replace(request.stack, components=components), settings=settings)
