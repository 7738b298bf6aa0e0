"""The request of a smoke run, checked before anything heavy is imported."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = ("gloo-cpu", "gloo-gpu", "nccl-gpu")
VARIANTS = ("baseline", "overlap", "overlap_delay_wgrad")
FAULTS = ("drop_wgrad", "missing_wait", "overlap_silently_off", "slow_rank", "die", "hang", "nan_loss")
SWITCHES = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")  # the variant sets them


class RequestError(ValueError):
    """The request cannot be run; the message names the field and what it may be."""


@dataclass(frozen=True)
class Fault:
    """A planted fault: what goes wrong, on which rank, in which parity step and variant."""

    kind: str
    rank: int = 0
    step: int = 1
    variant: str | None = None
    seconds: float = 0.2


@dataclass(frozen=True)
class Train:
    """The batch: sizes of one rank, in sequences, microbatches and tokens."""

    micro_batch_size: int
    num_microbatches: int
    seq_length: int
    vocab_size: int
    position_embedding_type: str = "rope"


@dataclass(frozen=True)
class Request:
    """What to run; the fields are described in `smoke_train.py`."""

    engine: str
    seed: int
    model: dict[str, Any]
    train: Train
    variants: tuple[str, ...]
    ddp: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    parity_steps: int = 3
    pairs: int = 8
    warmup: int = 2
    mode: str = "threads"
    profile: bool = False
    fault: Fault | None = None
    wall_limit_s: float = 300.0
    collective_timeout_s: float = 60.0


def read_request(path: Path) -> Request:
    """The request in the file, or RequestError."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: no readable JSON request: {error}") from None
    return parse(raw)


def parse(raw: Any) -> Request:
    """A checked request from its JSON value."""
    values = _known(Request, raw, "request")
    values["train"] = Train(**_known(Train, values.get("train", {}), "train"))
    values["variants"] = tuple(values.get("variants", ()))
    if values.get("fault") is not None:
        values["fault"] = Fault(**_known(Fault, values["fault"], "fault"))
    request = Request(**_complete(Request, values, "request"))
    _check(request)
    return request


def _known(kind: type, raw: Any, where: str) -> dict[str, Any]:
    names = [f.name for f in fields(kind)]
    if not isinstance(raw, dict):
        raise RequestError(f"{where}: expected a JSON object")
    if unknown := sorted(set(raw) - set(names)):
        raise RequestError(f"{where}: unknown `{unknown[0]}`; known are {', '.join(names)}")
    return dict(_complete(kind, raw, where))


def _complete(kind: type, raw: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        kind(**raw)
    except TypeError as error:
        raise RequestError(f"{where}: {str(error).split('__init__() ')[-1]}") from None
    return raw


def _check(request: Request) -> None:
    _one_of("engine", request.engine, ENGINES)
    _one_of("mode", request.mode, ("threads", "inline"))
    for variant in request.variants:
        _one_of("variants", variant, VARIANTS)
    if request.variants[:1] != ("baseline",) or len(set(request.variants)) != len(request.variants):
        raise RequestError("variants: `baseline` stands first and each variant once")
    if len(request.variants) < 2:
        raise RequestError("variants: baseline alone compares nothing; add overlap or overlap_delay_wgrad")
    if given := [name for name in SWITCHES if name in request.model]:
        raise RequestError(f"model: `{given[0]}` is set by the variant; leave it out")
    for name, low in (("parity_steps", 1), ("pairs", 0), ("warmup", 0), ("wall_limit_s", 1)):
        if getattr(request, name) < low:
            raise RequestError(f"{name}: must be at least {low}, is {getattr(request, name)}")
    for size in ("micro_batch_size", "num_microbatches", "seq_length", "vocab_size"):
        if getattr(request.train, size) < 1:
            raise RequestError(f"train.{size}: must be at least 1, is {getattr(request.train, size)}")
    if request.fault:
        _one_of("fault.kind", request.fault.kind, FAULTS)
        _one_of("fault.variant", request.fault.variant, (None, *request.variants))


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise RequestError(f"{name}: `{value}` is none of {', '.join(map(str, allowed))}")
