"""JSON with comments is edited in place: what is ours goes in and out, every other byte stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.clients.jsonc import MalformedError, amend, get, put, take

ENTRY = {"command": "ep-overlap-mcp", "args": []}
PATH = ("mcpServers", "ep-overlap")


def test_a_new_file_is_laid_out() -> None:
    """A file that does not exist becomes a readable one, and goes when the entry goes."""
    text = put(None, PATH, ENTRY)
    assert (
        text
        == """\
{
  "mcpServers": {
    "ep-overlap": {
      "command": "ep-overlap-mcp",
      "args": []
    }
  }
}
"""
    )
    assert take(text, PATH) is None


def test_comments_and_layout_stay() -> None:
    """The entry becomes the first member, indented as its neighbours; comments keep their places."""
    text = """\
// my servers
{
    "mcpServers": { // local ones
        // the tracker
        "tracker": {"command": "tracker", "args": ["--all"],}, /* keep */
    },
    "theme": "dark" // at night
}
"""
    assert (
        put(text, PATH, ENTRY)
        == """\
// my servers
{
    "mcpServers": { // local ones
        "ep-overlap": {
            "command": "ep-overlap-mcp",
            "args": []
        },
        // the tracker
        "tracker": {"command": "tracker", "args": ["--all"],}, /* keep */
    },
    "theme": "dark" // at night
}
"""
    )


def test_byte_order_mark_and_line_ends_stay() -> None:
    """A file of another system keeps its mark and its line ends."""
    text = '\ufeff{\r\n\t"a": 1\r\n}\r\n'
    lines = [
        "\ufeff{",
        '\t"mcpServers": {',
        '\t\t"ep-overlap": {',
        '\t\t\t"command": "ep-overlap-mcp",',
        '\t\t\t"args": []',
    ]
    lines += ["\t\t}", "\t},", '\t"a": 1', "}", ""]
    assert put(text, PATH, ENTRY) == "\r\n".join(lines)
    assert take(put(text, PATH, ENTRY), PATH) == text


def test_an_older_entry_is_replaced_where_it_stands() -> None:
    """Another command under our name gives way to the new one; the rest of the file stays."""
    text = '{"mcpServers": {"a": {}, "ep-overlap": {"command": "old"}}, "b": 1}'
    assert put(text, PATH, ENTRY) == f'{{"mcpServers": {{"a": {{}}, "ep-overlap": {json.dumps(ENTRY)}}}, "b": 1}}'


def test_an_entry_is_amended_where_it_differs() -> None:
    """Only what changes is written anew, within objects too; new members come first."""
    text = '{"s": {"command": "old", /* why */ "env": {"A": "1"}, "off": true}}'
    changes = {"args": [], "command": "new", "env": {"B": "2"}}
    new = '{"s": {"args": [],"command": "new", /* why */ "env": {"B": "2","A": "1"}, "off": true}}'
    assert amend(text, ["s"], changes) == new


def test_an_entry_in_last_place_takes_its_comma_along() -> None:
    """Someone sorted the file: removing the last member leaves no comma behind."""
    text = '{\n  "mcpServers": {\n    "a": {}, // one\n    "ep-overlap": {"command": "x"}\n  }\n}\n'
    assert take(text, PATH) == '{\n  "mcpServers": {\n    "a": {} // one\n  }\n}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("[]", "JSON object"),
        ('{"a": 1', "line 1: `,` or `}` is missing"),
        ('{\n"a": }', "line 2: a value is missing"),
        ("{\n'a': 1}", "line 2: a name in double quotes"),
        ('{"a": 1} x', "text after the end"),
        ('{"mcpServers": []}', "`mcpServers` at line 1 is not an object"),
        ('{"a": "b\n"}', "line 1"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text: str, told: str) -> None:
    """What is not JSON with comments is not guessed at."""
    with pytest.raises(MalformedError, match=told):
        put(text, PATH, ENTRY)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_gaps = st.sampled_from(["", " ", "\n", "\n  ", "\r\n\t", " // a {\n", " /* b, } */ ", "\n    // c\n    "])


@st.composite
def _documents(draw: st.DrawFn, named: str = "mcpServers") -> str:
    """Objects as people leave them: odd gaps, comments, trailing commas, our table or none."""

    def written(value: object) -> str:
        if isinstance(value, dict):
            items = [f"{json.dumps(k)}:{draw(_gaps)}{written(v)}" for k, v in value.items()]
            return "{" + _joined(items) + "}"
        if isinstance(value, list):
            return "[" + _joined([written(item) for item in value]) + "]"
        return json.dumps(value)

    def _joined(items: list[str]) -> str:
        comma = draw(st.sampled_from(["", ","])) if items else ""
        return ",".join(f"{draw(_gaps)}{item}{draw(_gaps)}" for item in items) + comma + draw(_gaps)

    value = draw(st.dictionaries(st.text(max_size=4), _values, max_size=3))
    if draw(st.booleans()):
        value[named] = draw(st.dictionaries(st.text(max_size=4), _values, max_size=2))
    return draw(_gaps) + written(value) + draw(_gaps)


@settings(deadline=None)
@given(_documents())
def test_take_undoes_put_byte_for_byte(text: str) -> None:
    """Whatever a file looked like, setting up and removing again leaves it as it was."""
    assert take(put(text, PATH, ENTRY), PATH) == text


@settings(deadline=None)
@given(_documents())
def test_put_adds_the_entry_and_nothing_else(text: str) -> None:
    """Putting it in twice is putting it in once, and only the entry is new."""
    once = put(text, PATH, ENTRY)
    assert put(once, PATH, ENTRY) == once
    assert get(once, PATH) == ENTRY
    servers = {**(get(text, PATH[:1]) or {}), "ep-overlap": ENTRY}
    assert get(once, PATH[:1]) == servers


@settings(deadline=None)
@given(_values.filter(lambda value: isinstance(value, dict)), st.sampled_from([None, 2, "\t"]))
def test_plain_json_is_read_as_the_standard_decoder_reads_it(
    value: dict[str, object], indent: int | str | None
) -> None:
    """Every member of a plain document is found with its value."""
    text = json.dumps(value, indent=indent)
    assert {key: get(text, [key]) for key in value} == value
