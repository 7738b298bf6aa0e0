"""torch.cuda's stream and event surface on the CPU, for Megatron-Core's overlap schedule.

Megatron reaches for torch.cuda in its schedule, dispatcher, random state and optimizer. Here those
names get CPU equivalents; Megatron's own code runs unchanged, with a repair of two places that only work
on CUDA tensors (`repair_megatron`).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent.futures import Future
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CPU = torch.device("cpu")
FACTORIES = (
    "arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace",
    "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "tensor",
    "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip


class CpuEvent:
    """torch.cuda.Event: order on the CPU comes from the nodes' results, so only the time is kept."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.time = 0.0

    def record(self, _stream: CpuStream | None = None) -> None:
        """Keep this moment."""
        self.time = time.perf_counter()

    def wait(self, _stream: CpuStream | None = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Always reached."""
        return True

    def elapsed_time(self, other: CpuEvent) -> float:
        """Milliseconds from this event to the other."""
        return (other.time - self.time) * 1e3


class CpuStream:
    """torch.cuda.Stream with a FIFO thread that starts with the first work given to it."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Run the work after everything submitted before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="comm-stream", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._work.put((future, work))
        return future

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # whoever takes the result gets it
                future.set_exception(error)

    def wait_stream(self, _stream: CpuStream) -> None:
        """Nothing to wait for: whoever takes a result waits for it."""

    def wait_event(self, _event: CpuEvent) -> None:
        """Nothing to wait for."""

    def record_event(self, event: CpuEvent | None = None) -> CpuEvent:
        """An event of this moment."""
        event = event or CpuEvent()
        event.record()
        return event

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Never busy."""
        return True


class _Current(threading.local):
    stream = CpuStream()  # one default stream for all threads


_current = _Current()


class _Nvtx:
    """torch.cuda.nvtx without a tool listening."""

    @staticmethod
    def range_push(*_args: Any, **_kwargs: Any) -> None:
        pass

    range_pop = mark = range_push

    @staticmethod
    @contextlib.contextmanager
    def range(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        yield


@contextlib.contextmanager
def stream_context(stream: CpuStream | None) -> Iterator[None]:
    """torch.cuda.stream: the current stream of this thread."""
    before = _current.stream
    _current.stream = stream or before
    try:
        yield
    finally:
        _current.stream = before


def install_streams() -> None:
    """Map the torch.cuda names that Megatron touches; call before megatron is imported."""
    cuda: Any = torch.cuda
    default = _current.stream
    cuda.Stream, cuda.Event, cuda.stream, cuda.nvtx = CpuStream, CpuEvent, stream_context, _Nvtx
    cuda.current_stream = lambda _device=None: _current.stream
    cuda.default_stream = lambda _device=None: default
    cuda.set_stream = lambda stream: setattr(_current, "stream", stream)
    cuda.current_device = lambda: CPU
    cuda.synchronize = cuda.empty_cache = lambda *_args, **_kwargs: None
    cuda.is_current_stream_capturing = lambda: False
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = lambda _device=None: torch.get_rng_state()
    cuda.set_rng_state = lambda state, _device=None: torch.set_rng_state(state)
    _map_devices()


def _map_devices() -> None:
    """Let device="cuda" mean the CPU, in factories and in Tensor methods."""
    tensor: Any = torch.Tensor
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor.to = _on_cpu(tensor.to)
    tensor.cuda = lambda self, *_args, **_kwargs: self
    tensor.record_stream = lambda _self, _stream: None
    tensor.type = _cuda_type(tensor.type)
    module: Any = torch.nn.Module
    module.cuda = lambda self, *_args, **_kwargs: self


def _on_cpu(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        return call(*(CPU if _is_cuda(arg) else arg for arg in args), **kwargs)

    return on_cpu


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.startswith("cuda")


def _cuda_type(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor.type() names CUDA types: Megatron's optimizer compares them ("torch.cuda.BFloat16Tensor")."""

    @wraps(original)
    def cuda_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    return cuda_type


def repair_megatron() -> None:
    """Call after megatron is imported: its random state and the dispatcher's splits act on CUDA tensors only."""
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()  # noqa: SLF001
    random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)  # noqa: SLF001
    # the original acts on is_cuda tensors only; the splits must become NumPy arrays here too
    moe_utils.maybe_move_tensor_to_cpu = token_dispatcher.maybe_move_tensor_to_cpu = _to_host


def _to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ARG001, FBT001, FBT002
    return tensor.numpy() if torch.is_tensor(tensor) and as_numpy else tensor
