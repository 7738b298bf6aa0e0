"""TOML is edited in place: our table goes to the end and out again, every other byte stays."""

from __future__ import annotations

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.clients.jsonc import MalformedError
from ep_overlap_mcp.clients.toml_text import put, take

ENTRY = {"command": "ep-overlap-mcp", "args": ["serve"], "env": {"A": "1", "B": "2"}, "startup_timeout_sec": 60}
PATH = ("mcp_servers", "ep-overlap")
BLOCK = """\
[mcp_servers.ep-overlap]
command = "ep-overlap-mcp"
args = ["serve"]
env = {A = "1", B = "2"}
startup_timeout_sec = 60
"""


def test_a_new_file_holds_the_table_alone() -> None:
    """A file that does not exist is created, and goes when the table goes."""
    assert put(None, PATH, ENTRY) == BLOCK
    assert take(BLOCK, PATH) is None


def test_the_table_is_added_at_the_end() -> None:
    """Comments and odd spacing stay; the table follows after a blank line."""
    text = '# mine\nmodel="gpt"   # best\n[mcp_servers . other]\ncommand = "x"\n'
    assert put(text, PATH, ENTRY) == f"{text}\n{BLOCK}"


def test_comments_of_the_next_table_stay_with_it() -> None:
    """A table that someone added below keeps the comment above it."""
    text = f'a = 1\n\n{BLOCK}\n# the tracker\n[mcp_servers.tracker]\ncommand = "t"\n'
    assert take(text, PATH) == 'a = 1\n\n\n# the tracker\n[mcp_servers.tracker]\ncommand = "t"\n'


def test_a_changed_entry_is_replaced_with_its_sub_tables() -> None:
    """An older table, with an environment of its own below, gives way to the new one."""
    text = '[mcp_servers.ep-overlap]\ncommand = "old"\n[mcp_servers.ep-overlap.env]\nX = "1"\n[other]\na = 1\n'
    assert put(text, PATH, ENTRY) == f"[other]\na = 1\n\n{BLOCK}"


@pytest.mark.parametrize(
    "text",
    [
        "a = ",
        "[mcp_servers]\n[mcp_servers]\n",
        'mcp_servers = {other = {command = "x"}}\n',
        "mcp_servers = 3\n",
        'mcp_servers.ep-overlap.command = "x"\n',
        's = """\n[mcp_servers.ep-overlap]\n"""\n[mcp_servers]\nep-overlap = {command = "x"}\n',
    ],
)
def test_what_cannot_be_edited_safely_is_refused(text: str) -> None:
    """Malformed files, and servers that are not written as tables, are left alone."""
    with pytest.raises(MalformedError):
        put(text, PATH, ENTRY)


_lines = st.lists(
    st.sampled_from(
        ["# a note", "", "   ", "x{n} = 1", '[t{n}]\nk = "v" # c', "[mcp_servers.s{n}]", "[[list{n}]]", "[t{n}.sub]"]
    ),
    max_size=8,
)


@settings(deadline=None)
@given(_lines, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_take_undoes_put_byte_for_byte(lines: list[str], newline: str, ended: bool) -> None:  # noqa: FBT001
    """Whatever a file looked like, setting up and removing again leaves it as it was; only the table is new."""
    text = "\n".join(line.format(n=n) for n, line in enumerate(lines)).replace("\n", newline) + newline * ended
    added = put(text, PATH, ENTRY)
    assert tomlkit.parse(added).unwrap()["mcp_servers"]["ep-overlap"] == ENTRY
    assert put(added, PATH, ENTRY) == added
    assert take(added, PATH) == text
