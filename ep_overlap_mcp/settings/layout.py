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


def stage_faults(layout: Layout) -> list[str]:
    """What is wrong with the ends and the layer kinds of a layout, whatever the model; empty where nothing is."""
    flat = [kind for stage in layout.stages for kind in stage]
    strange = sorted(set(flat) - set(_LETTERS.values()))
    faults = [f"unknown layer kinds {', '.join(strange)}"] if strange else []
    if not flat or flat[0] != "embedding" or flat.count("embedding") != 1:
        faults.append("the embedding (E) must come first, once")
    if not flat or flat[-1] != "loss" or flat.count("loss") != 1:
        faults.append("the loss (L) must come last, once")
    return faults


def mtp_faults(layout: Layout, pp: int, *, beside_loss: bool) -> list[str]:
    """Where MTP layers may not stand, for PP stages of one or more chunks; `beside_loss` as 0.15 asks."""
    flat = [kind for stage in layout.stages for kind in stage]
    if "mtp" not in flat or pp < 1 or len(layout.stages) % pp:
        return []
    faults = []
    if "decoder" in flat[flat.index("mtp") :]:
        faults.append("decoder layers (t) stand behind MTP layers (m)")
    holders = [index for index, stage in enumerate(layout.stages) if "mtp" in stage]
    if any(index < len(layout.stages) - pp for index in holders):
        faults.append("MTP layers must be in the last chunk of their rank")
    if len(holders) > 1:
        faults.append("all MTP layers must be in one chunk")
    if beside_loss and any(index != len(layout.stages) - 1 for index in holders):
        faults.append("MTP layers must be in the last stage, beside the loss")
    return faults
