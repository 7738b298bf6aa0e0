"""The pages of `docs/rules/`, from the rules themselves: `python -m ep_overlap_mcp.rules.docs docs/rules`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.explain import rule_markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.rules.engine import Rule

FAMILIES = {
    "1": "Overlap preconditions",
    "2": "Delayed weight gradients and Transformer Engine",
    "3": "CUDA graphs",
    "4": "Dispatcher and backend",
    "5": "Pipeline and batch",
    "6": "Environment, hardware, sharding, optimizer, checkpoints",
    "7": "Benefit lost or known to go wrong",
    "8": "Reading",
    "9": "Attention, positions and the training script",
}

_SEVERITIES = (
    "An `error` raises, hangs or corrupts; a `warning` is legal and loses the benefit or is known to go wrong; "
    "an `info` is worth knowing. `ep-overlap-mcp explain NAME` prints the same pages."
)


def pages() -> dict[str, str]:
    """The text of every file of the folder, by its name: a page a rule, and the index."""
    rules = all_rules().values()
    return {"README.md": _index(list(rules)), **{f"{rule.code}.md": rule_markdown(rule.code) for rule in rules}}


def write(folder: Path) -> None:
    """Make the folder hold exactly the pages; pages of rules that are gone are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    current = pages()
    for stale in folder.glob("*.md"):
        if stale.name not in current:
            stale.unlink()
    for name, text in current.items():
        (folder / name).write_text(text, encoding="utf-8")


def _index(rules: Sequence[Rule]) -> str:
    parts = ["# Rules", f"{len(rules)} rules by family. {_SEVERITIES}"]
    for digit, title in FAMILIES.items():
        own = [rule for rule in rules if rule.code[3] == digit]
        if own:
            parts += [f"## {title}", _table(own)]
    return "\n\n".join(parts) + "\n"


def _table(rules: Sequence[Rule]) -> str:
    rows = [f"| [{rule.code}]({rule.code}.md) | `{rule.name}` | {rule.severity} |" for rule in rules]
    return "\n".join(["| code | name | severity |", "|---|---|---|", *rows])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
