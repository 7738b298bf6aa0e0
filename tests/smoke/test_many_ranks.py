"""Answers about many ranks stay short, and the odd rank stands first."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.smoke.nodes import _listed


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (["42 of 42"] * 2, "rank 0 42 of 42, rank 1 42 of 42"),
        (["42 of 42"] * 7 + ["0 of 42"], ", ".join(f"rank {rank} 42 of 42" for rank in range(7)) + ", rank 7 0 of 42"),
        (
            ["42 of 42"] * 1000 + ["0 of 42"] + ["42 of 42"] * 23,
            "rank 1000 0 of 42, " + ", ".join(f"rank {rank} 42 of 42" for rank in range(7)) + " and 1016 more ranks",
        ),
    ],
)
def test_ranks_are_listed_up_to_eight_the_odd_ones_first(counts, text):
    """Few are listed in their order."""
    assert _listed(counts) == text
