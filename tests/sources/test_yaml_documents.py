"""YAML documents of each program: what is taken, what is left out and why, and what stays unknown."""

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reading_text import omissions, written
from reading_text import settings as values

from ep_overlap_mcp.sources.documents import read_yaml
from ep_overlap_mcp.sources.reading import UnreadableError


def read(text):
    """The one reading of a document."""
    (reading,) = read_yaml(text, "f.yaml")
    return reading


FLAGS = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 32
MODEL_ARGS:
  --num-layers: 14
  --disable-bias-linear: true
  --overlap-grad-reduce: false
  --recompute-modules: "[layernorm moe_act]"
  --pipeline-model-parallel-layout: Et|(tt|)*6tmL
  --moe-layer-freq: ([0]*1+[1]*2)
  --expert-model-parallel-size: ${EP}
  --tensor-model-parallel-size: {{tp}}
  --pipeline-model-parallel-size: ${PP:-2}
  --expert-model-paralel-size: 8
  # --moe-shared-expert-overlap: true
  --bf16: true
  --num-layers: 16
MODEL_ARGS_2:
  --num-layers: 1
"""


def test_flags_of_a_functional_test():
    """`true` is the bare flag, a template has no value, a comment is none, the last duplicate counts."""
    reading = read(FLAGS)
    assert values(reading) == {
        "env.CUDA_DEVICE_MAX_CONNECTIONS": 32,
        "model.num_layers": 16,
        "model.add_bias_linear": False,
        "ddp.overlap_grad_reduce": False,
        "model.recompute_modules": ["layernorm", "moe_act"],
        "model.pipeline_model_parallel_layout": "Et|(tt|)*6tmL",
        "model.moe_layer_freq": [0, 1, 1],
        "model.expert_model_parallel_size": "?",
        "model.tensor_model_parallel_size": "?",
        "model.pipeline_model_parallel_size": 2,
        "model.bf16": True,
    }
    assert omissions(reading) == [
        ("not resolved", 10, "model.expert_model_parallel_size"),
        ("not resolved", 11, "model.tensor_model_parallel_size"),
        ("not allowed", 13, None),
        ("not read", 17, None),
    ]
    assert (reading.framework, reading.complete) == ("megatron-lm", True)


def test_spans_of_a_functional_test():
    """The literal with its quotes, on the line of its key."""
    found = written(read(FLAGS), FLAGS)
    assert ("model.recompute_modules", 7, '"[layernorm moe_act]"') in found
    assert ("env.CUDA_DEVICE_MAX_CONNECTIONS", 2, "32") in found


RUN_CONFIG = """\
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 48
  expert_model_parallel_size: 32
  cuda_graph_scope:
  - _target_: megatron.core.transformer.enums.CudaGraphScope
    _call_: true
    _args_: [2]
  - {_target_: megatron.core.transformer.enums.CudaGraphScope, _call_: true, _args_: [5], _name_: moe_router}
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [5]}
  pipeline_model_parallel_layout: {_target_: some.Layout}
comm_overlap:
  _target_: megatron.bridge.training.comm_overlap.CommOverlapConfig
  tp_comm_overlap: false
  overlap_moe_expert_parallel_comm: true
mixed_precision: bf16_mixed
peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 8}
dist: {use_megatron_fsdp: true}
checkpoint: {save: /tmp/x}
"""


def test_a_saved_bridge_configuration():
    """Complete; enums by name, unwritten fields of comm_overlap are None, the provider is named."""
    reading = read(RUN_CONFIG)
    found = values(reading)
    unwritten = [p for p, v in found.items() if p.startswith("comm_overlap.") and v is None]
    assert "comm_overlap.delay_wgrad_compute" in unwritten
    assert {p: v for p, v in found.items() if p not in unwritten} == {
        "model.num_layers": 48,
        "model.expert_model_parallel_size": 32,
        "model.cuda_graph_scope": ["attn", "moe_router"],
        "model.activation_func": "silu",
        "model.attention_backend": "auto",
        "model.pipeline_model_parallel_layout": "?",
        "comm_overlap.present": True,
        "comm_overlap.tp_comm_overlap": False,
        "comm_overlap.overlap_moe_expert_parallel_comm": True,
        "model.bf16": True,
        "model.fp16": False,
        "model.fp8": None,
        "model.fp4": None,
        "peft.scheme": "lora",
        "dist.use_megatron_fsdp": True,
        "checkpoint.save": "/tmp/x",
        "model.provider": "GPTModelProvider",
    }
    assert (reading.framework, reading.complete) == ("bridge", True)


def test_the_data_set_of_a_saved_bridge_configuration():
    """Its class, what says that it is packed, and what stands inside, in the names of either release."""
    found = values(
        read(
            """
model: {num_layers: 2}
comm_overlap: null
mixed_precision: {_target_: megatron.bridge.training.mixed_precision.MixedPrecisionConfig, fp8_recipe: mxfp8}
dataset:
  _target_: megatron.bridge.data.builders.gpt_sft.GPTSFTDatasetConfig
  pack_sequences_in_batch: true
  offline_packing_specs: {_target_: some.PackedSequenceSpecs, packed_sequence_size: 4096}
"""
        )
    )
    assert {path: value for path, value in found.items() if path.startswith(("dataset.", "mixed_precision."))} == {
        "mixed_precision.fp8_recipe": "mxfp8",
        "dataset.packed_sequences": True,
        "dataset.enable_in_batch_packing": True,
        "dataset.offline_packing_specs": "PackedSequenceSpecs",
        "dataset.packed_sequence_specs.packed_sequence_size": 4096,
        "dataset.kind": "GPTSFTDatasetConfig",
    }
    assert found["model.fp8_recipe"] == "mxfp8"


def test_comm_overlap_null_is_no_object():
    """`comm_overlap: null` leaves the model's own flags alone."""
    reading = read("model: {num_layers: 2, overlap_moe_expert_parallel_comm: true}\ncomm_overlap: null\n")
    assert values(reading)["comm_overlap.present"] is False


def test_a_bridge_override_file_is_partial():
    """Objects of the container without a whole model change a recipe."""
    reading = read("model: {expert_model_parallel_size: 8}\ntrain: {micro_batch_size: 1}\nlogger: {log_interval: 1}\n")
    assert values(reading) == {"model.expert_model_parallel_size": 8, "train.micro_batch_size": 1}
    assert (reading.framework, reading.complete) == ("bridge", False)


def test_a_file_that_names_its_bridge_recipe_is_partial_though_it_holds_a_whole_model():
    """The recipe sets what the file leaves out, precision for one."""
    reading = read(
        "recipe: {_target_: megatron.bridge.recipes.nemotronh.pretrain_config}\n"
        "model: {num_layers: 4, num_moe_experts: 8}\ncomm_overlap: {tp_comm_overlap: false}\n"
    )
    assert (reading.framework, reading.complete) == ("bridge", False)
    assert "megatron.bridge.recipes.nemotronh.pretrain_config" in reading.partial[0]


def test_interpolation_takes_defaults_and_references_of_the_text_only(monkeypatch):
    """The environment of the machine that reads is another one than that of the run."""
    monkeypatch.setenv("EP", "4")
    monkeypatch.setenv("TP", "4")
    reading = read(
        "model:\n  num_layers: 8\n  pipeline_model_parallel_size: ${sizes.pp}\n"
        "  expert_model_parallel_size: ${oc.env:EP,8}\n  tensor_model_parallel_size: ${oc.env:TP}\n"
        "  context_parallel_size: ${mul:2,2}\n  expert_tensor_parallel_size: ${.tensor_model_parallel_size}\n"
        "sizes: {pp: 2}\ncomm_overlap: null\n"
    )
    assert {p.removeprefix("model."): v for p, v in values(reading).items() if "size" in p} == {
        "pipeline_model_parallel_size": 2,
        "expert_model_parallel_size": 8,
        "tensor_model_parallel_size": "?",
        "context_parallel_size": "?",
        "expert_tensor_parallel_size": "?",
    }


def test_references_in_a_circle_are_unknown():
    """They have no value, and do not hang."""
    found = values(read("num_layers: 2\nexpert_model_parallel_size: ${a}\na: ${b}\nb: ${a}\n"))
    assert found == {"model.num_layers": 2, "model.expert_model_parallel_size": "?"}


PRIMUS = """\
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:moe}.yaml
    overrides:
      expert_model_parallel_size: ${PRIMUS_EP:8}
      overlap_grad_reduce: true
      use_turbo_deepep: true
      no_load_optim: null
      micro_batch_size: ${PRIMUS_MBS}
  other:
    framework: torchtitan
    overrides: {seed: 1}
"""


def test_primus_overrides():
    """Megatron-LM's names with environment defaults; base files make it partial, null leaves theirs."""
    reading = read(PRIMUS)
    assert values(reading) == {
        "model.expert_model_parallel_size": 8,
        "ddp.overlap_grad_reduce": True,
        "primus.use_turbo_deepep": True,
        "train.micro_batch_size": "?",
    }
    assert omissions(reading) == [("not resolved", 11, "train.micro_batch_size"), ("look-alike", 12, None)]
    assert reading.framework == "megatron-lm"
    assert reading.partial == [
        "Primus merges base files (model, trainer) that are not in the text: pre_trainer.yaml, ${PRIMUS_MODEL:moe}.yaml"
    ]


ROLL = """\
defaults: [base, _self_]
actor_train:
  model_args: {lora_target: q_proj}
  training_args: {per_device_train_batch_size: 1, learning_rate: 1.0e-6}
  strategy_args:
    strategy_name: megatron_train
    strategy_config:
      expert_model_parallel_size: 16
      recompute_modules: moe,layernorm
      pipeline_model_parallel_layout: "E|(tt|)*6,L"
reference:
  strategy_args:
    strategy_name: megatron_infer
    strategy_config: {expert_model_parallel_size: 8}
"""


def test_only_the_training_role_counts():
    """The reference runs Megatron for inference."""
    reading = read(ROLL)
    assert values(reading) == {
        "train.micro_batch_size": 1,
        "model.expert_model_parallel_size": 16,
        "model.recompute_modules": ["moe", "layernorm"],
        "model.pipeline_model_parallel_layout": "E|(tt|)*6,L",
        "peft.scheme": "lora",
    }
    assert omissions(reading) == [("look-alike", 11, None)]
    assert reading.partial == ["inherits from base, which the text does not hold"]


NEMO_RL = """\
policy:
  precision: bfloat16
  train_micro_batch_size: 4
  sequence_packing: {enabled: true}
  megatron_cfg:
    enabled: true
    expert_model_parallel_size: 8
    activation_checkpointing: %s
    recompute_granularity: full
    optimizer: {optimizer: adam, lr: 5.0e-6}
    env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: "1"}
  generation: {vllm_cfg: {tensor_parallel_size: 4}}
"""


def test_recomputation_of_nemo_rl_hangs_on_its_switch():
    """The base file writes `recompute_granularity: full` beside a switch that is off."""
    off, on = read(NEMO_RL % "false"), read(NEMO_RL % "true")
    common = {
        "train.micro_batch_size": 4,
        "model.bf16": True,
        "model.fp16": False,
        "dataset.packed_sequences": True,
        "model.expert_model_parallel_size": 8,
        "optimizer.optimizer": "adam",
        "optimizer.lr": 5e-06,
        "env.CUDA_DEVICE_MAX_CONNECTIONS": 1,
    }
    assert values(off) == common
    assert values(on) == {
        **common,
        "model.recompute_granularity": "full",
        "model.recompute_method": "uniform",
        "model.recompute_num_layers": 1,
    }
    assert omissions(off) == [("look-alike", 12, None), ("not read", 9, "model.recompute_granularity")]


def test_a_policy_that_does_not_use_megatron_is_nothing():
    """`megatron_cfg.enabled: false` with settings beside it."""
    assert read_yaml("policy: {megatron_cfg: {enabled: false, expert_model_parallel_size: 8}}", "f") == []


def test_swift_arguments():
    """Tuner and packing are named as ms-swift names them; its own names are no typing errors."""
    reading = read(
        "ENV: {CUDA_DEVICE_MAX_CONNECTIONS: '8'}\nmodel: Qwen/Qwen3-30B-A3B\ntuner_type: lora\nlora_rank: 8\n"
        "loss_scale: ignore_empty_think\npacking: true\npadding_free: false\nexpert_model_parallel_size: 4\n"
        "moe_shared_expert_overlapp: true\n"
    )
    assert values(reading) == {
        "env.CUDA_DEVICE_MAX_CONNECTIONS": 8,
        "peft.scheme": "lora",
        "dataset.packed_sequences": True,
        "model.expert_model_parallel_size": 4,
    }
    assert omissions(reading) == [("unknown name", 9, None)]
    assert (reading.framework, reading.complete) == ("megatron-core", False)


def test_fields_flat_and_in_sections():
    """Names without their object are the model's, then the data-parallel wrapper's; another engine's are not taken."""
    reading = read(
        "num_experts: 64\nbf16: true\noverlap_grad_reduce: true\nmoe_layer_freq: '([0]*1+[1]*2)'\n"
        "parallel: {expert_model_parallel_size: 8}\nvllm: {expert_parallel_size: 4}\n"
    )
    assert values(reading) == {
        "model.num_moe_experts": 64,
        "model.bf16": True,
        "ddp.overlap_grad_reduce": True,
        "model.moe_layer_freq": [0, 1, 1],
        "model.expert_model_parallel_size": 8,
    }
    assert omissions(reading) == [("look-alike", 6, None)]
    assert (reading.framework, reading.complete) == ("megatron-core", True)


def test_a_knowledge_card_is_nothing():
    """Names in prose set nothing."""
    card = "title: overlap\nconfig_keys:\n  - model.overlap_moe_expert_parallel_comm must be true\nsummary: >\n  text\n"
    assert read_yaml(card, "card.yaml") == []


def test_everybodys_names_are_not_megatrons():
    """A web service's settings hold `seed` and `save` too."""
    assert read_yaml("seed: 1\nsave: x\nbf16: true\nname: y\n", "f.yaml") == []


def test_a_model_description_is_partial():
    """A Hugging Face `config.json` says nothing of the run."""
    reading = read("model_type: qwen3_moe\nnum_experts: 128\nhidden_size: 2048\n")
    assert reading.partial == ["`model_type` shows another program's file"]


def test_documents_of_one_file_are_readings_of_their_own():
    """Separated by `---`, with their number as name."""
    readings = read_yaml("num_layers: 2\n---\nname: nothing\n---\nnum_layers: 4\n", "f.yaml")
    assert [(r.name, values(r)) for r in readings] == [
        ("document 1", {"model.num_layers": 2}),
        ("document 2", {"model.num_layers": 4}),
    ]


KEYS = st.sampled_from(
    [
        "model",
        "MODEL_ARGS",
        "policy",
        "megatron_cfg",
        "modules",
        "overrides",
        "comm_overlap",
        "defaults",
        "actor_rollout_ref",
        "strategy_args",
        "num_layers",
        "expert_model_parallel_size",
        "_target_",
        "<<",
        "peft",
        "--bf16",
    ]
)
VALUES = st.recursive(
    st.sampled_from(["8", "true", "null", "'x'", "${a}", "{{b}}", "[1, x]", "-1", "1e9", "~", "*a", "&a 3", "!t x"]),
    lambda inner: st.builds("{{{}}}".format, st.lists(st.builds("{}: {}".format, KEYS, inner)).map(", ".join)),
    max_leaves=8,
)


@given(st.lists(st.builds("{}: {}".format, KEYS, VALUES), max_size=6).map("\n".join))
@hypothesis_settings(max_examples=300, deadline=None)
def test_any_document_is_read_or_unreadable(text):
    """Whatever stands where a dialect expects something else, only UnreadableError is raised."""
    try:
        readings = read_yaml(text, "f.yaml")
    except UnreadableError:
        return
    for reading in readings:
        assert all(text[slice(*a.span)].strip() for a in reading.assignments if a.span)


def test_base_files_make_a_part_of_it():
    """Primus calls them `bases` and `extends`, Hydra `defaults`; what they set is unknown."""
    fields = "num_layers: 16\nnum_moe_experts: 8\nexpert_model_parallel_size: 4\n"
    for key in ("bases", "extends", "includes", "defaults"):
        reading = read(f"{key}:\n  - moe_base.yaml\n{fields}")
        assert reading.partial == ["inherits from moe_base.yaml, which the text does not hold"]


def test_the_trainers_precision_is_the_models():
    """NeMo's configurations state it beside the model."""
    fields = "model:\n  num_moe_experts: 8\n  expert_model_parallel_size: 4\n  moe_router_topk: 2\n"
    assert values(read(f"trainer:\n  precision: bf16\n{fields}"))["model.bf16"] is True
