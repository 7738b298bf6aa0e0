"""YAML and JSON trees: lines, spans, bounds; the same values as the libraries give."""

import contextlib
import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.json_tree import json_tree
from ep_overlap_mcp.sources.reading import MEND, UnreadableError
from ep_overlap_mcp.sources.tree import Items, Leaf, Table, plain
from ep_overlap_mcp.sources.yaml_tree import yaml_trees

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**15), 10**15),
    st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc_-.", max_size=6), inner, max_size=4),
    max_leaves=20,
)


def spans(node, text):
    """Every scalar's characters."""
    if isinstance(node, Leaf):
        return [text[slice(*node.span)]]
    parts = node.items if isinstance(node, Items) else [entry.node for entry in node.entries]
    return [span for part in parts for span in spans(part, text)]


def test_values_know_their_line_and_characters():
    """Quotes belong to the span, so that a patch can replace the whole literal; CRLF and accents count right."""
    text = "# \u00e9\r\na: 8\r\nb: 'x y'\r\nc:\r\n- moe\r\n- mlp\r\n# end\r\nd: [1, 2]\r\n"
    (tree,) = yaml_trees(text, "f")
    found = [(e.key, e.line, text[slice(*e.node.span)]) for e in tree.entries]
    assert found == [("a", 2, "8"), ("b", 3, "'x y'"), ("c", 4, "- moe\r\n- mlp"), ("d", 8, "[1, 2]")]


def test_duplicate_keys_are_kept_and_the_last_counts():
    """Parsers let the last one win; both are there to be shown."""
    (tree,) = yaml_trees("a: 1\na: 2\n", "f")
    assert ([e.key for e in tree.entries], tree.scalar("a")) == (["a", "a"], 2)


def test_merge_keys_stand_before_the_own_entries():
    """`<<` brings defaults that the mapping's own entries overwrite."""
    (tree,) = yaml_trees("base: &b {x: 1, y: 2}\nrun:\n  <<: *b\n  x: 3\n", "f")
    assert plain(tree)["run"] == {"x": 3, "y": 2}


def test_unquoted_templates_and_custom_tags_are_unknown():
    """Neither has a value in the text."""
    (tree,) = yaml_trees("a: {{ tp }}\nb: !ENV ${TP}\nc: 2\n", "f")
    assert plain(tree) == {"a": UNKNOWN, "b": UNKNOWN, "c": 2}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1\nb: 2\n", "line 2"),
        ("a: 1\n\tb: 2\n", "line 2"),
        ("a: *missing\n", r"line 1: alias `\*missing` has no anchor before it; define `&missing` above it"),
        (
            "a: &a [*a]\n",
            r"line 1: alias `\*a` refers to itself: it stands inside its own anchor `&a`; write the value out",
        ),
        ("[" * 10_000, "line 1"),
        ("x: " + "{a: " * 100 + "1" + "}" * 100, "nested deeper"),
    ],
)
def test_broken_yaml_is_refused_with_its_place(text, part):
    """A syntax error names its line, a bound says which."""
    with pytest.raises(UnreadableError, match=part):
        yaml_trees(text, "f.yaml")


def test_alias_expansion_is_bounded():
    """Ten lines that expand to ten thousand million values are refused, not expanded."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 11))
    with pytest.raises(UnreadableError, match="alias"):
        yaml_trees(text, "bomb.yaml")


@given(VALUES)
@settings(max_examples=150, deadline=None)
def test_yaml_values_are_the_librarys(value):
    """What PyYAML writes, the tree reads back."""
    (tree,) = yaml_trees(yaml.safe_dump(value, allow_unicode=True, width=1000), "f")
    assert plain(tree) == value


@given(VALUES, st.sampled_from([None, 2]))
@settings(max_examples=150, deadline=None)
def test_json_values_are_the_librarys(value, indent):
    """What the standard library writes, the tree reads back, and every scalar's characters are its JSON."""
    text = json.dumps(value, indent=indent)
    tree = json_tree(text, "f")
    assert plain(tree) == json.loads(text)
    assert all(json.loads(span) is not Ellipsis for span in spans(tree, text))


@given(st.text(max_size=200), st.sampled_from([yaml_trees, json_tree]))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_tree_or_unreadable(text, parse):
    """Nothing else is raised."""
    with contextlib.suppress(UnreadableError):
        assert parse(text, "f") is not None


@given(st.text('{}[]",:0123456789truefalsn \n\\-.e', max_size=80))
@settings(max_examples=300, deadline=None)
def test_json_is_accepted_as_the_library_accepts_it(text):
    """The same texts are valid, except for numbers of a size no setting has."""
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(UnreadableError, match="line"):
            json_tree(text, "f")
        return
    if not any(len(run) > 15 for run in "".join(c if c.isdigit() else " " for c in text).split()):
        tree = json_tree(text, "f")
        assert isinstance(tree, (Table, Items, Leaf))
        assert str(plain(tree)).lower().replace("infinity", "inf").replace("'", "") == str(expected).lower().replace(
            "'", ""
        )


def test_json_errors_name_their_line():
    """The line of the mistake, and what is missing there."""
    with pytest.raises(UnreadableError) as caught:
        json_tree('{\n  "a": 1,\n  "b" 2\n}', "f.json")
    assert str(caught.value) == f"f.json: not valid JSON at line 3: `:` is missing; {MEND}"
