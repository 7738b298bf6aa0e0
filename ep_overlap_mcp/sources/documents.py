"""YAML and JSON documents -> readings: whose document it is, and what of it is Megatron's.

One list of dialects; the first that fits a document reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ep_overlap_mcp.settings.fields import Field
from ep_overlap_mcp.sources.bridge_documents import (
    is_bridge_overrides,
    is_run_config,
    read_bridge_overrides,
    read_run_config,
)
from ep_overlap_mcp.sources.document import Document
from ep_overlap_mcp.sources.flag_documents import is_flag_document, read_flag_document
from ep_overlap_mcp.sources.json_tree import json_tree
from ep_overlap_mcp.sources.names import DISTINCTIVE, FIELDS, SWIFT, Vocabulary
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.sources.record import takes
from ep_overlap_mcp.sources.role_documents import (
    is_nemo_rl,
    is_primus,
    is_roles,
    is_verl,
    read_nemo_rl,
    read_primus,
    read_roles,
    read_verl,
)
from ep_overlap_mcp.sources.tree import Node, Table, plain, statements
from ep_overlap_mcp.sources.yaml_tree import yaml_trees

if TYPE_CHECKING:
    from collections.abc import Callable

_SWIFT_KEYS = (
    "tuner_type",
    "train_type",
    "padding_free",
    "packing",
    "rlhf_type",
    "split_dataset_ratio",
    "load_safetensors",
)
_OF_ANOTHER_PROGRAM = ("architectures", "model_type", "_target_", "train_micro_batch_size_per_gpu", "zero_optimization")


@dataclass(frozen=True)
class Dialect:
    """A kind of document."""

    name: str
    fits: Callable[[Table], bool]
    read: Callable[[Document], Reading]


def read_yaml(text: str, file: str) -> list[Reading]:
    """One reading a YAML document that holds Megatron settings. Raises UnreadableError for broken YAML."""
    return _readings(yaml_trees(text, file), file)


def read_json(text: str, file: str) -> list[Reading]:
    """The reading of a JSON document. Raises UnreadableError for broken JSON."""
    return _readings([json_tree(text, file)], file)


def _readings(trees: list[Node], file: str) -> list[Reading]:
    readings = [_read(tree, file) for tree in trees if isinstance(tree, Table)]
    found = [reading for reading in readings if reading.recognised()]
    if len(found) > 1:
        for number, reading in enumerate(found, 1):
            reading.name = f"document {number}"
    return found


def _read(root: Table, file: str) -> Reading:
    dialect = next(dialect for dialect in DIALECTS if dialect.fits(root))
    return dialect.read(Document(root, file))


def _is_swift(root: Table) -> bool:
    return any(key in root for key in _SWIFT_KEYS) and not any(e.key == "stage" for e in root.entries)


def _read_swift(document: Document) -> Reading:
    """ms-swift's flat arguments."""
    reading = Reading("ms-swift", document.file, SWIFT.framework)
    reading.partial.append(document.inherits() or SWIFT.partial or "")
    return _recorded(reading, document, SWIFT)


def _read_fields(document: Document) -> Reading:
    """Fields of TransformerConfig, flat or in sections; complete unless it inherits or describes something else."""
    reading = Reading("fields", document.file, FIELDS.framework)
    if inherited := document.inherits():
        reading.partial.append(inherited)
    foreign = [key for key in _OF_ANOTHER_PROGRAM if key in document.root]
    if foreign or "stage" in document.root:
        reading.partial.append(f"`{(foreign or ['stage'])[0]}` shows another program's file")
    return _recorded(reading, document, FIELDS)


def _recorded(reading: Reading, document: Document, vocabulary: Vocabulary) -> Reading:
    """Record it where it really sets what only Megatron has: `seed` is everybody's, prose about settings sets none."""
    taken = [
        takes(field, plain(entry.node))
        for name, entry in statements(document.root)
        if not isinstance(entry.node, Table) and (field := _megatrons(name, vocabulary))
    ]
    if sum(taken) * 2 > len(taken):
        document.record(reading, vocabulary)
    return reading


def _megatrons(name: str, vocabulary: Vocabulary) -> Field | None:
    found = vocabulary.setting(name)
    return found if isinstance(found, Field) and DISTINCTIVE.search(found.path) else None


DIALECTS = (
    Dialect("Megatron-LM flags", is_flag_document, read_flag_document),
    Dialect("verl", is_verl, read_verl),
    Dialect("NeMo-RL", is_nemo_rl, read_nemo_rl),
    Dialect("Primus", is_primus, read_primus),
    Dialect("ROLL", is_roles, read_roles),
    Dialect("Bridge run_config", is_run_config, read_run_config),
    Dialect("Bridge override file", is_bridge_overrides, read_bridge_overrides),
    Dialect("ms-swift", _is_swift, _read_swift),
    Dialect("fields", lambda _root: True, _read_fields),
)
