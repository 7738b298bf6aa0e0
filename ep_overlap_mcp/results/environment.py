from __future__ import annotations

from ep_overlap_mcp.results.base import Record, Result


class Component(Record):
    """A package of the training environment. None means not tried; `why` says what hinders or is worth knowing."""

    version: str | None
    importable: bool | None
    usable: bool | None
    why: str | None


class Gpu(Record):
    """A GPU; `nvlink_domain` counts the GPUs that NVLink reaches from it, None with the reason when not visible."""

    name: str
    compute_capability: str | None
    memory_gib: float | None
    nvlink_domain: int | None
    nvlink_domain_why: str | None


class Cpu(Record):
    """What a smoke run on the CPU has to live with."""

    cores: int
    memory_gib: float | None


class Ability(Record):
    """Whether something can run here; None when it was not or could not be found out."""

    possible: bool | None
    why: str


class Abilities(Record):
    """Dispatchers, delayed weight gradients, and the engines that smoke runs can use."""

    alltoall: Ability
    deepep: Ability
    hybridep: Ability
    ncclep: Ability
    delay_wgrad: Ability
    smoke: list[str]
    smoke_why: str


class EnvironmentResult(Result):
    """The training environment: installed, importable, usable."""

    python: str
    python_version: str
    components: dict[str, Component]
    gpus: list[Gpu]
    gpus_why: str | None
    cpu: Cpu
    can: Abilities
