"""What logs print when a cause is at work: data rows, each with the place it was seen.

A row is tried only on lines that hold its `literal` (a plain substring without digits, so that lines that
differ only in numbers need to be read once). `pattern` narrows it, `frame` asks for a stack frame just above.
A row `confirms` what only that cause explains; it `points_to` what it makes probable, the first named most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """One row; `waits`: a peer did not come, `follows`: another failure came first, `stops`: the run ends."""

    literal: str
    source: str
    confirms: tuple[str, ...] = ()
    points_to: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    frame: str = ""
    rules: tuple[str, ...] = ()
    stops: bool = True
    waits: bool = False
    follows: bool = False

    def matches(self, text: str, frames: tuple[str, ...]) -> bool:
        """Whether the row fits a line that already holds its literal."""
        if self.pattern and not self.pattern.search(text):
            return False
        wanted = self.frame.split("|") if self.frame else []
        return not wanted or any(part in frame for part in wanted for frame in frames)


def says(literal: str, source: str, *confirms: str, pattern: str = "", frame: str = "") -> Signature:
    """A line that only these causes print."""
    return Signature(literal, source, confirms, (), re.compile(pattern) if pattern else None, frame)


def hints(
    literal: str,
    source: str,
    *points_to: str,
    pattern: str = "",
    frame: str = "",
    stops: bool = True,
    waits: bool = False,
) -> Signature:
    """A line that makes these causes probable, the first one most."""
    regex = re.compile(pattern) if pattern else None
    return Signature(literal, source, (), points_to, regex, frame, stops=stops, waits=waits)


def follows(literal: str, source: str, pattern: str = "", *, waits: bool = False) -> Signature:
    """A line that another failure brings about."""
    return Signature(literal, source, pattern=re.compile(pattern) if pattern else None, follows=True, waits=waits)


def breaks(literal: str, source: str, *rules: str) -> Signature:
    """The stack's own message that these rules are broken."""
    return Signature(literal, source, ("config-rule-violated",), rules=rules)


def old_te(literal: str, source: str, *rules: str) -> Signature:
    """The stack's own message that Transformer Engine is below these rules' floors."""
    return Signature(literal, source, ("transformer-engine-too-old",), rules=rules)
