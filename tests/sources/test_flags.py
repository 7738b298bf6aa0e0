"""Megatron-LM flags -> settings, in every spelling that public files use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.flags import pattern_or_text, read_flags
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.sources.words import Word

EP = "model.expert_model_parallel_size"
LAYOUT = "model.pipeline_model_parallel_layout"
OVERLAP = "model.overlap_moe_expert_parallel_comm"


def read(*texts: str | Word, strict: bool = False) -> Reading:
    """The reading of some arguments, one a line; `strict` as Megatron-LM's own parser takes them."""
    reading = Reading("test", "argv", "megatron-lm", strict=strict)
    words = [t if isinstance(t, Word) else Word(t, line) for line, t in enumerate(texts, 1)]
    read_flags(words, reading)
    return reading


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (["--expert-model-parallel-size", "8"], EP, 8),
        (["--expert-model-parallel-size=8"], EP, 8),
        (["--expert_model_parallel_size", "'8'"], EP, 8),
        (["--llm-ep", "8"], EP, 8),
        (["--num-experts", "64"], "model.num_moe_experts", 64),
        (["--lr", "-1e-3"], "optimizer.lr", -0.001),
        (["--moe-shared-expert-overlap"], "model.moe_shared_expert_overlap", True),
        (["--moe-shared-expert-overlap", "True"], "model.moe_shared_expert_overlap", True),
        (["--moe-shared-expert-overlap", "false"], "model.moe_shared_expert_overlap", False),
        (["--disable-bias-linear"], "model.add_bias_linear", False),
        (["--no-gradient-accumulation-fusion"], "model.gradient_accumulation_fusion", False),
        (["--no-gradient-accumulation-fusion", "true"], "model.gradient_accumulation_fusion", False),
        (["--no-gradient-accumulation-fusion", "false"], "model.gradient_accumulation_fusion", True),
        (["--recompute-modules", "mlp", "moe"], "model.recompute_modules", ["mlp", "moe"]),
        (["--recompute-modules", "[mlp moe]"], "model.recompute_modules", ["mlp", "moe"]),
        (["--recompute-modules", "mlp,moe"], "model.recompute_modules", ["mlp", "moe"]),
        (["--recompute-modules", '["mlp", "moe_act"]'], "model.recompute_modules", ["mlp", "moe_act"]),
        (["--moe-router-load-balancing-type", "aux_loss"], "model.moe_router_load_balancing_type", ["aux_loss"]),
        (["--moe-layer-freq", "2"], "model.moe_layer_freq", 2),
        (["--moe-layer-freq", "([0]*1+[1]*3)"], "model.moe_layer_freq", [0, 1, 1, 1]),
        (["--moe-layer-freq", "[0] * 1 + [1] * 2"], "model.moe_layer_freq", [0, 1, 1]),
        (["--moe-layer-freq", "'([0]*1+[1]*2)'"], "model.moe_layer_freq", [0, 1, 1]),
        (["--pipeline-model-parallel-layout", "Et*3|(tt|)*6tmL"], LAYOUT, "Et*3|(tt|)*6tmL"),
        (["--pipeline-model-parallel-layout", "'Et|t|(tt|)*29tL'"], LAYOUT, "Et|t|(tt|)*29tL"),
        (["--pipeline-model-parallel-layout", r"'Et\|\(tt\|\)*30L'"], LAYOUT, "Et|(tt|)*30L"),
        (["--fp8-format", "hybrid"], "model.fp8", "hybrid"),
    ],
)
def test_every_spelling_of_a_value_is_understood(arguments: list[str], path: str, value: Any) -> None:
    """Separators, bare switches, off-flags, lists, layer expressions and layouts."""
    reading = read(*arguments)
    assert [(a.path, a.value) for a in reading.assignments] == [(path, value)]
    assert reading.complete


def test_settings_that_no_rule_reads_are_settings_too() -> None:
    """Megatron-LM's other flags take their values with them and say nothing aloud."""
    reading = read("--data-path", "1", "a", "2", "b", "--save", "$DIR", "--bf16")
    assert [(a.path, a.line) for a in reading.assignments] == [
        ("args.data_path", 1),
        ("args.save", 6),
        ("model.bf16", 8),
    ]
    assert reading.omissions == []


def test_flags_of_other_programs_are_look_alikes() -> None:
    """A flag that only resembles a setting is named and not taken; other unknown flags are unknown."""
    reading = read("--sglang-moe-a2a-backend", "deepep", "--vllm-ep-size", "4", "--rollout-batch-size", "8", "--bf16")
    assert [(o.kind, o.text) for o in reading.omissions] == [
        ("look-alike", "--sglang-moe-a2a-backend deepep"),
        ("look-alike", "--vllm-ep-size 4"),
        ("unknown name", "--rollout-batch-size 8"),
    ]
    assert [a.path for a in reading.assignments] == ["model.bf16"]


def test_values_that_no_parser_takes_leave_the_setting_unknown() -> None:
    """A missing or a wrong value is said, with the setting it belongs to."""
    reading = read("--num-experts", "--expert-model-parallel-size", "many", "--moe-token-dispatcher-type", "fast")
    assert [(a.path, a.value) for a in reading.assignments] == [
        ("model.num_moe_experts", UNKNOWN),
        (EP, UNKNOWN),
        ("model.moe_token_dispatcher_type", UNKNOWN),
    ]
    assert [(o.kind, o.path, o.line) for o in reading.omissions] == [
        ("not allowed", "model.num_moe_experts", 1),
        ("not allowed", EP, 2),
        ("not allowed", "model.moe_token_dispatcher_type", 4),
    ]


def test_unresolved_words_make_their_setting_unknown() -> None:
    """An unknown value, a flag that may be there, and a quoted unknown behind a switch."""
    value, maybe = Word("$EP", 1, None, ("EP",)), Word("--moe-shared-expert-overlap", 2, None, ("SHARED",))
    switch = Word("$GEMM", 3, None, ("GEMM",), quoted=True)
    reading = read("--expert-model-parallel-size", value, maybe, "--moe-grouped-gemm", switch)
    assert [(a.path, a.known) for a in reading.assignments] == [
        (EP, False),
        ("model.moe_shared_expert_overlap", False),
        ("model.moe_grouped_gemm", False),
    ]
    assert [o.why for o in reading.omissions] == [f"the text gives `{n}` no value" for n in ("EP", "SHARED", "GEMM")]
    assert reading.complete


@pytest.mark.parametrize("flag", ["--colocate", "--bf16", "--recompute-modules", "--swiglu"])
def test_an_unknown_array_is_no_value(flag: str) -> None:
    """`${ARGS[@]}` behind any flag may hold further options; what is not written is then unknown."""
    reading = read("--num-layers", "4", flag, Word("${ARGS[@]}", 4, None, ("ARGS",)))
    assert reading.partial == ["`${ARGS[@]}` may hold further options; the text gives `ARGS` no value"]


def test_an_unknown_word_behind_an_unknown_flag_is_its_value() -> None:
    """Only the first one: a second has no flag that it belongs to. What begins with text holds none."""
    assert read("--bf16", "--hf-checkpoint", Word("$DIR", 3, None, ("DIR",))).complete
    assert read("--bf16", "--sizes", "x", Word("a/$DIR", 5, None, ("DIR",))).complete
    assert not read("--bf16", "--hf-checkpoint", "x", Word("$MORE", 4, None, ("MORE",))).complete


@pytest.mark.parametrize("written", ["$EXTRA", "$(cat extra.txt)", "`cat extra.txt`", "${EXTRA[@]}"])
@pytest.mark.parametrize("before", [["--overlap-moe-expert-parallel-comm"], ["--lr", "1e-4"], ["--save", "x"]])
def test_unknown_text_may_hold_options(written: str, before: list[str]) -> None:
    """What stands before it keeps its value, and what is not written is unknown."""
    reading = read(*before, Word(written, 9, None, (written,)))
    assert [a.known for a in reading.assignments] == [True]
    assert len(reading.partial) == 1
    assert reading.partial[0].startswith(f"`{written}` may hold further options; ")


def test_a_list_may_go_on_in_unknown_text() -> None:
    """`--recompute-modules mlp $MORE` may name further modules, and options after them."""
    reading = read("--recompute-modules", "mlp", Word("$MORE", 3, None, ("MORE",)))
    assert [(a.path, a.known) for a in reading.assignments] == [("model.recompute_modules", False)]
    assert reading.partial == ["`$MORE` may hold further options; the text gives `MORE` no value"]


@pytest.mark.parametrize(
    ("arguments", "path", "told"),
    [
        (["--overlap_moe_expert_parallel_comm"], OVERLAP, "write `--overlap-moe-expert-parallel-comm`"),
        (["--overlap-moe-expert-parallel-com"], OVERLAP, "write `--overlap-moe-expert-parallel-comm`"),
        (["--no-overlap-moe-expert-parallel-comm"], OVERLAP, "leave `--overlap-moe-expert-parallel-comm` out"),
        (["--overlap-moe-expert-parallel-comm", "true"], OVERLAP, "takes no value for the switch"),
        (["--overlap-moe-expert-parallel-comm=true"], OVERLAP, "takes no value for the switch"),
        (["--disable-bias-linear", "true"], "model.add_bias_linear", "takes no value for the switch"),
        (["--recompute-gran", "full"], "model.recompute_granularity", "write `--recompute-granularity`"),
        (
            ["--virtual-pipeline-model-parallel-size", "2"],
            "model.virtual_pipeline_model_parallel_size",
            "write `--num-virtual-stages-per-pipeline-rank`",
        ),
        (["--cpu-offloading"], "model.cpu_offloading", "write `--cpu-offloading-num-layers`"),
        (["-bf16"], "model.bf16", "write `--bf16`"),
        (["--BF16"], "model.bf16", "write `--bf16`"),
        (["--rope-fusion"], "model.apply_rope_fusion", "it is on without; write `--no-rope-fusion` to switch it off"),
        (["--rope_fusion"], "model.apply_rope_fusion", "it is on without; write `--no-rope-fusion`"),
        (["--add-bias-linear"], "model.add_bias_linear", "it is on without; write `--disable-bias-linear`"),
        (["--overlap-p2p-communication"], "model.overlap_p2p_comm", "write `--no-overlap-p2p-communication`"),
    ],
)
def test_megatrons_own_parser_refuses_other_spellings(arguments: list[str], path: str, told: str) -> None:
    """What was meant is named and unknown; a program with a parser of its own may take the same words."""
    reading = read(*arguments, strict=True)
    assert [(a.path, a.known) for a in reading.assignments] == [(path, False)]
    assert [(o.kind, told in o.why) for o in reading.omissions] == [("not allowed", True)]
    assert "not allowed" not in [o.kind for o in read(*arguments).omissions]


@pytest.mark.parametrize(
    "flag",
    [
        "--rotary-scale-factor",  # a fork's, though near `--rotary-scaling-factor`
        "--train-data",  # a fork's, though `--train-data-path` begins so
        "--disable-bias-linear-fc",
        "--no-query-key-layer-scaling",
        "--data.micro-batch-size",
    ],
)
def test_a_flag_of_a_fork_is_unknown_and_not_refused(flag: str) -> None:
    """Forks add flags; only one slip in one word of a judged flag is a misspelling."""
    assert [o.kind for o in read(flag, "1", strict=True).omissions] == ["unknown name"]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--expert-parallel-size", "; did you mean `--expert-model-parallel-size`?"),
        ("--our-own-schedule", "unless your fork registers it"),
    ],
)
def test_an_unknown_flag_of_megatrons_own_program_says_what_its_parser_does(flag: str, told: str) -> None:
    """Only a fork takes it; another program's parser is not spoken of."""
    (omission,) = read(flag, "8", strict=True).omissions
    assert omission.why.startswith("no known Megatron-LM flag, which ends the run (unrecognized arguments)")
    assert omission.why.endswith(told)
    assert [o.why for o in read(flag, "8").omissions] == ["no known Megatron-LM flag"]


def test_a_comma_list_is_one_item_for_megatrons_own_parser() -> None:
    """No module has that name; other dialects split it."""
    arguments = ["--recompute-modules", "moe_act,layernorm"]
    (refused,) = read(*arguments, strict=True).omissions
    assert (refused.kind, refused.path) == ("not allowed", "model.recompute_modules")
    assert read(*arguments).assignments[0].value == ["moe_act", "layernorm"]
    assert read("--recompute-modules", "moe_act", "layernorm", strict=True).omissions == []


@pytest.mark.parametrize(
    ("arguments", "takes"),
    [
        (["--train-iters", "1e4"], "an integer"),
        (["--train-iters", "none"], "an integer"),
        (["--rotary-base", "1e6"], "an integer"),
        (["--lr-decay-style", "Cosine"], "one of constant, linear, cosine, inverse-square-root, WSD"),
        (["--recompute-granularity", "none"], "one of full, selective"),
        (["--attention-backend", "Flash"], "one of flash, fused, unfused, local, auto"),
        (["--rampup-batch-size", "32", "32"], "3 values"),
        (["--moe-aux-loss-coeff", "1e-2", "low"], "a number each"),
        (["--moe-layer-freq", "([0]*3 + [1]*58)"], "an integer or a pattern without spaces such as ([0]*3+[1]*58)"),
        (["--window-size", "128,x"], "integers between commas"),
    ],
    ids=" ".join,
)
def test_megatrons_own_parser_takes_values_of_its_types_only(arguments: list[str], takes: str) -> None:
    """argparse ends the run at what its type or its choices refuse."""
    (refused,) = read(*arguments, strict=True).omissions
    assert (refused.kind, refused.why.partition(" takes ")[2].partition(", got ")[0]) == ("not allowed", takes)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--train-iters", "1_000"],
        ["--rampup-batch-size", "32", "32", "1000"],
        ["--moe-layer-freq", "([0]*3+[1]*58)"],
        ["--window-size", "(128,0)"],
        ["--exit-signal", "SIGUSR1"],
        ["--save", "none"],
    ],
    ids=" ".join,
)
def test_what_the_types_take_is_known(arguments: list[str]) -> None:
    """Nothing of it is left out."""
    reading = read(*arguments, strict=True)
    assert (reading.omissions, [a.known for a in reading.assignments]) == ([], [True])


@pytest.mark.parametrize("words", ["--bf16 --recompute-granularity full", "--recompute-granularity selective\n--bf16"])
def test_options_in_one_word_are_none(words: str) -> None:
    """`"$OPTIONS"` with the quotes is a single argument, which Megatron-LM's parser does not recognise."""
    reading = read("--num-layers", "4", words, strict=True)
    assert [(o.kind, "because of its quotes" in o.why) for o in reading.omissions] == [("not allowed", True)]
    assert [a.path for a in reading.assignments] == ["model.num_layers"]


def test_a_fork_may_add_choices_to_what_no_rule_judges() -> None:
    """`--tokenizer-type` of another program has tokenizers of its own."""
    arguments = ["--tokenizer-type", "PretrainedFromHF"]
    assert [o.kind for o in read(*arguments, strict=True).omissions] == ["not allowed"]
    assert read(*arguments).omissions == []


def test_a_word_alone_is_refused() -> None:
    """`--num-experts` takes one word."""
    reading = read("--num-experts", "8", "16", strict=True)
    assert [(o.kind, o.text, o.line) for o in reading.omissions] == [("not allowed", "16", 3)]


def test_a_dispatcher_that_no_parser_takes_any_more() -> None:
    """Core still names `alltoall_seq`; argparse has not taken it since 0.14."""
    (refused,) = read("--moe-token-dispatcher-type", "alltoall_seq").omissions
    assert refused.why == "`model.moe_token_dispatcher_type` takes one of allgather, alltoall, flex, got 'alltoall_seq'"


def test_deprecated_spellings_are_settings_of_their_own() -> None:
    """What replaced them is the field table's business."""
    reading = read("--moe-layer-recompute", "--external-cuda-graph")
    assert [a.path for a in reading.assignments] == ["model.moe_layer_recompute", "model.external_cuda_graph"]


@pytest.mark.parametrize(
    "text",
    ["[1]*999999", "([1]*5000)*5000", "[" * 1500, "__import__('os')", "[x]", "1.5", "[1]-[1]", "9" * 1900, "[1]+1"],
)
def test_only_small_layer_expressions_are_evaluated(text: str) -> None:
    """Integers and lists under `+` and `*`, bounded; anything else stays the text it is."""
    assert pattern_or_text(text) == text


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), min_size=1, max_size=6))
def test_layer_expressions_have_the_value_python_gives(parts: list[tuple[int, int]]) -> None:
    """The small evaluator agrees with Megatron-LM's `eval`."""
    text = "(" + "+".join(f"[{kind}]*{count}" for kind, count in parts) + ")"
    assert pattern_or_text(text) == [kind for kind, count in parts for _ in range(count)]
