"""What a text has wrong on its own account: mended where it leaves no choice, named beside all else where it does."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.verbs import Question, check_configuration, propose_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from ep_overlap_mcp.results.propose import ProposeResult

STACK = "megatron-core==0.16.1,transformer-engine==2.9.0,torch==2.9.0"
SCRIPT = r"""#!/bin/bash
MODEL_ARGS=(
    --num-layers 48
    --hidden-size 2048
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --swiglu
    --disable-bias-linear
    --bf16
)
MOE_ARGS=(
    --num-experts 64
    --moe-grouped-gemm
    --moe-token-dispatcher-type allgather
    --expert-model-parallel-size 8
    --overlap-moe-expert-parallel-comm
)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${MOE_ARGS[@]}" \
    --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 9 --mock-data --tokenizer-type NullTokenizer \
    --vocab-size 32000
"""
DISPATCHER = ["-    --moe-token-dispatcher-type allgather", "+    --moe-token-dispatcher-type alltoall"]


def proposed(text: str) -> ProposeResult:
    [result] = propose_configuration(Question(text=text, stack=STACK))
    return result


def with_flags(*flags: str) -> str:
    """The script with further flags, each on a line of its own before `--bf16`."""
    return SCRIPT.replace("    --bf16\n", "".join(f"    {flag}\n" for flag in (*flags, "--bf16")))


def edits(result: ProposeResult) -> list[str]:
    """The lines that the patch takes out and puts in, without the dispatcher's."""
    assert result.patch is not None
    assert (result.patch.format, result.patch.verified) == ("diff", True), result.patch.text
    lines = [line for line in result.patch.text.splitlines()[2:] if line[:1] in "+-"]
    return [line for line in lines if line not in DISPATCHER]


MENDS = [
    # what stands in the script, and what the patch makes of it
    ("--qk-layernorm True", "--qk-layernorm"),
    ("--qk-layernorm=true", "--qk-layernorm"),
    ('--qk-layernorm "True"', "--qk-layernorm"),
    ("--qk-layernorm False", None),
    ("--qk_layernorm", "--qk-layernorm"),
    ("--qk_layernorm true", "--qk-layernorm"),
    ("--context_parallel_size 2", "--context-parallel-size 2"),
    ("--moe-router-topl 8", "--moe-router-topk 8"),
    ("--recompute-granularity Selective", "--recompute-granularity selective"),
    ("--recompute-modules moe_act,layernorm", "--recompute-modules moe_act layernorm"),
    ('--recompute-modules "moe_act layernorm"', "--recompute-modules moe_act layernorm"),
    ("--recompute_modules moe_act,layernorm", "--recompute-modules moe_act layernorm"),
    ("--moe-layer-freq ([0]*3+[1]*45)", '--moe-layer-freq "([0]*3+[1]*45)"'),
]


@pytest.mark.parametrize(("written", "meant"), MENDS, ids=[written for written, _ in MENDS])
def test_a_part_that_can_mean_one_thing_only_is_mended_by_the_patch(written: str, meant: str | None) -> None:
    """The change that the question needs and the edit that the text needs stand in one diff, which reads back valid."""
    result = proposed(with_flags(written))
    assert (result.verdict_before, result.verdict_after, result.blocked_by) == ("invalid", "valid", [])
    assert [change.path for change in result.changes] == ["model.moe_token_dispatcher_type"]
    assert edits(result) == [f"-    {written}", *([f"+    {meant}"] if meant else [])]
    assert {mend.rule for mend in result.mends} == {"value-not-allowed"}
    assert all(f"`{mend.before}` -> " in result.summary for mend in result.mends)


def test_every_mend_is_needed() -> None:
    """Each of several is an error by itself, and all of them stand in one patch."""
    flags = {"--qk-layernorm True": "--qk-layernorm", "--context_parallel_size 2": "--context-parallel-size 2"}
    result = proposed(with_flags(*flags))
    assert [(mend.before, mend.to, mend.path) for mend in result.mends] == [
        ("--qk-layernorm True", "--qk-layernorm", "model.qk_layernorm"),
        ("--context_parallel_size", "--context-parallel-size", "model.context_parallel_size"),
    ]
    for written in flags:
        others = [meant for flag, meant in flags.items() if flag != written]
        text = with_flags(written, *others).replace("allgather", "alltoall")
        [check] = check_configuration(Question(text=text, stack=STACK))
        assert [f.name for f in check.findings if f.severity == "error"] == ["value-not-allowed"]


def test_a_value_in_a_variable_of_its_own_is_mended_there() -> None:
    """Quotes stay where the shell splits the variable later."""
    text = with_flags("--recompute-modules $MODULES").replace(
        "MODEL_ARGS=(", 'MODULES="moe_act,layernorm"\nMODEL_ARGS=(', 1
    )
    assert edits(proposed(text)) == ['-MODULES="moe_act,layernorm"', '+MODULES="moe_act layernorm"']


def test_a_switch_that_takes_its_value_from_a_variable_is_named() -> None:
    """No edit of the line alone is known to be right; the other changes are there, and the message names this one."""
    result = proposed(with_flags("--qk-layernorm $ON").replace("MODEL_ARGS=(", "ON=True\nMODEL_ARGS=(", 1))
    assert (result.verdict_after, result.blocked_by, edits(result)) == ("invalid", ["value-not-allowed"], [])
    assert "write `--qk-layernorm` alone" in result.summary


def test_a_mended_setting_that_changes_anyway_is_told_once() -> None:
    """The change serves both rules."""
    result = proposed(with_flags("--moe-shared-expert-overlap True"))
    assert result.mends == []
    assert [(change.path, change.rules) for change in result.changes] == [
        ("model.moe_token_dispatcher_type", ["dispatcher-alltoall-or-flex"]),
        ("model.moe_shared_expert_overlap", ["no-shared-expert-overlap", "value-not-allowed"]),
    ]


def test_an_edit_that_no_diff_can_show_is_said_beside_what_to_add() -> None:
    """Two commands share the arrays, and only one of them is asked to change."""
    second = 'torchrun pretrain_gpt.py "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" --qk-layernorm True --mock-data\n'
    results = propose_configuration(Question(text=SCRIPT + second, stack=STACK))
    patch = results[1].patch
    assert patch is not None
    assert patch.format == "flags"
    assert patch.text.splitlines()[0] == "# change `--qk-layernorm True` to `--qk-layernorm` (configuration:24)"


# Line ends


@pytest.mark.parametrize("command", [["git", "apply"], ["patch", "-p1", "--fuzz=0", "-i"]], ids=["git", "patch"])
def test_one_diff_mends_crlf_line_ends_and_makes_the_changes(command: list[str], tmp_path: Path) -> None:
    """It applies byte by byte, leaves LF alone, and the file is valid then."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    path = tmp_path / "train.sh"
    path.write_bytes(with_flags("--qk-layernorm True").replace("\n", "\r\n").encode())
    asked: dict[str, Any] = {"files": (path,), "roots": (tmp_path,), "stack": STACK}
    [result] = propose_configuration(Question(**asked))
    assert (result.verdict_after, result.blocked_by) == ("valid", [])
    assert [(m.before, m.line, m.rule) for m in result.mends] == [
        ("CRLF line ends", None, "shell-needs-lf-line-ends"),
        ("--qk-layernorm True", 10, "value-not-allowed"),
    ]
    assert r"sed -i 's/\r$//'" in result.next
    assert result.patch is not None
    (tmp_path / "x.patch").write_bytes(result.patch.text.replace(str(path).lstrip("/"), "train.sh").encode())
    subprocess.run([*command, "x.patch"], cwd=tmp_path, check=True, capture_output=True)
    assert path.read_bytes().decode() == with_flags("--qk-layernorm").replace("allgather", "alltoall")
    [check] = check_configuration(Question(**asked))
    assert check.verdict == "valid"


# What is the user's to choose


@pytest.mark.parametrize(
    ("flag", "blocked", "edit"),
    [
        (
            "--context-parallel-size 3",
            ["world-divides-parallelism", "sequence-divides-by-context-parallel"],
            "context_parallel_size 1, 2, 4, 8, 16 would fit",
        ),
        ("--moe-router-topk eight", ["value-not-allowed"], "`model.moe_router_topk` takes an integer"),
        ("--qk-layernorm=maybe", ["value-not-allowed"], "write `--qk-layernorm` alone to set it, or leave it out"),
    ],
)
def test_what_the_user_must_choose_does_not_hide_the_other_changes(flag: str, blocked: list[str], edit: str) -> None:
    """The patch has all other changes; what is left is said with its edit, and the verdict stays invalid."""
    result = proposed(with_flags(flag))
    assert [change.path for change in result.changes] == ["model.moe_token_dispatcher_type"]
    assert (result.verdict_after, result.blocked_by, edits(result)) == ("invalid", blocked, [])
    assert edit in result.summary
    assert result.plan == []
    assert result.next.endswith("the patch makes the other changes")


def test_without_a_legal_overlap_there_is_no_part_of_a_proposal() -> None:
    """A dense model with a bad value: switching overlap on would leave it no better."""
    result = proposed(with_flags("--moe-router-topk eight").replace("    --num-experts 64\n", ""))
    assert (result.changes, result.patch) == ([], None)
    assert "needs-experts" in result.blocked_by


# Places of edits


def test_a_patch_above_a_sourced_file_is_still_one() -> None:
    """The reason why the rest is unknown names a line, which the patch moves."""
    text = with_flags("--moe-shared-expert-overlap").replace("torchrun", "source ./cluster.sh\ntorchrun")
    assert edits(proposed(text)) == ["-    --moe-shared-expert-overlap"]


def test_a_quoted_value_of_an_override_is_replaced_with_its_quotes() -> None:
    """As verl's scripts write them, with quotes around the value alone."""
    at = "actor_rollout_ref.actor.megatron.override_transformer_config"
    text = f'python3 -m verl.trainer.main_ppo \\\n    +{at}.moe_token_dispatcher_type="allgather" \\\n'
    text += f"    +{at}.overlap_moe_expert_parallel_comm=True trainer.nnodes=2\n"
    assert edits(proposed(text)) == [
        f'-    +{at}.moe_token_dispatcher_type="allgather" \\',
        f"+    +{at}.moe_token_dispatcher_type=alltoall \\",
    ]
