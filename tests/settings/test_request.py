"""Readings and overrides become one request: order, origins, framework, question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_DELAY, MODEL_SWITCH, build_request
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources import parse_set
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import Component, parse_stack

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_last_word_wins_and_the_earlier_ones_are_kept(text: Callable[..., Reading]) -> None:
    """In the order of files, then overrides; each earlier value with its own origin."""
    request = build_request(
        [text({"num_layers": 4}, file="a.json"), text({"num_layers": 8}, file="b.json")],
        overrides=[parse_set("model.num_layers=12")],
    )
    setting = request.settings["model.num_layers"]
    assert (setting.value, setting.origin.file, setting.origin.order) == (12, "--set", 2)
    assert [(s.value, s.origin.file, s.origin.line) for s in setting.earlier] == [(4, "a.json", 1), (8, "b.json", 1)]


def test_a_value_that_is_not_settled_is_unknown_not_default(text: Callable[..., Reading]) -> None:
    """It needs itself."""
    setting = build_request([text({"num_layers": ...})]).settings["model.num_layers"]
    assert (setting.value, setting.needs) == (UNKNOWN, frozenset({"model.num_layers"}))


@pytest.mark.parametrize(
    ("stack", "dialect", "framework"),
    [
        ("", "bridge", "bridge"),
        ("", None, "megatron-core"),
        ("megatron-lm==0.16.1", "bridge", "megatron-lm"),
        ("megatron-bridge==0.6.0", "megatron-lm", "bridge"),
        ("megatron-core==0.16.1", "megatron-lm", "megatron-lm"),
    ],
)
def test_the_stack_names_the_framework_before_the_dialect(stack: str, dialect: Any, framework: str) -> None:
    """Core's version alone says nothing about it."""
    made = Reading("json", "a.json", framework=dialect)
    assert build_request([made], stack=parse_stack(stack)).framework == framework


@pytest.mark.parametrize(
    ("settings", "assume", "question"),
    [
        ({}, None, "overlap"),
        ({"overlap_moe_expert_parallel_comm": False}, None, "overlap"),
        ({"overlap_moe_expert_parallel_comm": True}, None, "as_written"),
        ({BRIDGE_SWITCH: True}, None, "as_written"),
        ({"overlap_moe_expert_parallel_comm": True}, "overlap_delay_wgrad", "overlap_delay_wgrad"),
    ],
)
def test_the_question_follows_from_the_text(
    text: Callable[..., Reading], settings: dict[str, Any], assume: Any, question: str
) -> None:
    """As written where overlap is on, else: could it be?"""
    assert build_request([text(settings)], assume=assume).assume == question


def test_a_what_if_sets_the_switch_and_nothing_else(text: Callable[..., Reading]) -> None:
    """Of core only the model's, marked as assumed over what was written."""
    written = {"overlap_moe_expert_parallel_comm": False, "num_layers": 4}
    request = build_request([text(written)], assume="overlap")
    switch = request.settings[MODEL_SWITCH]
    assert (switch.value, switch.origin.kind, switch.origin.note) == (True, "assumed", "--assume overlap")
    assert [s.value for s in switch.earlier] == [False]
    assert set(request.settings) == {MODEL_SWITCH, "model.num_layers"}
    assert request.as_written[MODEL_SWITCH].value is False
    assert not request.overlap_written


def test_a_what_if_of_bridge_sets_its_own_switch_too(text: Callable[..., Reading]) -> None:
    """The model's alone would be reset."""
    stack = parse_stack("megatron-bridge==0.6.0")
    plain = build_request([text({})], stack=stack, assume="overlap")
    delayed = build_request([text({})], stack=stack, assume="overlap_delay_wgrad")
    assumed = {p for p, s in delayed.settings.items() if s.origin.kind == "assumed"}
    assert {p for p, s in plain.settings.items() if s.origin.kind == "assumed"} == {MODEL_SWITCH, BRIDGE_SWITCH}
    assert assumed == {MODEL_SWITCH, BRIDGE_SWITCH, MODEL_DELAY, BRIDGE_DELAY}


def test_hardware_of_the_caller(text: Callable[..., Reading]) -> None:
    """Nodes and GPUs a node give the world size; one of them alone does not."""
    given = build_request([text({})], gpu="H100", nodes=4, gpus_per_node=8).settings
    assert {p: s.value for p, s in given.items() if p.startswith("hardware.")} == {
        "hardware.gpu": "H100",
        "hardware.nodes": 4,
        "hardware.gpus_per_node": 8,
        "hardware.world_size": 32,
    }
    assert "hardware.world_size" not in build_request([text({})], nodes=4).settings


def test_versions_are_settings_and_settings_are_versions(text: Callable[..., Reading]) -> None:
    """Either way of stating one counts; the stack's word stands over the text's."""
    request = build_request(
        [text({"runtime.torch": "2.8.0", "runtime.transformer_engine": "none", "runtime.deep_ep": "1.2.1"})],
        stack=parse_stack("torch==2.9.0"),
    )
    assert request.stack.components == {
        "torch": Component("2.9.0"),
        "transformer-engine": Component(None),
        "deep_ep": Component("1.2.1"),
    }
    assert request.settings["runtime.torch"].value == "2.9.0"
    assert request.settings["runtime.transformer_engine"].value is None


def test_a_written_setting_narrows_the_releases(text: Callable[..., Reading]) -> None:
    """A field that only some releases know says which ones these may be."""
    old = build_request([text({"cuda_graph_scope": ["attn"], "moe_use_legacy_grouped_gemm": True})]).releases()
    new = build_request([text({"moe_flex_dispatcher_num_sms": 20})]).releases()
    assert [r.core.label for r in old] == ["0.14.0", "0.15.3", "0.16.1"]
    assert [r.core.label for r in new] == ["0.19.0", "main"]


def test_a_given_release_is_not_narrowed(text: Callable[..., Reading]) -> None:
    """Then the setting is the one that is wrong."""
    request = build_request([text({"moe_flex_dispatcher_num_sms": 20})], stack=parse_stack("mcore==0.16.1"))
    assert [r.core.label for r in request.releases()] == ["0.16.1"]


def test_changes_of_a_proposal_are_assumed_on_top(text: Callable[..., Reading]) -> None:
    """The text's own value stays as the earlier one; the request itself is not changed."""
    request = build_request([text({"num_layers": 4})], assume="as_written")
    changed = request.with_settings({"model.num_layers": 8, "model.bf16": True}, "proposed")
    assert [
        (s.value, s.origin.kind) for s in (changed.settings["model.num_layers"], changed.settings["model.bf16"])
    ] == [
        (8, "assumed"),
        (True, "assumed"),
    ]
    assert [s.value for s in changed.settings["model.num_layers"].earlier] == [4]
    assert request.settings["model.num_layers"].value == 4


def test_partial_texts_say_why(text: Callable[..., Reading]) -> None:
    """One partial file makes the whole request partial."""
    request = build_request([text({"num_layers": 4}), text({}, partial=True)])
    assert (request.complete, request.partial) == (False, ("the recipe is imported",))
