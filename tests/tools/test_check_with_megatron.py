"""tools/check_with_megatron.py, run as a program: the real Megatron-Core, or packages written for the case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools" / "check_with_megatron.py"
RELEASES = os.environ.get("EP_OVERLAP_RELEASES")  # a folder of unpacked wheels, one folder a version
OVERLAP = {
    "model.num_layers": 8,
    "model.hidden_size": 512,
    "model.num_attention_heads": 8,
    "model.num_moe_experts": 8,
    "model.expert_model_parallel_size": 4,
    "model.moe_token_dispatcher_type": "alltoall",
    "model.add_bias_linear": False,
    "model.bf16": True,
    "model.overlap_moe_expert_parallel_comm": True,
}


def answer(request, *arguments, python_path=None, variables=None):
    """The program's answer to one request, and its exit code."""
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    environment = {**os.environ, **(variables or {})}
    if python_path:
        environment["PYTHONPATH"] = str(python_path)
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        input=text,
        capture_output=True,
        env=environment,
        timeout=120,
        check=False,
    )
    return json.loads(done.stdout), done.returncode


def worker(requests):
    """The worker's answers, a line each."""
    lines = b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in requests)
    done = subprocess.run(
        [sys.executable, PROGRAM, "--worker"], input=lines, capture_output=True, timeout=120, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.megatron
def test_a_legal_configuration_is_accepted():
    """The whole answer for the smallest legal overlap configuration."""
    result, code = answer({"framework": "megatron-core", "settings": OVERLAP, "id": 7})
    versions = result.pop("versions")
    assert set(versions) >= {"python", "torch", "megatron-core"}
    reported = {"model.moe_flex_dispatcher_backend", "model.virtual_pipeline_model_parallel_size"}
    assert {path: value for path, value in result.pop("effective").items() if path not in reported} == {
        "model.overlap_moe_expert_parallel_comm": True,
        "model.delay_wgrad_compute": False,
        "model.moe_token_dispatcher_type": "alltoall",
    }
    assert (result, code) == (
        {
            "id": 7,
            "judged": True,
            "accepted": True,
            "exception": None,
            "at": None,
            "layers": ["megatron-core"],
            "missing_layers": [],
            "cannot_judge": None,
            "unknown_fields": [],
            "left_out": [],
            "stand_ins": [],
            "emulated": [],
        },
        0,
    )


@pytest.mark.megatron
def test_every_question_is_answered_by_one_worker():
    """Verdicts, places, stand-ins, conversions and faults, against the installed release; bad lines between."""
    pipeline = OVERLAP | {"model.pipeline_model_parallel_size": 2}
    bare = {path: OVERLAP[path] for path in OVERLAP if path.rpartition(".")[2] not in ("num_layers", "hidden_size")}
    written = {
        "model.activation_func": "torch.nn.functional.silu",
        "model.params_dtype": "torch.bfloat16",
        "model.attention_backend": "flash",
        "model.window_size": [128, 0],
        "model.no_sync_func": "mine",
        "model.quant_recipe": {"file": "recipe.yaml"},
        "model.seq_length": 4096,
    }
    answers = worker(
        [
            {"hello": True},
            {"settings": pipeline},
            {"settings": pipeline | {"model.virtual_pipeline_model_parallel_size": 2}},
            {"settings": bare},
            {"settings": OVERLAP | written},
            {"settings": OVERLAP | {"model.seq_length": 4096}, "strict_fields": True},
            b"not json\n",
            b"\n",
            {"settings": {"bf16": True}},
            {"framework": "nemo", "settings": {}},
            {"batch": [OVERLAP, OVERLAP | {"model.moe_token_dispatcher_type": "allgather"}]},
            {"settings": OVERLAP | {"model.attention_backend": "sideways"}},
            {"settings": OVERLAP | {"model.tensor_model_parallel_size": "two"}},
        ]
    )
    hello, no_stages, stages, filled, text, strict, bad, path, framework, batch, enum, word = answers
    assert hello["cannot_judge"] is None
    assert no_stages["accepted"] is False
    assert "virtual_pipeline_model_parallel_size" in no_stages["exception"]
    assert no_stages["at"].startswith("megatron/core/transformer/transformer_config.py:")
    assert (stages["accepted"], stages["stand_ins"]) == (
        True,
        [{"path": "model.pipeline_dtype", "value": "bf16"}],
    )
    assert [one["path"] for one in filled["stand_ins"]] == ["model.num_layers", "model.hidden_size"]
    assert (text["accepted"], text["unknown_fields"]) == (True, ["model.seq_length"])
    assert [one["path"] for one in text["left_out"]] == ["model.no_sync_func", "model.quant_recipe"]
    assert (strict["accepted"], "seq_length" in strict["exception"]) == (False, True)
    assert bad["error"].startswith("the request is not JSON")
    assert "'bf16'" in path["error"]
    assert framework["error"] == "unknown framework 'nemo'; one of megatron-core, megatron-lm, bridge"
    assert [one["accepted"] for one in batch["answers"]] == [True, False]
    assert (enum["accepted"], enum["exception"]) == (False, "KeyError: 'sideways'")
    assert (word["accepted"], word["exception"].partition(":")[0]) == (False, "TypeError")


@pytest.mark.megatron
def test_without_assertions_there_is_no_verdict():
    """`python -O` removes Megatron's validation; accepting everything would be a false pass."""
    result, _ = answer({"settings": OVERLAP}, variables={"PYTHONOPTIMIZE": "1"})
    assert (result["judged"], result["accepted"]) == (False, None)
    assert "PYTHONOPTIMIZE" in result["cannot_judge"]


@pytest.mark.megatron
@pytest.mark.slow
@pytest.mark.skipif(not RELEASES, reason="EP_OVERLAP_RELEASES names no folder of unpacked releases")
@pytest.mark.parametrize("release", sorted(one.name for one in Path(RELEASES).iterdir()) if RELEASES else [])
def test_each_release_judges(release):
    """Accept, reject, and library faults that are no verdict, on every release at hand."""
    cases = [
        OVERLAP,
        OVERLAP | {"model.moe_token_dispatcher_type": "allgather"},
        OVERLAP | {"model.moe_permute_fusion": True},
        OVERLAP | {"model.fp8": "hybrid"},
        OVERLAP | {"model.tensor_model_parallel_size": 2},
    ]
    result, _ = answer({"batch": cases}, python_path=Path(RELEASES) / release)
    old, answers = release < "0.17", result["answers"]
    assert {one["versions"]["megatron-core"] for one in answers} == {release}
    assert [one["accepted"] for one in answers[:2]] == [True, False]
    # without Transformer Engine: an ImportError and a TypeError in old releases, a ValueError later
    assert [one["accepted"] for one in answers[2:4]] == ([None, None] if old else [False, False])
    assert all(bool(one["cannot_judge"]) == old for one in answers[2:4])
    tensor = {"0.14": False, "0.15": None}.get(release[:4], True)
    assert answers[4]["accepted"] is tensor


CORE_UTILS = """
def is_te_min_version(version):
    return None >= (2, 3)
"""
CORE_CONFIG = """
from dataclasses import dataclass
import torch
from megatron.core.utils import is_te_min_version

print("NOISE ON STDOUT")

@dataclass
class TransformerConfig:
    num_layers: int = 0
    hidden_size: int = 0
    num_attention_heads: int = 0
    moe_token_dispatcher_type: str = "allgather"
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    fp8: str = None
    wrong: str = None
    use_cuda: bool = False

    def __post_init__(self):
        if self.fp8:
            is_te_min_version("1.7.0")
        if self.wrong == "type":
            None > 1
        if self.wrong == "name":
            warnings.warn("x")
        if self.wrong == "import":
            from megatron.core.utils import fused_permute
        if self.wrong == "bare":
            assert self.num_layers == -1
        if self.use_cuda:
            torch.device()
        assert not self.delay_wgrad_compute or self.overlap_moe_expert_parallel_comm, "delay needs overlap"

@dataclass
class MLATransformerConfig(TransformerConfig):
    q_lora_rank: int = 512
"""
BRIDGE = """
from dataclasses import dataclass
from megatron.core.transformer.transformer_config import TransformerConfig

@dataclass
class GPTModelProvider(TransformerConfig):
    seq_length: int = 1
    def __post_init__(self):
        pass
    def finalize(self):
        super().__post_init__()

@dataclass
class DistributedDataParallelConfig:
    overlap_grad_reduce: bool = False

@dataclass
class OptimizerConfig:
    lr: float = None

@dataclass
class CommOverlapConfig:
    tp_comm_overlap: bool
    overlap_moe_expert_parallel_comm: bool = None
    delay_wgrad_compute: bool = None
    data_parallel_size: int = None
    def finalize(self):
        self.ready = True
    def setup(self, model, optimizer, ddp):
        assert self.ready
        assert model.moe_token_dispatcher_type != "allgather", "bridge needs alltoall"
        model.overlap_moe_expert_parallel_comm = bool(self.overlap_moe_expert_parallel_comm)
        model.delay_wgrad_compute = bool(self.delay_wgrad_compute)
"""
ARGUMENTS = """
import os, sys
from types import SimpleNamespace

def parse_args(ignore_unknown_args=False):
    assert sys.argv == ["pretrain_gpt.py"]
    return SimpleNamespace(num_experts=None, overlap_grad_reduce=False, lr=None, num_layers=None)

def validate_args(args):
    assert args.num_experts is None or args.num_experts % args.world_size == 0, "experts do not divide"
    assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "7", "not seven"
"""


@pytest.fixture
def small(tmp_path):
    """A package named megatron with the shape of the real one, and a torch that fails at its device."""
    files = {
        "torch/__init__.py": "class dtype: pass\nfrom torch.cuda import device",
        "torch/cuda.py": "def device():\n    assert False, 'not compiled with CUDA'",
        "megatron/core/__init__.py": "__version__ = '9.9.9'",
        "megatron/core/utils.py": CORE_UTILS,
        "megatron/core/transformer/__init__.py": "",
        "megatron/core/transformer/transformer_config.py": CORE_CONFIG,
        "megatron/bridge/training/comm_overlap.py": BRIDGE,
        "megatron/training/arguments.py": ARGUMENTS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


FAULTS = [
    ({"model.fp8": "hybrid"}, "Transformer Engine is not installed, and this Megatron compares its missing version"),
    ({"model.wrong": "name"}, "Megatron uses the name 'warnings' without importing it"),
    ({"model.wrong": "import"}, "Megatron imports what is not installed here: cannot import name 'fused_permute'"),
    ({"model.use_cuda": True}, "torch failed, not Megatron's validation: AssertionError: not compiled with CUDA"),
]


@pytest.mark.parametrize(("settings", "why"), FAULTS)
def test_a_fault_of_the_library_is_no_verdict(small, settings, why):
    """Known faults are told by type and place, never accepted and never rejected."""
    result, _ = answer({"settings": settings}, python_path=small)
    assert (result["judged"], result["accepted"]) == (False, None)
    assert result["cannot_judge"].startswith(why)


REJECTIONS = [
    ({"model.delay_wgrad_compute": True}, "AssertionError: delay needs overlap"),
    ({"model.wrong": "type"}, "TypeError: '>' not supported between instances of 'NoneType' and 'int'"),
    ({"model.wrong": "bare"}, "AssertionError: assert self.num_layers == -1"),
]


@pytest.mark.parametrize(("settings", "exception"), REJECTIONS)
def test_other_exceptions_are_rejections(small, settings, exception):
    """A TypeError elsewhere is a verdict; a bare assertion is told by its source."""
    result, _ = answer({"settings": settings}, python_path=small)
    assert (result["judged"], result["accepted"], result["exception"]) == (True, False, exception)
    assert result["at"].startswith("megatron/core/transformer/transformer_config.py:")


def test_latent_attention_takes_its_own_class(small):
    """Fields of the latent class are known once it is asked for."""
    asked = {"model.q_lora_rank": 8}
    plain, _ = answer({"settings": asked}, python_path=small)
    latent, _ = answer({"settings": asked | {"model.multi_latent_attention": True}}, python_path=small)
    assert plain["unknown_fields"] == ["model.q_lora_rank"]
    assert latent["unknown_fields"] == ["model.multi_latent_attention"]


def test_bridge_overwrites_the_model_before_the_core_judges(small):
    """A model flag alone is reset by `setup`; the effective settings show it."""
    settings = {
        "model.moe_token_dispatcher_type": "alltoall",
        "model.overlap_moe_expert_parallel_comm": True,
        "model.seq_length": 4096,
        "comm_overlap.tp_comm_overlap": False,
        "ddp.bucket_size": 1,
    }
    result, _ = answer({"framework": "bridge", "settings": settings}, python_path=small)
    assert (result["accepted"], result["layers"]) == (True, ["megatron-bridge"])
    assert result["effective"]["model.overlap_moe_expert_parallel_comm"] is False
    assert result["unknown_fields"] == ["ddp.bucket_size"]
    assert {"path": "comm_overlap.data_parallel_size", "value": 1} in result["stand_ins"]


def test_bridge_and_core_reject_through_bridge(small):
    """`setup` rejects first, then the model's own `finalize`."""
    delay = {"comm_overlap.delay_wgrad_compute": True}
    setup, _ = answer({"framework": "bridge", "settings": delay}, python_path=small)
    alltoall = delay | {"model.moe_token_dispatcher_type": "alltoall"}
    finalize, _ = answer({"framework": "bridge", "settings": alltoall}, python_path=small)
    assert (setup["exception"], setup["layers"]) == ("AssertionError: bridge needs alltoall", ["megatron-bridge"])
    assert setup["at"].startswith("megatron/bridge/training/comm_overlap.py:")
    assert finalize["exception"] == "AssertionError: delay needs overlap"


def test_a_missing_bridge_leaves_the_core_to_judge(small):
    """Without Bridge the answer names the layer that did not judge."""
    (small / "megatron/bridge/training/comm_overlap.py").unlink()
    result, _ = answer({"framework": "bridge", "settings": {"model.delay_wgrad_compute": True}}, python_path=small)
    assert (result["accepted"], result["layers"]) == (False, ["megatron-core"])
    assert [one["layer"] for one in result["missing_layers"]] == ["megatron-bridge"]


def test_megatron_lm_validates_its_arguments_before_the_core(small):
    """Arguments take the settings under their own names, the world's size and the environment."""
    legal = {"model.num_moe_experts": 8, "hardware.world_size": 8}
    ask = {"framework": "megatron-lm"}
    accepted, _ = answer(ask | {"settings": legal}, python_path=small)
    experts, _ = answer(ask | {"settings": legal | {"hardware.world_size": 3}}, python_path=small)
    seven, _ = answer(ask | {"settings": {"env.CUDA_DEVICE_MAX_CONNECTIONS": 7}}, python_path=small)
    core, _ = answer(ask | {"settings": {"model.delay_wgrad_compute": True}}, python_path=small)
    assert (accepted["accepted"], accepted["layers"]) == (True, ["megatron-lm arguments", "megatron-core"])
    assert experts["exception"] == "AssertionError: experts do not divide"
    assert experts["at"] == "megatron/training/arguments.py:10"
    assert seven["exception"] == "AssertionError: not seven"
    assert (core["exception"], core["layers"]) == (
        "AssertionError: delay needs overlap",
        ["megatron-lm arguments", "megatron-core"],
    )


def test_a_missing_triton_gets_a_stand_in(small):
    """What is imported before it is imported again, so that no half package remains."""
    config = small / "megatron/core/transformer/transformer_config.py"
    config.write_text("import triton\nimport triton.language as tl\n\n@triton.jit\ndef kernel(): ...\n" + CORE_CONFIG)
    result, _ = answer({"settings": {"model.delay_wgrad_compute": True}}, python_path=small)
    assert (result["accepted"], result["emulated"]) == (False, ["triton"])


def test_a_python_without_megatron_says_so(tmp_path):
    """The reason names the interpreter and the module."""
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron/__init__.py").write_text("")
    result, code = answer({"settings": {}}, python_path=tmp_path)
    assert (result["judged"], code) == (False, 0)
    assert result["cannot_judge"].startswith(
        f"{sys.executable} cannot import torch and megatron.core: ModuleNotFoundError"
    )


def test_what_was_not_foreseen_is_an_error(small):
    """This program's own failure is never taken for Megatron's verdict; it is told with the line, for a report."""
    settings = {"hardware.world_size": "many", "comm_overlap.tp_comm_overlap": False}
    result, code = answer({"framework": "bridge", "settings": settings}, python_path=small)
    assert (code, result["error"].startswith("check_with_megatron.py failed at bridge.py:")) == (2, True)


BAD = [
    (b"", "the request is not JSON"),
    (b"[1]", "the request is a JSON list"),
    (b"[" * 100_000, "the request is not JSON"),
    (b'{"settings": [1]}', "`settings` must be an object"),
    (b'{"settings": {"models.bf16": 1}}', "`settings` holds 'models.bf16'"),
    (b'{"batch": 3}', "`batch` must be a list"),
    (b'{"batch": [{}, {"model.": 1}]}', "`batch[1]` holds 'model.'"),
    (b'"' + b"x" * (16 * 2**20) + b'"', "the request is larger than 16777216 bytes"),
]


@pytest.mark.parametrize(("text", "why"), BAD, ids=range(len(BAD)))
def test_a_bad_request_is_answered_by_an_error(text, why):
    """One object with the reason, exit code 2, nothing imported."""
    result, code = answer(text)
    assert (code, result["error"][: len(why)]) == (2, why)


def test_a_line_beyond_the_limit_does_not_end_the_worker(small):
    """The rest of an oversized line is dropped, the next line is answered."""
    lines = b'"' + b"x" * (20 * 2**20) + b'"\n' + b'{"id": 2, "settings": {"bf16": 1}}\n'
    done = subprocess.run(
        [sys.executable, PROGRAM, "--worker"],
        input=lines,
        capture_output=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(small)},
    )
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert "larger than" in first["error"]
    assert (second["id"], "'bf16'" in second["error"]) == (2, True)


@pytest.mark.megatron
def test_a_transformer_engine_that_is_not_installed_is_stood_in_for_by_its_version():
    """Megatron's own checks of its version and of its kernels' names are answered, and the answer says by whom."""
    fused = OVERLAP | {
        "model.moe_permute_fusion": True,
        "model.apply_rope_fusion": True,
        "model.rotary_interleaved": True,
    }
    plain, _ = answer({"settings": fused})
    modern, _ = answer({"settings": fused}, "--transformer-engine", "2.9.0")
    old, _ = answer({"settings": fused}, "--transformer-engine", "2.2.0")
    assert plain["judged"] is False
    assert (modern["accepted"], modern["emulated"]) == (True, ["transformer_engine"])
    assert modern["versions"]["transformer-engine"] == "2.9.0"
    assert old["accepted"] is False
    assert "2.3.0" in old["exception"]
