"""Megatron-LM's own training programs, and the model class that each builds.

Source: NVIDIA/Megatron-LM@core_v0.16.1 pretrain_bert.py, pretrain_t5.py, pretrain_mamba.py, pretrain_vlm.py,
pretrain_vision_*.py; @d98e8a64dd pretrain_hybrid.py and hybrid_builders.py. What slime and its forks set over
Megatron-LM's arguments: THUDM/slime@1cddc5d32e slime/backends/megatron_utils/arguments.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_overlap_mcp.sources.flags import Flag
    from ep_overlap_mcp.sources.reading import Reading

_OWN: Final = re.compile(r"pretrain_\w+\.py")
_MODELS: Final = {
    "pretrain_bert.py": "BertModel",
    "pretrain_t5.py": "T5Model",
    "pretrain_mamba.py": "MambaModel",
    "pretrain_hybrid.py": "HybridModel",
    "pretrain_vlm.py": "LLaVAModel",
    "pretrain_vision_classify.py": "a vision transformer",
    "pretrain_vision_dino.py": "a vision transformer",
    "pretrain_vision_inpaint.py": "a vision transformer",
}
_TRAINS_ACTORS: Final = ("--actor-num-nodes", "--actor-num-gpus-per-node")
_STACKS: Final = re.compile(r"\b(?:mamba|hybrid)\w*_stack_spec\b")


def is_megatron_lm(program: str) -> bool:
    """Whether a program hands its arguments to Megatron-LM's own parser, in a fork too, by the name of its file."""
    return _OWN.fullmatch(program.rpartition("/")[2]) is not None


def read_model(program: str, flags: Iterable[Flag], reading: Reading, line: int | None) -> None:
    """Add the model class that the program or `--spec` names, where it is none of GPT's."""
    name = program.rpartition("/")[2]
    if name in _MODELS:
        reading.add("model.provider", _MODELS[name], line=line, text=name, derived_from=name)
    for flag in flags:
        stack = _STACKS.search(flag.text) if flag.name == "--spec" else None
        if stack is not None:
            at = flag.head.line
            reading.add("model.provider", stack[0], line=at, text=flag.text, derived_from="--spec")


def read_launcher(flags: Iterable[Flag], reading: Reading) -> None:
    """Add what slime and its forks set whatever the arguments say, where the arguments show that it is them."""
    told = next((flag for flag in flags if flag.name.replace("_", "-") in _TRAINS_ACTORS), None)
    if told is not None:
        at, text = told.head.line, told.text
        reading.add("ddp.use_distributed_optimizer", raw=True, line=at, text=text, derived_from="slime sets it")
