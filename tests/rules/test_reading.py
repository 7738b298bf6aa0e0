"""EPO8xx: what the readers leave behind is said, and a later statement settles it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.rules import all_rules, find_rule
from ep_overlap_mcp.rules.checking import check
from ep_overlap_mcp.rules.engine import judge
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.sources.reading import Assignment, Reading
from ep_overlap_mcp.stack import parse_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ep_overlap_mcp.rules.engine import Outcome

EP = "model.expert_model_parallel_size"
DISPATCHER = "model.moe_token_dispatcher_type"


def read(*lines: Callable[[Reading], None]) -> Reading:
    """A text of which each line does one thing to the reading."""
    reading = Reading("megatron-lm", "train.sh", framework="megatron-lm")
    for line in lines:
        line(reading)
    return reading


def command(*lines: Callable[[Reading], None]) -> Reading:
    """The same for a command whose words Megatron-LM's own parser gets."""
    reading = read(*lines)
    reading.strict = True
    return reading


def outcome_of(
    rule: str, reading: Reading, stack: str = "megatron-lm==0.16.1", overrides: Sequence[Assignment] = ()
) -> Outcome:
    """How a reading rule comes out for one text."""
    known = find_rule(rule)
    assert known is not None
    request = build_request([reading], stack=parse_stack(stack), overrides=overrides, assume="as_written")
    found = judge(known, [View(request, release) for release in request.releases()])
    assert found is not None
    return found


def says(path: str, value: Any, line: int = 1) -> Callable[[Reading], None]:
    """A line that states a value."""
    return lambda reading: reading.add(path, value, line=line, text=f"{path}={value}")


def leaves_out(kind: Any, text: str, why: str = "", path: str | None = None) -> Callable[[Reading], None]:
    """A line that was not taken."""
    return lambda reading: reading.left_out(text, 3, why, kind=kind, path=path)


VIOLATED: list[tuple[str, Reading, str]] = [
    (
        "setting-unknown-to-version",
        read(says("model.moe_latent_size", 512, line=4)),
        (
            "not known to megatron-core 0.15.3: moe_latent_size, in 0.16.1 to main (train.sh:4); "
            "remove what the release lacks"
        ),
    ),
    (
        "value-not-resolved",
        read(lambda r: r.unresolved(EP, line=3, text="--expert-model-parallel-size ${EP}", why="EP is set nowhere")),
        "value not settled by the text: `--expert-model-parallel-size ${EP}` (train.sh:3): EP is set nowhere",
    ),
    (
        "duplicate-setting-last-wins",
        read(says(DISPATCHER, "alltoall", line=2), says(DISPATCHER, "flex", line=9)),
        "written more than once, the last counts: model.moe_token_dispatcher_type=flex (train.sh:9)",
    ),
    (
        "deprecated-name",
        read(says("model.moe_layer_recompute", value=True, line=5)),
        "deprecated: model.moe_layer_recompute (use model.recompute_modules) (train.sh:5)",
    ),
    (
        "look-alike-ignored",
        read(leaves_out("look-alike", "--sglang-moe-a2a-backend deepep")),
        "belongs to another program: `--sglang-moe-a2a-backend deepep` (train.sh:3)",
    ),
    (
        "dead-setting",
        read(leaves_out("dead", "cfg.model.moe_a2a_overlap = True")),
        "nothing reads it: `cfg.model.moe_a2a_overlap = True` (train.sh:3)",
    ),
    (
        "unknown-setting-ignored",
        read(leaves_out("unknown name", "--expert-model-parallel-sise 8")),
        "no known setting: `--expert-model-parallel-sise 8` (train.sh:3)",
    ),
    (
        "source-is-partial",
        read(lambda r: r.partial.append("the recipe is imported")),
        "what is not written is unknown: the recipe is imported",
    ),
    (
        "value-not-allowed",
        read(says(EP, "eight", line=3)),
        f"`{EP}=eight` (train.sh:3): `{EP}` takes an integer, got 'eight'",
    ),
    (
        "part-not-read",
        read(leaves_out("not read", "while [ $# -gt 0 ]", "a loop over the script's own arguments")),
        "left out: `while [ $# -gt 0 ]` (train.sh:3): a loop over the script's own arguments",
    ),
    (
        "shell-needs-lf-line-ends",
        read(leaves_out("line ends", "torchrun x.py \\", "bash ends the command there")),
        (
            "train.sh has CRLF line ends and breaks in line 3, `torchrun x.py \\`: bash ends the command there. "
            "Mend it with `sed -i 's/\\r$//'` or `dos2unix`; all else is judged as if the line ends were LF"
        ),
    ),
    (
        "value-unknown-to-version",
        read(says("optimizer.optimizer", "lion", line=7)),
        "not among the choices of Megatron-LM 0.15.3: optimizer lion (takes adam, sgd) (train.sh:7)",
    ),
    (
        "required-arguments-stated",
        command(says("model.num_layers", 48), says("model.hidden_size", 2048), says("args.encoder_seq_length", 4096)),
        (
            "Megatron-LM asserts at start-up what this command does not say: --num-attention-heads, "
            "--max-position-embeddings, --micro-batch-size; give the whole command"
        ),
    ),
]


@pytest.mark.parametrize(("rule", "reading", "message"), VIOLATED, ids=[case[0] for case in VIOLATED])
def test_says_what_the_reader_found(rule: str, reading: Reading, message: str) -> None:
    """The message quotes the text, its place and the reason."""
    found = outcome_of(rule, reading, "megatron-lm==0.15.3")
    assert (found.state, found.message) == ("violated", message)


@pytest.mark.parametrize("rule", [case[0] for case in VIOLATED])
def test_is_silent_about_a_clean_text(rule: str) -> None:
    """A text that was read whole leaves nothing to say."""
    assert outcome_of(rule, read(says(EP, 8)), "megatron-lm==0.15.3").state == "met"


def test_a_later_value_settles_what_was_not_resolved() -> None:
    """`--set` gives the value that the text left open, and the warning goes."""
    reading = read(lambda r: r.unresolved(EP, line=3, text="${EP}", why="EP is set nowhere"))
    given = Assignment(EP, 8, None, "--set")
    assert outcome_of("value-not-resolved", reading, overrides=[given]).state == "met"


def test_a_folder_that_a_variable_names_is_settled_enough() -> None:
    """`checkpoint.save=$HOME/run` is set; an EP size of `${EP}` is not known."""
    folder, size = ("checkpoint.save", "$HOME/run"), (EP, "${EP}")
    said = [
        outcome_of("value-not-resolved", read(lambda r, p=path, t=text: r.unresolved(p, line=3, text=t, why="-"))).state
        for path, text in (folder, size)
    ]
    assert said == ["met", "violated"]


def test_the_same_value_twice_is_no_duplicate() -> None:
    """Only values that differ mislead."""
    reading = read(says(DISPATCHER, "flex", line=2), says(DISPATCHER, "flex", line=9))
    assert outcome_of("duplicate-setting-last-wins", reading).state == "met"


def test_a_what_if_is_no_duplicate() -> None:
    """The switch that `--assume overlap` turns on was not written twice."""
    reading = read(says("model.overlap_moe_expert_parallel_comm", value=False))
    request = build_request([reading], stack=parse_stack("megatron-lm==0.16.1"), assume="overlap")
    rule = all_rules()["EPO803"]
    assert [outcome.state for outcome in [judge(rule, [View(request, r) for r in request.releases()])] if outcome] == [
        "met"
    ]


def test_a_setting_of_some_releases_narrows_an_unknown_release() -> None:
    """Without a release, a setting that only some have is taken to say which."""
    reading = read(says("model.moe_flex_dispatcher_num_sms", 24))
    assert outcome_of("setting-unknown-to-version", reading, "torch==2.9.0").state == "met"


@pytest.mark.parametrize(
    ("path", "value", "taken"),
    [
        ("optimizer.optimizer", "lion", ["0.17.1", "0.18.2", "0.19.0", "main"]),
        ("args.ckpt_format", "zarr", ["0.14.0", "0.15.3"]),
        (
            "model.moe_router_load_balancing_type",
            ["aux_loss", "global_aux_loss"],
            ["0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.0", "main"],
        ),
    ],
)
def test_a_choice_belongs_to_releases(path: str, value: Any, taken: list[str]) -> None:
    """Each release's parser has its own choices; of a list every item counts."""
    text = read(says(path, value))
    states = {
        label: outcome_of("value-unknown-to-version", text, f"megatron-lm=={label}").state
        for label in ("0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.0", "main")
    }
    assert [label for label, state in states.items() if state == "met"] == taken


def test_a_choice_narrows_an_unknown_release() -> None:
    """Without a release, `lion` is taken to say that it is 0.17 or later."""
    request = build_request([read(says("optimizer.optimizer", "lion"))], stack=parse_stack(""))
    assert [r.core.label for r in request.releases()] == ["0.17.1", "0.18.2", "0.19.0", "main"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        command(says("args.use_checkpoint_args", value=True)),
        command(lambda reading: reading.waits_for("`${MODEL_ARGS[@]}` may hold further options", "MODEL_ARGS")),
        read(says("model.num_layers", 48)),
    ],
    ids=["a checkpoint", "an array that is set elsewhere", "flags without a command"],
)
def test_what_may_be_said_elsewhere_is_not_missed(elsewhere: Reading) -> None:
    """Only a whole command of Megatron-LM's own script lacks what it does not say."""
    assert outcome_of("required-arguments-stated", elsewhere).state == "met"


def test_deprecation_depends_on_the_release() -> None:
    """`cuda_graph_scope` is the name of its time up to 0.17."""
    reading = read(says("model.cuda_graph_scope", ["attn"]))
    states = {v: outcome_of("deprecated-name", reading, f"megatron-lm=={v}").state for v in ("0.17.1", "0.18.2")}
    assert states == {"0.17.1": "met", "0.18.2": "violated"}


def test_long_lists_are_cut_with_a_count() -> None:
    """Four omissions are shown, the others counted."""
    reading = read(*[leaves_out("unknown name", f"--strange-{n}") for n in range(6)])
    assert outcome_of("unknown-setting-ignored", reading).message.endswith("`--strange-3` (train.sh:3) and 2 more")


def test_the_check_reports_floors_taken_as_met() -> None:
    """An unknown torch counts as new enough, and one note says so."""
    switch = says("model.overlap_moe_expert_parallel_comm", value=True)
    request = build_request([read(switch)], stack=parse_stack("megatron-lm==0.16.1"))
    notes = [f.message for f in check(request).findings if f.name == "assumed-version-floor"]
    assert len(notes) == 1
    assert "torch-at-least-2-6" in notes[0]
    assert "runtime.torch" in notes[0]


@pytest.mark.parametrize(
    ("stack", "state"),
    [("megatron-lm==0.19.0", "met"), ("megatron-lm==main", "met"), ("megatron-lm==0.25.0", "undecided"), ("", "met")],
)
def test_a_release_that_the_rules_do_not_know_is_undecided(stack: str, state: str) -> None:
    """No setting would decide it; a release that is not given is one of those that are known."""
    found = outcome_of("release-known-to-the-rules", read(says(EP, 8)), stack)
    assert (found.state, found.needs) == (state, frozenset())
    assert found.why.startswith("megatron-core 0.25.0 is newer than every release") is (state == "undecided")


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ("megatron-lm==0.16.9", "megatron-core 0.16.9 is judged like 0.16.1"),
        ("megatron-core==0.15.4", "megatron-core 0.15.4 is judged like 0.15.3"),
        ("megatron-bridge==0.5.7", "megatron-bridge 0.5.7 is judged like 0.5.1"),
        (
            "megatron-bridge==0.5.7,megatron-core==0.18.9",
            "megatron-core 0.18.9 is judged like 0.18.2, megatron-bridge 0.5.7",
        ),
        ("megatron-lm==0.16.0", ""),
        ("megatron-lm==0.16.0rc3", ""),
        ("megatron-core==0.16.1.post1", ""),
        ("megatron-bridge==0.2.2", ""),
        ("megatron-lm==main", ""),
        ("megatron-lm==dev", ""),
        ("megatron-lm==0.25.0", ""),  # EPO813
        ("", ""),
    ],
)
def test_a_patch_release_that_was_not_read_is_said(stack: str, said: str) -> None:
    """It may exist; what it is judged like is named."""
    found = outcome_of("patch-release-known-to-the-rules", read(says(EP, 8)), stack)
    assert (found.state, said in found.message) == ("violated" if said else "met", True)


def test_every_reading_rule_is_tested() -> None:
    """Each rule of 8xx has its case; floors are reported by the check itself, and a newer release is undecided."""
    names = {rule.name for code, rule in all_rules().items() if code.startswith("EPO8")}
    apart = {"assumed-version-floor", "release-known-to-the-rules", "patch-release-known-to-the-rules"}
    assert {case[0] for case in VIOLATED} | apart == names
