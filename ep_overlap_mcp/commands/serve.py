"""`serve`: the Model Context Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs

_LAST_PORT = 65535


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
    serve.add_argument("--port", type=_port, default=8765, help="port to bind (default: %(default)s)")
    serve.set_defaults(run=run)


def _port(text: str) -> int:
    """A number of a port; argparse says what it refuses."""
    import argparse

    if not text.isascii() or not text.isdigit() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"`{text}` is no port; it takes 0 to {_LAST_PORT}")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.server import serve

    return serve(http=options.http, host=options.host, port=options.port, names=options.allow_host)
