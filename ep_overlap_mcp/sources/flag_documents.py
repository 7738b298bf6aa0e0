"""`MODEL_ARGS:` and `ENV_VARS:` documents, as Megatron-LM's functional tests and Megatron-MoE-ModelZoo write them.

The run turns every entry into a command-line flag (NVIDIA/Megatron-LM@d98e8a64dd
tests/functional_tests/shell_test_utils/_run_training.sh:131-166): `true` is the bare flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.entry_points import read_model
from ep_overlap_mcp.sources.flags import Flag, add_flag, field_of
from ep_overlap_mcp.sources.names import FIELDS
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.sources.words import Word

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.document import Document
    from ep_overlap_mcp.sources.tree import Entry, Table


def is_flag_document(root: Table) -> bool:
    """`MODEL_ARGS:` with a mapping, or a mapping whose keys are flags."""
    return root.table("MODEL_ARGS") is not None or _all_flags(root)


def read_flag_document(document: Document) -> Reading:
    """One command's flags and environment; complete, as the command has no other flags."""
    reading = Reading("Megatron-LM YAML", document.file, "megatron-lm", strict=True)
    arguments = document.root.table("MODEL_ARGS")
    for name in ("ENV_VARS", "env_vars"):
        variables = document.root.table(name)
        if variables is not None:
            document.record(reading, FIELDS, variables, prefix="env_vars.", at=f"{name}.")
    flags = [
        _flag(document, entry, "MODEL_ARGS." if arguments else "") for entry in (arguments or document.root).entries
    ]
    for flag in flags:
        add_flag(flag, reading)
    read_model("", flags, reading, None)
    for entry in document.root.entries:
        if entry.key.startswith("MODEL_ARGS_"):
            reading.left_out(entry.text, entry.line, "the arguments of a later run of the same test")
    return reading


def _all_flags(root: Table) -> bool:
    return bool(root.entries) and all(entry.key.startswith("--") for entry in root.entries)


def _flag(document: Document, entry: Entry, at: str) -> Flag:
    name = entry.key if entry.key.startswith("-") else "--" + entry.key.replace("_", "-")
    value, _ = document.value(entry, f"{at}{entry.key}")
    found = field_of(name)
    items = found is not None and found[0].type == "list"
    return Flag(name, Word(name, entry.line), _values(entry, value, items=items))


def _values(entry: Entry, value: Any, *, items: bool) -> tuple[Word, ...]:
    """The words that the run puts behind a flag: `[a b]` and `a b` are two where the flag takes several."""
    line, span = entry.node.line, entry.node.span
    if value is UNKNOWN:
        written = entry.text.partition(":")[2].strip()
        return (Word(written, line, span, unresolved=(written or entry.key,)),)
    if value is None:
        return ()
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    if items:
        return tuple(Word(part, line, span) for part in _parts(text))
    return (Word(text.lower() if isinstance(value, bool) else text, line, span),)


def _parts(text: str) -> list[str]:
    bracketed = text.startswith("[") and text.endswith("]")
    return text[1:-1].replace(",", " ").split() if bracketed else text.split()
