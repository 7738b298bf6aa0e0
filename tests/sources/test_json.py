"""JSON documents: fields flat or by object."""

import json

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reading_text import settings as values
from reading_text import written

from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.sources.documents import read_json


def test_flat_fields_are_a_complete_core_configuration():
    """With the characters of every value, lists included."""
    text = '{\n "num_layers": 16,\n "recompute_modules": ["moe", "moe_act"],\n "use_megatron_fsdp": true\n}'
    (reading,) = read_json(text, "f.json")
    assert written(reading, text) == [
        ("model.num_layers", 2, "16"),
        ("model.recompute_modules", 3, '["moe", "moe_act"]'),
        ("ddp.use_megatron_fsdp", 4, "true"),
    ]
    assert (reading.framework, reading.complete) == ("megatron-core", True)


def test_a_comm_overlap_object_means_bridge():
    """Its unwritten switch is None, which Bridge carries to the model as False."""
    (reading,) = read_json('{"model": {"num_layers": 4}, "comm_overlap": {"tp_comm_overlap": false}}', "f.json")
    assert reading.framework == "bridge"
    assert values(reading)["comm_overlap.overlap_moe_expert_parallel_comm"] is None


def test_duplicate_keys_keep_both_and_the_last_counts():
    """JSON allows them; parsers take the last."""
    (reading,) = read_json('{"num_layers": 4, "expert_model_parallel_size": 2, "num_layers": 8}', "f.json")
    assert [a.value for a in reading.assignments] == [4, 2, 8]


FIELDS = [f for f in field_table().by_path.values() if f.path.startswith("model.") and f.type in ("int", "bool")]


@given(st.lists(st.sampled_from(FIELDS), unique_by=lambda f: f.path, max_size=8), st.data())
@hypothesis_settings(max_examples=100, deadline=None)
def test_every_field_comes_back_as_it_was_written(fields, data):
    """Round trip through JSON, flat and inside `model`."""
    numbers = {"int": st.integers(1, 10**6), "bool": st.booleans()}
    chosen = {f.name: data.draw(numbers[f.type]) for f in fields if not f.choices}
    for document in (chosen | {"num_layers": 2}, {"model": chosen | {"num_layers": 2}}):
        (reading,) = read_json(json.dumps(document), "f.json")
        assert values(reading) == {f"model.{n}": v for n, v in (chosen | {"num_layers": 2}).items()}
