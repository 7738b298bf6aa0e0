"""One request: all readings and overrides in order, the stack, the hardware and the question asked of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.settings.fields import absent_from, fields_with_changing_choices
from ep_overlap_mcp.settings.setting import Origin, Setting
from ep_overlap_mcp.stack import Component, Core, Framework, Release, Stack
from ep_overlap_mcp.surface import given

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ep_overlap_mcp.settings.fields import Field
    from ep_overlap_mcp.sources.reading import Assignment, Omission, Reading

Assume = Literal["as_written", "overlap", "overlap_delay_wgrad"]

MODEL_SWITCH = "model.overlap_moe_expert_parallel_comm"
BRIDGE_SWITCH = "comm_overlap.overlap_moe_expert_parallel_comm"
MODEL_DELAY = "model.delay_wgrad_compute"
BRIDGE_DELAY = "comm_overlap.delay_wgrad_compute"

_RUNTIME = {
    "torch": "runtime.torch",
    "transformer-engine": "runtime.transformer_engine",
    "megatron-core": "runtime.megatron_core",
    "megatron-bridge": "runtime.megatron_bridge",
    "deep_ep": "runtime.deep_ep",
    "nvshmem": "runtime.nvshmem",
}


@dataclass(frozen=True)
class Request:
    """What is asked: settings as requested (written, given or assumed), judged for a framework and a stack."""

    settings: Mapping[str, Setting]
    framework: Framework
    stack: Stack
    assume: Assume
    as_written: Mapping[str, Setting] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()
    partial: tuple[str, ...] = ()
    name: str | None = None

    @property
    def complete(self) -> bool:
        """Whether unwritten settings have the default of the version."""
        return not self.partial

    @cached_property
    def written(self) -> tuple[Setting, ...]:
        """The settings that the text, the caller or a what-if states."""
        return tuple(s for s in self.settings.values() if s.written)

    @property
    def omissions(self) -> list[Omission]:
        """Everything the readers left out, in order."""
        return [omission for reading in self.readings for omission in reading.omissions]

    @property
    def overlap_written(self) -> bool:
        """Whether the text itself asks for overlap anywhere."""
        return _asks_for_overlap(self.as_written)

    def releases(self) -> tuple[Release, ...]:
        """The releases to judge: the stack's, narrowed to those that know every written setting and its value."""
        candidates = self.stack.releases(self.framework)
        if len(candidates) == 1:
            return candidates
        paths, flags = {s.path for s in self.written}, self.framework == "megatron-lm"
        fitting = [r for r in candidates if paths.isdisjoint(absent_from(r.core, command_line=flags))]
        taking = [r for r in fitting if not (flags and any(self.refused_choices(r.core)))]
        return tuple(taking or fitting) or candidates

    def refused_choices(self, core: Core) -> Iterator[tuple[Setting, Field, Any]]:
        """The written values that the parser of this Megatron-LM does not know yet, or any more."""
        fields = fields_with_changing_choices()
        for setting in self.written:
            if setting.known and (row := fields.get(setting.path)) is not None:
                yield from ((setting, row, item) for item in row.refused_choices(setting.value, core))

    def with_settings(self, changes: Mapping[str, object], note: str) -> Request:
        """The same request with some settings replaced, as a proposal would; None stands for null."""
        changed = dict(self.settings)
        for path, value in changes.items():
            earlier = self.settings.get(path)
            order = max((s.origin.order for s in self.settings.values()), default=0) + 1
            history = (*earlier.earlier, replace(earlier, earlier=())) if earlier else ()
            changed[path] = Setting(path, value, Origin("assumed", note=note, order=order), earlier=history)
        return replace(self, settings=changed)


def build_request(
    readings: Sequence[Reading],
    *,
    overrides: Iterable[Assignment] = (),
    stack: Stack | None = None,
    assume: Assume | None = None,
    gpu: str | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> Request:
    """Merge readings and overrides in order, last wins, both origins kept; then apply the what-if."""
    stack = stack or Stack()
    stated = (reading.framework for reading in readings if reading.framework)
    framework: Framework = stack.framework() or next(stated, None) or "megatron-core"
    assignments = [a for reading in readings for a in reading.assignments]
    written = _merged([*assignments, *overrides])
    written.update(_hardware(gpu, nodes, gpus_per_node))
    stack = _with_runtime(stack, written)
    written.update(_runtime_settings(stack))
    question: Assume = assume or ("as_written" if _asks_for_overlap(written) else "overlap")
    return Request(
        settings=assumed(written, question, framework),
        framework=framework,
        stack=stack,
        assume=question,
        as_written=written,
        readings=tuple(readings),
        partial=tuple(why for reading in readings for why in reading.partial),
        name=next((r.name for r in readings if r.name), None),
    )


def _merged(assignments: Sequence[Assignment]) -> dict[str, Setting]:
    merged: dict[str, Setting] = {}
    for order, a in enumerate(assignments):
        note = f"from {a.derived_from}" if a.derived_from else None
        kind: Literal["explicit", "derived"] = "derived" if a.derived_from else "explicit"
        origin = Origin(kind, a.file, a.line, a.text, note, order, a.span)
        before = merged.get(a.path)
        earlier = (*before.earlier, replace(before, earlier=())) if before else ()
        needs = frozenset() if a.known else frozenset((a.path,))
        merged[a.path] = Setting(a.path, a.value, origin, needs, earlier)
    return merged


def _asks_for_overlap(settings: Mapping[str, Setting]) -> bool:
    return any(path in settings and settings[path].value is True for path in (MODEL_SWITCH, BRIDGE_SWITCH))


def assumed(written: Mapping[str, Setting], assume: Assume, framework: Framework) -> dict[str, Setting]:
    """What is written, with the switches on that a what-if is about."""
    settings = dict(written)
    if assume == "as_written":
        return settings
    paths = [MODEL_SWITCH, *([BRIDGE_SWITCH] if framework == "bridge" else [])]
    if assume == "overlap_delay_wgrad":
        paths += [MODEL_DELAY, *([BRIDGE_DELAY] if framework == "bridge" else [])]
    order = max((s.origin.order for s in settings.values()), default=-1) + 1
    for path in paths:
        before = settings.get(path)
        if before is not None and before.value is True:
            continue
        earlier = (*before.earlier, replace(before, earlier=())) if before else ()
        settings[path] = Setting(
            path,
            value=True,
            origin=Origin("assumed", note=given("assume", assume), order=order),
            earlier=earlier,
        )
    return settings


def _hardware(gpu: str | None, nodes: int | None, gpus_per_node: int | None) -> dict[str, Setting]:
    given: dict[str, object] = {
        "hardware.gpu": gpu,
        "hardware.nodes": nodes,
        "hardware.gpus_per_node": gpus_per_node,
        "hardware.world_size": nodes * gpus_per_node if nodes and gpus_per_node else None,
    }
    origin = Origin("explicit", note="given by the caller")
    return {path: Setting(path, value, origin) for path, value in given.items() if value is not None}


def _with_runtime(stack: Stack, written: Mapping[str, Setting]) -> Stack:
    """Versions stated as settings (`--set runtime.torch=2.9.0`) count like those of `--stack`; none is absent."""
    stated = {
        component: Component(None if value is None else str(value))
        for component, path in _RUNTIME.items()
        if path in written and written[path].known
        for value in [written[path].value]
    }
    return replace(stack, components={**stated, **stack.components}) if stated else stack


def _runtime_settings(stack: Stack) -> dict[str, Setting]:
    origin = {c: Origin("explicit", note=f"stack, {known.origin}") for c, known in stack.components.items()}
    known = {
        _RUNTIME[c]: Setting(_RUNTIME[c], component.version, origin[c])
        for c, component in stack.components.items()
        if c in _RUNTIME
    }
    if "megatron-lm" in stack.components:
        known.setdefault(
            "runtime.megatron_core",
            Setting("runtime.megatron_core", stack.version("megatron-lm"), origin["megatron-lm"]),
        )
    return known
