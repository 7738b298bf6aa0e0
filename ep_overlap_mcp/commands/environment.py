"""`environment`: what the training environment has and can do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import print_results, training_environment

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    environment = verbs.add_parser("environment", help="what the training environment has and can do")
    environment.add_argument("--python", metavar="PATH", help="its Python, or @NAME (default: the Python running this)")
    environment.add_argument("--format", choices=("text", "json"), default="text")
    environment.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    with training_environment(options.python or sys.executable) as environment:
        assert environment is not None  # noqa: S101 - a Python was named
        print_results([environment.describe()], options.format)
    return 0
