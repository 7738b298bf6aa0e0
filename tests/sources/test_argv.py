"""Rendered argument lists -> settings."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.sources.argv import is_argv, read_argv
from ep_overlap_mcp.sources.reading import UnreadableError

EP = "model.expert_model_parallel_size"
LISTED = """\
pretrain_gpt.py
# rendered by the launcher
--num-layers 8
--expert-model-parallel-size=4
--recompute-modules moe_act layernorm
--pipeline-model-parallel-layout Et*3|(tt|)*6tmL
--moe-layer-freq "([0]*1+[1]*7)"
--bf16
"""


def test_one_flag_a_line() -> None:
    """No shell reads the list: bars, stars and parentheses are part of the values; the text is complete."""
    reading = read_argv(LISTED, "argv.txt")
    assert [(a.path, a.value, a.line, a.span and LISTED[slice(*a.span)]) for a in reading.assignments] == [
        ("model.num_layers", 8, 3, "8"),
        (EP, 4, 4, "4"),
        ("model.recompute_modules", ["moe_act", "layernorm"], 5, "moe_act layernorm"),
        ("model.pipeline_model_parallel_layout", "Et*3|(tt|)*6tmL", 6, "Et*3|(tt|)*6tmL"),
        ("model.moe_layer_freq", [0, 1, 1, 1, 1, 1, 1, 1], 7, "([0]*1+[1]*7)"),
        ("model.bf16", True, 8, "--bf16"),
    ]
    assert (reading.framework, reading.complete, reading.omissions) == ("megatron-lm", True, [])


@pytest.mark.parametrize("program", ["", "pretrain_gpt.py ", "torchrun --nproc_per_node 8 pretrain_gpt.py "])
def test_one_line_of_all(program: str) -> None:
    """The program's name may stand before the flags or not."""
    reading = read_argv(f"{program}--num-layers 8 --bf16", "argv.txt")
    found = {a.path: a.value for a in reading.assignments if not a.path.startswith("hardware.")}
    assert found == {"model.num_layers": 8, "model.bf16": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LISTED, True),
        ("--bf16\n--num-layers 8\n", True),
        ("torchrun pretrain_gpt.py \\\n  --bf16 \\\n  --fp8\n", False),
        ("export A=1\npython x.py\n", False),
        ("#!/bin/bash\n--bf16\n--fp8\n", False),
        ("ARGS=(\n  --bf16\n  --num-layers 8\n  --fp8\n)\npython x.py ${ARGS[@]}\n", False),
        ("", False),
    ],
)
def test_what_is_an_argument_list(text: str, expected: bool) -> None:  # noqa: FBT001
    """Most lines begin with a flag, and none is continued as in a script."""
    assert is_argv(text) is expected


def test_an_open_quote_is_refused() -> None:
    """The line is named."""
    with pytest.raises(UnreadableError, match=r"^argv.txt:2: the quote opened here is never closed; mend it there"):
        read_argv('--bf16\n--load "x\n', "argv.txt")


def test_too_many_arguments_are_refused() -> None:
    """No command has that many."""
    with pytest.raises(UnreadableError, match=r"^argv.txt: too large: more than 20000 arguments; give only the part"):
        read_argv("--bf16\n" * 20_001, "argv.txt")


@given(st.lists(st.one_of(st.sampled_from(["--bf16", "--num-layers", "8", "'", '"', "\\", "\n", " ", "="]), st.text())))
def test_no_text_breaks_the_reader(parts: list[str]) -> None:
    """Any text is read or refused."""
    with suppress(UnreadableError):
        assert read_argv("".join(parts), "argv.txt").dialect == "argv"
