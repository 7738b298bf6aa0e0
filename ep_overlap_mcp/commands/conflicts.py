"""`conflicts`: delayed weight gradients against the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import EXIT, add_question, print_results, question_of, training_environment

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    conflicts = verbs.add_parser("conflicts", help="delayed weight gradients against this stack")
    add_question(conflicts)
    conflicts.add_argument("--python", metavar="PATH", help="Python of the training environment, for its versions")
    conflicts.add_argument("--format", choices=("text", "json"), default="text")
    conflicts.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.verbs import wgrad_conflicts

    with training_environment(options.python) as environment:
        results = wgrad_conflicts(question_of(options), environment=environment)
    print_results(results, options.format)
    codes = {EXIT[result.verdict] for result in results}
    return next(code for code in (1, 3, 0) if code in codes)
