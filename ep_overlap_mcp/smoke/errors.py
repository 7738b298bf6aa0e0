"""Refusals of this room."""

from __future__ import annotations

from ep_overlap_mcp.refusal import Refusal


class SmokeError(Refusal):
    """A smoke run that cannot be planned, started or found; the text says what, where and what to do."""
