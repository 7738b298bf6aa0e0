"""The engine: clauses and their releases, outcomes over several releases, and the registry of all rules."""

from __future__ import annotations

import re

import pytest

from ep_overlap_mcp.rules import all_rules, find_rule
from ep_overlap_mcp.rules.engine import (
    ERROR,
    INFO,
    WARNING,
    Rule,
    bridge,
    core,
    evidence,
    judge,
    megatron_lm,
    put,
    run_time,
    violated,
    without,
)
from ep_overlap_mcp.rules.truth import FALSE, TRUE, truth
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.stack import Core, Release
from tests.rules.conftest import request_of


def rule_of(function, *clauses, unknown="undecided", severity=ERROR):
    """A rule that no registry knows."""
    return Rule("EPO999", "a-test-rule", severity, clauses, function, ("a@b:c:1",), unknown)


def judged(rule, settings, stack=""):
    """How the rule comes out for the settings, over all releases that the stack leaves open."""
    request = request_of(settings, stack=stack)
    return judge(rule, [View(request, release) for release in request.releases()])


def experts_missing(view):
    """Violated without experts."""
    return violated(view["model.num_moe_experts"].unset, "no experts")


@pytest.mark.parametrize(
    ("clause", "framework", "release", "in_force"),
    [
        (core(">=0.16"), "megatron-core", Release(Core("0.16.1")), True),
        (core(">=0.16"), "megatron-core", Release(Core("0.15.3")), False),
        (core(">=0.16"), "bridge", Release(Core("0.16.0rc0"), "0.2.0"), False),
        (core(">=0.17.0rc0"), "bridge", Release(Core("0.17.0rc0"), "0.4.0"), True),
        (core(">=0.14,!dev"), "megatron-core", Release(Core("dev")), False),
        (core(">=0.14,!dev"), "megatron-core", Release(Core("main")), True),
        (core("dev"), "megatron-core", Release(Core("dev")), True),
        (core("dev"), "megatron-core", Release(Core("main")), False),
        (megatron_lm(), "megatron-core", Release(Core("0.16.1")), False),
        (megatron_lm(), "megatron-lm", Release(Core("0.16.1")), True),
        (bridge("<0.5"), "bridge", Release(Core("0.17.1"), "0.4.2"), True),
        (bridge("<0.5"), "bridge", Release(Core("0.18.0"), "0.5.0"), False),
        (bridge(), "megatron-core", Release(Core("0.16.1")), False),
        (run_time(on=("bridge",)), "megatron-lm", Release(Core("0.16.1")), False),
        (evidence("<0.17"), "megatron-lm", Release(Core("0.16.1")), True),
    ],
)
def test_a_clause_is_in_force_in_its_layer_and_releases(clause, framework, release, in_force):
    """Core's checks run in every framework, the others' in their own; `dev` is a line of its own."""
    assert clause.in_force(framework, release) is in_force


def test_parameters_of_a_clause_reach_the_function():
    """What differs by version is data of the clause, not a test in the body."""

    def at_most(view, *, limit):
        return violated(view["model.mtp_num_layers"] > limit, f"more than {limit}")

    rule = rule_of(at_most, core("<0.19", limit=0), core(">=0.19", limit=1))
    assert judged(rule, {"mtp_num_layers": 1}, "megatron-core==0.18.2").state == "violated"
    assert judged(rule, {"mtp_num_layers": 1}, "megatron-core==0.19.0").state == "met"


def test_a_clause_says_what_an_unknown_means_in_its_layer():
    """What leaves a Megatron-LM command undetermined may be a note where a recipe lies under the text."""
    rule = rule_of(experts_missing, megatron_lm(), bridge(unknown="noted"))
    stacks = ("megatron-lm==0.16.1", "megatron-bridge==0.5.1")
    outcomes = [judged(rule, {"num_moe_experts": ...}, stack=stack) for stack in stacks]
    assert [(o.state, o.unknown) for o in outcomes] == [("undecided", "undecided"), ("undecided", "noted")]


def test_the_worst_clause_counts_and_names_its_layers():
    """One rule with several enforcers is reported once, as the worst of them has it."""
    rule = rule_of(experts_missing, core(severity=INFO), megatron_lm(), run_time(severity=WARNING))
    outcome = judged(rule, {}, "megatron-lm==0.16.1")
    assert (outcome.state, outcome.severity, outcome.layers) == ("violated", ERROR, ("megatron-lm",))


def test_layers_with_equal_parameters_are_named_together():
    """They are evaluated once and enforce the rule together."""
    rule = rule_of(experts_missing, core(), megatron_lm())
    assert judged(rule, {}, "megatron-lm==0.16.1").layers == ("megatron-core", "megatron-lm")


def test_a_rule_that_no_layer_enforces_has_no_outcome():
    """It was not checked, which is different from met."""
    assert judged(rule_of(experts_missing, bridge()), {}, "megatron-core==0.16.1") is None


def test_releases_that_agree_decide_a_rule_of_unknown_version():
    """The same outcome over the whole range needs no version."""
    assert judged(rule_of(experts_missing, core()), {}).state == "violated"
    assert judged(rule_of(experts_missing, core()), {"num_moe_experts": 8}).state == "met"


def test_releases_that_differ_leave_it_undecided_and_say_where():
    """The version is what is needed, and the reason names both sides."""
    outcome = judged(rule_of(experts_missing, core(">=0.19")), {})
    assert (outcome.state, outcome.needs) == ("undecided", {"runtime.megatron_core"})
    assert outcome.why == "violated on 0.19.0, main; met on 0.14.0, 0.15.3, 0.16.1, 0.17.1, 0.18.2"


def test_an_undecided_rule_needs_what_it_could_not_read():
    """The open setting and nothing else."""
    outcome = judged(rule_of(experts_missing, core()), {"num_moe_experts": ...}, "megatron-core==0.16.1")
    assert (outcome.state, outcome.needs) == ("undecided", {"model.num_moe_experts"})


def test_a_finding_shows_what_the_function_read():
    """Reads are recorded, in the order of reading."""

    def both(view):
        return violated((view["model.bf16"].off) & (view["model.fp16"].off), "neither")

    assert list(judged(rule_of(both, core()), {}, "megatron-core==0.16.1").reads) == ["model.bf16", "model.fp16"]


def test_fixes_are_sets_of_changes_for_the_case_at_hand():
    """`put` sets model fields, `without` keeps the rest of a list."""
    request = request_of({"recompute_modules": ["moe", "layernorm"]})
    view = View(request, request.releases()[0])
    assert list(put(bf16=True).options(view)) == [{"model.bf16": True}]
    dropped = without("model.recompute_modules", "moe")
    assert list(dropped.options(view)) == [{"model.recompute_modules": ["layernorm"]}]
    assert (put(bf16=True).safe, put(bf16=True, gives_up="fp32").safe) == (True, False)


def test_truth_of_a_plain_bool():
    """The two decided values are shared."""
    assert (truth(True), truth(False)) == (TRUE, FALSE)  # noqa: FBT003


RULES = list(all_rules().values())
SECTIONS = ("What it checks: ", "Why: ", "Example: ", "Fix: ")
SOURCE = re.compile(
    r"[\w.-]+/[\w.-]+@[\w./-]+:[\w./-]+(:[\w,-]+)?"  # repository@revision:path:lines, or a function, or a whole file
    r"|https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+"  # a public report
    r"|ep-overlap-mcp:[\w./]+"  # this project's own data
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_is_documented_and_well_named(rule):
    """Each page says what, why, example and fix, in this order and in sentences."""
    assert re.fullmatch(r"EPO[1-9]\d\d", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert len(rule.name) <= 60
    places = [rule.doc.find(section) for section in SECTIONS]
    assert places[0] == 0
    assert places == sorted(places)
    assert min(places) >= 0
    assert "TODO" not in rule.doc


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_code_and_a_name_find_their_rule(rule):
    """Both spellings are accepted, in any case."""
    assert find_rule(rule.code.lower()) is rule
    assert find_rule(rule.name.upper()) is rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_has_a_layer_and_a_source(rule):
    """A rule without an enforcer is never judged; a source is a place in code at a revision, or a public report."""
    assert rule.clauses
    assert rule.sources
    assert [source for source in rule.sources if not SOURCE.fullmatch(source)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_fixes_name_known_fields_and_say_what_is_lost(rule):
    """Every change is a setting of the field table; what is not safe says what it gives up."""
    request = request_of({"pipeline_model_parallel_size": 2, "num_layers": 8}, stack="megatron-core==0.18.2")
    view = View(request, request.releases()[0])
    for fix in rule.fixes:
        assert fix.safe or fix.gives_up
        assert [p for changes in fix.options(view) for p in changes if field_table().get(p) is None] == []


def test_names_and_codes_are_unique():
    """One name, one rule."""
    assert len({rule.name for rule in RULES}) == len({rule.code for rule in RULES}) == len(RULES)
