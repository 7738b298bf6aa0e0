"""The nodes of Megatron's combined 1F1B schedule: how many must run, which did, and when.

A model chunk's plan holds, a microbatch: pre_process, the nodes of each layer, and on the last stage
post_process, each forward and backward; the loss function is one more node, forward only.
Source: megatron-core, models/common/model_chunk_schedule_plan.py and pipeline_parallel/combined_1f1b.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

from . import intervals

if TYPE_CHECKING:
    from collections.abc import Callable

    from .collectives import Call
    from .engine import Engine

DENSE_NODES = 2  # attn, mlp; dispatch and combine are no-ops
WGRADS_PER_LAYER = 2  # attn, mlp


@dataclass(frozen=True)
class Node:
    """One executed node; start and end are marks of the engine's clock."""

    name: str
    kind: str  # forward, backward, wgrad
    on_comm_stream: bool
    start: Any
    end: Any


@dataclass(frozen=True)
class Shape:
    """The layers of a model chunk on this rank."""

    moe: int
    dense: int
    mtp: int
    last_stage: bool


@dataclass(frozen=True)
class Expected:
    """Nodes and delayed weight gradients of one training step on this rank."""

    nodes: int
    wgrads: int
    formula: str


def expected(shapes: list[Shape], num_microbatches: int, moe_nodes: int, *, delayed: bool) -> Expected:
    """Nodes a step from the layers that the rank holds."""
    moe, dense, mtp = (sum(getattr(s, kind) for s in shapes) for kind in ("moe", "dense", "mtp"))
    last = sum(s.last_stage for s in shapes)
    per_microbatch = 2 * len(shapes) + 3 * last + 2 * (moe_nodes * moe + DENSE_NODES * dense + (moe_nodes + 1) * mtp)
    wgrads = WGRADS_PER_LAYER * (moe + dense + mtp) if delayed else 0
    formula = (
        "num_microbatches x (2 x chunks [pre_process] + 3 x last-stage chunks [post_process forward and backward, "
        f"loss forward] + 2 x ({moe_nodes} x MoE layers + {DENSE_NODES} x dense layers + {moe_nodes + 1} x MTP "
        f"layers)); rank 0: {num_microbatches} x (2 x {len(shapes)} + 3 x {last} + 2 x ({moe_nodes} x {moe} + "
        f"{DENSE_NODES} x {dense} + {moe_nodes + 1} x {mtp})). wgrad: {WGRADS_PER_LAYER} x layers x microbatches"
    )
    return Expected(per_microbatch * num_microbatches, wgrads * num_microbatches, formula)


def moe_nodes(megatron_version: str) -> int:
    """Nodes of a MoE layer: attn, dispatch, mlp, combine; up to 0.15 post_attn was one of its own."""
    return 5 if tuple(map(int, megatron_version.split(".")[:2])) < (0, 16) else 4


def shape_of(chunk: Any) -> Shape:
    """The layers of a built GPTModel."""
    from megatron.core.transformer.moe.moe_layer import MoELayer

    moe = sum(isinstance(layer.mlp, MoELayer) for layer in chunk.decoder.layers)
    mtp = len(chunk.mtp.layers) if getattr(chunk, "mtp", None) is not None else 0
    return Shape(moe, len(chunk.decoder.layers) - moe, mtp, bool(chunk.post_process))


@dataclass
class NodeLog:
    """Records the nodes that run; `take` hands them over and starts anew."""

    engine: Engine
    nodes: list[Node] = field(default_factory=list)

    def install(self) -> None:
        """Record in Megatron's ScheduleNode; before comm nodes move to threads, so as not to time their wait."""
        from megatron.core.pipeline_parallel.utils import ScheduleNode

        ScheduleNode.forward = self._recording(ScheduleNode.forward, "forward")
        ScheduleNode.backward = self._recording(ScheduleNode.backward, "backward")
        layer_node = _layer_node()
        layer_node.backward_dw = self._recording_wgrad(layer_node.backward_dw)

    def take(self) -> list[Node]:
        """The nodes since the last call, with their times in nanoseconds."""
        taken, self.nodes = self.nodes, []
        nanoseconds = self.engine.nanoseconds
        return [Node(n.name, n.kind, n.on_comm_stream, nanoseconds(n.start), nanoseconds(n.end)) for n in taken]

    def _recording(self, run_node: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """Time the node's own function: by then the node holds its stream and has waited for its event."""
        attribute = f"{kind}_func"

        @wraps(run_node)
        def run(node: Any, value: Any = ()) -> Any:
            timed = self._timed(getattr(node, attribute), node.name, kind, on_comm_stream=_on_comm_stream(node))
            setattr(node, attribute, timed)
            return run_node(node, value)

        return run

    def _timed(self, function: Callable[..., Any], name: str, kind: str, *, on_comm_stream: bool) -> Any:
        """The function, recorded; without a reference to the node, which would keep its tensors alive."""

        def timed(*args: Any) -> Any:
            start = self.engine.mark()
            answer = function(*args)
            self.nodes.append(Node(name, kind, on_comm_stream, start, self.engine.mark()))
            return answer

        return timed

    def _recording_wgrad(self, backward_dw: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward_dw)
        def run(node: Any) -> None:
            start = self.engine.mark()
            backward_dw(node)
            if node.delay_wgrad_compute:
                self.nodes.append(Node(node.name, "wgrad", False, start, self.engine.mark()))  # noqa: FBT003

        return run


def _layer_node() -> Any:
    try:
        from megatron.core.models.common.utils import TransformerLayerNode  # 0.19
    except ImportError:
        from megatron.core.models.gpt.fine_grained_callables import TransformerLayerNode
    return TransformerLayerNode


def _on_comm_stream(node: Any) -> bool:
    from megatron.core.pipeline_parallel.utils import get_comm_stream

    stream = node.stream() if callable(node.stream) else node.stream
    return stream is not None and stream == get_comm_stream()


def count(nodes: list[Node]) -> tuple[int, int, dict[str, int]]:
    """Forward and backward nodes, delayed weight gradients, and how often each ran."""
    by_node = Counter(f"{n.name}.{n.kind}" for n in nodes)
    wgrads = sum(n.kind == "wgrad" for n in nodes)
    return len(nodes) - wgrads, wgrads, dict(sorted(by_node.items()))


def overlap_times(nodes: list[Node], calls: list[Call], *, host_times: bool) -> dict[str, float | None]:
    """Milliseconds on the comm stream, on the compute stream and on both; the same for the all-to-alls."""
    comm = [(n.start, n.end) for n in nodes if n.on_comm_stream]
    compute = _computing(nodes, calls if host_times else [])
    all_to_all = [(c.start, c.end) for c in calls if c.name == "all_to_all_single"]
    hidden = intervals.intersection(all_to_all, compute)
    return {
        "comm_ms": intervals.milliseconds(comm),
        "compute_ms": intervals.milliseconds(compute),
        "hidden_ms": intervals.milliseconds(intervals.intersection(comm, compute)),
        "all_to_all_ms": intervals.milliseconds(all_to_all) if host_times else None,
        "all_to_all_hidden_ms": intervals.milliseconds(hidden) if host_times else None,
    }


def exposed_ms(nodes: list[Node], calls: list[Call]) -> float:
    """Milliseconds in collectives while nothing was computed: what the rank spent waiting for others."""
    waiting = [(c.start, c.end) for c in calls]
    return intervals.milliseconds(intervals.difference(waiting, _computing(nodes, calls)))


def _computing(nodes: list[Node], calls: list[Call]) -> list[tuple[int, int]]:
    """When compute nodes ran, without the collectives that they wait in themselves (the dispatcher's splits)."""
    compute = [(n.start, n.end) for n in nodes if not n.on_comm_stream]
    return intervals.difference(compute, [(c.start, c.end) for c in calls if c.on_main_thread])
