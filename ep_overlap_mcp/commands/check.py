"""`check`: judge a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import (
    add_question,
    exit_code,
    print_results,
    question_of,
    training_environment,
    write,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ep_overlap_mcp.commands.common import Verbs
    from ep_overlap_mcp.results.check import CheckResult


def add(verbs: Verbs) -> None:
    """Add the verb."""
    check = verbs.add_parser("check", help="judge a configuration: every violation at once")
    add_question(check)
    check.add_argument("--all", action="store_true", dest="everything", help="show every setting that a rule read")
    check.add_argument("--python", metavar="PATH", help="training environment, to judge as well: its Python, or @NAME")
    check.add_argument("--format", choices=("text", "json", "sarif", "junit"), default="text")
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.verbs import check_configuration

    with training_environment(options.python) as environment:
        results = check_configuration(question_of(options), environment=environment, everything=options.everything)
    code = exit_code(results)
    _print_check(results, options.format, code)
    return code


def _print_check(results: Sequence[CheckResult], form: str, code: int) -> None:
    if form == "sarif":
        from ep_overlap_mcp.reports.sarif import as_sarif

        write(as_sarif(results, code))
    elif form == "junit":
        from ep_overlap_mcp.reports.junit import as_junit

        write(as_junit(results))
    else:
        print_results(results, form)
