"""What every table of rules is held to: a test module gives the tables, the tests stand here once.

`class TestRules(ThreeTables): tables = Tables(VIOLATED, SILENT, UNDECIDED)` runs one test a row, named after the row's
rule and number; `class TestRules(OneTable): cases = CASES` three states and the first fix of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from ep_overlap_mcp.rules.engine import Outcome

Case = tuple[str, dict[str, Any], dict[str, Any]]
"""Rule, settings, and what is given around them: `stack`, `gpu`, `partial`."""
OpenCase = tuple[str, dict[str, Any], dict[str, Any], set[str]]
"""The same, and what the rule still needs."""
Row = tuple[str, str, dict[str, Any], dict[str, Any], str]
"""Rule, stack, changes that violate it, changes that do not, and a setting that leaves it open."""


@dataclass(frozen=True)
class Tables:
    """Where rules are violated, where they are met although it is close, and where they cannot be decided."""

    violated: Sequence[Case]
    silent: Sequence[Case]
    undecided: Sequence[OpenCase]


class ThreeTables:
    """Each row of three tables is a test."""

    tables: ClassVar[Tables]

    def test_reports(self, violated_case: Case, state: Callable[..., str]) -> None:
        """The rule is violated by a configuration that the stack refuses, that goes wrong or that gains less."""
        rule, settings, given = violated_case
        assert state(rule, settings, **given) == "violated"

    def test_is_silent(self, silent_case: Case, state: Callable[..., str]) -> None:
        """The rule is met by a configuration close to the violated one that the stack takes."""
        rule, settings, given = silent_case
        assert state(rule, settings, **given) == "met"

    def test_says_what_would_decide(self, undecided_case: OpenCase, outcome: Callable[..., Outcome]) -> None:
        """An unknown that matters leaves the rule undecided, with exactly the settings that are still needed."""
        rule, settings, given, needs = undecided_case
        found = outcome(rule, settings, **given)
        assert (found.state, set(found.needs)) == ("undecided", needs)


class OneTable:
    """Each row of one table is two tests, over a configuration in which EP overlap is legal, on 0.16.1 by default.

    A row that names no opening setting opens the first that it changes. `without_fix` are the rules that propose none.
    """

    cases: ClassVar[Sequence[Row]]
    without_fix: ClassVar[frozenset[str]] = frozenset()

    def test_each_rule_is_violated_silent_and_undecided(
        self, row: Row, state: Callable[..., str], overlapping: Callable[..., dict[str, Any]]
    ) -> None:
        """The bad configuration violates the rule, the good one does not, and an open setting leaves it undecided."""
        rule, stack, bad, good, opening = row
        given = {"stack": stack} if stack else {}
        assert state(rule, overlapping(**bad), **given) == "violated"
        assert state(rule, overlapping(**good), **given) == "met"
        opened = opening or next(iter(bad), None)
        if opened is not None:
            assert state(rule, {**overlapping(**bad), opened: ...}, **given) == "undecided"

    def test_the_first_fix_satisfies_the_rule(
        self, row: Row, cured: Callable[..., str], overlapping: Callable[..., dict[str, Any]]
    ) -> None:
        """What a finding proposes first makes the rule met."""
        rule, stack, bad, *_ = row
        given = {"stack": stack} if stack else {}
        expected = "no fix" if rule in self.without_fix else "met"
        assert cured(rule, overlapping(**bad), **given) == expected


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give each test of the classes above its rows; a class without rows is an error, not a silent pass."""
    if metafunc.cls is None or not issubclass(metafunc.cls, (ThreeTables, OneTable)):
        return
    columns = {
        "violated_case": lambda cls: cls.tables.violated,
        "silent_case": lambda cls: cls.tables.silent,
        "undecided_case": lambda cls: cls.tables.undecided,
        "row": lambda cls: cls.cases,
    }
    for name in columns.keys() & set(metafunc.fixturenames):
        rows = columns[name](metafunc.cls)
        assert rows, f"{metafunc.cls.__module__} has no rows for {name}"
        metafunc.parametrize(name, rows, ids=[f"{row[0]}-{number}" for number, row in enumerate(rows)])
