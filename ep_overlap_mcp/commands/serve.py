"""`serve`: the Model Context Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    serve = verbs.add_parser("serve", help="serve the Model Context Protocol, on stdio by default")
    serve.add_argument("--http", action="store_true", help="serve streamable HTTP instead")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to bind; beyond loopback with EP_OVERLAP_TOKEN (default: %(default)s)",
    )
    serve.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="one more name that clients reach this host by",
    )
    serve.add_argument("--port", type=int, default=8765, help="port to bind (default: %(default)s)")
    serve.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.server import serve

    return serve(http=options.http, host=options.host, port=options.port, names=options.allow_host)
