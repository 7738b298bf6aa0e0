"""Describe the training environment that this Python is.

    python describe_environment.py < request.json

Request: `{"fast": false, "time_limit_s": 50}`; `fast` reads versions from package metadata and imports nothing.
Otherwise each component is imported in a process of its own under a time limit, so that a native library that
crashes or hangs is reported and does not end the report.

Answer: `{summary, python, python_version, components: {name: {version, importable, usable, why}},
gpus: [{name, compute_capability, memory_gib, nvlink_domain, nvlink_domain_why}], gpus_why, cpu: {cores, memory_gib},
can: {alltoall, deepep, hybridep, ncclep, delay_wgrad: {possible, why}, smoke: [engine], smoke_why}}`. An `id` comes
back as it was sent. None means not tried or not known, never no.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

REQUEST_LIMIT = 2**16
TIME_LIMIT_S = 50.0  # for one import; the caller waits 180 s for all
COMMAND_LIMIT_S = 10.0
AT_ONCE = 3  # imports of torch take a core and a GiB each
WHY_LIMIT = 400

Facts = dict[str, Any]

# component -> names of its distributions, the module to import
COMPONENTS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "torch": (("torch",), "torch"),
    "megatron-core": (("megatron-core",), "megatron.core"),
    "megatron-bridge": (("megatron-bridge",), "megatron.bridge"),
    "megatron-lm": ((), "megatron.training"),
    "transformer-engine": (("transformer-engine", "transformer_engine_torch"), "transformer_engine"),
    "deep_ep": (("deep_ep", "deep-ep"), "deep_ep"),
    "triton": (("triton",), "triton"),
    "flash-attn": (("flash-attn", "flash-attn-3"), "flash_attn"),
    "nccl": (("nvidia-nccl-cu13", "nvidia-nccl-cu12"), None),
    "nvshmem": (("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"), None),
    "cuda": (("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"), None),
}

# What is found out after the import; each sets `facts`.
PROBES = {
    "torch": """
import torch
facts["version"] = torch.__version__
facts["cuda"] = torch.version.cuda
facts["cuda_available"] = torch.cuda.is_available()
facts["gloo"] = torch.distributed.is_available() and torch.distributed.is_gloo_available()
facts["nccl_built"] = torch.distributed.is_available() and torch.distributed.is_nccl_available()
if facts["cuda_available"]:
    facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for one in (torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())):
        gpu = {"name": one.name, "compute_capability": f"{one.major}.{one.minor}", "memory": one.total_memory}
        facts.setdefault("gpus", []).append(gpu)
""",
    "megatron-core": """
import megatron.core
facts["version"] = megatron.core.__version__
from megatron.core.transformer.moe import fused_a2a
for name in ("HAVE_DEEP_EP", "HAVE_HYBRIDEP", "HAVE_TE_EP"):
    facts[name] = getattr(fused_a2a, name, None)
""",
    "megatron-bridge": "import megatron.bridge.training.comm_overlap",
    "megatron-lm": "import megatron.training.arguments",
    "transformer-engine": """
import transformer_engine.pytorch
facts["version"] = str(transformer_engine.__version__)
""",
    "deep_ep": """
import deep_ep
facts["file"] = deep_ep.__file__
facts["buffer"] = hasattr(deep_ep, "Buffer")
facts["hybridep"] = hasattr(deep_ep, "HybridEPBuffer")
try:
    from deep_ep.utils import EventHandle, EventOverlap
    facts["events"] = True
except ImportError as problem:
    facts["events"] = False
    facts["events_why"] = str(problem)
""",
}

PROBE = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path[:] = [p for p in sys.path if p]
facts = {{}}
try:
    exec({body!r})
    facts["importable"] = True
except BaseException as problem:
    facts["importable"] = False
    facts["why"] = f"{{type(problem).__name__}}: {{' '.join(str(problem).split())}}"
answers.write(json.dumps(facts))
answers.flush()
os._exit(0)
"""

NO_DEEPEP = (
    "not installed. PyPI's deep-ep 1.0.0 is a source package that does not build; DeepEP's repository"
    " (github.com/deepseek-ai/DeepEP) does: tag v1.2.1 for Megatron's DeepEP backend, branch hybrid-ep for HybridEP"
)


def main() -> int:
    """Answer the one request on stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed from now on goes to stderr
    result = answer(sys.stdin.buffer.readline(REQUEST_LIMIT + 1))
    answers.write(json.dumps(result) + "\n")
    answers.flush()
    return 2 if "error" in result else 0


def answer(text: bytes) -> Facts:
    """The description, or what is wrong with the request."""
    try:
        request = json.loads(text or b"{}") if len(text) <= REQUEST_LIMIT else None
        if not isinstance(request, dict):
            return {"error": f"the request must be one line with a JSON object of at most {REQUEST_LIMIT} bytes"}
        limit = float(request.get("time_limit_s", TIME_LIMIT_S))
    except (ValueError, TypeError, RecursionError) as problem:
        return {"error": f"the request is not JSON as described: {problem}"}
    identity = {"id": request["id"]} if "id" in request else {}
    return identity | describe(limit, fast=bool(request.get("fast", False)))


def describe(time_limit_s: float, *, fast: bool) -> Facts:
    """Everything the answer holds."""
    versions: dict[str, str | None] = {name: installed_version(names) for name, (names, _) in COMPONENTS.items()}
    present = {name: is_present(module) for name, (_, module) in COMPONENTS.items() if module}
    facts = {} if fast else probed([name for name, there in present.items() if there], time_limit_s)
    versions |= {name: found["version"] for name, found in facts.items() if found.get("version")}
    torch = facts.get("torch", {})
    versions |= {name: torch[name] for name in ("cuda", "nccl") if torch.get(name)}
    gpus, gpus_why = graphics(torch)
    components = {name: component(name, versions[name], present.get(name), facts) for name in COMPONENTS}
    can = abilities(components, facts, gpus, versions["transformer-engine"])
    return {
        "summary": summary(components, gpus, can, fast=fast),
        "python": sys.executable,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "components": components,
        "gpus": gpus,
        "gpus_why": gpus_why,
        "cpu": {"cores": cores(), "memory_gib": memory_gib()},
        "can": can,
    }


# --- components -------------------------------------------------------------------------------------------------


def installed_version(distributions: tuple[str, ...]) -> str | None:
    """The version that package metadata names, without importing."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def is_present(module: str) -> bool:
    """Whether there is something to import. Of packages above it, only a namespace such as `megatron` is."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(module) is not None
    return False


def probed(names: list[str], time_limit_s: float) -> dict[str, Facts]:
    """Facts of each component, from a process each."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(lambda name: probe(name, time_limit_s), names), strict=True))


def probe(name: str, time_limit_s: float) -> Facts:
    """Import one component in a process of its own."""
    body = PROBES.get(name, f"import {COMPONENTS[name][1]}")
    argv = [sys.executable, "-c", PROBE.format(body=body)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=time_limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"importable": False, "why": f"its import did not end within {time_limit_s:g} s"}
    except OSError as problem:
        return {"importable": None, "why": f"its import could not be tried: {problem}"}
    try:
        facts: Facts = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {"importable": False, "why": f"its import ended this Python ({done.returncode}) {''.join(last)}"}
    return facts


def component(name: str, version: str | None, present: bool | None, facts: dict[str, Facts]) -> Facts:  # noqa: FBT001
    """One component's part of the answer."""
    found = facts.get(name, {})
    importable = found.get("importable")
    if COMPONENTS[name][1] is None:
        return {"version": version, "importable": None, "usable": None, "why": library_why(name, version, facts)}
    if not present:
        absent = NO_DEEPEP if name == "deep_ep" else "not installed"
        return {"version": version, "importable": False, "usable": False, "why": absent}
    usable, why = use(name, found) if importable else (importable, found.get("why"))
    return {"version": version, "importable": importable, "usable": usable, "why": why and why[:WHY_LIMIT]}


def library_why(name: str, version: str | None, facts: dict[str, Facts]) -> str | None:
    """Where a native library's version comes from; such libraries are not Python modules."""
    torch = facts.get("torch", {})
    if torch.get(name):
        return "the one torch uses"
    if name == "cuda" and torch.get("importable"):
        return "torch was built without CUDA"
    return "as a package; not tried" if version else "no package of it; a system installation is not looked for"


def use(name: str, found: Facts) -> tuple[bool, str | None]:
    """Whether an importable component serves, and what hinders."""
    if name == "torch" and not found["cuda_available"]:
        return True, f"on the CPU only: {'no usable GPU' if found['cuda'] else 'a build without CUDA'}"
    if name == "deep_ep":
        return deep_ep_flavour(found)
    return True, None


def deep_ep_flavour(found: Facts) -> tuple[bool, str]:
    """Which of DeepEP's incompatible branches this is, by the names Megatron imports from it."""
    if found["hybridep"]:
        return True, f"branch hybrid-ep ({found['file']}): HybridEPBuffer is there"
    if found["buffer"] and found["events"]:
        return True, f"({found['file']}) serves Megatron's DeepEP backend; HybridEP needs DeepEP's branch hybrid-ep"
    missing = "Buffer" if not found["buffer"] else f"EventOverlap in deep_ep.utils ({found.get('events_why')})"
    return False, f"({found['file']}) has no {missing}, so Megatron cannot use it; install DeepEP's tag v1.2.1"


# --- hardware ---------------------------------------------------------------------------------------------------


def graphics(torch: Facts) -> tuple[list[Facts], str | None]:
    """GPUs as torch sees them, else as the driver does; and why there are none."""
    listed, why = listed_gpus()
    seen = torch.get("gpus") or []
    gpus = [
        {
            "name": one["name"],
            "compute_capability": one["compute_capability"],
            "memory_gib": round(one["memory"] / 2**30, 1),
        }
        for one in seen
    ] or listed
    domains, domain_why = nvlink_domains() if listed else ([], why)
    if len(domains) != len(gpus):
        domains = [None] * len(gpus)
        domain_why = domain_why or "torch sees other GPUs than nvidia-smi lists"
    for gpu, size in zip(gpus, domains, strict=True):
        gpu |= {"nvlink_domain": size, "nvlink_domain_why": domain_why if size is None else None}
    return gpus, None if gpus else why


def listed_gpus() -> tuple[list[Facts], str | None]:
    """GPUs by nvidia-smi; MiB there are binary."""
    text, why = nvidia_smi("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3:
            memory = round(float(fields[2]) / 1024, 1) if fields[2].replace(".", "").isdigit() else None
            gpus.append({"name": fields[0], "compute_capability": fields[1], "memory_gib": memory})
    return gpus, why or (None if gpus else "nvidia-smi lists no GPU")


def nvlink_domains() -> tuple[list[int | None], str | None]:
    """For each GPU the number of GPUs NVLink joins it with, itself included; None beyond what one node sees."""
    details, _ = nvidia_smi("-q")
    clusters = set(re.findall(r"ClusterUUID\s*:\s*([0-9a-fA-F-]{36})", details)) - {f"{0:08}-0000-0000-0000-{0:012}"}
    topology, why = nvidia_smi("topo", "-m")
    if why:
        return [], why
    sizes = domain_sizes(topology)
    if clusters:
        return [None] * len(sizes), "the NVLink fabric reaches beyond this node; one node does not see how far"
    return list(sizes), None if sizes else "nvidia-smi topo -m was not understood"


def domain_sizes(topology: str) -> list[int]:
    """From the matrix of `nvidia-smi topo -m`: NV<links> marks a pair that NVLink joins."""
    rows = [line.split() for line in topology.splitlines() if re.match(r"GPU\d+\s", line)]
    return [1 + sum(re.fullmatch(r"NV\d+", cell) is not None for cell in row[1 : len(rows) + 1]) for row in rows]


def nvidia_smi(*arguments: str) -> tuple[str, str | None]:
    """Its output, or why there is none."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return "", "nvidia-smi is not on PATH: no NVIDIA driver here"
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return "", f"nvidia-smi failed: {problem}"
    if done.returncode:
        return "", f"nvidia-smi failed: {' '.join((done.stderr or done.stdout).split())[:200]}"
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout), None


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_gib() -> float | None:
    """Physical memory."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return None


# --- what can run -----------------------------------------------------------------------------------------------


def abilities(components: dict[str, Facts], facts: dict[str, Facts], gpus: list[Facts], te: str | None) -> Facts:
    """Dispatchers, delayed weight gradients and engines of smoke runs, each with its reason."""
    core, found = components["megatron-core"], facts.get("megatron-core", {})
    base = base_ability(components, gpus)
    engines, why = smoke_engines(components, facts, gpus)
    return {
        "alltoall": base if base["possible"] is not True else yes("torch, megatron-core and GPUs are there"),
        "deepep": backend(base, core, found.get("HAVE_DEEP_EP"), "DeepEP", components["deep_ep"]),
        "hybridep": backend(base, core, found.get("HAVE_HYBRIDEP"), "HybridEP", components["deep_ep"]),
        "ncclep": backend(base, core, found.get("HAVE_TE_EP"), "NCCL EP", components["transformer-engine"]),
        "delay_wgrad": delay_wgrad(components["transformer-engine"], te),
        "smoke": engines,
        "smoke_why": why,
    }


def yes(why: str) -> Facts:
    """Possible."""
    return {"possible": True, "why": why[:WHY_LIMIT]}


def no(why: str) -> Facts:
    """Not possible."""
    return {"possible": False, "why": why[:WHY_LIMIT]}


def unknown(why: str) -> Facts:
    """Not found out."""
    return {"possible": None, "why": why[:WHY_LIMIT]}


def base_ability(components: dict[str, Facts], gpus: list[Facts]) -> Facts:
    """What every dispatcher needs for training: torch, Megatron and a GPU."""
    for name in ("torch", "megatron-core"):
        one = components[name]
        if one["usable"] is None:
            return unknown("imports were not tried")
        if not one["usable"]:
            return no(f"{name}: {one['why']}")
    return yes("") if gpus else no("no GPU here; smoke runs use the CPU")


def backend(base: Facts, core: Facts, have: bool | None, name: str, package: Facts) -> Facts:  # noqa: FBT001
    """A flex dispatcher backend, by whether Megatron itself found its names at import."""
    if not core["usable"]:
        return base
    if have is None:
        return no(f"this megatron-core ({core['version']}) has no {name} backend")
    if not have:
        return no(f"Megatron cannot import {name}: {package['why'] or 'this build has no such part'}")
    if not base["possible"]:
        return base
    return yes(f"Megatron imports {name}; whether its kernels run on these GPUs shows in a smoke run only")


def delay_wgrad(transformer_engine: Facts, version: str | None) -> Facts:
    """Delayed weight gradients live in Transformer Engine's linear layers, from 2.3.0 on.

    Floors of its companions: `delayed-wgrad` checks of Megatron-LM (megatron/training/arguments.py) and Bridge.
    """
    if transformer_engine["usable"] is None:
        return unknown("imports were not tried")
    if not transformer_engine["usable"]:
        return no(f"transformer-engine: {transformer_engine['why']}")
    release = tuple(int(number) for number in re.findall(r"\d+", version or "")[:2])
    if not release:
        return unknown("the version of transformer-engine is not known")
    if release < (2, 3):
        return no(f"transformer-engine {version} is older than 2.3.0")
    later = [need for floor, need in TE_FLOORS if release < floor]
    return yes(f"transformer-engine {version}" + (f"; not {', not '.join(later)}" if later else ""))


TE_FLOORS = (
    ((2, 7), "with overlap_grad_reduce (needs 2.7.0, Megatron-LM 2.8.0)"),
    ((2, 12), "with CUDA graphs over weight gradients (needs 2.12.0)"),
)


def smoke_engines(components: dict[str, Facts], facts: dict[str, Facts], gpus: list[Facts]) -> tuple[list[str], str]:
    """`nccl-gpu` needs a GPU a rank, `gloo-gpu` one GPU, `gloo-cpu` none; all need megatron-core."""
    torch, core = facts.get("torch", {}), components["megatron-core"]
    if not facts:
        return [], "imports were not tried"
    if not core["usable"] or not components["torch"]["usable"]:
        name = "torch" if not components["torch"]["usable"] else "megatron-core"
        return [], f"{name}: {components[name]['why']}"
    engines = ["nccl-gpu"] if torch.get("nccl_built") and len(torch.get("gpus") or []) > 1 else []
    engines += ["gloo-gpu"] if torch.get("gloo") and torch.get("gpus") else []
    engines += ["gloo-cpu"] if torch.get("gloo") else []
    return (
        engines,
        f"{len(gpus)} GPU(s), {cores()} CPU core(s); nccl-gpu needs a GPU a rank, gloo-gpu one GPU, gloo-cpu none",
    )


def summary(components: dict[str, Facts], gpus: list[Facts], can: Facts, *, fast: bool) -> str:
    """A sentence on versions, one on GPUs, one on what can run."""
    shown = [f"{name} {one['version'] or '(version unknown)'}" for name, one in components.items() if one["version"]]
    names = sorted({gpu["name"] for gpu in gpus})
    hardware = f"{len(gpus)} x {', '.join(names)}" if gpus else "no GPU"
    if fast:
        return f"{'; '.join(shown) or 'nothing relevant installed'}. {hardware}. Imports were not tried."
    able_to = [name for name in ("alltoall", "deepep", "hybridep", "ncclep", "delay_wgrad") if can[name]["possible"]]
    runs = f"Can run: {', '.join(able_to) or 'no dispatcher for training'}; smoke: {', '.join(can['smoke']) or 'none'}"
    return f"{'; '.join(shown) or 'nothing relevant installed'}. {hardware}. {runs}."


if __name__ == "__main__":
    sys.exit(main())
