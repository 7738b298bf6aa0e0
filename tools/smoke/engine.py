"""The engines: where the ranks run, what stands in for what, what they cannot show."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .request import RequestError

if TYPE_CHECKING:
    import torch

    from .request import Request

GPU_ENVIRONMENT = {  # before CUDA starts; what the user has set wins
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # with 1 the streams run one after another
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}


@dataclass
class Engine:
    """Where this rank runs."""

    name: str
    mode: str | None
    backend: str
    device: torch.device
    transformer_engine: bool
    _origin: Any = field(default=None, repr=False)

    @property
    def on_gpu(self) -> bool:
        """Real torch.cuda streams."""
        return self.name != "gloo-cpu"

    @property
    def host_times(self) -> bool:
        """Collectives and nodes are timed by the same clock, the host's."""
        return not self.on_gpu

    @property
    def bitwise(self) -> bool:
        """Equal work gives equal bits: not where NCCL and Transformer Engine choose the order of sums."""
        return self.backend != "nccl"

    def synchronize(self) -> None:
        """Wait for the device."""
        import torch

        torch.cuda.synchronize()

    def mark(self) -> Any:
        """The moment: on the GPU an event on the current stream, on the CPU nanoseconds."""
        if not self.on_gpu:
            return time.perf_counter_ns()
        import torch

        cuda: Any = torch.cuda
        event = cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream())
        return event

    def start_clock(self) -> None:
        """The origin of the GPU's marks: call it at the start of a step, when the device is idle."""
        self._origin = self.mark()

    def nanoseconds(self, mark: Any) -> int:
        """A mark as a number; on the GPU after synchronize(), since start_clock()."""
        return round(self._origin.elapsed_time(mark) * 1e6) if self.on_gpu else int(mark)

    def emulated(self, variants: tuple[str, ...]) -> list[str]:
        """What stood in for the real thing."""
        if self.on_gpu:
            return ["collectives: gloo through host memory instead of NCCL"] if self.backend == "gloo" else []
        streams = (
            "CUDA streams and events: comm-stream nodes run on a thread of their own"
            if self.mode == "threads"
            else "CUDA streams and events: all nodes run in program order"
        )
        stand_ins = [streams, "collectives: gloo instead of NCCL", "torch.compile: switched off"]
        if self.delays_by_stand_in(delayed="overlap_delay_wgrad" in variants):
            stand_ins.append("delayed weight gradients: a stand-in for Transformer Engine's, on local linear layers")
        return stand_ins

    def not_tested(self) -> list[str]:
        """What this engine cannot show."""
        missing = [] if self.transformer_engine else ["Transformer Engine layers, FP8 and FP4"]
        if not self.on_gpu:
            missing += [
                "CUDA event ordering and stream races",
                "CUDA graphs",
                "DeepEP and HybridEP dispatchers",
                "GPU memory",
            ]
        if self.backend != "nccl":
            missing += ["NCCL", "speed on GPUs"]
        return missing

    def delays_by_stand_in(self, *, delayed: bool) -> bool:
        """The CPU stand-in for delayed weight gradients is used."""
        return delayed and not self.on_gpu

    def description(self) -> str:
        """The device in words."""
        if not self.on_gpu:
            return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
        import torch

        return torch.cuda.get_device_name(self.device)

    def peak_memory_mib(self) -> int:
        """Peak allocated on the GPU, or peak resident set."""
        if self.on_gpu:
            import torch

            return torch.cuda.max_memory_allocated() >> 20
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def prepare_environment(engine: str) -> None:
    """Environment variables that must stand before torch is imported."""
    if engine == "gloo-cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling would need a C++ compiler and minutes
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    else:
        for name, value in GPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)


def start_engine(request: Request) -> Engine:
    """Choose this rank's device and put torch.cuda's surface in place; before megatron is imported."""
    import torch

    if request.engine == "gloo-cpu":
        from .cpu_streams import install_streams

        torch.set_num_threads(1)  # ranks share the cores; more threads a rank only make noise
        install_streams()
        return Engine("gloo-cpu", request.mode, "gloo", torch.device("cpu"), transformer_engine=False)
    devices = torch.cuda.device_count()
    if devices == 0:
        raise RequestError(f"engine: {request.engine} needs a GPU and torch sees none; use gloo-cpu")
    local_rank, ranks_here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if request.engine == "nccl-gpu" and ranks_here > devices:
        raise RequestError(f"engine: nccl-gpu needs a GPU a rank: {ranks_here} ranks, {devices} GPUs; use gloo-gpu")
    device = torch.device("cuda", local_rank % devices)
    torch.cuda.set_device(device)
    backend = request.engine.removesuffix("-gpu")
    return Engine(request.engine, None, backend, device, transformer_engine=_importable("transformer_engine.pytorch"))


def join_ranks(engine: Engine, request: Request) -> None:
    """Create the default process group, with the timeout said."""
    import torch.distributed as dist

    dist.init_process_group(engine.backend, timeout=timedelta(seconds=request.collective_timeout_s))


def versions() -> dict[str, str | None]:
    """What is installed, and where megatron.core really came from."""
    import megatron.core
    import torch

    cuda: Any = torch.cuda
    nccl = cuda.nccl.version() if cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "megatron_core": str(megatron.core.__version__),
        "megatron_core_path": os.path.dirname(megatron.core.__file__),  # noqa: PTH120
        "transformer_engine": _version("transformer_engine"),
        "deep_ep": _version("deep_ep"),
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except Exception:  # noqa: BLE001  # an installed but broken library counts as absent
        return False
    return True
