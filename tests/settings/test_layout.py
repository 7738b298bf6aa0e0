"""Pipeline layouts, as Megatron's own parser reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.settings.layout import Layout, mtp_faults, parse_layout, stage_faults

BEHIND = "decoder layers (t) stand behind MTP layers (m)"
KINDS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}


def stages(text: str) -> Layout | None:
    """The stages a plain string without repetition stands for."""
    return Layout(tuple(tuple(KINDS[letter] for letter in stage) for stage in text.split("|")))


@pytest.mark.parametrize(
    ("layout", "plain"),
    [
        ("Et|tL", "Et|tL"),
        ("Et*3|t*3L", "Ettt|tttL"),
        ("Ett|(tt|)*3tL", "Ett|tt|tt|tt|tL"),
        ("Et|t,m,L", "Et|tmL"),
        ("E,|t*2|(t|)*2mL", "E|tt|t|t|mL"),
        ('"Et|tL"', "Et|tL"),
        (r"Et\|tL", "Et|tL"),
        ("Et||tL", "Et||tL"),
    ],
)
def test_letters_repetition_and_what_launchers_leave(layout: str, plain: str) -> None:
    """`*n` repeats a letter or a group, commas are cosmetic, quotes and backslashes are the shell's."""
    assert parse_layout(layout) == stages(plain)


def test_a_list_of_lists_is_a_layout() -> None:
    """As Python recipes write it."""
    assert parse_layout([["embedding", "Decoder"], ["decoder", "loss"]]) == stages("Et|tL")


@pytest.mark.parametrize(
    "layout", ["", "Etx|L", "(tt", "tt)*2", None, 7, ["embedding"], "t*9999|" * 60, "(t*9999)*9999"]
)
def test_what_megatron_could_not_read_is_none(layout: object) -> None:
    """Nor what would expand beyond all bounds."""
    assert parse_layout(layout) is None


def test_counts() -> None:
    """Layers of a kind, and decoders of each stage."""
    layout = parse_layout("Ett|t|tmL")
    assert layout is not None
    assert (layout.count("decoder"), layout.count("mtp"), layout.decoders_per_stage) == (4, 1, (2, 1, 1))


@given(plain=st.lists(st.text(alphabet="Etm", max_size=4), min_size=1, max_size=6).map("|".join).filter(bool))
def test_a_plain_string_means_itself(plain: str) -> None:
    """Without repetition every letter is a layer and every bar a border."""
    assert parse_layout(plain) == stages(plain)


@given(
    group=st.text(alphabet="t|", min_size=1, max_size=4),
    times=st.integers(1, 9),
    tail=st.text(alphabet="tmL", max_size=3),
)
def test_a_repeated_group_is_that_many_groups(group: str, times: int, tail: str) -> None:
    """`(g)*n` is g, n times."""
    assert parse_layout(f"E({group})*{times}{tail}") == stages("E" + group * times + tail)


@pytest.mark.parametrize(
    ("layout", "faults"),
    [
        ("Et|tL", []),
        ("t|tL", ["the embedding (E) must come first, once"]),
        ("t|EtL", ["the embedding (E) must come first, once"]),
        ("EEt|tL", ["the embedding (E) must come first, once"]),
        ("Et|t", ["the loss (L) must come last, once"]),
        ("Et|Lt", ["the loss (L) must come last, once"]),
        ("EtL|tL", ["the loss (L) must come last, once"]),
        ([["embedding", "mamba", "loss"]], ["unknown layer kinds mamba"]),
    ],
)
def test_faults_of_the_ends(layout: object, faults: list[str]) -> None:
    """Whatever the model."""
    parsed = parse_layout(layout)
    assert parsed is not None
    assert stage_faults(parsed) == faults


@pytest.mark.parametrize(
    ("layout", "pp", "beside_loss", "faults"),
    [
        ("Et|t|t|tmL", 2, True, []),
        ("Et|t|t|mL", 2, False, []),
        ("Et|tm|t|tL", 2, False, [BEHIND, "MTP layers must be in the last chunk of their rank"]),
        ("Et|t|tm|mL", 2, False, ["all MTP layers must be in one chunk"]),
        ("Et|t|tm|L", 2, True, ["MTP layers must be in the last stage, beside the loss"]),
        ("Et|t|tm|L", 2, False, []),
        ("Et|t|tm|L", 4, False, []),
        ("Et|t|tm|L", 4, True, ["MTP layers must be in the last stage, beside the loss"]),
        ("Et|m|t|tL", 4, False, [BEHIND]),
        ("Et|t|m|mL", 4, False, ["all MTP layers must be in one chunk"]),
        ("Et|tm|L", 2, True, []),
        ("Et|tL", 2, True, []),
    ],
)  # fmt: skip
def test_faults_of_mtp(layout: str, pp: int, *, beside_loss: bool, faults: list[str]) -> None:
    """Where MTP layers may not stand; a layout that does not divide into the pipeline is another rule's."""
    parsed = parse_layout(layout)
    assert parsed is not None
    assert mtp_faults(parsed, pp, beside_loss=beside_loss) == faults
