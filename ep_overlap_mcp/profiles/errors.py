"""What stops an analysis: the text says what is wrong, where, and what to do about it."""

from __future__ import annotations

from ep_overlap_mcp.refusal import Refusal


class ProfileError(Refusal):
    """A profile that cannot be read, or from which no honest percentage follows."""
