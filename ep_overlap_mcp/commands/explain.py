"""`explain`: a rule's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import print_results

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    explain = verbs.add_parser("explain", help="print a rule's page: what, why, example, fix, source")
    explain.add_argument("rule", nargs="?", help="code or name; without one, all rules are listed")
    explain.add_argument("--format", choices=("text", "json"), default="text")
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.rules.explain import explain_rule, list_rules

    print_results([explain_rule(options.rule) if options.rule else list_rules()], options.format)
    return 0
