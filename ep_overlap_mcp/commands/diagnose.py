"""`diagnose`: causes of a failed, hung, wrong or slower run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import ANYWHERE, add_stack, print_results, progress

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    diagnose = verbs.add_parser("diagnose", help="causes of a failed, hung, wrong or slower run")
    diagnose.add_argument("logs", nargs="*", metavar="LOG", help="log files, one or one a rank")
    diagnose.add_argument("--text", help="an error text instead of a file")
    diagnose.add_argument("--symptom", help="in words, such as `slower after delay_wgrad_compute`, hang, nan")
    diagnose.add_argument("--before", metavar="FILE", help="the configuration that was fine")
    diagnose.add_argument("--after", metavar="FILE", help="the configuration that is not")
    add_stack(diagnose, "versions that the logs do not print")
    diagnose.add_argument("--smoke-run", action="append", default=[], metavar="ID", help="what a smoke run showed")
    diagnose.add_argument("--profile", action="append", default=[], metavar="FILE", help="what a profile shows")
    diagnose.add_argument("--format", choices=("text", "json"), default="text")
    diagnose.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.verbs import Question, diagnose_run

    stack = ",".join(options.stack)

    def side(name: str | None) -> Question | None:
        return Question(files=(Path(name),), stack=stack, roots=ANYWHERE) if name else None

    with progress("reading logs") as advance:
        result = diagnose_run(
            [Path(name) for name in options.logs],
            text=options.text,
            symptom=options.symptom,
            before=side(options.before),
            after=side(options.after),
            stack=stack,
            smoke_runs=options.smoke_run,
            profiles=[Path(name) for name in options.profile],
            roots=ANYWHERE,
            on_progress=lambda done, total: advance(done / max(total, 1)),
        )
    print_results([result], options.format)
    return 0
