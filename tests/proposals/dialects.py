"""One configuration of core fields, written in every dialect that a patch can edit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.fields import field_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Fields = Mapping[str, Any]


def flags(fields: Fields) -> list[str]:
    """Megatron-LM's flags; a switch that is off and a field that is unset have none."""
    words = []
    for name, value in fields.items():
        field = field_table()[f"model.{name}"]
        flag = field.flags[0] if field.flags else ""
        if value is True:
            words.append(flag)
        elif value is False and field.off_flags:
            words.append(field.off_flags[0])
        elif value not in (None, False, []):
            words.append(f"{flag} {' '.join(map(str, value)) if isinstance(value, list) else value}")
    return words


def backslash_command(fields: Fields) -> str:
    lines = " \\\n    ".join(flags(fields))
    return f"#!/bin/bash\ntorchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py \\\n    {lines}\n"


def arrays(fields: Fields) -> str:
    lines = "\n    ".join(f"{flag}  # as before" if "moe" in flag else flag for flag in flags(fields))
    run = "torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} --lr 1e-4"
    return f"MODEL_ARGS=(\n    {lines}\n)\n\n{run}\n"


def option_string(fields: Fields) -> str:
    lines = " \\\n    ".join(flags(fields))
    return f'options=" \\\n    {lines}"\n\ntorchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py $options\n'


def one_line(fields: Fields) -> str:
    return f"torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py {' '.join(flags(fields))} --lr 1e-4\n"


def model_args(fields: Fields) -> str:
    lines = []
    for flag in flags(fields):
        name, _, value = flag.partition(" ")
        shown = f'"[{value}]"' if " " in value else value or "true"
        lines.append(f"  {name}: {shown}")
    return "ENV_VARS:\n  NCCL_DEBUG: INFO\nMODEL_ARGS:\n  # the model\n" + "\n".join(lines) + "\n"


def _yaml_lines(fields: Fields, indent: str) -> str:
    return "".join(f"{indent}{name}: {json.dumps(value)}\n" for name, value in fields.items() if value is not None)


def flat_yaml(fields: Fields) -> str:
    return "# core fields\n" + _yaml_lines(fields, "")


def nemo_rl_yaml(fields: Fields) -> str:
    return (
        f"policy:\n  megatron_cfg:\n    enabled: true\n{_yaml_lines(fields, '    ')}    optimizer:\n      lr: 1.0e-6\n"
    )


def run_config(fields: Fields) -> str:
    target = "megatron.bridge.training.comm_overlap.CommOverlapConfig"
    overlap = f"comm_overlap:\n  _target_: {target}\n  tp_comm_overlap: false\n"
    model = "model:\n  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider\n" + _yaml_lines(fields, "  ")
    return f"{overlap}{model}train:\n  micro_batch_size: 1\n"


def pretty_json(fields: Fields) -> str:
    return json.dumps(dict(fields), indent=2) + "\n"


def one_line_json(fields: Fields) -> str:
    return json.dumps(dict(fields))


def bridge_command(fields: Fields) -> str:
    words = [f"model.{name}={_override(value)}" for name, value in fields.items()]
    words.insert(0, "comm_overlap.tp_comm_overlap=false")
    lines = " \\\n    ".join(words)
    return (
        f"uv run python scripts/training/run_recipe.py \\\n    --recipe qwen3_30b_a3b_pretrain_config \\\n    {lines}\n"
    )


def verl_command(fields: Fields) -> str:
    prefix = "+actor_rollout_ref.actor.megatron.override_transformer_config."
    lines = " \\\n    ".join(f"{prefix}{name}={_override(value)}" for name, value in fields.items())
    return f"python3 -m verl.trainer.main_ppo --config-path=config \\\n    {lines} \\\n    trainer.total_epochs=1 $@\n"


def recipe(fields: Fields) -> str:
    body = "".join(f"    cfg.model.{name} = {value!r}\n" for name, value in fields.items())
    return (
        "from megatron.bridge.recipes.common import _pretrain_common\n"
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n\n\n"
        "def first_config():\n    cfg = _pretrain_common()\n    cfg.model.moe_shared_expert_overlap = True\n"
        "    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)\n    return cfg\n\n\n"
        f"def second_config():\n    cfg = _pretrain_common()\n{body}"
        "    cfg.comm_overlap = CommOverlapConfig(\n        tp_comm_overlap=False,  # one GPU\n    )\n    return cfg\n"
    )


def _override(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(value) + "]"
    return str({None: "null"}.get(value, value))


# Name of the file, how it is written, and the configuration of it that is asked about.
DIALECTS: dict[str, tuple[str, Callable[[Fields], str], str | None]] = {
    "backslash command": ("train.sh", backslash_command, None),
    "arrays": ("train.sh", arrays, None),
    "option string": ("train.sh", option_string, None),
    "one line": ("train.sh", one_line, None),
    "MODEL_ARGS": ("model_config.yaml", model_args, None),
    "flat YAML": ("fields.yaml", flat_yaml, None),
    "NeMo-RL YAML": ("grpo.yaml", nemo_rl_yaml, None),
    "run_config": ("run_config.yaml", run_config, None),
    "JSON": ("fields.json", pretty_json, None),
    "JSON on one line": ("fields.json", one_line_json, None),
    "Bridge command": ("pretrain.sh", bridge_command, None),
    "verl command": ("run.sh", verl_command, None),
    "recipe": ("recipe.py", recipe, "second_config"),
}
