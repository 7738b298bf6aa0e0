"""Shell scripts as users write them -> settings."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.reading import CUT_DOWN, MEND, Reading, UnreadableError
from ep_overlap_mcp.sources.shell import read_shell

EP, TP, PP = (f"model.{name}_model_parallel_size" for name in ("expert", "tensor", "pipeline"))
DISPATCHER = "model.moe_token_dispatcher_type"
SHARED = "model.moe_shared_expert_overlap"
NAMES = {EP: "--expert-model-parallel-size", TP: "--tensor-model-parallel-size"}


def only(text: str) -> Reading:
    """The one reading of a script."""
    (reading,) = read_shell(text, "run.sh")
    return reading


def values(reading: Reading, *, hardware: bool = False) -> dict[str, object]:
    """The last value of every setting; `hardware.*` only where a test is about it."""
    last = {a.path: a.value for a in reading.assignments}
    return {path: v for path, v in last.items() if hardware or not path.startswith("hardware.")}


def why(reading: Reading) -> list[tuple[str, int | None, str]]:
    """Kind, line and reason of every omission."""
    return [(o.kind, o.line, o.why) for o in reading.omissions]


# Where a value comes from


def test_a_shell_inside_the_job_sees_what_its_directives_say() -> None:
    """Slurm exports `SLURM_NNODES`; no assignment of the script does."""
    reading = only("#SBATCH --nodes=4\nsrun bash -c 'torchrun --nnodes $SLURM_NNODES pretrain_gpt.py --bf16'\n")
    assert values(reading, hardware=True)["hardware.nodes"] == 4


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("EP=8", "$EP", 8),
        ("export EP=8", '"${EP}"', 8),
        ("", "${EP:-8}", 8),
        ("BASE=8\nEP=${EP:-${NODE_EP:-$BASE}}", "${EP}", 8),
        (": ${EP:=8}", "$EP", 8),
        ("EP=$((2 * 4))", "$EP", 8),
        ("N=2\n((EP = N * 4))", "$EP", 8),
        ("let EP=8", "$EP", 8),
        ("SIZES=(2 4 8)", "${SIZES[2]}", 8),
        ("SIZES=(1 2 3 4 5 6 7 8)", "${#SIZES[@]}", 8),
        ("NAME=EP\nEP=8", "${!NAME}", 8),
        ("FILE=model_8.sh\nEP=${FILE#model_}\nEP=${EP%.sh}", "$EP", 8),
        ("EP=4\nEP=8", "$EP", 8),
        ("EP=$(echo 8)", "$EP", 8),
        ("printf -v EP '%s' 8", "$EP", 8),
        ("set_ep() { EP=$1; }\nset_ep 8", "$EP", 8),
        ("EP=8  # EP=4", "$EP", 8),
        ("#SBATCH --nodes=8", "$SLURM_NNODES", 8),
    ],
)
def test_a_value_is_followed_through_the_script(before: str, word: str, expected: int) -> None:
    """Assignments, defaults, arithmetic, arrays, edits and functions are evaluated without running anything."""
    text = f"#!/bin/bash\n{before}\ntorchrun pretrain_gpt.py --expert-model-parallel-size {word}\n"
    assert values(only(text))[EP] == expected


@pytest.mark.parametrize("word", ["$EP", "${EP}", "$4", "${10}", "$(nproc)", "${EP:?set it}", "$((EP * 2))"])
def test_a_value_from_outside_is_unknown(word: str) -> None:
    """A variable of the calling environment, a positional parameter or a program's output is never a default."""
    reading = only(f"torchrun pretrain_gpt.py --bf16 --expert-model-parallel-size {word}\n")
    assert values(reading) == {"model.bf16": True, EP: UNKNOWN}
    assert [(o.kind, o.path) for o in reading.omissions] == [("not resolved", EP)]
    assert reading.complete


def test_the_scripts_own_arguments_do_not_make_it_incomplete() -> None:
    """`"$@"` adds nothing when nobody passes anything; an unknown variable may hold any option."""
    assert only('torchrun pretrain_gpt.py --bf16 "$@"').complete
    reading = only("torchrun pretrain_gpt.py --bf16 $EXTRA")
    assert reading.partial == ["`$EXTRA` may hold further options; the text gives `EXTRA` no value"]


def test_a_sourced_file_is_named_and_not_opened() -> None:
    """What another file sets is unknown, so unwritten settings are too."""
    reading = only('source "$DIR/model.sh"\ntorchrun pretrain_gpt.py "${MODEL[@]}" --bf16\n')
    assert values(reading) == {"model.bf16": True}
    assert reading.partial[-1] == "line 1 sources `$DIR/model.sh`, whose text is not here"
    assert ("not read", 1, "what it sets is unknown") in why(reading)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("torchrun pretrain_gpt.py --bf16 $(cat extra.txt)", "`$(cat extra.txt)`"),
        ("torchrun pretrain_gpt.py --bf16 --lr 1e-4 `cat extra.txt`", "``cat extra.txt``"),
        ("X=$(cat extra.txt)\ntorchrun pretrain_gpt.py --bf16 $X", "`$(cat extra.txt)`"),
        ('torchrun pretrain_gpt.py --bf16 "$EXTRA"', "`$EXTRA`"),
        ('EXTRA=""\nread -r EXTRA < options.txt\ntorchrun pretrain_gpt.py --bf16 $EXTRA', "`${EXTRA}`"),
        ("mapfile -t A < options.txt\ntorchrun pretrain_gpt.py --bf16 ${A[@]}", "`${A[@]}`"),
        ("torchrun pretrain_gpt.py --bf16 --${MODE}", "`--${MODE}`"),
        ("torchrun pretrain_gpt.py --bf16 --moe-$MODE", "`--moe-$MODE`"),
        ("torchrun pretrain_gpt.py --bf16 $X{1,2}", "`$X{1,2}`"),
    ],
)
def test_unknown_text_is_no_value_of_a_switch(text: str, options: str) -> None:
    """The switch stays on, and what is not written is unknown."""
    reading = only(text + "\n")
    assert values(reading)["model.bf16"] is True
    assert [why.partition(" may hold")[0] for why in reading.partial] == [options]


@pytest.mark.parametrize(
    ("edit", "left"),
    [
        ("unset 'A[-1]'", {"model.bf16": True}),
        ("unset A[1]", {"model.bf16": True}),
        ("A[1]=--moe-permute-fusion", {"model.bf16": True, "model.moe_permute_fusion": True}),
        ("i=1\nA[$i]=--moe-permute-fusion", {"model.bf16": True, "model.moe_permute_fusion": True}),
        ("A[i+1]=--swiglu\ni=1", None),
        ("unset 'A[0]'", None),
        ("A[$RANK]=--swiglu", None),
    ],
)
def test_an_edited_array(edit: str, left: dict[str, object] | None) -> None:
    """An edit is followed, or the whole array is unknown."""
    reading = only(f'A=(--bf16 --moe-grouped-gemm)\n{edit}\ntorchrun pretrain_gpt.py --num-layers 4 "${{A[@]}}"\n')
    if left is None:
        assert reading.partial == ["`${A[@]}` may hold further options; the text gives `A` no value"]
    else:
        found = values(reading)
        assert reading.complete
        assert {path: found[path] for path in left} == left
        assert "model.moe_grouped_gemm" not in found


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("read -r TP EP <<< '2 8'", 8),
        ("IFS=, read -r TP EP REST <<< 2,8,1,1", 8),
        ("read -ra SIZES <<< '2   8'\nEP=${SIZES[1]}", 8),
        ("IFS=',;' read -r TP EP <<< '2;8'", 8),
        ("for EP in {7..8}; do :; done", 8),
        ("SIZES=({2,8})\nEP=${SIZES[1]}", 8),
        ("SIZES=($(seq 2 6 8))\nEP=${SIZES[1]}", 8),
        ("for x in ; do EP=4; done\nEP=${EP:-8}", 8),
        ("N=2\nset_ep() { EP=$1; }\nset_ep $((4*$N))", 8),
    ],
)
def test_lists_that_the_shell_makes(before: str, expected: int) -> None:
    """Here-strings, braces and counted sequences are what the shell makes of them."""
    reading = only(f"{before}\ntorchrun pretrain_gpt.py --bf16 --expert-model-parallel-size $EP\n")
    assert values(reading)[EP] == expected


def test_braces_in_quotes_and_in_assignments_stay() -> None:
    """Only a bare word of a command is several."""
    text = "X={a,b}\ntorchrun pretrain_gpt.py --bf16 --save \"$X\" --load '{c,d}' --data-path p{1,2}\n"
    assert values(only(text)) == {
        "model.bf16": True,
        "args.save": "{a,b}",
        "args.load": "{c,d}",
        "args.data_path": ["p1", "p2"],
    }


def test_a_word_that_the_grammar_cuts_is_one() -> None:
    """Behind `*$` it loses the name of the variable."""
    text = "N=2\nM=1\nA=(--moe-layer-freq [0]*$N+[1]*$M)\ntorchrun pretrain_gpt.py --bf16 ${A[@]}\n"
    assert values(only(text)) == {"model.bf16": True, "model.moe_layer_freq": [0, 0, 1]}
    assert not only("torchrun pretrain_gpt.py --bf16 --{$X,y}\n").complete


def test_a_blank_before_a_continued_reference_stays() -> None:
    """The grammar hands it to the expansion; the words must not grow together."""
    options = 'TP=2\nR="--bf16"\nO=" \\\n --tensor-model-parallel-size $TP \\\n $R"\n'
    text = f"{options}torchrun pretrain_gpt.py --num-layers 4 $O\n"
    assert values(only(text)) == {"model.num_layers": 4, TP: 2, "model.bf16": True}


# What is not followed


@pytest.mark.parametrize(
    ("loop", "shown"),
    [
        ('while [ $# -gt 0 ]; do case "$1" in --full) EXTRA=x; B+=(y);; esac; shift; done', "while [ $# -gt 0 ]"),
        ('for a in "$@"; do EXTRA=x; B=y; done', 'for a in "$@"'),
        ("for a; do EXTRA=x; B=y; done", "for a"),
        ("while getopts f o; do EXTRA=x; B=y; done", "while getopts f o"),
    ],
)
def test_a_loop_over_the_scripts_arguments_is_named(loop: str, shown: str) -> None:
    """It does nothing without arguments; what it could set is said."""
    reading = only(f'EXTRA="--moe-grouped-gemm"\n{loop}\ntorchrun pretrain_gpt.py --bf16 $EXTRA\n')
    assert values(reading) == {"model.bf16": True, "model.moe_grouped_gemm": True}
    assert reading.complete
    assert [(o.kind, o.line, o.text) for o in reading.omissions] == [("not read", 2, shown)]
    assert reading.omissions[0].why.endswith("(it could set `EXTRA`, `B`)")


def test_flags_behind_a_comment_reach_no_program() -> None:
    """Bash ends the command at the comment; the line after it would be a command of its own."""
    reading = only("torchrun pretrain_gpt.py \\\n  --bf16 \\\n  # --swiglu \\\n  --num-layers 4\n")
    assert values(reading) == {"model.bf16": True}
    told = "these flags reach no program: bash ends the command before them at a comment or a line without `\\`"
    assert why(reading) == [("not read", 4, told)]


def test_a_printed_runtime_environment_is_unknown() -> None:
    """Every variable that rules judge may be in it."""
    text = "export CUDA_DEVICE_MAX_CONNECTIONS=1\nENV=$(python - <<EOF\nprint(1)\nEOF\n)\n"
    reading = only(text + 'ray job submit --runtime-env-json="$ENV" -- python3 train.py --bf16 --num-layers 4\n')
    assert values(reading)["env.CUDA_DEVICE_MAX_CONNECTIONS"] is UNKNOWN
    assert [(o.kind, o.line) for o in reading.omissions] == [("not read", 6)]


# Which model a program builds


@pytest.mark.parametrize(
    ("command", "provider"),
    [
        ("pretrain_gpt.py", None),
        ("examples/pretrain_mamba.py", "MambaModel"),
        ("pretrain_hybrid.py", "HybridModel"),
        ("pretrain_bert.py", "BertModel"),
        ("pretrain_t5.py", "T5Model"),
        ("pretrain_vlm.py", "LLaVAModel"),
        ("pretrain_gpt.py --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", "mamba_stack_spec"),
        ("pretrain_gpt.py --spec local", None),
    ],
)
def test_the_program_says_which_model_it_builds(command: str, provider: str | None) -> None:
    """Only what is no GPT model is recorded."""
    assert values(only(f"torchrun {command} --bf16 --num-layers 4\n")).get("model.provider") == provider


def test_only_megatrons_own_programs_are_strict() -> None:
    """A wrapper's parser may take what Megatron-LM's refuses."""
    flags = "--bf16 --overlap_moe_expert_parallel_comm --num_experts 8"
    assert [o.kind for o in only(f"torchrun pretrain_gpt.py {flags}\n").omissions] == ["not allowed", "not allowed"]
    assert only(f"python3 train.py {flags}\n").omissions == []


# How options are collected


def test_arrays_strings_and_literals_reach_the_command_in_order() -> None:
    """Arrays, `+=`, option strings with continued lines and plain words make one list; the last duplicate wins."""
    text = r"""
MOE=(
    --num-experts 64   # of which 8 are used
    # --moe-shared-expert-overlap
    --moe-token-dispatcher-type allgather
)
MOE+=(--moe-token-dispatcher-type alltoall)
PARALLEL=" \
    --tensor-model-parallel-size 2 \
    --sequence-parallel \
"
PARALLEL="$PARALLEL --pipeline-model-parallel-size 4"
torchrun pretrain_gpt.py "${MOE[@]}" $PARALLEL \
    --bf16
"""
    reading = only(text)
    dispatchers = [(a.value, a.line) for a in reading.assignments if a.path == DISPATCHER]
    assert dispatchers == [("allgather", 5), ("alltoall", 7)]
    assert values(reading) == {
        "model.num_moe_experts": 64,
        DISPATCHER: "alltoall",
        TP: 2,
        "model.sequence_parallel": True,
        PP: 4,
        "model.bf16": True,
    }


def test_commands_in_comments_are_not_commands() -> None:
    """A commented launch and a commented flag count for nothing."""
    text = "# torchrun pretrain_gpt.py --fp16\ntorchrun pretrain_gpt.py --bf16 # --fp16\n"
    assert values(only(text)) == {"model.bf16": True}


@pytest.mark.parametrize(
    "launch",
    [
        'eval "$CMD"',
        "eval ${CMD}",
        "$CMD",
        'bash -c "$CMD"',
        'srun --mpi=pmix -l bash -x -c "${CMD}" 2>&1 | tee run.log',
        "sbatch <<EOF\n#!/bin/bash\nsrun $CMD\nEOF",
        "if ! $CMD; then exit 1; fi",
        "nsys profile -o out $CMD",
        "(cd /opt && $CMD)",
        "main() { $CMD; }",
        "some_queue --submit-later",
    ],
)
def test_a_command_in_a_variable_is_found_however_it_is_started(launch: str) -> None:
    """`eval`, `bash -c`, here-documents, conditions and launchers all lead to the same command."""
    command = "CMD='torchrun pretrain_gpt.py --num-layers 4 --bf16'"
    assert values(only(f"{command}\n{launch}\n")) == {"model.num_layers": 4, "model.bf16": True}


def test_layer_lists_built_in_a_loop_are_followed() -> None:
    """Model files of RL frameworks build `--moe-layer-freq` in a counted loop."""
    text = """
LAYERS=5
DENSE=2
kinds=()
for ((i=0; i<LAYERS; i++)); do
  if ((i < DENSE)); then kinds+=(0); else kinds+=(1); fi
done
printf -v FREQ "[%s]" "$(IFS=', '; echo "${kinds[*]}")"
MODEL_ARGS=(--num-layers $LAYERS --moe-layer-freq $FREQ)
"""
    assert values(only(text)) == {"model.num_layers": 5, "model.moe_layer_freq": [0, 0, 1, 1, 1]}


# Conditions

LAUNCH = 'torchrun pretrain_gpt.py --bf16 --expert-model-parallel-size $EP "${ARGS[@]}"\n'


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('[ "$MODE" = moe ]', 8),
        ("[[ $MODE == m* && 3 -gt 2 ]]", 8),
        ("[[ ! ( $MODE != moe ) ]]", 8),
        ("test -n moe", 8),
        ("(( 2 * 2 == 4 ))", 8),
        ('[ "$MODE" = dense ] || [ 1 -eq 2 ]', 4),
        ('[ "${UNSET:-x}" = y ]', 4),
        ("[ -z $MODE ]", 4),
        ("[ -d /data ]", UNKNOWN),
        ('[ "$OTHER" = 1 ]', UNKNOWN),
        ("[[ $MODE == moe && $OTHER == 1 ]]", UNKNOWN),
    ],
)
def test_conditions_on_known_values_are_decided(condition: str, expected: object) -> None:
    """A branch counts when its condition holds; where that is unknown and the branches differ, so is the value."""
    text = f"MODE=moe\nARGS=()\nif {condition}; then\n EP=8\nelse\n EP=4\nfi\n{LAUNCH}"
    assert values(only(text))[EP] == expected


def test_branches_that_agree_are_known() -> None:
    """What every branch assigns alike needs no decision."""
    text = f'ARGS=()\nif [ "$WHO" = me ]; then EP=8; LOG=a; else LOG=b; EP=8; fi\n{LAUNCH}'
    assert values(only(text)) == {"model.bf16": True, EP: 8}


def test_a_value_that_is_set_when_absent_is_a_default() -> None:
    """`if [ -z "$EP" ]; then EP=8; fi` means the same as `${EP:-8}`."""
    for form in ('if [ -z "$EP" ]; then EP=8; fi', '[ -z "$EP" ] && EP=8', "[ -z ${EP:-} ] && EP=8"):
        assert values(only(f"ARGS=()\n{form}\n{LAUNCH}"))[EP] == 8


def test_options_added_under_an_unknown_condition_are_unknown() -> None:
    """Only the settings of the undecided options are open; the rest of the command stays known and complete."""
    text = f'EP=8\nARGS=(--swiglu)\nif [ "$SHARED" = 1 ]; then ARGS+=(--moe-shared-expert-overlap); fi\n{LAUNCH}'
    reading = only(text)
    assert values(reading) == {"model.bf16": True, EP: 8, "args.swiglu": True, SHARED: UNKNOWN}
    assert why(reading) == [("not resolved", 3, "the text gives `SHARED` no value")]
    assert reading.complete


def test_option_strings_of_undecided_branches_are_split_into_their_flags() -> None:
    """A string of options from one branch is not one unknown word."""
    text = """
case $1 in
  moe) OPTIONS="--num-experts 8 --moe-shared-expert-overlap" ;;
  *) OPTIONS="" ;;
esac
torchrun pretrain_gpt.py --bf16 $OPTIONS
"""
    assert values(only(text)) == {"model.bf16": True, "model.num_moe_experts": UNKNOWN, SHARED: UNKNOWN}


@pytest.mark.parametrize(
    "guard",
    [
        'if [ $# -lt 2 ]; then echo "usage"; exit 1; fi',
        "[ -f /data/x ] || exit 1",
        'while [ $# -gt 0 ]; do case "$1" in --ep) EP="$2"; shift 2;; esac; done',
        "for try in 1 2; do echo $try; done",
    ],
)
def test_guards_and_argument_loops_change_nothing(guard: str) -> None:
    """A complaint about the caller did not happen, and a loop over absent arguments has no round."""
    assert values(only(f"EP=8\nARGS=()\n{guard}\n{LAUNCH}")) == {"model.bf16": True, EP: 8}


# Several commands


def test_only_the_training_command_counts() -> None:
    """Conversion, evaluation and download beside the training leave no setting."""
    text = """
python tools/checkpoint/convert.py --tensor-model-parallel-size 1 --num-layers 2
torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 8
python tools/run_text_generation_server.py --tensor-model-parallel-size 2 --num-layers 8
"""
    assert values(only(text)) == {TP: 4, "model.num_layers": 8}


def test_two_different_trainings_are_two_readings() -> None:
    """Runs that really differ are kept apart and named by their line; equal ones are one."""
    text = "for EP in 4 8; do torchrun pretrain_gpt.py --bf16 --expert-model-parallel-size $EP; done\n"
    first, second = read_shell(text, "run.sh")
    assert (first.name, values(first)[EP]) == ("line 1 (1)", 4)
    assert (second.name, values(second)[EP]) == ("line 1 (2)", 8)
    same = "if [ $LOCAL ]; then torchrun pretrain_gpt.py --bf16; else srun python pretrain_gpt.py --bf16; fi\n"
    assert only(same).name is None


# Environment


def test_the_environment_of_the_command_is_read() -> None:
    """Exports, prefixes and `unset` count up to the command; a plain variable is no environment."""
    text = """
export CUDA_DEVICE_MAX_CONNECTIONS=32 NVTE_FWD_LAYERNORM_SM_MARGIN="24"
PLAIN=1
unset NCCL_GRAPH_REGISTER
NCCL_DEBUG=WARN torchrun pretrain_gpt.py --bf16
export CUDA_DEVICE_MAX_CONNECTIONS=1
"""
    reading = only(text)
    assert values(reading) == {
        "env.CUDA_DEVICE_MAX_CONNECTIONS": 32,
        "env.NVTE_FWD_LAYERNORM_SM_MARGIN": 24,
        "env.NCCL_GRAPH_REGISTER": None,
        "env.NCCL_DEBUG": "WARN",
        "model.bf16": True,
    }
    assert [a.line for a in reading.assignments if a.path == "env.NCCL_GRAPH_REGISTER"] == [4]


@pytest.mark.parametrize(
    "value",
    [
        r'"{\"env_vars\": {\"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"}}"',
        """'{"env_vars": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}'""",
        r'''"{\"env_vars\": {\"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\", \"P\": \"$(cd "$D" && pwd):/x\"}}"''',
        '$(cat <<EOF\n{"env_vars": {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "X": "${X}"}}\nEOF\n)',
    ],
)
def test_a_ray_runtime_environment_is_environment(value: str) -> None:
    """Its JSON holds the variables of the ranks."""
    text = f'ENV={value}\nray job submit --runtime-env-json="$ENV" -- python3 train.py --bf16 --num-layers 4\n'
    assert values(only(text))["env.CUDA_DEVICE_MAX_CONNECTIONS"] == 1


# Fragments, places, refusals


def test_a_fragment_is_read_from_its_option_variables() -> None:
    """A sourced file launches nothing; variables that others take up count once."""
    text = 'BASE="--num-layers 4"\nMODEL_ARGS="$BASE --bf16"\nexport CUDA_DEVICE_MAX_CONNECTIONS=8\n'
    reading = only(text)
    assert [(a.path, a.value, a.line) for a in reading.assignments] == [
        ("env.CUDA_DEVICE_MAX_CONNECTIONS", 8, 3),
        ("model.num_layers", 4, 1),
        ("model.bf16", True, 2),
    ]
    assert reading.partial == ["no training command is in the text: it is a part of one"]


@pytest.mark.parametrize(
    ("text", "path", "literal"),
    [
        ("EP=${EP:-8}\ntorchrun pretrain_gpt.py --bf16 --expert-model-parallel-size $EP", EP, "8"),
        ('A="--bf16 --expert-model-parallel-size 16"\ntorchrun pretrain_gpt.py $A', EP, "16"),
        ("torchrun pretrain_gpt.py --bf16 --expert-model-parallel-size=32", EP, "32"),
        ("torchrun pretrain_gpt.py --bf16 --recompute-modules mlp moe", "model.recompute_modules", "mlp moe"),
        ("# é ü\ntorchrun pretrain_gpt.py --bf16", "model.bf16", "--bf16"),
        ("N=$((4 * 2))\ntorchrun pretrain_gpt.py --bf16 --expert-model-parallel-size $N", EP, None),
    ],
)
def test_the_span_is_where_the_literal_stands(text: str, path: str, literal: str | None) -> None:
    """A patch replaces the characters of the span; a computed value has none."""
    (found,) = [a for a in only(text).assignments if a.path == path]
    assert (text[slice(*found.span)] if found.span else None) == literal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "A=1\nB='x\nC=2\n",
            f"run.sh:2: the quote opened here is never closed; {MEND}",
        ),
        (
            'A=1\necho "x\n',
            f"run.sh:2: the quote opened here is never closed; {MEND}",
        ),
        (
            "A=xxxxxxxx\n" + 'A="$A$A"\n' * 40,
            f"run.sh: too large: its variables expand to more than 2000000 characters; {CUT_DOWN}",
        ),
        (
            "(" * 500 + ")" * 500,
            f"run.sh: nested deeper than 150 levels; if this is a shell script, {CUT_DOWN}",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, message: str) -> None:
    """An open quote hides the rest of the text; a script that explodes is none."""
    with pytest.raises(UnreadableError) as refusal:
        read_shell(text, "run.sh")
    assert str(refusal.value) == message


def test_placeholders_of_a_template_are_unknown() -> None:
    """`<your value>` is neither a redirection nor a value."""
    text = "EP=<how many>\ntorchrun pretrain_gpt.py --bf16 --load <your path> --expert-model-parallel-size $EP\n"
    assert values(only(text)) == {"model.bf16": True, "args.load": UNKNOWN, EP: UNKNOWN}


def test_a_part_that_is_no_shell_is_said() -> None:
    """The rest is read, and what is not written becomes unknown."""
    reading = only("torchrun pretrain_gpt.py --bf16\nA=(1 2\n")
    assert values(reading) == {"model.bf16": True}
    assert reading.partial == ["line 2 is no shell that this reader understands"]


# Properties

WORD = st.text(st.characters(codec="ascii", exclude_characters="\0\r"), min_size=1, max_size=12)


@effort(deadline=None)
@given(st.lists(WORD, min_size=1, max_size=6))
def test_any_quoted_word_comes_back(words: list[str]) -> None:
    """Whatever the shell's quoting protects reaches the flag unchanged."""
    quoted = " ".join(f"--load={shlex.quote(word)}" for word in words)
    reading = only(f'ARGS=({quoted})\ntorchrun pretrain_gpt.py --bf16 --num-layers 2 "${{ARGS[@]}}"')
    assert [a.text for a in reading.assignments if a.path == "args.load"] == [f"--load {w}" for w in words]


@effort(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.integers(1, 512)), min_size=1, max_size=8))
def test_the_last_of_several_values_wins(pairs: list[tuple[str, int]]) -> None:
    """Assignments keep the order of the command; the last one of a path is its value."""
    flags = " ".join(f"{NAMES[path]} {value}" for path, value in pairs)
    assert values(only(f"torchrun pretrain_gpt.py {flags} --bf16")) == {**dict(pairs), "model.bf16": True}


PARTS = r"""
A= B= $A ${A ${A[@]} ${A:- ${A:+ ${!A} ${#A} ${A%x} } ( ) [ ] [[ ]] (( )) $(( $( ` " ' \ if then else fi for do
done case esac ;; && || | <<EOF EOF # += export unset eval bash -c torchrun pretrain_gpt.py --num-layers 8 f() { }
return exit source printf -v $@ $1 setup_experiment.py -g run_recipe.py model.x=[ megatron sft --x <a> é
"""


@effort(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.sampled_from([*PARTS.split(), " ", "\n", ";"]), st.text(max_size=3)), max_size=40))
def test_no_text_breaks_the_reader(parts: list[str]) -> None:
    """Any text is read or refused; nothing else comes out."""
    with suppress(UnreadableError):
        assert all(reading.file == "run.sh" for reading in read_shell("".join(parts), "run.sh"))


# Line ends


def test_crlf_line_ends_are_read_as_meant_and_noted() -> None:
    """The values are those of the script with LF; the note says where bash ends the command, and what Slurm does."""
    text = f"#!/bin/bash\n#SBATCH -N 2\nEP=8\ntorchrun --nproc_per_node 8 train.py \\\n  {NAMES[EP]} $EP \\\n  --bf16\n"
    reading = only(text.replace("\n", "\r\n"))
    assert values(reading, hardware=True) == values(only(text), hardware=True)
    assert [(a.path, a.line) for a in reading.assignments] == [(a.path, a.line) for a in only(text).assignments]
    said = "bash ends the command there: `\\` before a carriage return continues no line; sbatch refuses the script"
    assert why(reading) == [("line ends", 4, said)]


def test_a_text_with_lf_has_no_note_about_line_ends() -> None:
    """A carriage return inside a line is none of its end."""
    assert why(only("python pretrain_gpt.py --bf16 \\\n  --expert-model-parallel-size 8\n# a\rb\n")) == []


# Expressions without quotes


def test_an_expression_without_quotes_is_read_as_meant_and_refused() -> None:
    """All other options keep their values; the note has the edit, and names the line."""
    text = "A=(\n  --num-layers 4\n  --moe-layer-freq ([0]*1+[1]*3)\n  --bf16\n)\ntorchrun pretrain_gpt.py ${A[@]}\n"
    reading = only(text)
    assert reading.complete
    assert (values(reading)["model.moe_layer_freq"], values(reading)["model.bf16"]) == ([0, 1, 1, 1], True)
    said = 'it lacks quotes, and bash stops at `(` with a syntax error; write `--moe-layer-freq "([0]*1+[1]*3)"`'
    assert why(reading) == [("not allowed", 3, said)]


@pytest.mark.parametrize("shell", ["bash -c", "eval"])
def test_an_inner_shell_wants_the_quotes_too(shell: str) -> None:
    """The quotes around its command are gone when it reads the expression."""
    reading = only(f'{shell} "torchrun pretrain_gpt.py --moe-layer-freq ([0]*1+[1]*3) --bf16"\n')
    assert values(reading)["model.moe_layer_freq"] == [0, 1, 1, 1]
    assert ["write `--moe-layer-freq '([0]*1+[1]*3)'`" in told for _, _, told in why(reading)] == [True]
