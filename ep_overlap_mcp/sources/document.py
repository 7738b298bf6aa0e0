"""One YAML or JSON document: its tree, and recording the statements of a part of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.fields import Field, field_table
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.interpolation import Interpolation
from ep_overlap_mcp.sources.record import concerns, record
from ep_overlap_mcp.sources.tree import Entry, Items, Table
from ep_overlap_mcp.sources.written_objects import written_value

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.names import Vocabulary
    from ep_overlap_mcp.sources.reading import Reading


_BASES = ("defaults", "bases", "extends", "includes")
# Objects that are a statement themselves: which class it is, or that it is there.
WHOLE_OBJECTS = ("peft", "dataset.packed_sequence_specs", "dataset.offline_packing_specs")


@dataclass
class Document:
    """A document whose root is a mapping."""

    root: Table
    file: str
    interpolation: Interpolation = field(init=False)

    def __post_init__(self) -> None:
        self.interpolation = Interpolation(self.root)

    def record(
        self, reading: Reading, vocabulary: Vocabulary, table: Table | None = None, *, prefix: str = "", at: str = ""
    ) -> None:
        """Record all statements below a mapping, the root by default.

        `prefix` is the name of the mapping in the vocabulary, `at` its place in the document; both end in a dot.
        """
        for entry in (table or self.root).entries:
            name, place = f"{prefix}{entry.key}", f"{at}{entry.key}"
            if isinstance(entry.node, Table) and not self._is_value(vocabulary, name):
                self._object(reading, vocabulary, name, entry)
                self.record(reading, vocabulary, entry.node, prefix=f"{name}.", at=f"{place}.")
                continue
            self.record_entry(reading, vocabulary, name, entry, at=place)
            if isinstance(entry.node, Table) and vocabulary.canonical(name) in WHOLE_OBJECTS:
                self.record(reading, vocabulary, entry.node, prefix=f"{name}.", at=f"{place}.")

    def record_entry(self, reading: Reading, vocabulary: Vocabulary, name: str, entry: Entry, *, at: str) -> None:
        """Record one statement."""
        if not concerns(vocabulary, name):
            return
        value, why = self.value(entry, at)
        if isinstance(entry.node, Table) and vocabulary.canonical(name) in WHOLE_OBJECTS:
            value = class_name(entry.node)
        record(reading, vocabulary, name, value, line=entry.line, text=entry.text, span=entry.node.span, why=why)

    def value(self, entry: Entry, at: str) -> tuple[Any, str]:
        """The plain value of an entry, interpolated; UNKNOWN comes with the reason."""
        return self.interpolation.value(at, written_value(entry.node))

    def inherits(self) -> str | None:
        """Why this is a part only: it names base files; `bases` and `extends` are Primus's words for them."""
        defaults = next((found for key in _BASES if (found := self.root.get(key)) is not None), None)
        named = [defaults.value] if not isinstance(defaults, (Items, Table)) and defaults else []
        if isinstance(defaults, Items):
            named = [written_value(item) for item in defaults.items]
        if not named:
            return None
        bases = ", ".join(str(n) for n in named if isinstance(n, str) and n != "_self_")
        return f"inherits from {bases or 'other files'}, which the text does not hold"

    @staticmethod
    def _is_value(vocabulary: Vocabulary, name: str) -> bool:
        if vocabulary.canonical(name) in WHOLE_OBJECTS:
            return True
        is_part = any(prefix == f"{name}." for prefix, _ in vocabulary.parts)
        return not is_part and isinstance(vocabulary.setting(name), Field)

    @staticmethod
    def _object(reading: Reading, vocabulary: Vocabulary, name: str, entry: Entry) -> None:
        if vocabulary.canonical(name) == "comm_overlap" and isinstance(entry.node, Table):
            written = {e.key for e in entry.node.entries}
            add_comm_overlap(reading, written, line=entry.line, text=entry.text)


def class_name(table: Table) -> Any:
    """`LoRA` of `_target_: megatron.bridge.peft.lora.LoRA`; UNKNOWN where the class is not named."""
    target = table.scalar("_target_")
    return target.rpartition(".")[2] if isinstance(target, str) else UNKNOWN


def add_comm_overlap(reading: Reading, written: set[str], *, line: int | None, text: str) -> None:
    """A `comm_overlap` object is there: what it does not say is None, which Bridge carries to the model as False."""
    derived = "CommOverlapConfig(...)"
    reading.add("comm_overlap.present", True, line=line, text=text, derived_from=derived)  # noqa: FBT003
    for path, known in field_table().by_path.items():
        if path.startswith("comm_overlap.") and known.name != "present" and known.name not in written:
            reading.add(path, None, line=line, text=text, derived_from=derived)
