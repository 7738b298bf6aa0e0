"""The object that a recipe builds -> the assignments of a reading, in the order in which they take effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.fields import Field, field_table
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.document import WHOLE_OBJECTS, add_comm_overlap
from ep_overlap_mcp.sources.recipe_expressions import plain_value
from ep_overlap_mcp.sources.recipe_values import Mapping, Place, Slot, Thing
from ep_overlap_mcp.sources.record import concerns, implied, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.sources.names import Vocabulary
    from ep_overlap_mcp.sources.reading import Reading

# What an object is, where its class names it and nothing holds it.
_PLACES = {
    "CommOverlapConfig": "comm_overlap.",
    "DistributedDataParallelConfig": "ddp.",
    "OptimizerConfig": "optimizer.",
    "TrainingConfig": "train.",
    "RNGConfig": "rng.",
    "MegatronStrategy": "trainer.strategy.",
    "WorkloadBaseConfig": "harness.",  # scripts/performance of Megatron-Bridge v0.2.0 to v0.6.0
}
_SPECIAL = {
    "harness.moe_a2a_overlap": "bridge.moe_a2a_overlap",
    "harness.moe_flex_dispatcher_backend": "bridge.apply_flex_dispatcher_backend",
    "@apply_flex_dispatcher_backend": "bridge.apply_flex_dispatcher_backend",
    "@forward_step": "bridge.forward_step",
}


@dataclass(frozen=True)
class _Statement:
    name: str
    slot: Slot
    since: int

    @property
    def order(self) -> int:
        """A value takes effect when it is written, or when the object that holds it is put in place."""
        return max(self.slot.order, self.since)


def add_settings(reading: Reading, root: Thing, vocabulary: Vocabulary) -> None:
    """Record everything the object holds."""
    prefix = _PLACES.get(root.kind, "model." if is_model(root.kind) else "")
    for statement in sorted(_statements(root, prefix, 0, ()), key=lambda s: s.order):
        _add(reading, statement, vocabulary)


def add_callbacks(reading: Reading, things: list[Thing]) -> None:
    """NeMo's `MegatronCommOverlapCallback(...)` carries its fields to the model.

    Source: NVIDIA-NeMo/NeMo nemo/lightning/pytorch/callbacks/megatron_comm_overlap.py.
    """
    for thing in things:
        if thing.kind == "MegatronCommOverlapCallback":
            for name, slot in thing.cells.items():
                if field_table().get(f"model.{name}"):
                    value, place = plain_value(slot.value), slot.place
                    reading.add(
                        f"model.{name}", value, line=place.line, text=place.text, span=place.span,
                        derived_from=thing.kind,
                    )  # fmt: skip


def is_model(kind: str) -> bool:
    """Whether a class is a model's configuration: a provider of Bridge or a core TransformerConfig."""
    return kind.endswith(("Provider", "TransformerConfig")) or kind in ("GPTConfig", "MoEConfig")


def _statements(thing: Thing, prefix: str, since: int, path: tuple[int, ...]) -> Iterator[_Statement]:
    if id(thing) in path or len(path) > 12:
        return
    for name, slot in thing.cells.items():
        for written in history(slot):
            full = name if name.startswith("@") else f"{prefix}{name}"
            if isinstance(written.value, (Thing, Mapping)):
                yield _Statement(full, written, since)
                yield from _inside(written, full, since, (*path, id(thing)))
            else:
                yield _Statement(full, written, since)


def _inside(slot: Slot, name: str, since: int, path: tuple[int, ...]) -> Iterator[_Statement]:
    order = max(slot.order, since)
    if isinstance(slot.value, Thing):
        yield from _statements(slot.value, f"{name}.", order, path)
    elif isinstance(slot.value, Mapping):
        for key, item in slot.value.cells.items():
            yield _Statement(f"{name}.{key}", item, order)


def history(slot: Slot) -> list[Slot]:
    """A slot and all that it replaced, oldest first."""
    slots: list[Slot] = []
    current: Slot | None = slot
    while current is not None and len(slots) < 64:
        slots.append(current)
        current = current.before
    return slots[::-1]


def _add(reading: Reading, statement: _Statement, vocabulary: Vocabulary) -> None:
    slot, name = statement.slot, statement.name
    if name in _SPECIAL:
        _add_special(reading, _SPECIAL[name], slot)
    elif isinstance(slot.value, Thing):
        _add_object(reading, name, slot.value, slot, vocabulary)
    elif not isinstance(slot.value, Mapping):
        _add_value(reading, _placed(name, vocabulary), slot, vocabulary)


def _add_special(reading: Reading, path: str, slot: Slot) -> None:
    value, place = plain_value(slot.value), slot.place
    if value is UNKNOWN:
        reading.unresolved(path, line=place.line, text=place.text, why=slot.why or "the value needs running")
    else:
        reading.add(path, value, line=place.line, text=place.text)


def _placed(name: str, vocabulary: Vocabulary) -> str:
    """A bare attribute of an object that is itself the model, such as `model_cfg.num_layers`."""
    name = name.removeprefix("harness.")
    if name in ("micro_batch_size", "global_batch_size"):
        return f"train.{name}"
    if "." in name or concerns(vocabulary, name):
        return name
    found = vocabulary.setting(f"model.{name}")
    return f"model.{name}" if isinstance(found, Field) and found.path.startswith("model.") else name


def _add_value(reading: Reading, name: str, slot: Slot, vocabulary: Vocabulary) -> None:
    place: Place = slot.place
    value = plain_value(slot.value)
    if slot.quiet:
        target = vocabulary.setting(name)
        own = [target.path] if isinstance(target, Field) else []
        for path in (*own, *(implied(vocabulary.canonical(name) or "", UNKNOWN) or ())):
            reading.add(path, UNKNOWN, line=place.line, text=place.text, derived_from=slot.why)
        return
    why = slot.why or "the value needs running, or comes from outside the file"
    record(
        reading,
        vocabulary,
        name,
        value,
        line=place.line or None,
        text=place.text,
        span=place.span,
        why=why,
        derived_from=slot.derived_from,
    )


def _add_object(reading: Reading, name: str, thing: Thing, slot: Slot, vocabulary: Vocabulary) -> None:
    canonical, place = vocabulary.canonical(name), thing.place if thing.place.line else slot.place
    where: dict[str, Any] = {"line": place.line or None, "text": place.text}
    if canonical == "comm_overlap":
        if thing.kind == "CommOverlapConfig":
            add_comm_overlap(reading, set(thing.cells), **where)
    elif canonical in WHOLE_OBJECTS:
        if slot.order:
            record(reading, vocabulary, name, thing.kind.lower() or UNKNOWN, **where)
    elif name == "mixed_precision" and slot.order and not thing.kind:
        record(reading, vocabulary, name, UNKNOWN, **where)
    elif name == "dataset" and thing.kind and vocabulary.framework == "bridge":
        reading.add("dataset.kind", thing.kind, **where)
    elif name in ("model", "model.config") and is_model(thing.kind):
        reading.add("model.provider", thing.kind, **where)
    elif slot.order and not thing.cells and not thing.kind and concerns(vocabulary, name):
        _add_value(reading, name, Slot(UNKNOWN, slot.place, slot.order, slot.why), vocabulary)
