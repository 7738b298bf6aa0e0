"""A rule that was met is met again without running where it would see the same, and asked again where it would not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.checking import check, outcomes_of
from ep_overlap_mcp.rules.engine import ERROR, Fix, Rule, core, judge, violated
from ep_overlap_mcp.rules.truth import FALSE
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.stack import Core
from tests.rules.conftest import request_of
from tests.rules.random_configurations import random_configurations

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.rules.engine import Check

STACKS = (
    "megatron-core==0.16.1,transformer-engine==2.9.0",
    "megatron-lm==0.18.2,torch==2.9.0",
    "megatron-bridge==0.4.0",
    "",
)


def rule_of(function: Callable[[View], Check], *fixes: Fix) -> Rule:
    """A rule that no registry knows."""
    return Rule("EPO999", "a-test-rule", ERROR, (core(),), function, ("a@b:c:1",), fixes=fixes)


def times_asked(looks: Callable[[View], object], *given: dict[str, Any]) -> int:
    """How often a rule runs that looks so and is always met, for one configuration after the other."""
    asked = 0

    def rule(view: View) -> Check:
        nonlocal asked
        asked += 1
        looks(view)
        return violated(FALSE, "never")

    known = rule_of(rule)
    for settings in given:
        request = request_of(settings)
        outcome = judge(known, [View(request, release) for release in request.releases()])
        assert outcome is not None
        assert outcome.state == "met"
    return asked


def test_a_rule_that_sees_the_same_is_not_asked_again() -> None:
    """What it does not look at may differ, and so may the line that a value stands in."""
    given = {"num_layers": 8, "bf16": True}, {"bf16": True, "num_layers": 8, "hidden_size": 64}
    assert times_asked(lambda view: view["model.num_layers"] > 4, *given) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [(8, 16), (1, True), (8, ...), (None, 0), ([1], [True]), (["moe"], ["moe_act"]), ("full", "selective")],
)
def test_another_value_is_another_sight(before: Any, after: Any) -> None:
    """Also one that Python calls equal, and one that is not known."""
    given = [{"moe_layer_freq": value} for value in (before, after)]
    assert times_asked(lambda view: view["model.moe_layer_freq"], *given) == 2


def test_writing_a_default_is_seen_by_a_rule_that_looks_whether_it_is_written() -> None:
    """The value is the same and the text is not."""
    given = {}, {"sequence_parallel": False}
    assert times_asked(lambda view: view["model.sequence_parallel"], *given) == 1
    assert times_asked(lambda view: view.written("model.sequence_parallel"), *given) == 2


def test_what_is_asked_for_is_seen_beside_what_runs() -> None:
    """A layout gives two virtual stages, whatever else was asked for."""
    layout = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et|t|t|tL"}
    given = layout, {**layout, "virtual_pipeline_model_parallel_size": 2}
    path = "model.virtual_pipeline_model_parallel_size"
    assert times_asked(lambda view: view[path], *given) == 1
    assert times_asked(lambda view: view.requested(path), *given) == 2


@pytest.mark.parametrize("whole", ["request", "effective"])
def test_a_rule_that_looks_at_everything_is_always_asked(whole: str) -> None:
    """Nobody knows what it took from there."""
    assert times_asked(lambda view: getattr(view, whole), {"num_layers": 8}, {"num_layers": 8}) == 2


def test_a_finding_shows_what_its_rule_read_and_not_what_a_fix_reads() -> None:
    """Fixes are made up for the case at hand once all rules are asked."""
    ep, layers = "model.expert_model_parallel_size", "model.num_layers"
    mended = rule_of(lambda view: violated(view[ep] == 1, "no EP"), Fix(lambda view: [{ep: view[layers].raw}]))
    last = replace(mended, code="EPO998", fixes=())
    found = check(request_of({"num_layers": 8, ep: 1}), rules={r.code: r for r in (mended, last)}).findings
    assert [[setting.path for setting in finding.settings] for finding in found] == [[ep], [ep]]


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack or "any release")
def test_outcomes_are_those_of_rules_that_remember_nothing(stack: str) -> None:
    """Random configurations, some partial, judged in turn by the same rules and by new ones."""
    source = random.Random(stack)
    for configuration in random_configurations(Core("0.16.1"), 30 if stack else 8, 11):
        request = request_of(configuration, stack=stack, partial=source.random() < 0.3)
        forgetful = {code: replace(rule) for code, rule in all_rules().items()}
        views = [View(request, release) for release in request.releases()]
        again = [View(request, release) for release in request.releases()]
        assert [told(o) for o in outcomes_of(views)] == [told(o) for o in outcomes_of(again, forgetful)]


def told(outcome: Any) -> tuple[object, ...]:
    """All that an outcome says, with the settings that it shows."""
    reads = [(path, repr(setting.value), setting.origin) for path, setting in outcome.reads.items()]
    return outcome.rule.name, outcome.state, outcome.severity, outcome.message, outcome.needs, outcome.why, reads
