"""`docs/rules/` is what the rules themselves say."""

from __future__ import annotations

import re
from pathlib import Path

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.docs import FAMILIES, pages, write

FOLDER = Path(__file__).parents[1] / "docs" / "rules"
AGAIN = "run: python -m ep_overlap_mcp.rules.docs docs/rules"


def test_the_pages_are_those_of_the_rules() -> None:
    """No page is missing, stale or of a rule that is gone."""
    current = pages()
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert sorted(written) == sorted(current), AGAIN
    assert [name for name, text in current.items() if written[name] != text] == [], AGAIN


def test_every_rule_has_a_page_that_the_index_links() -> None:
    """In its family's table."""
    index = pages()["README.md"]
    assert re.findall(r"\]\((EPO\d{3})\.md\)", index) == list(all_rules())
    assert re.findall(r"^## (.*)$", index, re.MULTILINE) == list(FAMILIES.values())


def test_a_page_has_its_parts() -> None:
    """What, why, example, fix and sources of each rule."""
    for name, text in pages().items():
        if name != "README.md":
            assert text.startswith(f"# {name.removesuffix('.md')} "), name
            missing = [part for part in ("What it checks", "Why", "Example", "Fix", "Sources:") if part not in text]
            assert missing == [], name


def test_writing_makes_the_folder_hold_exactly_the_pages(tmp_path: Path) -> None:
    """A page of a rule that is gone is removed; other files stay."""
    (tmp_path / "EPO999.md").write_text("gone")
    (tmp_path / "notes.txt").write_text("ours")
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*pages(), "notes.txt"])
