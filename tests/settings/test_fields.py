"""The field table: its rows, its lookups, its parsers, and the dataclasses of real releases.

`installed` is imported in a process of its own. Unpacked wheels under $EP_OVERLAP_RELEASES/<version> are read as
source, so that no release's own requirements matter.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.settings.fields import ABSENT, FieldTable, ValueNotAllowedError, field_table
from ep_overlap_mcp.stack import CORE_RELEASES, Core

ROWS = Path(__file__).parents[2] / "ep_overlap_mcp" / "settings" / "fields.json"
RELEASES = Path(os.environ.get("EP_OVERLAP_RELEASES", "/nowhere"))
FIELDS = sorted(field_table().by_path.values(), key=lambda field: field.path)


# the rows


def test_one_row_a_line_each_setting_once() -> None:
    """A change of one setting is a change of one line, and no setting has two rows."""
    first, *lines, last = ROWS.read_text(encoding="utf-8").splitlines()
    assert (first, last) == ("[", "]")
    paths = [json.loads(line.removesuffix(","))["path"] for line in lines]
    assert len(paths) == len(set(paths)) == len(field_table().by_path)


def test_rows_stand_by_object_and_name() -> None:
    """The settings of an object stand together, in the order of their names."""
    paths = [row["path"] for row in json.loads(ROWS.read_text(encoding="utf-8"))]
    objects = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    for name in objects:
        own = [path for path in paths if path.partition(".")[0] == name]
        start = paths.index(own[0])
        assert paths[start : start + len(own)] == own, f"{name}.* do not stand together"
        assert own == sorted(own), f"{name}.* are not sorted"


def test_rows_have_known_keys_only() -> None:
    """A misspelled key would be dropped in silence."""
    known = {
        "path", "type", "optional", "cli_type", "items", "count", "default", "cli_default", "bridge_default", "until",
        "dev", "choices", "cli_choices", "choices_since", "choices_until", "core_checks", "flags", "off_flags",
        "command_line", "flag_since", "flag_until", "aliases", "objects", "deprecated", "doc",
    }  # fmt: skip
    assert {key for row in json.loads(ROWS.read_text(encoding="utf-8")) for key in row} <= known


@pytest.mark.parametrize("core", CORE_RELEASES, ids=lambda core: core.label)
def test_defaults_are_values_of_their_own_field(core: Core) -> None:
    """Every default is one that the field's own parser takes, in every release."""
    for field in FIELDS:
        for command_line in (False, True):
            value = field.default(core, command_line=command_line)
            if value is not ABSENT and value is not None:
                assert field.parse(value, command_line=False) in (value, [value]), (field.path, value)


def test_defaults_are_in_the_order_of_the_releases() -> None:
    """A later entry wins, so an entry out of order would never be seen."""
    order = ["0.2", "0.3", "0.4", "0.5", "0.6", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19", "main"]
    for field in FIELDS:
        for defaults in (field.defaults, field.cli_defaults, field.bridge_defaults):
            since = [order.index(release) for release, _ in defaults]
            assert since == sorted(set(since)), field.path


def test_a_flag_means_one_setting() -> None:
    """But for two, which Megatron-LM's arguments hand to two objects each. Its inference flags are not judged."""
    means: dict[str, set[str]] = {}
    for field in FIELDS:
        if not field.path.startswith("args."):
            for flag in (*field.flags, *field.off_flags):
                means.setdefault(flag.replace("_", "-").lower(), set()).add(field.path)
    assert {flag: paths for flag, paths in means.items() if len(paths) > 1} == {
        "--te-rng-tracker": {"model.use_te_rng_tracker", "rng.te_rng_tracker"},
        "--fp4-param-gather": {"model.fp4_param", "ddp.fp4_param_gather"},
    }


def test_what_a_deprecated_field_points_at_exists() -> None:
    """`use` is a path of the table where it names a setting at all."""
    named = [f.use for f in FIELDS if f.use and f.use.partition(".")[0] in ("model", "ddp", "comm_overlap")]
    assert [path for path in named if field_table().get(path) is None] == []


# the dataclasses of real releases

SOURCES = {
    "model": (
        ("model_parallel_config.py", "ModelParallelConfig"),
        ("transformer/transformer_config.py", "TransformerConfig"),
        ("transformer/transformer_config.py", "MLATransformerConfig"),
    ),
    "ddp": (("distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),),
    "optimizer": (("optimizer/optimizer_config.py", "OptimizerConfig"),),
}
# Settings of `model` that Megatron-LM's arguments and model classes have, and no dataclass of core.
OUTSIDE_THE_DATACLASSES = {
    "model.hybrid_layer_pattern",
    "model.hybrid_override_pattern",
    "model.num_layers_per_virtual_pipeline_stage",
    "model.num_virtual_stages_per_pipeline_rank",
    "model.position_embedding_type",
}
# Core's 0 means that the caller must say it; the table has no default, so that a text without it leaves it unknown.
MUST_BE_GIVEN = {"model.num_layers", "model.hidden_size", "model.num_attention_heads"}
# The subclass of multi-latent attention has other defaults; the table has those of the plain class.
OTHER_IN_MLA = {"model.normalization", "model.multi_latent_attention"}
# Objects that no configuration file can hold, and infinity, are null in the table.
NO_JSON_VALUE = (".activation_func", "dtype", ".grad_norm_skip_threshold")

DUMP = """
import dataclasses, enum, json
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

def shown(value):
    return value.name if isinstance(value, enum.Enum) else list(value) if isinstance(value, tuple) else value

def fields(*classes):
    found = {}
    for one in classes:
        for field in dataclasses.fields(one):
            made = field.default_factory is not dataclasses.MISSING
            found.setdefault(field.name, shown(field.default_factory() if made else field.default))
    return found

print(json.dumps({
    "model": fields(TransformerConfig, MLATransformerConfig),
    "ddp": fields(DistributedDataParallelConfig),
    "optimizer": fields(OptimizerConfig),
}, default=repr))
"""


def of_installed() -> tuple[str, dict[str, Any]]:
    """The version and the fields of the installed megatron-core."""
    program = "import megatron.core; print(megatron.core.__version__)\n" + DUMP
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    version, objects = done.stdout.splitlines()[-2:]
    return version, {f"{o}.{name}": v for o, names in json.loads(objects).items() for name, v in names.items()}


def of_source(release: str) -> tuple[str, dict[str, Any]]:
    """The version and the fields of an unpacked wheel."""
    found: dict[str, Any] = {}
    for name, classes in SOURCES.items():
        for file, wanted in classes:
            tree = ast.parse((RELEASES / release / "megatron" / "core" / file).read_text(encoding="utf-8"))
            (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == wanted)
            for line in body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
                    found.setdefault(f"{name}.{line.target.id}", _value(line.value))
    return release, found


def _value(node: ast.expr) -> Any:
    """A literal, `field(default=…)`, a product or power of numbers, or the last name of an enum's member."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        return _value(given["default"]) if "default" in given else []
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        return left**right if isinstance(node.op, ast.Pow) else left * right
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
    return list(value) if isinstance(value, tuple) else value


def on_demand() -> list[str]:
    return sorted(path.name for path in RELEASES.iterdir() if path.is_dir()) if RELEASES.is_dir() else []


@pytest.fixture(
    scope="module", params=[pytest.param("installed", marks=pytest.mark.megatron), *on_demand()], ids=lambda name: name
)
def real(request: pytest.FixtureRequest) -> tuple[Core, dict[str, Any]]:
    version, fields = of_installed() if request.param == "installed" else of_source(request.param)
    return Core(version), fields


def test_every_field_of_the_release_is_in_the_table(real: tuple[Core, dict[str, Any]]) -> None:
    """A configuration may state any of them."""
    core, fields = real
    missing = [path for path in fields if (known := field_table().get(path)) is None or not known.exists_in(core)]
    assert missing == sorted(set(missing) & MUST_BE_GIVEN)


def test_the_table_claims_no_field_that_the_release_lacks(real: tuple[Core, dict[str, Any]]) -> None:
    """Such a claim would pass a setting that Megatron refuses."""
    core, fields = real
    claimed = {f.path for f in FIELDS if f.path.partition(".")[0] in SOURCES and f.defaults and f.exists_in(core)}
    shared = {path for f in FIELDS if set(f.objects) & set(fields) for path in (f.path,)}
    assert claimed - set(fields) - shared - OUTSIDE_THE_DATACLASSES == set()


def test_the_table_has_the_release_s_defaults(real: tuple[Core, dict[str, Any]]) -> None:
    """What is not written runs with these."""
    core, fields = real
    table = {path: f.default(core) for path in fields if (f := field_table().by_path.get(path))}
    differing = {
        path: (fields[path], default)
        for path, default in table.items()
        if not _same(fields[path], default) and not path.endswith(NO_JSON_VALUE)
    }
    assert {path: pair for path, pair in differing.items() if path not in MUST_BE_GIVEN | OTHER_IN_MLA} == {}


def _same(written: Any, default: Any) -> bool:
    """A list setting may be written as its only item."""
    return default in (written, [written])


# lookups


def test_a_flag_names_its_field_and_whether_it_switches_off() -> None:
    """Megatron-LM's spellings, with underscores too."""
    table = field_table()
    assert table.flag("--num-experts") == (table["model.num_moe_experts"], False)
    assert table.flag("--Num_Experts") == (table["model.num_moe_experts"], False)
    assert table.flag("--disable-bias-linear") == (table["model.add_bias_linear"], True)
    assert table.flag("--num-expert") is None


def test_any_environment_variable_is_a_setting() -> None:
    """But nothing else that is not in the table."""
    found = field_table().get("env.SOME_SITE_VARIABLE")
    assert found is not None
    assert found.type == "any"
    assert field_table().get("env.NOT-A-NAME") is None
    assert field_table().get("model.no_such_field") is None


def test_an_object_s_other_name_is_the_same_setting() -> None:
    """The optimizer's own copy of a ddp field."""
    assert field_table().get("optimizer.use_distributed_optimizer") == field_table()["ddp.use_distributed_optimizer"]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("model.expert_paralel_size", "model.expert_model_parallel_size"),
        ("model.moe_token_dispatcher", "model.moe_token_dispatcher_type"),
        ("overlap_moe_expert_parallel_com", "model.overlap_moe_expert_parallel_comm"),
        ("train.micro_batchsize", "train.micro_batch_size"),
    ],
)
def test_near_names(wrong: str, near: str) -> None:
    """The likely one is among the first three."""
    assert near in field_table().near(wrong)


def test_nothing_is_near_nonsense() -> None:
    """No hint is better than a wrong one."""
    assert field_table().near("model.qqqqqqqq") == []


# releases


@pytest.mark.parametrize(
    ("path", "core", "default"),
    [
        ("model.moe_token_dispatcher_type", "0.16.1", "allgather"),
        ("model.moe_flex_dispatcher_backend", "0.15.3", ABSENT),
        ("model.moe_flex_dispatcher_backend", "0.16.0rc0", "deepep"),
        ("model.cuda_graph_modules", "0.17.1", ABSENT),
        ("model.cuda_graph_scope", "0.17.1", ["full"]),
        ("model.async_tensor_model_parallel_allreduce", "0.16.1", True),
        ("model.async_tensor_model_parallel_allreduce", "0.17.1", ABSENT),
    ],
)
def test_a_default_belongs_to_a_release(path: str, core: str, default: Any) -> None:
    """From the release that brought the field until the one that took it away."""
    assert field_table()[path].default(Core(core)) == default


def test_the_command_line_has_defaults_of_its_own() -> None:
    """Megatron-LM's parser differs from the dataclass."""
    field = field_table()["model.apply_rope_fusion"]
    assert (field.default(Core("0.16.1")), field.default(Core("0.16.1"), command_line=True)) == (False, True)


# values


@pytest.mark.parametrize(
    ("path", "raw", "value"),
    [
        ("model.num_layers", "48", 48),
        ("model.num_layers", "4_8", 48),
        ("model.num_layers", 48.0, 48),
        ("model.bf16", "yes", True),
        ("model.bf16", 0, False),
        ("model.recompute_modules", "[moe, layernorm]", ["moe", "layernorm"]),
        ("model.recompute_modules", "moe layernorm", ["moe", "layernorm"]),
        ("model.recompute_modules", ("moe",), ["moe"]),
        ("model.recompute_modules", "null", []),
        ("model.moe_aux_loss_coeff", "1e-3", [0.001]),
        ("model.moe_aux_loss_coeff", "[1e-2 0]", [0.01, 0]),
        ("model.moe_z_loss_coeff", "1e-3", 0.001),
        ("model.recompute_granularity", "None", None),
        ("model.virtual_pipeline_model_parallel_size", "~", None),
        ("env.CUDA_DEVICE_MAX_CONNECTIONS", "32", 32),
    ],
)
def test_values_in_every_spelling(path: str, raw: Any, value: Any) -> None:
    """Strings of flags and shells, typed values of YAML and JSON."""
    field = field_table().get(path)
    assert field is not None
    assert field.parse(raw) == value


@pytest.mark.parametrize(
    ("path", "raw", "told"),
    [
        ("model.num_layers", "many", "takes an integer, got 'many'"),
        ("model.num_layers", True, "takes an integer, got True"),
        ("model.num_layers", 2.5, "takes an integer, got 2.5"),
        ("model.bf16", "perhaps", "takes true or false, got 'perhaps'"),
        ("model.bf16", None, "takes true or false, got None"),
        ("model.moe_z_loss_coeff", "small", "takes a number"),
        ("model.moe_token_dispatcher_type", "ring", "takes one of allgather, alltoall, flex, got 'ring'"),
    ],
)
def test_what_no_parser_takes_is_refused(path: str, raw: Any, told: str) -> None:
    """The message names the setting, what it takes and what was given."""
    with pytest.raises(ValueNotAllowedError) as refused:
        field_table()[path].parse(raw)
    assert str(refused.value).startswith(f"`{path}` ")
    assert told in str(refused.value)


def test_a_lone_surrogate_is_escaped() -> None:
    """No answer could carry it."""
    assert field_table()["model.pipeline_model_parallel_layout"].parse("E\ud800") == "E\\ud800"


@given(
    raw=st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())), at=st.data()
)
def test_any_value_is_taken_or_refused(raw: Any, at: st.DataObject) -> None:
    """No other error; and what was taken is taken again unchanged."""
    field = at.draw(st.sampled_from(FIELDS))
    try:
        value = field.parse(raw)
    except ValueNotAllowedError:
        return
    assert field.parse(value, command_line=False) == value or value != value  # noqa: PLR0124 - not a number


def test_a_table_of_two_rows() -> None:
    """The rows are data; nothing else is needed."""
    table = FieldTable([{"path": "model.a", "type": "int"}, {"path": "ddp.b", "type": "bool", "flags": ["--b"]}])
    assert table.flag("--b") == (table["ddp.b"], False)
    assert table.bare("a") == table["model.a"]
