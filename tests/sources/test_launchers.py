"""Commands of the launchers and frameworks around Megatron -> settings, sizes and what stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.shell import read_shell

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.reading import Reading

EP, TP = "model.expert_model_parallel_size", "model.tensor_model_parallel_size"
FLAGS = "pretrain_gpt.py --num-layers 4 --bf16"
HARNESS = "python scripts/performance/setup_experiment.py -m qwen -mr qwen3_30b_a3b"


def only(text: str) -> Reading:
    """The one reading of a command."""
    (reading,) = read_shell(text, "run.sh")
    return reading


def values(reading: Reading) -> dict[str, object]:
    """The last value of every setting."""
    return {a.path: a.value for a in reading.assignments}


@pytest.mark.parametrize(
    ("command", "per_node", "nodes", "world"),
    [
        (f"torchrun --nproc_per_node 8 --nnodes 4 {FLAGS}", 8, 4, 32),
        (f"torchrun --nproc-per-node=8 {FLAGS}", 8, 1, 8),
        (f"L=(--nproc_per_node 8 --nnodes 2)\ntorchrun ${{L[@]}} {FLAGS}", 8, 2, 16),
        (f"uv run python -m torch.distributed.run --nproc_per_node=4 --nnodes=2 {FLAGS}", 4, 2, 8),
        (f"torchrun --nproc_per_node 8 --nnodes $NNODES {FLAGS}", 8, None, None),
        (f"torchrun --nproc_per_node gpu --nnodes 2 {FLAGS}", None, 2, None),
        (f"torchrun $DISTRIBUTED {FLAGS}", None, None, None),
        (f"#SBATCH --nodes=2\ntorchrun --nproc_per_node 8 --nnodes $SLURM_NNODES {FLAGS}", 8, 2, 16),
        (f"srun -N 4 --ntasks-per-node=8 python -u {FLAGS}", 8, 4, 32),
        (f"srun -N 4 --ntasks-per-node 8 bash -c 'cd /x && python {FLAGS}'", 8, 4, 32),
        (f"mpirun -np 16 python {FLAGS}", None, None, 16),
        (f"python {FLAGS}", None, None, None),
        ("python3 train.py --bf16 --num-layers 4 --actor-num-nodes 2 --actor-num-gpus-per-node 8", 8, 2, 16),
    ],
)
def test_the_size_of_a_job(command: str, per_node: int | None, nodes: int | None, world: int | None) -> None:
    """GPUs per node, nodes and ranks are set only where they are known numbers; no `--nnodes` means one."""
    found = values(only(command))
    sizes = [found.get(f"hardware.{name}") for name in ("gpus_per_node", "nodes", "world_size")]
    assert sizes == [per_node, nodes, world]
    assert found["model.num_layers"] == 4


@pytest.mark.parametrize(
    ("command", "framework", "partial"),
    [
        (f"torchrun {FLAGS}", "megatron-lm", []),
        (
            "torchrun pretrain_gpt.py --yaml-cfg base.yaml --num-layers 4",
            "megatron-lm",
            ["`--yaml-cfg base.yaml` replaces every argument of the command; its text is not here"],
        ),
        (
            "bash run_model.sh --num-layers 4 --bf16",
            "megatron-lm",
            ["`run_model.sh` adds options of its own; its text is not here"],
        ),
        (
            "torchrun run_sft.py --model_name_or_path Q --expert_model_parallel_size 8 --bf16",
            "megatron-core",
            ["`run_sft.py` has arguments and defaults of its own"],
        ),
        (HARNESS, "bridge", ["the harness starts from a recipe that is not in the text"]),
        (
            "python scripts/training/run_recipe.py --recipe x model.bf16=true",
            "bridge",
            ["the options change a recipe that is not in the text"],
        ),
        (
            "python -m verl.trainer.main_ppo actor_rollout_ref.actor.megatron.expert_model_parallel_size=8",
            "megatron-core",
            ["verl merges this with trainer configuration files that are not in the text"],
        ),
        (
            "uv run examples/run_grpo.py --config a.yaml policy.megatron_cfg.expert_model_parallel_size=8",
            "megatron-core",
            ["NeMo-RL builds the model from its checkpoint and merges base files that are not in the text"],
        ),
        (
            "NPROC_PER_NODE=8 megatron sft --expert_model_parallel_size 8",
            "megatron-core",
            ["ms-swift builds the model from its checkpoint and has defaults of its own"],
        ),
    ],
)
def test_who_reads_the_arguments(command: str, framework: str, partial: list[str]) -> None:
    """The program decides the framework, and whether what is not written has a default."""
    reading = only(command)
    assert (reading.framework, reading.partial) == (framework, partial)


@pytest.mark.parametrize(
    ("program", "step"),
    [
        ("train_rl.py", "train_rl.py"),
        ("/opt/Megatron-LM/examples/multimodal/train.py", "multimodal/train.py"),
        ("pretrain_gpt.py", None),
        ("my_multimodal/train.py", None),
    ],
)
def test_programs_of_megatron_lm_whose_step_returns_no_plan(program: str, step: str | None) -> None:
    """EP overlap asks the step for one."""
    reading = only(f"torchrun {program} --num-layers 4 --bf16")
    assert [a.value for a in reading.assignments if a.path == "bridge.forward_step"] == ([step] if step else [])


def test_the_harness_switch_brings_delayed_wgrad() -> None:
    """`--moe_a2a_overlap true` writes three settings; each says where it comes from."""
    reading = only(f"{HARNESS} -g h100 -ng 16 -tp 2 -vp None --moe_a2a_overlap true")
    assert [(a.path, a.value, a.derived_from) for a in reading.assignments][:9] == [
        ("hardware.gpu", "h100", None),
        ("hardware.world_size", 16, None),
        (TP, 2, None),
        ("model.sequence_parallel", True, "-tp"),
        ("model.virtual_pipeline_model_parallel_size", None, None),
        ("bridge.moe_a2a_overlap", True, None),
        ("comm_overlap.overlap_moe_expert_parallel_comm", True, "--moe_a2a_overlap"),
        ("comm_overlap.delay_wgrad_compute", True, "--moe_a2a_overlap"),
        ("model.moe_shared_expert_overlap", False, "--moe_a2a_overlap"),
    ]
    assert values(reading)["model.bf16"] is True


def test_the_harness_switch_never_switches_off() -> None:
    """`false` is written down and changes nothing."""
    found = values(only(f"{HARNESS} --moe_a2a_overlap false comm_overlap.overlap_moe_expert_parallel_comm=true"))
    assert found["bridge.moe_a2a_overlap"] is False
    assert found["comm_overlap.overlap_moe_expert_parallel_comm"] is True


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--recompute_num_layers 2", {"recompute_num_layers": 2, "recompute_granularity": "full"}),
        ("--recompute_modules mlp,moe", {"recompute_modules": ["mlp", "moe"], "recompute_granularity": "selective"}),
        ("--compute_dtype fp8_mx", {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"}),
        ("--activation_offload_layers 2", {"cpu_offloading": True, "cpu_offloading_num_layers": 2}),
        ("--cuda_graph_impl none", {"cuda_graph_impl": "none", "use_te_rng_tracker": False}),
        (
            "--moe_flex_dispatcher_backend None",
            {"moe_flex_dispatcher_backend": None, "moe_token_dispatcher_type": "alltoall"},
        ),
        ("-ep $EP", {"expert_model_parallel_size": UNKNOWN}),
    ],
)
def test_what_the_harness_options_set(options: str, expected: dict[str, object]) -> None:
    """An option of the harness may write several fields."""
    found = values(only(f"{HARNESS} {options}"))
    assert {name: found.get(f"model.{name}") for name in expected} == expected


def test_harness_environment_options() -> None:
    """`-E` and `-ce` pass variables to the ranks."""
    found = values(only(f"{HARNESS} -E CUDA_DEVICE_MAX_CONNECTIONS=8 -ce A=1,B=x"))
    assert [found[f"env.{name}"] for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "A", "B")] == [8, 1, "x"]


def test_overrides_behind_a_recipe_take_precedence() -> None:
    """`run_recipe.py` applies its own options first."""
    found = values(only("python scripts/training/run_recipe.py --recipe r -ep 4 -- model.expert_model_parallel_size=8"))
    assert found[EP] == 8


def test_swift_arguments_keep_their_types() -> None:
    """swift spells fields and Megatron-LM arguments in snake case, with explicit booleans."""
    text = """
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' NPROC_PER_NODE=8 \\
megatron sft --model Qwen/X --expert_model_parallel_size 8 --moe_grouped_gemm true \\
    --moe_shared_expert_overlap false --recompute_modules mlp moe --decoder_first_pipeline_num_layers 3 --packing true
"""
    assert values(only(text)) == {
        "env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "env.NPROC_PER_NODE": 8,
        EP: 8,
        "model.moe_grouped_gemm": True,
        "model.moe_shared_expert_overlap": False,
        "model.recompute_modules": ["mlp", "moe"],
        "model.num_layers_in_first_pipeline_stage": 3,
        "dataset.packed_sequences": True,
        "hardware.gpus_per_node": 8,
    }


@pytest.mark.parametrize(
    "command",
    [
        "python tools/checkpoint/convert.py --tensor-model-parallel-size 2 --num-layers 4",
        "torchrun tools/convert_hf_to_torch_dist.py --num-layers 4 --bf16",
        "python preprocess_data.py --workers 4",
        "swift export --model x --tensor_model_parallel_size 2",
        "pip install megatron-core",
    ],
)
def test_what_trains_nothing_sets_nothing(command: str) -> None:
    """Conversion, preparation and export are not the run that is checked."""
    assert only(command).assignments == []


SLIME = "ray job submit -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --rollout-batch-size 32"


def test_slime_writes_precision_lengths_and_dispatcher_itself() -> None:
    """Neither `--bf16` nor a dispatcher has to be asked for; the ranks are the actor's."""
    found = values(only(f"{SLIME} --num-experts 8 --expert-model-parallel-size 4"))
    written = {
        "model.bf16": True,
        "model.variable_seq_lengths": True,
        "model.moe_token_dispatcher_type": "alltoall",
        "hardware.world_size": 16,
    }
    assert {path: found[path] for path in written} == written


def test_slime_leaves_what_is_written() -> None:
    """Half precision by another name, a dispatcher that takes sequences of any length."""
    found = values(only(f"{SLIME} --num-experts 8 --fp16 --moe-token-dispatcher-type flex"))
    assert (found["model.bf16"], found["model.moe_token_dispatcher_type"]) == (False, "flex")
    assert "model.variable_seq_lengths" not in values(only("torchrun pretrain_gpt.py --num-experts 8 --fp16"))
