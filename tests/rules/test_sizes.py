"""Sizes and shares that no run can have, and sizes that divide one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.rules.checking import check
from tests.rules.conftest import request_of
from tests.rules.tables import Tables, ThreeTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rules.tables import Case, OpenCase

MOE: dict[str, Any] = {"num_moe_experts": 8, "expert_model_parallel_size": 4}
MLA: dict[str, Any] = {"multi_latent_attention": True}
LM, LM15 = {"stack": "megatron-lm==0.16.1,te==2.9.0"}, {"stack": "megatron-lm==0.15.3,te==2.9.0"}
CORE = {"stack": "megatron-core==0.16.1,te==2.9.0"}
CP, GROUPS, GROUPED = "model.context_parallel_size", "model.num_query_groups", "args.group_query_attention"

VIOLATED: list[Case] = [
    ("sizes-positive", {CP: 0}, LM),
    ("sizes-positive", {"expert_tensor_parallel_size": 0}, {}),
    ("sizes-positive", {"hardware.world_size": 0}, {}),
    *(("sizes-positive", {name: 0}, {}) for name in ("num_layers", "hidden_size", "kv_channels", "seq_length")),
    *(("sizes-positive", {name: -8}, {}) for name in ("num_attention_heads", "num_query_groups", "ffn_hidden_size")),
    *(("sizes-positive", {**MOE, name: 0}, {}) for name in ("moe_router_topk", "moe_ffn_hidden_size")),
    ("sizes-positive", {**MOE, "moe_router_num_groups": 2, "moe_router_group_topk": -1}, {}),
    ("sizes-positive", {**MOE, "moe_latent_size": 0}, LM),
    ("sizes-positive", {**MOE, "moe_ffn_hidden_size": 64, "ffn_hidden_size": 0, "moe_layer_freq": 2}, {}),
    *(("sizes-positive", {**MLA, name: 0}, {}) for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim")),
    ("sizes-positive", {**MLA, "qk_pos_emb_head_dim": -8}, {}),
    ("query-groups-divide-heads", {"num_attention_heads": 32, GROUPS: 3}, {}),
    ("query-groups-divide-heads", {"num_attention_heads": 8, GROUPS: 16}, {}),
    ("query-groups-divide-heads", {"num_attention_heads": 32, GROUPS: 3, GROUPED: True}, LM),
    ("dropout-is-a-share", {"hidden_dropout": 10}, {}),
    ("dropout-is-a-share", {"attention_dropout": -0.1}, LM),
]

SILENT: list[Case] = [
    ("sizes-positive", {CP: 1, "num_layers": 8}, LM),
    ("sizes-positive", {"moe_router_topk": 0, "moe_router_group_topk": -1}, {}),  # of experts that are not there
    ("sizes-positive", {**MOE, "moe_router_group_topk": 0}, {}),  # no limit to some groups
    ("sizes-positive", {**MLA, "kv_channels": 0}, {}),  # latent attention has widths of its own
    ("sizes-positive", {**MOE, "moe_ffn_hidden_size": 64, "ffn_hidden_size": 0}, {}),  # experts in every layer
    ("sizes-positive", {"q_lora_rank": 0}, {}),  # of latent attention that is off
    ("sizes-positive", {**MLA, "qk_pos_emb_head_dim": 0}, {}),  # without rotary embeddings
    ("query-groups-divide-heads", {"num_attention_heads": 32, GROUPS: 8}, {}),
    ("query-groups-divide-heads", {"num_attention_heads": 32, GROUPS: 3}, LM),  # counts with its flag alone
    ("query-groups-divide-heads", {**MLA, "num_attention_heads": 32, GROUPS: 3}, {}),  # has none
    ("dropout-is-a-share", {"hidden_dropout": 1.0, "attention_dropout": 0.0}, {}),
]

UNDECIDED: list[OpenCase] = [
    ("sizes-positive", {CP: ..., "num_layers": 8, "num_attention_heads": 8}, LM, {CP}),
    ("sizes-positive", {"num_moe_experts": ..., "moe_router_topk": 0}, {}, {"model.num_moe_experts"}),
    ("query-groups-divide-heads", {"num_attention_heads": 32, GROUPS: ...}, {}, {GROUPS}),
    ("dropout-is-a-share", {"hidden_dropout": ...}, {"partial": True}, {"model.hidden_dropout"}),
]


class TestRules(ThreeTables):
    """One test a row of the tables above."""

    tables = Tables(VIOLATED, SILENT, UNDECIDED)


@pytest.mark.parametrize("rule", ["query-groups-divide-heads", "dropout-is-a-share"])
def test_the_fix_satisfies_the_rule(rule: str, cured: Callable[..., str]) -> None:
    """Groups that divide the heads, no dropout."""
    settings = {"num_attention_heads": 12, "num_query_groups": 5, "hidden_dropout": 2.0, "attention_dropout": 0.1}
    assert cured(rule, settings) == "met"


def test_what_is_wrong_with_sizes_is_said_once() -> None:
    """Latent experts of no width are a size, with the legacy GEMM in Megatron-LM a rule of its own, never both."""
    latent = {**MOE, "bf16": True, "add_bias_linear": False, "moe_grouped_gemm": True, "moe_latent_size": 64}
    legacy = {**latent, "moe_use_legacy_grouped_gemm": True}
    asked = [
        ({**latent, "moe_latent_size": 0}, LM),
        (legacy, LM),
        (legacy, {"stack": "megatron-core==0.16.1,te==2.9.0"}),
    ]
    named = [
        [f.name for f in check(request_of(settings, **given)).findings if "moe_latent_size" in f.message]
        for settings, given in asked
    ]
    assert named == [["sizes-positive"], ["latent-experts-fit"], ["legacy-grouped-experts-limits"]]


def test_heads_without_the_flag_of_query_groups_go_on_any_tensor_ranks() -> None:
    """Megatron-LM's default of one group is no grouping, and hands core as many groups as heads."""
    settings = {"num_attention_heads": 8, "tensor_model_parallel_size": 2, "sequence_parallel": True}
    result = check(request_of(settings, **LM15), everything=True)
    assert result.settings[GROUPS].value is None
    assert "heads-divide-by-tp" not in [finding.name for finding in result.findings]
