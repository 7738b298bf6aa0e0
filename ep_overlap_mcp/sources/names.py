"""How each program spells settings: a dotted name in a text -> a setting, a look-alike, or none of ours.

Read at: NVIDIA-NeMo/Megatron-Bridge@067f987df src/megatron/bridge/training/config.py, volcengine/verl
verl/trainer/config/engine/megatron.yaml, NVIDIA-NeMo/RL examples/configs/grpo_math_1B.yaml, NVIDIA-NeMo/NeMo
nemo/lightning/pytorch/strategies/megatron_strategy.py, alibaba/ROLL, modelscope/ms-swift and AMD-AGI/Primus examples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.settings.fields import Field, field_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ep_overlap_mcp.stack import Framework

# What only Megatron's settings are called; `seed`, `bf16` and `save` are everybody's.
DISTINCTIVE = re.compile(r"parallel|moe|expert|overlap|recompute|pipeline|cuda_graph|delay_wgrad|num_layers\Z")

# Mappings that people group fields in, where the dialect has no objects.
_SECTION = re.compile(
    r"(?:\w+_)?(?:parallel|parallelism|parallel_config|language_model|transformer|transformer_config|model_config|moe"
    r"|training|megatron|megatron_config|megatron_args|distributed|recompute|config|args|overrides)\Z"
)

NoSetting = Literal["look-alike", "unknown name", "dead"]

OBJECTS = ("model", "comm_overlap", "ddp", "optimizer", "train", "dataset", "dist", "rng", "rerun_state_machine")
_BRIDGES_OWN = ("scheduler", "validation", "checkpoint", "tokenizer", "profiling", "logger")


@dataclass(frozen=True)
class Vocabulary:
    """The names of one program.

    `parts` pairs a dotted prefix with the object it stands for, "" for names that need no object; `exact` maps whole
    names to canonical ones; names under a prefix of `look_alikes` are another role's or another engine's. `partial`
    says why unwritten settings are unknown. With `own_names`, the program has names of its own among Megatron's; with
    `arguments`, names are those of Megatron-LM's command line; with `sections`, mappings may group fields.
    """

    program: str
    framework: Framework
    parts: tuple[tuple[str, str], ...]
    exact: Mapping[str, str] = field(default_factory=dict)
    look_alikes: tuple[str, ...] = ()
    partial: str | None = None
    arguments: bool = False
    own_names: bool = False
    sections: bool = False

    def canonical(self, name: str) -> str | None:
        """The canonical dotted name, be it a known setting or not; None outside the parts of the Megatron run."""
        if name in self.exact:
            return self.exact[name]
        for prefix, target in self.parts:
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                return f"{target}.{rest}" if target else rest
        return None

    def setting(self, name: str) -> Field | NoSetting | None:
        """What a name means: a setting, no setting but in the Megatron part, or nothing of ours (None)."""
        if self.look_alikes and name.startswith(self.look_alikes):
            return "look-alike" if DISTINCTIVE.search(name.rpartition(".")[2]) else None
        canonical = self.canonical(name)
        if canonical is None:
            return None
        if canonical == "model.moe_a2a_overlap":
            return "dead"
        found = self._field(canonical)
        last = canonical.rpartition(".")[2]
        if found is None and (last in _BOOKKEEPING or self._is_own(canonical) or _is_open(canonical)):
            return None
        return found or "unknown name"

    def _field(self, canonical: str) -> Field | None:
        table = field_table()
        found = table.get(canonical)
        top, _, rest = canonical.rpartition(".")
        in_section = self.sections and all(map(_SECTION.match, top.split(".")))
        if found is None and (top in ("", "model") or in_section):
            known = (table.get(f"{o}.{rest}") for o in (*_BARE_OBJECTS, *(["args"] if self.arguments else [])))
            found = next((f for f in known if f and (f.path.startswith("model.") or not f.of_bridge)), None) or _alias(
                rest
            )
        return found

    def _is_own(self, canonical: str) -> bool:
        own = self.own_names or (self.sections and "." in canonical)
        return own and DISTINCTIVE.search(canonical.rpartition(".")[2]) is None


_BARE_OBJECTS = ("model", "ddp", "optimizer", "train", "dist", "rng")
_BOOKKEEPING = ("_target_", "_call_", "_partial_", "_args_", "_name_", "")


def _is_open(canonical: str) -> bool:
    """Whether an object has many fields that no rule knows, so that an unknown name says nothing."""
    top = canonical.partition(".")[0]
    return top in ("optimizer", "train", "dataset", "dist", "rng", "rerun_state_machine", *_BRIDGES_OWN)


def _alias(name: str) -> Field | None:
    """The setting that has this name as an alias, such as `num_experts`."""
    found = field_table().bare(name)
    return found if found is not None and name in found.aliases else None


_BRIDGE_OBJECTS = tuple((f"{o}.", o) for o in (*OBJECTS, *_BRIDGES_OWN))
_ENVIRONMENT = (("env_vars.", "env"), ("ENV_VARS.", "env"), ("ENV.", "env"), ("env.", "env"))

BRIDGE = Vocabulary(
    "Megatron-Bridge",
    "bridge",
    parts=(*_BRIDGE_OBJECTS, *_ENVIRONMENT, ("mixed_precision.", "mixed_precision"), ("peft.", "peft")),
    exact={
        "mixed_precision": "mixed_precision",
        "comm_overlap": "comm_overlap",
        "peft": "peft",
    },
    partial="the overrides change a recipe that is not in the text",
)

_ACTOR = "actor_rollout_ref.actor.megatron."
VERL = Vocabulary(
    "verl",
    "megatron-core",
    parts=(
        (f"{_ACTOR}override_transformer_config.", "model"),
        (f"{_ACTOR}override_ddp_config.", "ddp"),
        (f"{_ACTOR}override_mcore_model_config.", "model"),
        (f"{_ACTOR}", "model"),
        ("actor_rollout_ref.actor.optim.override_optimizer_config.", "optimizer"),
        ("engine.override_transformer_config.", "model"),
        ("engine.override_ddp_config.", "ddp"),
        ("engine.", "model"),
    ),
    exact={
        "actor_rollout_ref.model.use_fused_kernels": "verl.use_fused_kernels",
        "actor_rollout_ref.actor.use_fused_kernels": "verl.use_fused_kernels",
        "model.use_fused_kernels": "verl.use_fused_kernels",
    },
    look_alikes=(
        "actor_rollout_ref.ref.",
        "actor_rollout_ref.rollout.",
        "critic.",
        "reward_model.",
        "reward.",
        "distillation.",
    ),
    partial="verl merges this with trainer configuration files that are not in the text",
    own_names=True,
)

_POLICY = "policy.megatron_cfg."
NEMO_RL = Vocabulary(
    "NeMo-RL",
    "megatron-core",
    parts=(
        (f"{_POLICY}optimizer.", "optimizer"),
        (f"{_POLICY}distributed_data_parallel_config.", "ddp"),
        (f"{_POLICY}env_vars.", "env"),
        (f"{_POLICY}model_overrides.", "model"),
        (f"{_POLICY}", "model"),
    ),
    exact={
        "policy.sequence_packing.enabled": "dataset.packed_sequences",
        "policy.train_micro_batch_size": "train.micro_batch_size",
        "policy.train_global_batch_size": "train.global_batch_size",
        "policy.precision": "precision",
        f"{_POLICY}peft.enabled": "lora",
    },
    look_alikes=("policy.generation.", "policy.dtensor_cfg.", "teacher.", "value.", "env.", "reward_model."),
    partial="NeMo-RL builds the model from its checkpoint and merges base files that are not in the text",
    own_names=True,
)

NEMO = Vocabulary(
    "NeMo",
    "megatron-core",
    parts=(
        ("trainer.strategy.ddp.", "ddp"),
        ("trainer.strategy.", "model"),
        ("strategy.ddp.", "ddp"),
        ("strategy.", "model"),
        ("model.config.", "model"),
        ("model.", "model"),
        ("optim.config.", "optimizer"),
    ),
    exact={
        "data.micro_batch_size": "train.micro_batch_size",
        "data.global_batch_size": "train.global_batch_size",
        "peft": "peft",
    },
    partial="NeMo recipes start from code that is not in the text",
    own_names=True,
)

ROLL = Vocabulary(
    "ROLL",
    "megatron-core",
    parts=(
        ("strategy_args.strategy_config.", "model"),
        ("system_envs.", "env"),
    ),
    exact={
        "training_args.per_device_train_batch_size": "train.micro_batch_size",
        "use_sequence_packing": "packs",
    },
    partial="ROLL builds the model from its checkpoint, which is not in the text",
    own_names=True,
)

SWIFT = Vocabulary(
    "ms-swift",
    "megatron-core",
    parts=(*_ENVIRONMENT, ("", "")),
    exact={
        "tuner_type": "peft",
        "train_type": "peft",
        "packing": "packs",
        "padding_free": "packs",
        "moe_expert_capacity_factor": "model.moe_expert_capacity_factor",
    },
    partial="ms-swift builds the model from its checkpoint and has defaults of its own",
    own_names=True,
)

PRIMUS = Vocabulary(
    "Primus",
    "megatron-lm",
    parts=(("", ""),),
    exact={"use_turbo_deepep": "primus.use_turbo_deepep"},
    partial="Primus merges base files (model, trainer) that are not in the text",
    arguments=True,
    own_names=True,
)

FIELDS = Vocabulary(
    "TransformerConfig fields",
    "megatron-core",
    parts=(*_ENVIRONMENT, ("", "")),
    exact={"peft": "peft", "trainer.precision": "precision", "model.precision": "precision"},
    look_alikes=(
        "rollout.",
        "ref.",
        "reference.",
        "critic.",
        "reward.",
        "reward_model.",
        "generation.",
        "inference.",
        "vllm.",
        "sglang.",
        "teacher.",
        "infer.",
    ),
    sections=True,
)

_DISTINCTIVE = (
    (VERL, ("actor_rollout_ref.", "algorithm.", "critic.", "engine.")),
    (NEMO_RL, ("policy.", "grpo.", "cluster.")),
    (NEMO, ("trainer.strategy.", "optim.")),
)


def vocabulary_of(names: Iterable[str]) -> Vocabulary:
    """Whose overrides these are, by their first parts; Bridge's where nothing says otherwise."""
    names = list(names)
    for vocabulary, prefixes in _DISTINCTIVE:
        if any(name.startswith(prefixes) for name in names):
            return vocabulary
    return BRIDGE
