"""Several files of one configuration close each other's gaps; one alone stays a part."""

from __future__ import annotations

from ep_overlap_mcp.sources.shell import read_shell
from ep_overlap_mcp.sources.together import together

MODEL = "MODEL_ARGS=(\n    --num-layers 16\n    --num-experts 32\n)\n"
RUN = (
    '#!/bin/bash\nsource "$HERE/models/moe.sh"\n\nPERF_ARGS=(\n    --bf16\n)\n\n'
    "torchrun pretrain_gpt.py ${MODEL_ARGS[@]} ${PERF_ARGS[@]}\n"
)


def partial(*files: tuple[str, str]) -> list[str]:
    """Why the configuration of these files is a part only."""
    readings = [reading for name, text in files for reading in read_shell(text, name)]
    return [why for reading in together(readings) for why in reading.partial]


def test_a_script_and_the_model_that_it_sources_are_whole() -> None:
    """Neither waits for the other any more, in either order."""
    assert partial(("models/moe.sh", MODEL), ("run.sh", RUN)) == []
    assert partial(("run.sh", RUN), ("models/moe.sh", MODEL)) == []


def test_one_of_them_alone_is_a_part() -> None:
    """The script names what it waits for, the fragment that it is one."""
    assert partial(("run.sh", RUN)) == [
        "`${MODEL_ARGS[@]}` may hold further options; the text gives `MODEL_ARGS` no value",
        "line 2 sources `$HERE/models/moe.sh`, whose text is not here",
    ]
    assert partial(("models/moe.sh", MODEL)) == ["no training command is in the text: it is a part of one"]


def test_another_model_file_does_not_close_the_gap() -> None:
    """The sourced file is known by its name."""
    assert partial(("models/other.sh", MODEL), ("run.sh", RUN)) == [
        "line 2 sources `$HERE/models/moe.sh`, whose text is not here"
    ]


def test_an_array_that_a_whole_script_never_sets_is_empty() -> None:
    """No array comes out of the environment; in a pasted command it may stand for anything."""
    command = "torchrun pretrain_gpt.py --bf16 --num-layers 4 ${EVAL_ARGS[@]}\n"
    assert partial(("run.sh", f"#!/bin/bash\n{command}")) == []
    assert partial(("run.sh", command)) == [
        "`${EVAL_ARGS[@]}` may hold further options; the text gives `EVAL_ARGS` no value"
    ]


def test_an_array_from_a_program_is_not_empty() -> None:
    """What `read` or `mapfile` takes from a program is unknown."""
    filled = '#!/bin/bash\nread -ra EVAL_ARGS <<< "$(python3 options.py)"\n'
    assert len(partial(("run.sh", f"{filled}torchrun pretrain_gpt.py --bf16 --num-layers 4 ${{EVAL_ARGS[@]}}\n"))) == 1


def test_what_is_said_about_a_closed_gap_goes_with_it() -> None:
    """No omission is left of a variable that the other file sets."""
    readings = [r for name, text in (("models/moe.sh", MODEL), ("run.sh", RUN)) for r in read_shell(text, name)]
    assert [o.text for reading in together(readings) for o in reading.omissions] == []


def test_a_path_below_an_unknown_folder_holds_no_options() -> None:
    """`--data a ${DATA}/b` is data, whatever the variable says."""
    assert partial(("run.sh", "torchrun pretrain_gpt.py --bf16 --eval-data a ${DATA}/b.jsonl\n")) == []
