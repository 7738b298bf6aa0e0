"""What the stack says where it refuses what a rule is about: the words of the statements that the rules cite.

The rows stand in `refusals.json`; `rules.cited` reads them out of the sources.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PLACE = Path(__file__).parent / "refusals.json"
GAP = "{}"  # in a message, where the stack writes a value
BARE = "assert "  # begins what a traceback shows of an assertion that says nothing


@dataclass(frozen=True)
class Refusal:
    """A message, or the code of an assertion without one, the file that raises it, and the rules it is about."""

    file: str
    says: str
    rules: tuple[str, ...]

    @property
    def is_bare(self) -> bool:
        """Whether the words are code: the exception itself says nothing."""
        return self.says.startswith(BARE)


@lru_cache(maxsize=1)
def refusals() -> tuple[Refusal, ...]:
    """Every refusal, by file."""
    table = json.loads(PLACE.read_text(encoding="utf-8"))
    return tuple(Refusal(file, says, tuple(rules)) for file, rows in table.items() for says, rules in rows.items())
