"""The front door: which reader takes a text, what is refused, `--set`."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reading_text import settings as values

from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.sources import DIALECTS, UnreadableError, parse_set, read, read_text

TEXTS = {
    "json": '{"num_layers": 4}',
    "python": "cfg = base()\ncfg.model.num_layers = 4\n",
    "argv": "--num-layers\n4\n--expert-model-parallel-size=8\n--bf16\n",
    "overrides": "model.num_layers=4\n'++model.x=[a]'\n".replace("'", ""),
    "yaml": "model:\n  num_layers: 4\ncomm_overlap: null\n",
    "shell": "#!/bin/bash\nARGS=(--num-layers 4 --bf16)\ntorchrun pretrain_gpt.py ${ARGS[@]}\n",
}
SUFFIXES = {
    "json": ".json",
    "python": ".py",
    "argv": ".argv",
    "overrides": ".overrides",
    "yaml": ".yml",
    "shell": ".sh",
}


@pytest.mark.parametrize("dialect", TEXTS)
def test_a_pasted_text_shows_its_dialect(dialect):
    """Without a file name the content decides; with the dialect named, or a suffix, the reading is the same."""
    pasted = read_text(TEXTS[dialect])
    assert values(pasted[0])["model.num_layers"] == 4
    named = read_text(TEXTS[dialect], dialect=dialect)
    by_suffix = read_text(TEXTS[dialect], f"x{SUFFIXES[dialect]}")
    assert [values(r) for r in named] == [values(r) for r in pasted] == [values(r) for r in by_suffix]


def test_every_dialect_has_an_example():
    """The list of dialects exists once, and nothing in it goes untested."""
    assert [d.name for d in DIALECTS] == list(TEXTS)


def test_a_file_is_read_under_the_roots(tmp_path):
    """The readings name the file as the caller does."""
    (tmp_path / "fields.json").write_text(TEXTS["json"])
    (reading,) = read(tmp_path / "fields.json", roots=[tmp_path])
    assert reading.file == str(tmp_path / "fields.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: empty; name the file that holds the configuration"),
        (" \n\t\n", "f.yaml: empty; name the file that holds the configuration"),
        ("a\0b", "f.yaml: not text (it holds NUL characters); name the configuration itself"),
        ("#" * (2**21 + 1), "f.yaml: too large for a configuration (more than 2 MB)"),
        (
            "title: nothing\n",
            (
                "f.yaml: nothing recognisable of a Megatron run (read as yaml); name the file that sets the training "
                "arguments, or the file that this one inherits from"
            ),
        ),
    ],
)
def test_what_is_refused(text, message):
    """Each says what is wrong and what to do."""
    with pytest.raises(UnreadableError) as caught:
        read_text(text, "f.yaml")
    assert str(caught.value) == message


def test_an_unknown_dialect_is_refused():
    """With those that exist."""
    with pytest.raises(UnreadableError, match="known: json, python, argv, overrides, yaml, shell"):
        read_text("x", dialect="toml")


RECIPES = """\
from megatron.bridge.recipes import base
def small():
    cfg = base()
    cfg.model.expert_model_parallel_size = 8
    return cfg
def large():
    cfg = base()
    cfg.model.expert_model_parallel_size = 64
    return cfg
"""


def test_one_of_several_configurations_is_selected_by_name():
    """An unknown name is refused with those that the file holds."""
    (reading,) = read_text(RECIPES, "r.py", select="large")
    assert values(reading) == {"model.expert_model_parallel_size": 64}
    with pytest.raises(UnreadableError, match="holds no configuration `medium`; it holds `small`, `large`"):
        read_text(RECIPES, "r.py", select="medium")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("model.expert_model_parallel_size=8", "model.expert_model_parallel_size", 8),
        (" model.bf16 = true ", "model.bf16", True),
        ("model.recompute_modules=[moe_act,moe]", "model.recompute_modules", ["moe_act", "moe"]),
        ("model.virtual_pipeline_model_parallel_size=null", "model.virtual_pipeline_model_parallel_size", None),
        ("model.pipeline_model_parallel_layout='Et|t=L'", "model.pipeline_model_parallel_layout", "Et|t=L"),
        ("runtime.transformer_engine=2.10.0", "runtime.transformer_engine", "2.10.0"),
        ("env.NCCL_DEBUG=WARN", "env.NCCL_DEBUG", "WARN"),
        ("optimizer.use_distributed_optimizer=true", "ddp.use_distributed_optimizer", True),
    ],
)
def test_set(text, path, value):
    """Typed by the field table; another name of the same setting is the setting."""
    found = parse_set(text)
    assert (found.path, found.value, found.text) == (path, value, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.bf16", "--set model.bf16: write PATH=VALUE, such as model.expert_model_parallel_size=8"),
        ("=8", "--set =8: write PATH=VALUE, such as model.expert_model_parallel_size=8"),
        ("xyzzy=8", "--set: `xyzzy` is no known setting"),
        (
            "model.expert_model_parallel_size=eight",
            "--set model.expert_model_parallel_size: `model.expert_model_parallel_size` takes an integer, got 'eight'",
        ),
    ],
)
def test_set_refuses(text, message):
    """The bad path or the allowed values are named."""
    with pytest.raises(UnreadableError) as caught:
        parse_set(text)
    assert str(caught.value) == message


def test_set_names_near_paths():
    """A misspelled path comes with what it may mean."""
    with pytest.raises(UnreadableError, match=r"did you mean `model\.expert_model_parallel_size`"):
        parse_set("model.expert_paralel_size=8")


INTEGERS = [f for f in field_table().by_path.values() if f.type == "int" and not f.choices]


@given(st.sampled_from(INTEGERS), st.integers(0, 10**9))
@hypothesis_settings(max_examples=100, deadline=None)
def test_set_gives_back_integers(field, number):
    """Round trip over the field table."""
    assert parse_set(f"{field.path}={number}").value == number


@given(st.text(max_size=200))
@hypothesis_settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_unreadable(text):
    """Whichever reader it goes to."""
    with contextlib.suppress(UnreadableError):
        assert all(reading.recognised() for reading in read_text(text))
