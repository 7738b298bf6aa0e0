"""Programs that hand their arguments to Megatron-LM's parser: the model class of each, and what it writes itself.

Source: NVIDIA/Megatron-LM@core_v0.16.1 pretrain_bert.py, pretrain_t5.py, pretrain_mamba.py, pretrain_vlm.py,
pretrain_vision_*.py, train_rl.py, examples/*/train.py; @d98e8a64dd pretrain_hybrid.py and hybrid_builders.py. slime and
miles: THUDM/slime@624b824a8 slime/backends/megatron_utils/arguments.py:78-92, 145-199; radixark/miles@31f1ca961
miles/backends/megatron_utils/arguments.py:12-22 and miles/utils/arguments.py:2713-2720.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
# Programs of Megatron-LM whose forward step takes no `return_schedule_plan`, in any release from 0.14 to 0.19.
_NO_PLAN: Final = ("train_rl.py", "multimodal/train.py", "mimo/train.py", "modelopt/finetune.py")
_ACTOR: Final = ("--actor-num-nodes", "--actor-num-gpus-per-node")
_SLIME: Final = frozenset({"--rollout-batch-size", "--rollout-num-gpus", "--num-rollout", *_ACTOR})
_STACKS: Final = re.compile(r"\b(?:mamba|hybrid)\w*_stack_spec\b")


def is_megatron_lm(program: str) -> bool:
    """Whether a program hands its arguments to Megatron-LM's own parser, in a fork too, by the name of its file."""
    return _OWN.fullmatch(program.rpartition("/")[2]) is not None


def read_model(program: str, flags: Iterable[Flag], reading: Reading, line: int | None) -> None:
    """Add the model class that the program or `--spec` names, where it is none of GPT's, and a step without a plan."""
    name = program.rpartition("/")[2]
    if step := next((known for known in _NO_PLAN if f"/{program}".endswith(f"/{known}")), None):
        reading.add("bridge.forward_step", step, line=line, text=name, derived_from=name)
    if name in _MODELS:
        reading.add("model.provider", _MODELS[name], line=line, text=name, derived_from=name)
    for flag in flags:
        stack = _STACKS.search(flag.text) if flag.name == "--spec" else None
        if stack is not None:
            at = flag.head.line
            reading.add("model.provider", stack[0], line=at, text=flag.text, derived_from="--spec")


def read_slime(flags: Sequence[Flag], reading: Reading, line: int | None) -> None:
    """Add what slime and miles write over Megatron-LM's arguments: precision, lengths, optimizer, dispatcher, ranks."""
    named = {flag.name.replace("_", "-"): flag for flag in flags}
    if not _SLIME & named.keys():
        return
    stated = {a.path: a.value for a in reading.assignments}

    def write(path: str, value: bool | int | str) -> None:  # noqa: FBT001
        reading.add(path, value, line=line, text=f"{path.partition('.')[2]}={value}", derived_from="slime's defaults")

    if stated.get("model.bf16") is not True:
        write("model.bf16", not stated.get("model.fp16", False))
    write("model.variable_seq_lengths", value=True)
    write("ddp.use_distributed_optimizer", value=True)
    if stated.get("model.moe_token_dispatcher_type", "allgather") == "allgather":
        write("model.moe_token_dispatcher_type", "alltoall")
    sizes = [named[name].values[0].text for name in _ACTOR if name in named and named[name].values]
    if len(sizes) == len(_ACTOR) and all(size.isdigit() for size in sizes):
        write("hardware.world_size", int(sizes[0]) * int(sizes[1]))
