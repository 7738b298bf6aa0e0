"""The command line: the same verbs as the tools, for people and CI.

Exit codes: 0 valid, 1 invalid, 2 bad usage or unreadable input, 3 undetermined, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ep_overlap_mcp import __version__
from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.surface import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Sequence

BAD_INPUT = 2
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells say it
VERBS = (
    "serve",
    "check",
    "propose",
    "conflicts",
    "environment",
    "smoke",
    "profile",
    "estimate",
    "diagnose",
    "explain",
    "setup",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; without one, serve on stdio."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _speak_utf8()
    try:
        return int(options.run(options))
    except Refusal as problem:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)  # noqa: T201
        return BAD_INPUT
    except KeyboardInterrupt as problem:
        print(f"{PROGRAM}: {str(problem) or 'interrupted'}", file=sys.stderr)  # noqa: T201
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    """Each verb's module in `commands` adds its own arguments."""
    parser = argparse.ArgumentParser(
        prog="ep-overlap-mcp",
        description="Machine-checked answers about expert-parallel communication overlap in the Megatron stack.",
        epilog="Without a verb it serves the Model Context Protocol on stdio.",
    )
    parser.add_argument("--version", action="version", version=f"ep-overlap-mcp {__version__}")
    serve = import_module("ep_overlap_mcp.commands.serve")
    parser.set_defaults(run=serve.run, http=False, host="127.0.0.1", port=8765, allow_host=[])
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for verb in VERBS:
        import_module(f"ep_overlap_mcp.commands.{verb}").add(verbs)
    return parser


def _speak_utf8() -> None:
    """Machine formats are UTF-8 in any locale; what a text holds besides characters is escaped, never fatal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
