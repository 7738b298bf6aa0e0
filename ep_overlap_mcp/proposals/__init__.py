"""The smallest change that satisfies the rules, dispatcher candidates, and conflicts of delayed weight gradients."""

from ep_overlap_mcp.proposals.conflicts import conflicts
from ep_overlap_mcp.proposals.proposing import proposals

__all__ = ["conflicts", "proposals"]
