"""The smallest change that satisfies the rules, dispatcher candidates, and conflicts of delayed weight gradients."""

from ep_overlap_mcp.proposals.conflicts import conflicts
from ep_overlap_mcp.proposals.mending import mended
from ep_overlap_mcp.proposals.proposing import proposal

__all__ = ["conflicts", "mended", "proposal"]
