"""Pipeline layouts: what a `pipeline_model_parallel_layout` says about stages and layers.

Grammar as in `PipelineParallelLayerLayout.parse_str_to_list`, NVIDIA/Megatron-LM@core_v0.16.1
megatron/core/transformer/pipeline_parallel_layer_layout.py: `E` embedding, `t` decoder, `m` MTP, `L` loss, `|` ends a
stage, `*n` repeats a letter or a parenthesised group, commas are cosmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LETTERS = {"E": "embedding", "L": "loss", "t": "decoder", "m": "mtp"}
_LONGEST = 65536


@dataclass(frozen=True)
class Layout:
    """Stages in pipeline order (PP x VPP of them), each the kinds of its layers."""

    stages: tuple[tuple[str, ...], ...]

    def count(self, kind: str) -> int:
        """How many layers of a kind there are: embedding, decoder, mtp or loss."""
        return sum(stage.count(kind) for stage in self.stages)

    @property
    def decoders_per_stage(self) -> tuple[int, ...]:
        """Decoder layers of each stage."""
        return tuple(stage.count("decoder") for stage in self.stages)


def parse_layout(layout: Any) -> Layout | None:
    """The layout of a string or a list of lists; None where Megatron could not parse it either."""
    if isinstance(layout, str):
        return _from_text(layout)
    if isinstance(layout, list) and all(isinstance(stage, list) for stage in layout):
        return Layout(tuple(tuple(str(kind).strip().lower() for kind in stage) for stage in layout))
    return None


def _from_text(text: str) -> Layout | None:
    text = _unquoted(text).replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d{1,4})", r"(.)\*(\d{1,4})"):
        text = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), text)
        if len(text) > _LONGEST:
            return None
    if not text or set(text) - set(_LETTERS) - {"|"}:
        return None
    return Layout(tuple(tuple(_LETTERS[letter] for letter in stage) for stage in text.split("|")))


def _unquoted(text: str) -> str:
    """Shells and launchers leave quotes and backslashes around layouts."""
    return text.replace("\\", "").strip().strip("\"'").strip()
