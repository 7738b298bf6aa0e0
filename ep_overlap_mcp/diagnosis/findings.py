"""What a detector says: for a cause, or against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ep_overlap_mcp.diagnosis.evidence import Line

CONFIRMS = 3.0  # only this cause explains the lines
STRONG = 2.5  # the settings complete the signature
BROKEN = 2.2  # a rule is broken that a run does not survive: likely even beside a failure nobody recognises
LIKELY = 2.0
POSSIBLE = 1.0


@dataclass(frozen=True)
class Support:
    """Lines that speak for a cause; `strength` orders causes, the cause's ceiling bounds the confidence.

    `fix` is the change that mends this very case.
    """

    cause: str
    strength: float
    lines: tuple[Line, ...] = ()
    rules: tuple[str, ...] = ()
    fix: str = ""


@dataclass(frozen=True)
class Against:
    """Why a cause does not hold here."""

    cause: str
    why: str
