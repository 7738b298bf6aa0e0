"""Megatron-LM's `validate_args` as a judge."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import typing
from typing import Any

from .arguments import MODEL_AXES, Settings, core_stand_ins, part, size, stand_in
from .exceptions import NotJudged, told
from .installed import installed
from .values import LeftOut, converted


def with_arguments(settings: Settings, result: dict[str, Any], strict: bool) -> None:  # noqa: ARG001, FBT001
    """Megatron-LM's `validate_args` over its own parser's defaults and the settings."""
    try:
        module = importlib.import_module("megatron.training.arguments")
    except Exception as problem:  # noqa: BLE001
        raise NotJudged(f"megatron.training cannot be imported: {told(problem)}") from None
    variables = {name: str(value) for name, value in part(settings, "env").items() if value is not None}
    with environment(variables):
        module.validate_args(parsed_arguments(module, settings, result))


def parsed_arguments(module: Any, settings: Settings, result: dict[str, Any]) -> Any:
    """The namespace that a command line with these settings would give."""
    argv, sys.argv = sys.argv, ["pretrain_gpt.py"]
    try:
        args = module.parse_args(ignore_unknown_args=True)
    finally:
        sys.argv = argv
    given = part(settings, "train") | part(settings, "optimizer") | part(settings, "ddp") | part(settings, "model")
    renamed = {
        "num_moe_experts": "num_experts",
        "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    }
    values = {renamed.get(name, name): value for name, value in given.items()}
    model = part(settings, "model")
    smallest = math.prod(size(model, f"{axis}_parallel_size") for axis in MODEL_AXES)
    needed = {
        "seq_length": 4096,
        "max_position_embeddings": values.get("seq_length", 4096),
        "micro_batch_size": 1,
        "train_iters": 1,
        "lr": 1e-4,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": 32_000,
    }
    for name, value in (core_stand_ins(model) | needed).items():
        if values.get(name) is None and getattr(args, name, None) is None:
            values[name] = value
            stand_in(result, f"{'train' if name in needed else 'model'}.{name}", value)
    args.rank = 0
    args.world_size = settings.get("hardware.world_size") or smallest * size(model, "expert_model_parallel_size")
    if not settings.get("hardware.world_size"):
        stand_in(result, "hardware.world_size", args.world_size)
    types_ = typing.get_type_hints(installed().plain)
    for name, value in values.items():
        if hasattr(args, name):
            with contextlib.suppress(LeftOut):
                setattr(args, name, converted(name, value, types_.get(name, Any), choose_enum=True))
    return args


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> typing.Iterator[None]:
    """The environment that the settings ask for, while a layer judges."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
