"""Watches torch.distributed: the last collective of this rank, in a file that outlives it, and intervals.

Only observes: every call is passed on unchanged, except where a planted fault takes it over. Install it
before megatron is imported, because megatron keeps references to some of the functions.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .evidence import Place

STATE_BYTES = 4096
WATCHED = (
    "all_to_all_single", "all_reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor",
    "broadcast", "barrier", "send", "recv", "isend", "irecv", "batch_isend_irecv",
    "all_gather_object", "gather_object", "broadcast_object_list",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One finished collective: nanoseconds of time.perf_counter_ns, bytes sent, and who waited in it."""

    name: str
    start: int
    end: int
    size: int
    on_main_thread: bool


@dataclass
class Watch:
    """What this rank has called. `take_over` lets a planted fault replace one call."""

    rank: int
    place: Place
    state: StateFile
    calls: list[Call] = field(default_factory=list)
    take_over: Callable[..., Any] | None = None
    _seq: int = 0
    _last: dict[str, Any] | None = None
    _in_flight: dict[int, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def install(self) -> None:
        """Wrap the functions of torch.distributed."""
        import torch.distributed as dist

        for name in WATCHED:
            watched = self._watched(name, getattr(dist, name))
            setattr(dist, name, watched)
            if name in ("isend", "irecv"):  # P2POp compares its operation with the module's own
                setattr(dist.distributed_c10d, name, watched)

    def write_state(self) -> None:
        """Refresh rank<k>.state.json."""
        row = {"rank": self.rank, "pid": os.getpid(), "t": round(time.time(), 3), **self.place.as_json()}
        self.state.write({**row, "last": self._last, "in_flight": list(self._in_flight.values())})

    def last_words(self) -> dict[str, Any]:
        """The last collective and those still in flight."""
        return {"last_collective": self._last, "in_flight": list(self._in_flight.values())}

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            size = _bytes(args, kwargs)
            ticket = self._enter(name, size, kwargs.get("group"))
            start = time.perf_counter_ns()
            run = partial(self.take_over, name, original) if self.take_over else original
            answer = run(*args, **kwargs)
            on_main_thread = threading.current_thread() is threading.main_thread()
            self.calls.append(Call(name, start, time.perf_counter_ns(), size, on_main_thread))
            self._leave(ticket)  # not reached by a call that raises: it stays in flight
            return answer

        return call

    def _enter(self, name: str, size: int, group: Any) -> int:
        with self._lock:
            self._seq += 1
            self._last = {
                "name": name,
                "seq": self._seq,
                "group": getattr(group, "group_desc", None) or "default",
                "bytes": size,
                "thread": threading.current_thread().name,
                "t": round(time.time(), 3),
                "done": False,
            }
            self._in_flight[self._seq] = self._last
            self.write_state()
            return self._seq

    def _leave(self, ticket: int) -> None:
        with self._lock:
            self._in_flight.pop(ticket)["done"] = True
            self.write_state()


class StateFile:
    """A JSON object in a memory map: rewriting it costs no system call and survives a killed process."""

    def __init__(self, path: Path) -> None:
        with path.open("wb+") as file:
            file.write(b"{}".ljust(STATE_BYTES))
            file.flush()
            self._map = mmap.mmap(file.fileno(), STATE_BYTES)

    def write(self, state: dict[str, Any]) -> None:
        """Replace the object; in-flight calls are left out when it does not fit."""
        text = json.dumps(state).encode()
        if len(text) > STATE_BYTES:
            text = json.dumps({**state, "in_flight": []}).encode()
        self._map[:] = text.ljust(STATE_BYTES)


def _bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of the tensor that is sent: the input where there is one, else the first tensor."""
    tensors = [v for v in (*args[1:], kwargs.get("input"), *args[:1], kwargs.get("tensor")) if hasattr(v, "nbytes")]
    return int(tensors[0].nbytes) if tensors else 0
