"""Hydra overrides: the plain ones exactly as Hydra's grammar reads them, the rest by the grammar itself."""

import contextlib

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_text import omissions, written
from reading_text import settings as values

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources import read_text
from ep_overlap_mcp.sources.overrides import is_override, overrides_of_line, parse_override, read_overrides
from ep_overlap_mcp.sources.reading import UnreadableError


def hydra(text):
    """The value as Hydra's own parser gives it, or the fact that it refuses; a sweep is no single value."""
    try:
        override = OverridesParser.create().parse_override(text)
        return UNKNOWN if override.is_sweep_override() else plain(override.value())
    except Exception:  # noqa: BLE001
        return "refused"


def plain(value):
    """Without Hydra's record of the quotes; an interpolation or a cast is no value yet."""
    if isinstance(value, QuotedString):
        return plain(value.text)
    if isinstance(value, list):
        items = [plain(item) for item in value]
        return UNKNOWN if UNKNOWN in items else items
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    return UNKNOWN if isinstance(value, str) and "${" in value else value


def ours(text):
    """What the reader takes, or the fact that it refuses."""
    try:
        return parse_override(text)[1]
    except ValueError:
        return "refused"


@given(st.text("abnulltrefTF018.-+_/[], '\"(){}|*$", max_size=10))
@settings(max_examples=400, deadline=None)
def test_values_are_those_of_hydras_grammar(raw):
    """The short path for plain scalars and lists never differs from the grammar, nor do refusals."""
    text = f"a.b={raw}"
    assert repr(ours(text)) == repr(hydra(text))


@pytest.mark.parametrize("text", ["a=1", "+a.b=[x,y]", "++a=null", "~a", "~a.b=1", "a/b@c=d"])
def test_forms_of_overrides(text):
    """What a command line may hold."""
    assert is_override(text)


@pytest.mark.parametrize("text", ["--flag=1", "path/to/file", "a", "=1", "1a=2"])
def test_what_is_no_override(text):
    """Flags and file names are something else."""
    assert not is_override(text)


BRIDGE = """\
# overrides of a recipe
model.expert_model_parallel_size=8
++model.recompute_modules=[moe_act,moe]
comm_overlap.overlap_moe_expert_parallel_comm=true
mixed_precision=bf16_mixed
env_vars.CUDA_DEVICE_MAX_CONNECTIONS=32
model.expert_paralel_size=4
logger.log_interval=1
~model.moe_shared_expert_overlap
"""


def test_bridge_overrides():
    """Names are Bridge's objects; a precision recipe brings what it sets; another object's names are not ours."""
    reading = read_overrides(BRIDGE, "f")
    assert values(reading) == {
        "model.expert_model_parallel_size": 8,
        "model.recompute_modules": ["moe_act", "moe"],
        "comm_overlap.overlap_moe_expert_parallel_comm": True,
        "model.bf16": True,
        "model.fp16": False,
        "model.fp8": None,
        "model.fp4": None,
        "env.CUDA_DEVICE_MAX_CONNECTIONS": 32,
        "model.moe_shared_expert_overlap": "?",
    }
    assert omissions(reading) == [
        ("unknown name", 7, None),
        ("not resolved", 9, "model.moe_shared_expert_overlap"),
    ]
    assert (reading.framework, reading.complete) == ("bridge", False)


SEVERAL = """\
model.expert_model_parallel_size=8 'model.recompute_modules=[moe_act,moe]' \\
  comm_overlap.overlap_moe_expert_parallel_comm=true ++mixed_precision="bf16_mixed"  # isn't it
"+model.moe_token_dispatcher_type=alltoall"
"""


def test_several_overrides_in_a_line_are_read_as_a_shell_splits_them():
    """What people paste from a command line: quotes go, a comment ends it, and each value keeps its place."""
    reading = read_overrides(SEVERAL, "f")
    assert values(reading) == {
        "model.expert_model_parallel_size": 8,
        "model.recompute_modules": ["moe_act", "moe"],
        "comm_overlap.overlap_moe_expert_parallel_comm": True,
        "model.bf16": True,
        "model.fp16": False,
        "model.fp8": None,
        "model.fp4": None,
        "model.moe_token_dispatcher_type": "alltoall",
    }
    assert reading.omissions == []
    assert [row for row in written(reading, SEVERAL) if row[0].startswith(("model.e", "model.r", "model.moe"))] == [
        ("model.expert_model_parallel_size", 1, "8"),
        ("model.recompute_modules", 1, "[moe_act,moe]"),
        ("model.moe_token_dispatcher_type", 3, "alltoall"),
    ]
    assert read_text(SEVERAL, "overrides.txt")[0].dialect == "overrides"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("model.recompute_modules=[moe, moe_act]", ["model.recompute_modules=[moe, moe_act]"]),
        ("a.b='x y'", ["a.b='x y'"]),
        ("a.b='x y' c=1", ["a.b=x y", "c=1"]),
        ('a.b="[\\"moe\\"]" \\', ['a.b=["moe"]']),
        (r"a.b=\[moe\] c=1", ["a.b=[moe]", "c=1"]),
        ("a.b=1 # c=2", ["a.b=1"]),
        ("a.b=1 'c=2", ["a.b=1 'c=2"]),
        ("a.b=1 word", ["a.b=1 word"]),
        ("# a.b=1", []),
        ("", []),
    ],
)
def test_a_line_is_one_override_where_hydra_takes_it_whole(line, words):
    """Blanks in a list or between quotes belong to the value; else the words are those of a shell."""
    assert [word.text for word in overrides_of_line(line)] == words


def test_what_is_neither_says_what_to_do():
    """A quote that is never closed, say."""
    reading = read_overrides("model.expert_model_parallel_size=8 model.bf16='true", "f")
    assert reading.omissions[0].why.endswith("; give each override a line of its own, or a word of the command")


def test_spans_are_the_values():
    """A patch replaces what stands behind the equals sign."""
    assert written(read_overrides(BRIDGE, "f"), BRIDGE)[:2] == [
        ("model.expert_model_parallel_size", 2, "8"),
        ("model.recompute_modules", 3, "[moe_act,moe]"),
    ]


def test_verl_takes_the_actor_only():
    """Reference, rollout and critic run Megatron too, without training with overlap."""
    reading = read_overrides(
        "actor_rollout_ref.actor.megatron.expert_model_parallel_size=8\n"
        "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=null\n"
        "actor_rollout_ref.model.use_fused_kernels=False\n"
        "actor_rollout_ref.ref.megatron.expert_model_parallel_size=4\n"
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4\n",
        "f",
    )
    assert values(reading) == {
        "model.expert_model_parallel_size": 8,
        "model.recompute_granularity": None,
        "verl.use_fused_kernels": False,
    }
    assert [kind for kind, _, _ in omissions(reading)] == ["look-alike", "look-alike"]


def test_nemo_rl_policy():
    """`policy.megatron_cfg` is the model; packing and precision stand beside it."""
    reading = read_overrides(
        "policy.megatron_cfg.expert_model_parallel_size=8\n"
        "policy.megatron_cfg.distributed_data_parallel_config.overlap_grad_reduce=true\n"
        "policy.sequence_packing.enabled=true\npolicy.precision=bfloat16\n",
        "f",
    )
    assert values(reading) == {
        "model.expert_model_parallel_size": 8,
        "ddp.overlap_grad_reduce": True,
        "dataset.packed_sequences": True,
        "model.bf16": True,
        "model.fp16": False,
    }


def test_what_hydra_refuses_leaves_the_setting_unknown():
    """Parentheses need quotes in Hydra; the run would not start."""
    reading = read_overrides("model.pipeline_model_parallel_layout=Et|(tt|)*3L\n", "f")
    assert values(reading) == {"model.pipeline_model_parallel_layout": "?"}
    assert omissions(reading)[0][0] == "not allowed"


def test_dictionaries_set_each_of_their_names():
    """One override may set an object."""
    reading = read_overrides("model={expert_model_parallel_size: 8, bf16: true}\n", "f")
    assert values(reading) == {"model.expert_model_parallel_size": 8, "model.bf16": True}


@given(st.text(max_size=120))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_unreadable(text):
    """Nothing but UnreadableError is raised."""
    with contextlib.suppress(UnreadableError):
        read_overrides(text, "f")
