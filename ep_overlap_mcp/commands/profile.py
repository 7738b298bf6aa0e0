"""`profile`: hidden and exposed communication."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import ANYWHERE, print_results, progress

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    profile = verbs.add_parser("profile", help="hidden and exposed communication from a profile")
    profile.add_argument("files", nargs="+", metavar="FILE", help="Kineto JSON or nsys SQLite, or a folder of ranks")
    profile.add_argument("--before", metavar="FILE", help="the profile to compare with")
    profile.add_argument("--compat", choices=("none", "hta"), default="none", help="whose definition of overlap")
    profile.add_argument("--html", metavar="PAGE", help="write a page with lanes of compute and communication")
    profile.add_argument("--format", choices=("text", "json"), default="text")
    profile.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.verbs import analyze_profile

    with progress("reading profiles") as advance:
        result = analyze_profile(
            [Path(name) for name in options.files],
            before=Path(options.before) if options.before else None,
            compat=options.compat,
            page=Path(options.html) if options.html else None,
            roots=ANYWHERE,
            on_progress=advance,
        )
    print_results([result], options.format)
    return 0
