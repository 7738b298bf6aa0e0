"""Who may use the server over HTTP: bearer tokens, host names, and what each user may start.

EP_OVERLAP_TOKEN holds one token for all, or `NAME:TOKEN` for each user, with spaces between. Without it only loopback
is served. EP_OVERLAP_RUNS_PER_USER bounds the open smoke runs of each user.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ep_overlap_mcp.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp.server.auth.provider import AccessToken
    from mcp.server.auth.settings import AuthSettings
    from mcp.server.transport_security import TransportSecuritySettings

TOKEN = "EP_OVERLAP_TOKEN"  # noqa: S105 - the variable's name
RUNS_PER_USER = "EP_OVERLAP_RUNS_PER_USER"
FEWEST_CHARACTERS = 16  # of a token; a shorter one can be guessed
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - what binds everywhere, to be told apart


class AccessError(Refusal):
    """The server must not be offered so; the text says what is missing."""


@dataclass(frozen=True)
class Tokens:
    """Users by name with their tokens; the SDK asks it for every request."""

    users: Mapping[str, str]

    async def verify_token(self, token: str) -> AccessToken | None:
        """The user of the token. All are compared, so that the time says nothing."""
        from mcp.server.auth.provider import AccessToken

        known = [user for user, own in self.users.items() if hmac.compare_digest(own.encode(), token.encode())]
        return AccessToken(token=token, client_id=known[0], scopes=[]) if known else None


def tokens() -> Tokens | None:
    """Of EP_OVERLAP_TOKEN; None where it is not set, AccessError where a token is too short or a name stands twice."""
    users: dict[str, str] = {}
    for word in os.environ.get(TOKEN, "").split():
        name, colon, token = word.partition(":")
        user, own = (name, token) if colon else ("shared", word)
        if not re.fullmatch(r"[A-Za-z0-9._-]+", user) or user in users:
            raise AccessError(f"{TOKEN}: give each user once, as NAME:TOKEN with spaces between, or one token for all")
        if len(own) < FEWEST_CHARACTERS:
            raise AccessError(f"{TOKEN}: the token of `{user}` is shorter than {FEWEST_CHARACTERS} characters")
        users[user] = own
    return Tokens(users) if users else None


def security(host: str, names: Sequence[str], known: Tokens | None) -> TransportSecuritySettings:
    """Host and Origin headers that are answered, on every address; AccessError for an address without a token.

    `names` are more names that clients reach this host by. Any other name is refused, because a page in a browser can
    make its own name lead here.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    if not _is_loopback(host) and known is None:
        raise AccessError(
            f"--host {host} is not loopback: set {TOKEN} to serve it to others, or serve 127.0.0.1 and tunnel to it"
        )
    own = () if host in EVERY_ADDRESS else (f"[{host}]" if ":" in host else host,)
    reached = [] if _is_loopback(host) else [socket.gethostname(), socket.getfqdn()]
    every = dict.fromkeys([*LOOPBACK, *own, *reached, *names])
    hosts = [form for name in every for form in (name, f"{name}:*")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=hosts,
        allowed_origins=[f"{scheme}://{name}" for name in hosts for scheme in ("http", "https")],
    )


def refuse_unusable(host: str, port: int) -> None:
    """Raise AccessError where nothing can listen: the port is taken, or the address is not of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: an old one may linger
            tried.bind(address)
    except OSError as problem:
        remedy = "end what listens there, or take another --port"
        raise AccessError(f"cannot listen on {host}, port {port}: {problem.strerror}; {remedy}") from problem


def auth_settings(host: str, port: int) -> AuthSettings:
    """Bearer tokens are required; nobody issues them but whoever sets the variable."""
    from mcp.server.auth.settings import AuthSettings
    from pydantic import AnyHttpUrl

    name = "localhost" if host in EVERY_ADDRESS else f"[{host}]" if ":" in host else host
    return AuthSettings(
        issuer_url=AnyHttpUrl(f"http://{name}:{port}"), resource_server_url=None, validate_token_resource=False
    )


def user() -> str | None:
    """Who makes the request that is being answered; None on stdio, and on loopback without tokens."""
    from mcp.server.auth.middleware.auth_context import get_access_token

    token = get_access_token()
    return token.client_id if token else None


def runs_per_user() -> int:
    """How many smoke runs a user may have open."""
    given = os.environ.get(RUNS_PER_USER, "2")
    if not given.isdecimal() or not 1 <= int(given) <= 1000:
        raise AccessError(f"{RUNS_PER_USER} is `{given}`; it takes 1 to 1000")
    return int(given)


def python_of(asked: str | None) -> str | None:
    """The training environment that a request names.

    Who comes with a token may only choose among named ones: a path would start any program of this host.
    """
    if user() is not None and asked is not None and not asked.startswith("@"):
        raise AccessError(f"python `{asked}`: over HTTP name a training environment of this server, as @NAME")
    return asked


def _is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "localhost", "::1")
