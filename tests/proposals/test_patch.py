"""A patch of any dialect, applied and read again, makes the proposal's changes and no others."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.verbs import Question, check_configuration, propose_configuration, requests
from tests.proposals.dialects import DIALECTS

if TYPE_CHECKING:
    from pathlib import Path

    from ep_overlap_mcp.results.propose import ProposeResult

BASE: dict[str, Any] = {
    "num_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_moe_experts": 32,
    "expert_model_parallel_size": 8,
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "add_bias_linear": False,
    "bf16": True,
}
DIALS: dict[str, list[Any]] = {
    "moe_token_dispatcher_type": ["alltoall", "allgather"],
    "moe_shared_expert_overlap": [False, True],
    "recompute_granularity": [None, "full"],
    "recompute_method": [None, "uniform"],
    "recompute_num_layers": [None, 1],
    "recompute_modules": [None, ["moe_act"], ["moe", "moe_act", "layernorm"]],
    "pipeline_model_parallel_size": [1, 2],
    "moe_grouped_gemm": [True],
}
CONFIGURATIONS = st.tuples(
    st.permutations(list(DIALS)), st.fixed_dictionaries({n: st.sampled_from(v) for n, v in DIALS.items()})
)
STACK = "megatron-core==0.18.2,transformer-engine==2.12.0,torch==2.9.0"


def proposed(path: Path, select: str | None, stack: str = "") -> ProposeResult:
    [result] = propose_configuration(question(path, select, stack))
    return result


def question(path: Path, select: str | None = None, stack: str = "", assume: Any = "overlap") -> Question:
    return Question(files=(path,), roots=(path.parent,), select=select, stack=stack, assume=assume)


def written(asked: Question) -> dict[str, Any]:
    """What the text of the one configuration states, by path."""
    [request] = requests(asked)
    return {path: s.value for path, s in request.as_written.items() if not path.startswith(("runtime.", "hardware."))}


def applied(diff: str, text: str) -> str:
    """The text after a unified diff of one file, every context line compared."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    out: list[str] = []
    at = 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", diff)[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1][1:].split(",")[0])
            out += lines[at : start - 1]
            at = start - 1
        elif line.startswith("+"):
            out.append(line[1:])
        elif line.startswith("\\"):
            out[-1:] = [last.rstrip("\n") for last in out[-1:]]
        else:
            assert lines[at].rstrip("\n") == line[1:].rstrip("\n")
            out += [lines[at]] if line.startswith(" ") else []
            at += 1
    return "".join([*out, *lines[at:]])


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(CONFIGURATIONS)
def test_the_patch_makes_the_changes_and_no_others(
    dialect: str, tmp_path: Path, drawn: tuple[list[str], dict[str, Any]]
) -> None:
    """Each change is read back from the patched file; every other setting is stated as it was."""
    name, render, select = DIALECTS[dialect]
    order, dials = drawn
    path = tmp_path / name
    text = render({**BASE, **{dial: dials[dial] for dial in order}})
    path.write_text(text, encoding="utf-8")
    before = written(question(path, select))
    result = proposed(path, select)
    assert result.changes
    assert result.patch is not None
    assert (result.patch.format, result.patch.verified) == ("diff", True), result.patch.text
    path.write_text(applied(result.patch.text, text), encoding="utf-8")
    after = written(question(path, select, assume="as_written"))
    changes = {change.path: change.to for change in result.changes if "virtual" not in change.path}
    spared = {*changes, *(p for p in {*before, *after} if "virtual" in p)}  # several flags spell virtual stages
    assert {p: after.get(p) or None for p in changes} == {p: to or None for p, to in changes.items()}
    assert {p: v for p, v in after.items() if p not in spared} == {p: v for p, v in before.items() if p not in spared}
    [check] = check_configuration(question(path, select, assume="as_written"))
    assert check.verdict == result.verdict_after


# bash takes no CRLF, and a text on one line has no line end to keep
WITH_LINES = [name for name, (file, _, _) in DIALECTS.items() if not file.endswith(".sh") and "one line" not in name]


@pytest.mark.parametrize("dialect", WITH_LINES)
def test_a_patch_keeps_crlf_line_ends(dialect: str, tmp_path: Path) -> None:
    """Replaced, removed and added lines end as the file's lines do; else the patch is that of the file with LF."""
    name, render, select = DIALECTS[dialect]
    dials = {dial: values[-1] for dial, values in DIALS.items()}
    patched = []
    for end in ("\n", "\r\n"):
        text = render({**BASE, **dials}).replace("\n", end)
        (tmp_path / name).write_bytes(text.encode())
        result = proposed(tmp_path / name, select)
        assert result.patch is not None
        assert (result.patch.format, result.patch.verified) == ("diff", True), result.patch.text
        patched.append(applied(result.patch.text, text))
    assert patched[1] == patched[0].replace("\n", "\r\n")


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch(1) here")
def test_patch_applies_to_a_file_with_crlf_line_ends(tmp_path: Path) -> None:
    """The file that patch(1) leaves has no line that ends otherwise."""
    name, render, select = DIALECTS["flat YAML"]
    text = render({**BASE, "moe_shared_expert_overlap": True}).replace("\n", "\r\n")
    path = tmp_path / name
    path.write_bytes(text.encode())
    result = proposed(path, select)
    assert result.patch is not None
    command = ["patch", "--quiet", str(path)]
    subprocess.run(command, input=result.patch.text.encode(), check=True, capture_output=True)
    assert path.read_bytes().decode() == applied(result.patch.text, text)
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n")


def patch_of(tmp_path: Path, name: str, text: str, select: str | None = None, stack: str = "") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    result = proposed(path, select, stack)
    assert result.patch is not None
    assert result.patch.format == "diff", result.patch.text
    return "\n".join(line for line in result.patch.text.splitlines()[2:] if line[:1] in "+-")


FLAGS = "--num-layers 16 --hidden-size 64 --num-attention-heads 8 --num-experts 32 --bf16"


def command(*lines: str, before: str = "") -> str:
    """A script that sets variables and runs one command, a line for each flag."""
    return before + " \\\n    ".join([f"python pretrain_gpt.py {FLAGS}", *lines]) + "\n"


def test_a_variable_that_serves_one_flag_is_changed_where_it_is_set(tmp_path: Path) -> None:
    """The literal of the variable changes; the command stays."""
    flags = ("--expert-model-parallel-size 4", "--moe-token-dispatcher-type $DISPATCHER")
    assert patch_of(tmp_path, "train.sh", command(*flags, before="DISPATCHER=allgather\n")) == (
        "-DISPATCHER=allgather\n+DISPATCHER=alltoall\n+    --overlap-moe-expert-parallel-comm \\"
    )


def test_a_variable_with_other_uses_stays_and_the_flag_gets_the_value(tmp_path: Path) -> None:
    """A directory named after the dispatcher keeps its name."""
    flags = (
        "--save ckpt/$DISPATCHER --save-interval 100",
        "--expert-model-parallel-size 4",
        "--moe-token-dispatcher-type ${DISPATCHER}",
    )
    assert patch_of(tmp_path, "train.sh", command(*flags, before="DISPATCHER=allgather\n")) == (
        "-    --moe-token-dispatcher-type ${DISPATCHER}\n"
        "+    --overlap-moe-expert-parallel-comm \\\n"
        "+    --moe-token-dispatcher-type alltoall"
    )


def test_the_last_line_of_a_command_goes_with_the_backslash_before_it(tmp_path: Path) -> None:
    """No dangling continuation is left."""
    flags = (
        "--overlap-moe-expert-parallel-comm",
        "--moe-token-dispatcher-type alltoall",
        "--expert-model-parallel-size 4",
        "--moe-shared-expert-overlap",
    )
    assert patch_of(tmp_path, "train.sh", command(*flags)) == (
        "-    --expert-model-parallel-size 4 \\\n-    --moe-shared-expert-overlap\n+    --expert-model-parallel-size 4"
    )


def test_only_the_selected_function_of_a_recipe_changes(tmp_path: Path) -> None:
    """A keyword is added to the call of the second function; the first one stays as it is."""
    _, render, select = DIALECTS["recipe"]
    text = render({**BASE, "moe_token_dispatcher_type": "alltoall"})
    assert patch_of(tmp_path, "recipe.py", text, select) == ("+        overlap_moe_expert_parallel_comm=True,")


def test_two_configurations_that_share_a_line_get_no_diff(tmp_path: Path) -> None:
    """What one function sets for two is not edited for the sake of one."""
    path = tmp_path / "recipe.py"
    path.write_text(
        "from megatron.bridge.recipes.common import _pretrain_common\n\n\n"
        "def _shared(cfg):\n    cfg.model.moe_shared_expert_overlap = True\n"
        "    cfg.comm_overlap.tp_comm_overlap = False\n\n\n"
        "def one_config():\n    cfg = _pretrain_common()\n    _shared(cfg)\n    return cfg\n\n\n"
        "def two_config():\n    cfg = _pretrain_common()\n    _shared(cfg)\n    return cfg\n",
        encoding="utf-8",
    )
    formats = [
        r.patch.format
        for r in propose_configuration(question(path))
        if r.patch and r.configuration in ("one_config", "two_config")
    ]
    assert formats == ["python", "python"]


PAIRS = "ARGS=(\n    {0}\n    {1}\n)\ntorchrun pretrain_gpt.py ${{ARGS[@]}}" + f" {FLAGS}\n"
LEGAL = "--expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm"


def test_the_first_of_several_flags_on_a_line_goes_without_the_indent(tmp_path: Path) -> None:
    """What follows it takes its place."""
    text = PAIRS.format("--moe-shared-expert-overlap --seed 7", LEGAL)
    assert patch_of(tmp_path, "train.sh", text) == "-    --moe-shared-expert-overlap --seed 7\n+    --seed 7"


def test_a_line_of_which_nothing_is_left_goes(tmp_path: Path) -> None:
    """Three flags of one line are removed with the line; no blank one is left."""
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    assert patch_of(tmp_path, "train.sh", PAIRS.format(full, LEGAL)) == f"-    {full}"
    lines = (LEGAL, full)
    assert patch_of(tmp_path, "train.sh", command(*lines)) == f"-    {LEGAL} \\\n-    {full}\n+    {LEGAL}"


def test_a_layout_is_quoted_as_its_place_needs(tmp_path: Path) -> None:
    """A bar ends a command: quoted in a command, quoted twice for Ray's shell, bare inside a string of options."""
    uneven = "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 7"
    layout = "Ettttt|tttt|tttt|tttL"
    array = PAIRS.format(LEGAL, uneven)
    assert f' --pipeline-model-parallel-layout "{layout}"' in patch_of(tmp_path, "array.sh", array)
    ray = array.replace("torchrun", "ray job submit -- torchrun")
    assert f" --pipeline-model-parallel-layout \"'{layout}'\"" in patch_of(tmp_path, "ray.sh", ray)
    string = f'ARGS="{FLAGS} {LEGAL} {uneven}"\ntorchrun pretrain_gpt.py $ARGS\n'
    assert f" --pipeline-model-parallel-layout {layout}" in patch_of(tmp_path, "string.sh", string)


def test_a_computed_value_is_replaced_where_its_flag_uses_it(tmp_path: Path) -> None:
    """The arithmetic stays: others may use it."""
    before = "SIZE=$((2 * 1))\n"
    flags = ("--expert-model-parallel-size 4", "--mtp-num-layers $SIZE", "--overlap-moe-expert-parallel-comm")
    flags = (*flags, "--moe-token-dispatcher-type alltoall")
    assert patch_of(tmp_path, "train.sh", command(*flags, before=before)) == (
        "-    --mtp-num-layers $SIZE \\\n+    --mtp-num-layers 1 \\"
    )


@pytest.mark.parametrize(
    ("dispatcher", "verified"),
    [
        ("--moe-token-dispatcher-type allgather", True),
        ("--moe-token-dispatcher-{type,type=allgather}", False),
    ],
)
def test_the_next_step_says_whether_a_file_was_edited(tmp_path: Path, *, dispatcher: str, verified: bool) -> None:
    """A diff is to be applied; what is only to be added is not called a patch, and not verified."""
    path = tmp_path / "run.sh"
    switches = "--overlap-moe-expert-parallel-comm --bf16 --num-experts 8 --expert-model-parallel-size 8"
    path.write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS=32\ntorchrun pretrain_gpt.py {switches} {dispatcher}\n")
    result = proposed(path, None, "megatron-lm==0.16.1,torch==2.8.0,transformer-engine==2.9.0")
    assert result.patch is not None
    assert result.patch.verified is verified
    assert ("apply the patch" in result.next) is verified
    assert ("add these flags yourself" in result.next) is not verified
