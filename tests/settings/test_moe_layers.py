"""Which layers are MoE, by a number, a list or the expression that Megatron-LM's flag takes."""

from __future__ import annotations

from typing import Any

import pytest

from ep_overlap_mcp.settings.moe_layers import has_dense_layers, moe_layers


@pytest.mark.parametrize(
    ("freq", "layers", "expected"),
    [
        (1, 3, (True, True, True)),
        (2, 4, (True, False, True, False)),
        ([0, 1, 1], 3, (False, True, True)),
        ("([0]*1+[1]*2)", 3, (False, True, True)),
        ("([1]+[0])*2", 4, (True, False, True, False)),
        ([1, 1], 3, None),
        ([1, 2], 2, None),
        (0, 2, None),
        ("__import__('os')", 2, None),
        ("[1]*99999999999", 2, None),
        (True, 2, None),
    ],
)
def test_reads_moe_layer_frequencies(freq: Any, layers: int, expected: tuple | None) -> None:
    """Integers, lists and list expressions name the MoE layers; anything else is none, and nothing is run."""
    assert moe_layers(freq, layers) == expected


@pytest.mark.parametrize(
    ("freq", "dense"),
    [(1, False), (2, True), ([1, 1], False), ([0, 1], True), ("([0]*1+[1]*2)", True), ("every second", False)],
)
def test_dense_layers_are_seen_in_every_spelling(freq: Any, dense: bool) -> None:  # noqa: FBT001
    """What is no pattern leaves none."""
    assert has_dense_layers(freq) is dense
