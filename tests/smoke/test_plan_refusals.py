"""What a plan refuses before anything is shrunk, and how it fails."""

from __future__ import annotations

import pytest
from plans import machine, planned

from ep_overlap_mcp import smoke

REJECTION = {
    "judged": True, "accepted": False, "exception": "AssertionError: no", "at": "transformer_config.py:7",
    "cannot_judge": None, "layers": ["core"], "missing_layers": [], "versions": {"megatron-core": "0.16.1",
    "transformer-engine": "2.10.0"}, "unknown_fields": [], "left_out": [], "stand_ins": [], "emulated": [],
    "effective": {},
}  # fmt: skip


def test_the_installed_megatron_judges_what_is_not_shrunk_yet():
    """What it rejects is refused though no rule knows it: the smaller model would run. force keeps the finding."""
    seen = []

    def reject(settings):
        seen.append(settings)
        return REJECTION

    with pytest.raises(smoke.SmokeError, match="the installed megatron-core rejects it: AssertionError: no at trans"):
        planned({"moe_router_load_balancing_type": ["none"]}, environment=machine(judge=reject))
    names = ("num_layers", "expert_model_parallel_size", "moe_router_load_balancing_type")
    assert [seen[0][f"model.{name}"] for name in names] == [48, 16, "none"]
    plan = planned(environment=machine(judge=reject), force=True)
    assert [line.split(":")[0] for line in plan.shown.findings] == ["the installed megatron-core rejects it"]


def test_a_megatron_behind_a_prefix_is_not_started_to_judge():
    """Asking it could take a queue or a container; the rules have judged."""
    environment = machine(judge=lambda _: REJECTION)
    environment.prefix = ("ssh", "node1")
    assert planned(environment=environment).shown.findings == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "EPO539 sizes-positive: `num_layers` is 0"),
        ({"num_layers": -4}, "EPO539 sizes-positive: `num_layers` is -4"),
        ({"num_attention_heads": 0}, "EPO539 sizes-positive: `num_attention_heads` is 0"),
        ({"train.micro_batch_size": 0}, "EPO533 batches-positive: `micro_batch_size` is 0"),
        ({"hidden_dropout": 1.5}, "EPO543 dropout-is-a-share: `hidden_dropout` is 1.5"),
        ({"moe_router_topk": 128}, "EPO449 topk-at-most-experts: a token takes 128 of 64 experts"),
        ({"num_query_groups": 3}, "EPO542 query-groups-divide-heads: 3 query groups do not divide 32 attention heads"),
    ],
)
def test_sizes_that_no_model_can_have_are_refused_before_shrinking(changes, message):
    """The smaller model would have other sizes, and pass. With force they stay findings of the plan."""
    with pytest.raises(smoke.SmokeError, match="nothing was started: the configuration is invalid"):
        planned(changes)
    assert any(message in line for line in planned(changes, force=True).shown.findings)


@pytest.mark.parametrize(("hidden", "heads"), [(63, 1), (1, 1), (65, 5)])
def test_an_odd_hidden_size_becomes_an_even_one(hidden, heads):
    """Rotary embeddings need even heads; a chosen odd size is refused by name."""
    model = planned({"hidden_size": hidden, "num_attention_heads": heads}).request["model"]
    assert (model["hidden_size"] // model["num_attention_heads"]) % 2 == 0
    with pytest.raises(smoke.SmokeError, match=r"sizes\.hidden_size is 63; rotary embeddings need an even one"):
        planned(sizes={"hidden_size": 63})


def test_what_shrinking_does_not_foresee_is_a_refusal(monkeypatch):
    """A caller gets a cause and what to do, never a traceback."""

    def broken(_draft):
        raise ZeroDivisionError("modulo by zero")

    monkeypatch.setattr("ep_overlap_mcp.smoke.planning.shrink", broken)
    with pytest.raises(smoke.SmokeError, match=r"cannot be shrunk to run here \(ZeroDivisionError: modulo by zero\)"):
        planned()
