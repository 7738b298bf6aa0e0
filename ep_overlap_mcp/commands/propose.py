"""`propose`: the smallest change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import EXIT, add_question, print_results, question_of, training_environment

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    propose = verbs.add_parser("propose", help="the smallest change that makes EP overlap legal, as a patch")
    add_question(propose)
    propose.add_argument("--python", metavar="PATH", help="Python of the training environment, for its versions")
    propose.add_argument("--format", choices=("text", "json"), default="text")
    propose.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.verbs import propose_configuration

    with training_environment(options.python) as environment:
        results = propose_configuration(question_of(options), environment=environment)
    print_results(results, options.format)
    codes = {1 if r.blocked_by else EXIT[r.verdict_after] for r in results}
    return next(code for code in (1, 3, 0) if code in codes)
