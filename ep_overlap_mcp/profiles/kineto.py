"""Kineto traces of GPU ranks, and of CPU ranks that talk over gloo."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.kernels import Kind, kind_of_collective, kind_of_copy
from ep_overlap_mcp.profiles.kineto_file import KinetoFile, times
from ep_overlap_mcp.profiles.timeline import Window
from ep_overlap_mcp.profiles.trace import Device, Profile, ambiguous_sendrecv, is_combined, is_step, windows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ep_overlap_mcp.profiles.kineto_file import Args, Event

_KERNELS = ("kernel", "Kernel")  # old traces write categories with capitals
_COPIES = ("gpu_memcpy", "Memcpy")
_MEMSETS = ("gpu_memset", "Memset")
_ANNOTATION = "user_annotation"

# matrix multiplications among CPU operators; names of ATen
_CPU_MATMUL = re.compile(
    r"^aten::(?:_?addmm|addbmm|baddbmm|bmm|mm|matmul|linear|addmv|mv|_scaled_(?:dot_product|grouped_mm|mm)"
    r"|scaled_dot_product|_grouped_mm|mkldnn_linear)"
)


def read_kineto(path: Path, on_progress: Callable[[float], None] | None = None) -> Profile:
    """The devices of a Kineto trace; one without GPU activities is read as the trace of a CPU rank.

    Errors: `ProfileError` for a file that is cut off, is no Kineto trace, or cannot be read.
    """
    file = KinetoFile(path, on_progress)
    gpu = _GpuRank(Profile(path, "Kineto"))
    for event in file.events(_KERNELS + _COPIES + _MEMSETS + (_ANNOTATION,)):
        gpu.take(event)
    return gpu.finished(file.rank) if gpu.profile.devices else _read_cpu_rank(path, on_progress)


class _GpuRank:
    """Collects the events of one file.

    Annotations on the GPU row (`gpu_user_annotation`) are left alone: they repeat kernels, and on ROCm they span
    only the kernels launched directly in a step, not the step.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._devices: dict[object, Device] = {}
        self._steps: list[Window] = []
        self._collectives: Counter[Kind | None] = Counter()

    def take(self, event: Event) -> None:
        category, name, args = event.cat, event.name, event.args
        if category == _ANNOTATION:
            if event.dur is not None:
                self._annotation(event, str(name))
            return
        start, end = times(event)
        number, stream = (event.pid, event.tid) if args is None or args.stream is None else (args.device, args.stream)
        device = self._device(number)
        if category in _KERNELS:
            device.add_kernel(str(name), stream, start, end, _kind_beyond_name(args) if args else None)
        else:
            device.add(kind_of_copy(str(name)) if category in _COPIES else Kind.MEMORY, stream, start, end)

    def _device(self, number: object) -> Device:
        device = self._devices.get(number)
        if device is None:
            device = self._devices[number] = Device(f"GPU {number}")
            self.profile.devices.append(device)
        return device

    def finished(self, rank: int | None) -> Profile:
        for device in self.profile.devices:
            device.rank, device.steps = rank, windows(self._steps)
        self._resolve_sendrecv()
        return self.profile

    def _annotation(self, event: Event, name: str) -> None:
        if is_step(name):
            self._steps.append(Window(*times(event)))
        elif is_combined(name):
            self.profile.combined[name] += 1
        elif name.startswith("nccl:"):
            self._collectives[kind_of_collective(name)] += 1

    def _resolve_sendrecv(self) -> None:
        """SendRecv kernels that say nothing themselves, decided by what the process called, if all calls agree."""
        called = {kind for kind in (Kind.ALL_TO_ALL, Kind.P2P) if self._collectives[kind]}
        for device in self.profile.devices:
            number = device.timeline.count(Kind.SENDRECV)
            if number and len(called) != 1:
                self.profile.caveats.append(ambiguous_sendrecv(device, number))
            device.timeline.relabel(Kind.SENDRECV, next(iter(called)) if len(called) == 1 else Kind.P2P)


def _kind_beyond_name(args: Args) -> Kind | None:
    """What the arguments of an NCCL kernel say of it: recent PyTorch writes its operation and process group."""
    if args.collective is None and args.group is None:
        return None
    return kind_of_collective(str(args.collective or ""), str(args.group or ""))


def _read_cpu_rank(path: Path, on_progress: Callable[[float], None] | None) -> Profile:
    """A rank without a GPU: gloo's annotations on its worker threads, ATen's matrix multiplications."""
    file = KinetoFile(path, on_progress)
    profile, device, steps = Profile(path, "Kineto, CPU rank"), Device("CPU"), []
    for event in file.events(("cpu_op", "user_annotation")):
        if event.dur is None:
            continue
        name, (start, end) = str(event.name), times(event)
        if event.cat == "cpu_op":
            if _CPU_MATMUL.match(name):
                # operators nest, which no stream does
                device.add(Kind.GEMM_ATTENTION, f"{name} on {event.tid}", start, end)
        elif name.startswith("gloo:"):
            device.add(kind_of_collective(name) or Kind.COLLECTIVE, f"gloo on {event.tid}", start, end)
        elif is_step(name):
            steps.append(Window(start, end))
        elif is_combined(name):
            profile.combined[name] += 1
    if not device.timeline.count():
        raise ProfileError(
            f"{path}: holds no GPU activity and no gloo communication. Profile with activities=[ProfilerActivity"
            ".CPU, ProfilerActivity.CUDA] around whole training steps, on a rank that communicates"
        )
    device.rank, device.steps = file.rank, windows(steps)
    profile.devices.append(device)
    profile.caveats.append(
        "CPU rank: computation is ATen's matrix multiplications only; what overlaps here says nothing about GPUs"
    )
    return profile
