"""What stops a diagnosis: each message says what is wrong, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path


class UnreadableLog(Refusal):
    """A log file that is not there, cannot be opened or is not text; `path` names it."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path = path


class NothingToDiagnose(Refusal):
    """No log, text, symptom, configuration, smoke run or profile was given."""

    def __init__(self) -> None:
        super().__init__(
            "nothing to diagnose: give log files, an error text, a symptom in words, the configuration that is "
            "not fine (after), smoke runs or profiles"
        )
