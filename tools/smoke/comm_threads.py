"""Runs the schedule's comm-stream nodes on the stream's own thread: real overlap without a GPU.

Megatron runs its dispatch and combine nodes on a comm stream and orders nodes by events. Here such a node is
given to the stream's FIFO thread and its result is a future; whoever takes the result waits for it, as a
kernel on another stream would wait for the node's event. Without this, nodes run in program order.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def install() -> None:
    """Wrap Megatron's ScheduleNode and chunk schedule."""
    from megatron.core.models.common.model_chunk_schedule_plan import TransformerModelChunkSchedulePlan
    from megatron.core.pipeline_parallel.utils import ScheduleNode

    ScheduleNode.forward = _on_stream_thread(ScheduleNode.forward)
    ScheduleNode.backward = _on_stream_thread(ScheduleNode.backward)
    TransformerModelChunkSchedulePlan.run = staticmethod(_resolving(TransformerModelChunkSchedulePlan.run))


def _on_stream_thread(run_node: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run_node)
    def run(node: Any, value: Any = ()) -> Any:
        stream = node.stream() if callable(node.stream) else node.stream  # a callable from 0.17 on
        if stream is torch.cuda.default_stream():
            return run_node(node, _resolve(value))
        return stream.submit(lambda: run_node(node, _resolve(value)))

    return run


def _resolving(run_chunk: Callable[..., Any]) -> Callable[..., Any]:
    """A chunk's result, and what its pipeline callbacks send, leave the schedule: wait for them there."""

    @wraps(run_chunk)
    def run(*args: Any, **kwargs: Any) -> Any:
        for name in ("post_forward", "post_backward"):
            if kwargs.get(name) is not None:
                kwargs[name] = _resolving_callback(kwargs[name])
        return _resolve(run_chunk(*args, **kwargs))

    return run


def _resolving_callback(callback: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, *args: callback(_resolve(value), *args)


def _resolve(value: Any) -> Any:
    return value.result() if isinstance(value, Future) else value


def close() -> None:
    """End the thread, before the process groups go."""
    from megatron.core.pipeline_parallel.utils import get_comm_stream

    stream = get_comm_stream()
    if stream is not None:
        stream.close()
