"""No rule is without a case in which it speaks, one in which it is silent and one in which it cannot be decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ep_overlap_mcp.rules import all_rules
from tests.rules import (
    test_benefit,
    test_bridge,
    test_dispatcher,
    test_environment,
    test_graphs,
    test_megatron_lm,
    test_overlap,
    test_pipeline,
    test_sizes,
    test_wgrad,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.rules.tables import Tables

TABLES: Sequence[Tables] = [
    module.TestRules.tables
    for module in (
        test_benefit,
        test_bridge,
        test_dispatcher,
        test_environment,
        test_megatron_lm,
        test_pipeline,
        test_sizes,
    )
]
ROWS = [row for module in (test_graphs, test_overlap, test_wgrad) for row in module.TestRules.cases]
READING = "EPO8"  # what the readers found is judged from texts, in test_reading


@pytest.mark.parametrize("column", ["violated", "silent", "undecided"])
def test_every_rule_has_a_case(column: str) -> None:
    """A rule by its name, in the tables of some family."""
    named = {case[0] for tables in TABLES for case in getattr(tables, column)} | {row[0] for row in ROWS}
    rules = {rule.name for code, rule in all_rules().items() if not code.startswith(READING)}
    assert sorted(rules - named) == []


def test_no_case_names_a_rule_that_does_not_exist() -> None:
    """A renamed rule takes its cases along."""
    named = {case[0] for tables in TABLES for case in (*tables.violated, *tables.silent, *tables.undecided)}
    assert sorted((named | {row[0] for row in ROWS}) - {rule.name for rule in all_rules().values()}) == []
