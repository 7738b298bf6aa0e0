"""tools/describe_environment.py, run as a program, with packages and an nvidia-smi written for the case."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "tools" / "describe_environment.py"
COMPONENTS = [
    "torch", "megatron-core", "megatron-bridge", "megatron-lm", "transformer-engine", "deep_ep", "triton",
    "flash-attn", "nccl", "nvshmem", "cuda",
]  # fmt: skip


def description(request, *, python_path="", path=None):
    """The program's answer and exit code."""
    environment = {**os.environ, "PYTHONPATH": str(python_path)} | ({"PATH": path} if path else {})
    done = subprocess.run(
        [sys.executable, PROGRAM],
        input=request if isinstance(request, bytes) else json.dumps(request).encode(),
        capture_output=True,
        env=environment,
        timeout=120,
        check=False,
    )
    return json.loads(done.stdout), done.returncode


def program():
    """The program as a module, for its parsers."""
    spec = importlib.util.spec_from_file_location("describe_environment", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(root, name, text):
    """A package to import."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.megatron
def test_the_running_python_is_described():
    """torch and megatron-core are imported; without GPUs the CPU engine is the one that runs."""
    result, code = description({"id": 3})
    assert (code, result["id"], list(result["components"])) == (0, 3, COMPONENTS)
    assert result["python"] == sys.executable
    for name in ("torch", "megatron-core"):
        assert result["components"][name]["importable"] is True
        assert result["components"][name]["version"]
    assert "gloo-cpu" in result["can"]["smoke"]
    assert result["cpu"]["cores"] >= 1
    assert result["can"]["alltoall"]["possible"] is bool(result["gpus"])


def test_fast_mode_imports_nothing(tmp_path):
    """Versions only; what was not tried is None, not no."""
    package(tmp_path, "torch/__init__.py", "raise SystemExit('imported')")
    result, _ = description({"fast": True}, python_path=tmp_path)
    assert result["components"]["torch"]["importable"] is None
    assert result["can"]["alltoall"] == {"possible": None, "why": "imports were not tried"}
    assert (result["can"]["smoke"], result["can"]["smoke_why"]) == ([], "imports were not tried")
    assert result["summary"].endswith("Imports were not tried.")


def test_a_crash_a_hang_and_an_error_at_import_are_reported(tmp_path):
    """Each in its own process: the others are described all the same, and noise stays off the answer."""
    package(tmp_path, "torch/__init__.py", "import os; print('noise'); os.abort()")
    package(tmp_path, "triton/__init__.py", "import time; time.sleep(60)")
    package(tmp_path, "flash_attn/__init__.py", "print('noise'); import nothing_of_this_name")
    result, _ = description({"time_limit_s": 3}, python_path=tmp_path)
    why = {name: result["components"][name]["why"] for name in ("torch", "triton", "flash-attn")}
    assert why["torch"].startswith("its import ended this Python (-6)")
    assert why["triton"] == "its import did not end within 3 s"
    assert why["flash-attn"] == "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert result["can"]["smoke"] == []


FLAVOURS = [
    ("Buffer = 1", "EventHandle = EventOverlap = 1", True, "serves Megatron's DeepEP backend"),
    ("Buffer = HybridEPBuffer = 1", "EventHandle = EventOverlap = 1", True, "branch hybrid-ep"),
    ("Buffer = 1", "", False, "has no EventOverlap in deep_ep.utils"),
    ("", "EventHandle = EventOverlap = 1", False, "has no Buffer"),
]


@pytest.mark.parametrize(("init", "utils", "usable", "why"), FLAVOURS)
def test_the_flavour_of_deep_ep_is_told(tmp_path, init, utils, usable, why):
    """By the names that Megatron imports from it."""
    package(tmp_path, "deep_ep/__init__.py", init)
    package(tmp_path, "deep_ep/utils.py", utils)
    package(tmp_path, "torch/__init__.py", "raise ImportError")
    result, _ = description({}, python_path=tmp_path)
    found = result["components"]["deep_ep"]
    assert (found["importable"], found["usable"], why in found["why"]) == (True, usable, True)


def test_a_missing_deep_ep_names_the_branches(tmp_path):
    """PyPI's package does not build, so the answer says what does."""
    result, _ = description({"fast": True}, python_path=tmp_path)
    why = result["components"]["deep_ep"]["why"]
    assert all(text in why for text in ("not installed", "1.0.0", "v1.2.1", "hybrid-ep"))


NVIDIA_SMI = """#!/bin/sh
case "$1 $2" in
  *query-gpu*) for gpu in 0 1 2; do echo "NVIDIA H100 80GB HBM3, 9.0, 81559"; done ;;
  "topo -m") cat {folder}/topology ;;
  "-q "*) cat {folder}/details ;;
  *) exit 9 ;;
esac
"""
TOPOLOGY = """\t\033[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\033[0m
GPU0\t X \tNV18\tSYS\tNODE\t0-1
GPU1\tNV18\t X \tSYS\tNODE\t0-1
GPU2\tSYS\tSYS\t X \tNODE\t0-1
NIC0\tNODE\tNODE\tNODE\t X \t
"""
NODE = "  Fabric\n    State : Completed\n    ClusterUUID : 00000000-0000-0000-0000-000000000000\n"
RACK = "  Fabric\n    State : Completed\n    ClusterUUID : 50000000-0000-0000-0000-000000000004\n"


@pytest.mark.parametrize(("details", "domains"), [(NODE, [2, 2, 1]), (RACK, [None] * 3)])
def test_gpus_are_listed_without_torch(tmp_path, details, domains):
    """nvidia-smi gives names, memory and the NVLink domain; a rack's domain is not visible from one node."""
    package(tmp_path, "bin/nvidia-smi", NVIDIA_SMI.format(folder=tmp_path))
    package(tmp_path, "topology", TOPOLOGY)
    package(tmp_path, "details", details)
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    result, _ = description({"fast": True}, path=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert result["gpus_why"] is None
    assert [gpu["nvlink_domain"] for gpu in result["gpus"]] == domains
    assert all((gpu["nvlink_domain_why"] is None) == (details is NODE) for gpu in result["gpus"])
    assert {key: result["gpus"][0][key] for key in ("name", "compute_capability", "memory_gib")} == {
        "name": "NVIDIA H100 80GB HBM3",
        "compute_capability": "9.0",
        "memory_gib": 79.6,
    }


def test_without_a_driver_the_reason_is_given(tmp_path):
    """No GPU is an answer, with its reason."""
    result, _ = description({"fast": True}, path=str(tmp_path))
    assert (result["gpus"], result["gpus_why"]) == ([], "nvidia-smi is not on PATH: no NVIDIA driver here")


@pytest.mark.parametrize("request_text", [b"x", b"[]", b'{"time_limit_s": "long"}', b"{" * 2**17], ids=range(4))
def test_a_bad_request_is_answered_by_an_error(request_text):
    """One object with the reason, exit code 2."""
    result, code = description(request_text)
    assert (code, list(result)) == (2, ["error"])


@pytest.mark.parametrize(
    ("version", "possible", "why"),
    [
        ("2.2.0", False, "transformer-engine 2.2.0 is older than 2.3.0"),
        ("2.12.0+cu13", True, "transformer-engine 2.12.0+cu13"),
        ("main", None, "the version of transformer-engine is not known"),
    ],
)
def test_delayed_weight_gradients_depend_on_the_version(version, possible, why):
    """From 2.3.0 on; companions with a higher floor are named."""
    assert program().delay_wgrad({"usable": True}, version) == {"possible": possible, "why": why}


def test_companions_of_delayed_weight_gradients_are_named():
    """Transformer Engine 2.5 serves the plain case alone."""
    why = program().delay_wgrad({"usable": True}, "2.5.0")["why"]
    assert "not with overlap_grad_reduce" in why
    assert "not with CUDA graphs" in why
