"""The laws of three-valued truth, and of values that may be unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.rules.truth import FALSE, TRUE, Truth, Value, VersionValue, all_of, any_of, derived

unknowns = st.frozensets(st.sampled_from(["model.a", "model.b", "runtime.c"]), min_size=1).map(lambda n: Truth(None, n))
truths = st.one_of(st.just(TRUE), st.just(FALSE), unknowns)
UNKNOWN_A = Truth(None, frozenset({"model.a"}))
UNKNOWN_B = Truth(None, frozenset({"model.b"}))


@given(truths, truths)
def test_de_morgan(left, right):
    """Not (a and b) is not a or not b, with the same needs; likewise for or."""
    assert ~(left & right) == ~left | ~right
    assert ~(left | right) == ~left & ~right


@given(truths, truths, truths)
def test_and_or_are_commutative_associative_and_distributive_in_value(a, b, c):
    """The order in which a rule asks does not change the outcome."""
    assert a & b == b & a
    assert (a & b) & c == a & (b & c)
    assert (a & (b | c)).value == ((a & b) | (a & c)).value


@given(truths)
def test_false_beats_unknown_in_and_and_true_beats_it_in_or(truth):
    """A rule that cannot apply is decided, whatever is unknown."""
    assert truth & FALSE == FALSE
    assert truth | TRUE == TRUE
    assert truth & TRUE == truth
    assert truth | FALSE == truth
    assert ~~truth == truth


@given(truths, truths)
def test_needs_are_exactly_those_of_the_unknown_operands(left, right):
    """An undecided outcome asks for what its operands lack; a decided one asks for nothing."""
    for outcome in (left & right, left | right):
        assert outcome.needs == (left.needs | right.needs if outcome.value is None else frozenset())


@given(truths)
def test_truth_is_no_bool(truth):
    """`if condition` would read an unknown as a pass."""
    with pytest.raises(TypeError, match="combine with"):
        bool(truth)


@given(st.lists(truths))
def test_all_of_and_any_of_fold(conditions):
    """Nothing to hold is true, nothing to choose from is false."""
    assert (~all_of(conditions)).value == any_of(~c for c in conditions).value
    assert all_of([]) == TRUE
    assert any_of([]) == FALSE


def test_unknown_operands_of_an_undecided_outcome_add_up():
    """Two unknowns need both settings."""
    assert (UNKNOWN_A & UNKNOWN_B).needs == {"model.a", "model.b"}


@given(st.integers(), st.integers())
def test_known_values_compare_and_compute_as_python_does(a, b):
    """With everything known there is nothing three-valued left."""
    left, right = Value(a), Value(b)
    seen = [left < right, left <= right, left == right, left != right, left > right, left >= right]
    assert [t.value for t in seen] == [a < b, a <= b, a == b, a != b, a > b, a >= b]
    assert ((left + right).raw, (left - right).raw, (left * right).raw) == (a + b, a - b, a * b)
    assert ((left // right).raw, (left % right).raw) == ((a // b, a % b) if b else (None, None))


@given(st.integers())
def test_an_unknown_value_makes_everything_unknown(number):
    """Comparison and arithmetic keep the need."""
    unknown = Value(None, known=False, needs=frozenset({"model.a"}))
    for outcome in (unknown == number, unknown > number, unknown.unset, unknown.on, unknown.has("x")):
        assert outcome == UNKNOWN_A
    assert (unknown + number > 0) == UNKNOWN_A
    assert derived(max, unknown, 3).needs == {"model.a"}


def test_unset_is_a_known_value_without_order():
    """None equals None, differs from the rest, and is neither below nor above a number."""
    unset = Value(None)
    assert (unset.unset, unset == None, unset != 1) == (TRUE, TRUE, TRUE)  # noqa: E711
    assert (unset < 1, unset >= 1, unset.on, unset.has("moe")) == (FALSE, FALSE, FALSE, FALSE)
    assert (unset + 1).raw is None


def test_a_list_has_exact_items():
    """`moe` is not in `[moe_act]`."""
    modules = Value(["moe_act", "layernorm"])
    assert (modules.has("moe"), modules.has("moe_act")) == (FALSE, TRUE)


def test_an_absent_component_is_older_than_every_release():
    """As the stack's own version floors treat it; an unknown one is unknown."""
    assert (VersionValue(None).below("1.0"), VersionValue(None).absent) == (TRUE, TRUE)
    assert (VersionValue("2.10.0").below("2.9"), VersionValue("2.10.0").at_least("2.10")) == (FALSE, TRUE)
    needs = frozenset({"runtime.transformer_engine"})
    assert VersionValue(None, known=False, needs=needs).below("2.3") == Truth(None, needs)


def test_values_read_as_people_write_them():
    """Messages quote unset, true and lists without Python's quotes."""
    shown = [str(v) for v in (Value(None), Value(True), Value(["attn", "moe"]), Value(8), Value(None, known=False))]  # noqa: FBT003
    assert shown == ["unset", "true", "[attn, moe]", "8", "unknown"]
