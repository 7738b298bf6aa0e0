"""What the verbs do for any transport: order of sources, roots, versions of the training environment."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.hardware import UnknownGpuError
from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.stack import Component, Stack, parse_stack
from ep_overlap_mcp.verbs import (
    Question,
    UsageError,
    as_overrides,
    check_configuration,
    diagnose_run,
    propose_configuration,
    requests,
    wgrad_conflicts,
    with_installed,
)

if TYPE_CHECKING:
    from pathlib import Path

FIELDS: dict[str, Any] = {
    "num_layers": 12,
    "num_moe_experts": 16,
    "expert_model_parallel_size": 8,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "bf16": True,
    "overlap_moe_expert_parallel_comm": True,
}
STACK = "megatron-core==0.18.2"


def test_files_then_text_then_overrides(tmp_path: Path) -> None:
    """Later ones win, and every earlier origin is kept."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(FIELDS))
    second.write_text(json.dumps({"num_layers": 16, "num_moe_experts": 32}))
    question = Question(
        files=(first, second),
        text="num_layers: 20\nnum_moe_experts: 64\n",
        overrides=("model.num_layers=24",),
        stack=STACK,
        roots=(tmp_path,),
    )
    (result,) = check_configuration(question)
    shown = result.settings["model.num_layers"]
    assert (shown.value, shown.origin.file) == (24, "--set")
    assert [place.file for place in shown.earlier] == [str(first), str(second), "configuration"]
    assert result.settings["model.num_moe_experts"].value == 64


def test_a_script_with_crlf_line_ends_is_invalid_and_all_else_is_judged(tmp_path: Path) -> None:
    """What bash breaks at is an error beside the others; the same text as YAML or Python would be sound."""
    script = "python pretrain_gpt.py --bf16 --num-layers 2 --num-experts 8 --disable-bias-linear \\\n"
    script += "  --overlap-moe-expert-parallel-comm --expert-model-parallel-size 1 \\\n"
    script += "  --moe-token-dispatcher-type alltoall --moe-grouped-gemm --position-embedding-type rope\n"
    path = tmp_path / "train.sh"
    errors = []
    for text in (script, script.replace("\n", "\r\n")):
        path.write_bytes(text.encode())
        (result,) = check_configuration(Question(files=(path,), stack="megatron-lm==0.18.2", roots=(tmp_path,)))
        errors.append([f.name for f in result.findings if f.severity == "error"])
    assert errors[0] == ["needs-expert-parallelism"]
    assert errors[1] == ["needs-expert-parallelism", "shell-needs-lf-line-ends"]


def test_no_configuration_is_refused() -> None:
    """Nothing to judge is bad usage, not a pass."""
    with pytest.raises(UsageError, match="no configuration given"):
        check_configuration(Question())


@pytest.mark.parametrize("numbers", [{"nodes": 0}, {"gpus_per_node": -1}, {"nodes": 10**9}])
def test_impossible_hardware_is_refused(numbers: dict[str, int]) -> None:
    """Numbers that no machine has are refused by their argument's name."""
    with pytest.raises(UsageError, match=next(iter(numbers)).replace("_", "-")):
        check_configuration(Question(text=json.dumps(FIELDS), **numbers))


def test_an_unknown_gpu_is_refused_with_those_that_are_known() -> None:
    """A misspelled GPU would else leave rules undecided for want of what was given."""
    with pytest.raises(UnknownGpuError, match="`H1000O` is not known; known: A100"):
        check_configuration(Question(text=json.dumps(FIELDS), gpu="H1000O"))
    with pytest.raises(UnknownGpuError, match="`H1000O` is not known"):
        check_configuration(Question(text=json.dumps(FIELDS), overrides=("hardware.gpu=H1000O",)))


def test_files_outside_the_roots_are_refused_after_links(tmp_path: Path) -> None:
    """A link inside a root to a file outside it is refused; what the file holds is not told."""
    inside, outside = tmp_path / "project", tmp_path / "secret.yaml"
    inside.mkdir()
    outside.write_text("num_layers: 4\npassword: hunter2\n")
    (inside / "link.yaml").symlink_to(outside)
    (inside / "folder").symlink_to(tmp_path)
    for path in (inside / "link.yaml", inside / "folder" / "secret.yaml", inside / ".." / "secret.yaml", outside):
        with pytest.raises(Refusal, match="outside the allowed directories") as refused:
            check_configuration(Question(files=(path,), roots=(inside,)))
        assert "hunter2" not in str(refused.value)


def test_a_link_that_stays_inside_is_read(tmp_path: Path) -> None:
    """Links are resolved, not forbidden."""
    (tmp_path / "real.json").write_text(json.dumps(FIELDS))
    (tmp_path / "link.json").symlink_to("real.json")
    (result,) = check_configuration(Question(files=(tmp_path / "link.json",), stack=STACK, roots=(tmp_path,)))
    assert result.verdict == "valid"


RECIPES = """\
from megatron.bridge.recipes.somewhere import some_config


def first_config():
    cfg = some_config()
    cfg.model.expert_model_parallel_size = 8
    return cfg


def second_config():
    cfg = some_config()
    cfg.model.expert_model_parallel_size = 16
    return cfg
"""


def test_each_recipe_function_is_a_request_with_the_common_files(tmp_path: Path) -> None:
    """What stands in other files holds for all of them."""
    (tmp_path / "recipes.py").write_text(RECIPES)
    (tmp_path / "site.overrides").write_text("model.num_layers=40\ntrain.micro_batch_size=1\n")
    question = Question(files=(tmp_path / "recipes.py", tmp_path / "site.overrides"), roots=(tmp_path,))
    found = [
        (r.name, r.settings["model.expert_model_parallel_size"].value, r.settings["model.num_layers"].value)
        for r in requests(question)
    ]
    assert found == [("first_config", 8, 40), ("second_config", 16, 40)]


def test_two_files_of_several_recipes_cannot_be_paired(tmp_path: Path) -> None:
    """Which function of one goes with which of the other is for the caller to say."""
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(RECIPES)
    with pytest.raises(UsageError, match="--select"):
        requests(Question(files=(tmp_path / "a.py", tmp_path / "b.py"), roots=(tmp_path,)))


def test_a_comparison_takes_one_configuration(tmp_path: Path) -> None:
    """Two texts that differ in one setting; several configurations on a side are refused."""
    before, after = (Question(text=json.dumps({**FIELDS, "num_layers": n}), stack=STACK) for n in (12, 24))
    (change,) = diagnose_run(before=before, after=after).changed
    assert (change.path, change.before, change.after) == ("model.num_layers", 12, 24)
    (tmp_path / "recipes.py").write_text(RECIPES)
    with pytest.raises(UsageError, match="--select"):
        diagnose_run(after=Question(files=(tmp_path / "recipes.py",), roots=(tmp_path,)))


def test_mappings_become_overrides() -> None:
    """As tools take them: strings as they are, all else as JSON."""
    given = {"model.fp8": "hybrid", "model.num_layers": 4, "model.bf16": True, "model.recompute_modules": ["moe"]}
    assert as_overrides(given) == (
        "model.fp8=hybrid",
        "model.num_layers=4",
        "model.bf16=true",
        'model.recompute_modules=["moe"]',
    )


def test_installed_versions_fill_what_was_not_given() -> None:
    """The caller's word stands; a missing Transformer Engine counts as absent, a missing DeepEP as unknown."""
    from ep_overlap_mcp.training_env import TrainingEnvironment

    with closing(TrainingEnvironment(_python())) as environment:
        installed = environment.describe(fast=True).components
        stack = with_installed(parse_stack("torch==2.8.0"), environment)
    assert stack.components["torch"] == Component("2.8.0", "given")
    for name in ("megatron-core", "transformer-engine"):
        if installed[name].version or name == "transformer-engine":
            assert stack.components[name] == Component(installed[name].version, "installed")
    assert ("deep_ep" in stack.components) == (installed["deep_ep"].version is not None)


def test_a_given_megatron_lm_leaves_the_installed_core_out() -> None:
    """`megatron-lm==X` is core X too; an installed core of another version must not be mixed in."""
    from ep_overlap_mcp.training_env import TrainingEnvironment

    with closing(TrainingEnvironment(_python())) as environment:
        stack = with_installed(Stack({"megatron-lm": Component("0.18.2")}), environment)
    assert "megatron-core" not in stack.components


def _python() -> str:
    import sys

    return sys.executable


def test_a_patch_release_that_was_not_read_is_said_by_every_verb() -> None:
    """Judged like the last one that was, without a word it would pass for known."""
    question = Question(text=json.dumps(FIELDS), stack="megatron-core==0.16.9")
    said = "megatron-core 0.16.9 is judged like 0.16.1"
    assert any(said in finding.message for finding in check_configuration(question)[0].findings)
    assert any(said in advice.why for advice in propose_configuration(question)[0].advice)
    assert any(said in finding.message for finding in wgrad_conflicts(question)[0].findings)
