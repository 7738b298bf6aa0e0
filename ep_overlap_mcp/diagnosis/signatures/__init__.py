"""All signatures, a module a family; a new one is a row in the family it belongs to."""

from __future__ import annotations

from ep_overlap_mcp.diagnosis.signatures.command_line import COMMAND_LINE
from ep_overlap_mcp.diagnosis.signatures.communication import DEEPEP, HYBRIDEP, NETWORK, PACKAGES
from ep_overlap_mcp.diagnosis.signatures.consequences import COMPLETED, ENDED, FOLLOWS, SAVED
from ep_overlap_mcp.diagnosis.signatures.row import Signature
from ep_overlap_mcp.diagnosis.signatures.schedule import GRAPHS, MEMORY, SCHEDULE
from ep_overlap_mcp.diagnosis.signatures.stack_rules import RULES, TRANSFORMER_ENGINE

SIGNATURES: tuple[Signature, ...] = (
    *DEEPEP,
    *PACKAGES,
    *HYBRIDEP,
    *NETWORK,
    *MEMORY,
    *SCHEDULE,
    *GRAPHS,
    *TRANSFORMER_ENGINE,
    *RULES,
    *COMMAND_LINE,
    *ENDED,
    *FOLLOWS,
    *COMPLETED,
    *SAVED,
)

__all__ = ["SIGNATURES", "Signature"]
