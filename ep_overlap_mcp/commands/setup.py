"""`setup`: register the server and the skill with a coding agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import print_results

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs

# as `clients.places` has them, which is not loaded for the help of other verbs
_CLIENTS = "claude-code, cursor, codex, vscode, copilot, gemini, windsurf, opencode, claude-ai"


def add(verbs: Verbs) -> None:
    """Add the verb."""
    setup = verbs.add_parser("setup", help="register the server and the skill with a coding agent")
    setup.add_argument("client", metavar="CLIENT", help=_CLIENTS)
    setup.add_argument("--scope", choices=("project", "user"), help="default: project where the client has one")
    setup.add_argument("--command", metavar="TEXT", default="", help='what it shall start, "uvx ep-overlap-mcp" say')
    setup.add_argument("--python", metavar="PATH", help="Python of the training environment, for the server to use")
    setup.add_argument("--dry-run", action="store_true", help="show the change, write nothing")
    setup.add_argument("--remove", action="store_true", help="take server and skill out again")
    setup.add_argument("--format", choices=("text", "json"), default="text")
    setup.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.clients.setup import setup

    result = setup(
        options.client,
        scope=options.scope,
        command=_words(options.command),
        python=options.python,
        dry_run=options.dry_run,
        remove=options.remove,
    )
    print_results([result], options.format)
    return 0


def _words(command: str) -> list[str]:
    """The command as a shell takes it apart; UsageError where that cannot be done, or it starts nothing."""
    import shlex

    from ep_overlap_mcp.verbs import UsageError

    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise UsageError(f"--command `{command}` cannot be read: {problem}; close what is opened") from problem
    if words and not words[0]:
        raise UsageError(f"--command `{command}` names no program")
    return words
