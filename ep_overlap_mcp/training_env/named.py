"""Training environments and clusters that the user has named in a file, and `@NAME` wherever a Python is asked for.

# environments.toml in the user's configuration directory, or the file named by EP_OVERLAP_CONFIG
[environment.nemo]
python = "python3"                                # required; as it is called there
prefix = ["docker", "exec", "-i", "nemo"]         # ssh login1; srun --container-image=…; apptainer exec image.sif
variables = { HF_HOME = "/data/hf" }              # set there
folder = "/scratch/me"                            # where a smoke run's files are put; default: its temporary folder
start_limit_s = 300                               # for slow starts; default 120

[slurm.h100]
environment = "nemo"                              # or python = "…", as it is called on the nodes
folder = "/shared/me/ep-overlap"                  # required; seen by this host and by the nodes under this path
gpus_per_node = 8                                 # 0: CPU ranks
gpu_memory_gib = 80
cpus_per_node = 64
nodes = 2                                         # the most that a run takes
partition = "batch"
account = "me"
qos = "short"
time_min = 20                                     # default: the run's own limit and five minutes for starting
container_image = "nvcr.io#nvidia/nemo:25.09"     # for srun, as pyxis spells it
container_mounts = ["/data:/data"]
sbatch = ["--exclusive"]                          # more #SBATCH lines
setup = ["module load cuda"]                      # shell lines before the run
prefix = ["apptainer", "exec", "--nv", "nemo.sif"]  # before the Python on the nodes
most_jobs = 4                                     # of this user, queued or running
"""

from __future__ import annotations

import os
import sys
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.training_env.pipe import TrainingEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ep_overlap_mcp.training_env.environment import TrainingEnvironment

CONFIG = "EP_OVERLAP_CONFIG"
# A terminal between server and program would echo requests and change bytes
TERMINALS = {
    "ssh": ("-t", "-tt"),
    "docker": ("-t", "-it", "-ti", "--tty"),
    "podman": ("-t", "-it", "-ti", "--tty"),
    "kubectl": ("-t", "-it", "-ti", "--tty"),
    "srun": ("--pty",),
}


@dataclass(frozen=True)
class Place:
    """A Python somewhere: `prefix` reaches it, `variables` are set there, `folder` takes files there."""

    name: str
    python: str
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    start_limit_s: float = 120.0


@dataclass(frozen=True)
class Cluster:
    """A Slurm cluster and what a job there asks for; `python` and `variables` are those of its environment."""

    name: str
    folder: str
    environment: str | None = None
    python: str | None = None
    gpus_per_node: int = 0
    gpu_memory_gib: float | None = None
    cpus_per_node: int = 1
    nodes: int = 1
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_min: int | None = None
    container_image: str | None = None
    container_mounts: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    most_jobs: int = 4


def open_environment(python: str | None) -> TrainingEnvironment:
    """The training environment of a Python's path, or of `@NAME`; TrainingEnvironmentError for an unknown name."""
    from ep_overlap_mcp.training_env.environment import Limits, TrainingEnvironment

    if python is None or not python.startswith("@"):
        return TrainingEnvironment(python)
    place, cluster = _named(python[1:])
    return TrainingEnvironment(
        place.python,
        place.prefix,
        variables=place.variables,
        limits=Limits(start=place.start_limit_s, describe=max(180.0, place.start_limit_s)),
        folder=place.folder,
        cluster=cluster,
    )


def config_file() -> Path:
    """The file of names: EP_OVERLAP_CONFIG, or environments.toml in the user's configuration directory."""
    from platformdirs import user_config_dir

    if named := os.environ.get(CONFIG):
        return Path(named).expanduser()
    return Path(user_config_dir("ep-overlap-mcp", appauthor=False), "environments.toml")


def _named(name: str) -> tuple[Place, Cluster | None]:
    places, clusters = _read(config_file())
    if name in places:
        return places[name], None
    if name not in clusters:
        known = ", ".join(f"@{one}" for one in [*places, *clusters]) or "none"
        raise TrainingEnvironmentError(f"`@{name}` is not in {config_file()}; known there: {known}")
    cluster = clusters[name]
    if cluster.environment is None:
        return Place(name, cluster.python or "python3", variables=cluster.variables), cluster
    if cluster.environment not in places:
        raise TrainingEnvironmentError(
            f"{config_file()}: [slurm.{name}] takes environment `{cluster.environment}`, and there is no"
            f" [environment.{cluster.environment}]"
        )
    return places[cluster.environment], cluster


def _read(path: Path) -> tuple[dict[str, Place], dict[str, Cluster]]:
    try:
        tables = _toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError) as problem:
        raise TrainingEnvironmentError(f"{path} cannot be read: {problem}") from problem
    if unknown := sorted(set(tables) - {"environment", "slurm"}):
        raise TrainingEnvironmentError(f"{path}: unknown table [{unknown[0]}]; known: [environment.NAME], [slurm.NAME]")
    places = {n: _made(Place, f"environment.{n}", t, path) for n, t in _of(tables, "environment", path).items()}
    clusters = {n: _made(Cluster, f"slurm.{n}", t, path) for n, t in _of(tables, "slurm", path).items()}
    if twice := sorted(set(places) & set(clusters)):
        raise TrainingEnvironmentError(f"{path}: `{twice[0]}` is both an environment and a Slurm cluster; rename one")
    return places, clusters


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    import tomlkit

    return dict(tomlkit.parse(text).unwrap())


def _of(tables: Mapping[str, Any], kind: str, path: Path) -> dict[str, Any]:
    found = tables.get(kind, {})
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise TrainingEnvironmentError(f"{path}: [{kind}] holds tables with names, as in [{kind}.NAME]")
    return found


def _made(kind: type, where: str, table: Mapping[str, Any], path: Path) -> Any:
    """The dataclass from its table, every value of the field's type."""
    known = {f.name: f for f in fields(kind) if f.name != "name"}
    if unknown := sorted(set(table) - set(known)):
        raise TrainingEnvironmentError(f"{path}: [{where}] has unknown `{unknown[0]}`; known: {', '.join(known)}")
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [n for n in needed if n not in table]:
        raise TrainingEnvironmentError(f"{path}: [{where}] needs `{missing[0]}`")
    values = {n: _value(str(known[n].type), v, f"{path}: [{where}] {n}") for n, v in table.items()}
    _refuse_terminal(values.get("prefix", ()), f"{path}: [{where}]")
    return kind(name=where.partition(".")[2], **values)


def _value(kind: str, value: Any, where: str) -> Any:
    """The value as the field holds it; no other type is taken for it."""
    if kind.startswith("tuple") and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if kind.startswith("Mapping") and isinstance(value, dict) and all(isinstance(v, str) for v in value.values()):
        return dict(value)
    if kind.startswith("str") and isinstance(value, str) and value and "\n" not in value:
        return value
    if kind.startswith(("int", "float")) and not isinstance(value, bool) and value == abs(value or 0):
        whole = isinstance(value, int)
        if whole or (isinstance(value, float) and kind.startswith("float")):
            return value
    needed = "a list of texts" if kind.startswith("tuple") else "a table of texts" if "Mapping" in kind else kind
    raise TrainingEnvironmentError(f"{where} is {value!r}; it takes {needed.removesuffix(' | None')}")


def _refuse_terminal(prefix: tuple[str, ...], where: str) -> None:
    if not prefix:
        return
    command = Path(prefix[0]).name
    if given := [word for word in prefix[1:] if word in TERMINALS.get(command, ())]:
        raise TrainingEnvironmentError(
            f"{where} prefix asks `{command}` for a terminal with `{given[0]}`; a terminal changes what passes through"
            f" it: leave it out{' and keep -i' if command in ('docker', 'podman', 'kubectl') else ''}"
        )
