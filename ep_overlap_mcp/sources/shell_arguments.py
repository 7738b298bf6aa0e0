"""What `set` and `shift` make of `$1`, `$@` and `$#`; of the options of `set` the one that counts, `-a`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.sources.shell_scope import UNKNOWN_ARGUMENTS, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.sources.shell_scope import Pieces, Scope


def set_options(words: Sequence[Pieces], scope: Scope) -> None:
    """`set -- a b`, `set -eu a b`: the arguments that follow the options; `set -a` exports what is assigned.

    What the script's own arguments alone make, such as `set -- "$@"`, is as unknown as they are.
    """
    texts = [text_of(word) for word in words]
    at = 0
    while at < len(texts) and texts[at][:1] in ("-", "+") and texts[at] not in ("-", "--"):
        named = texts[at].endswith("o") and at + 1 < len(texts)
        if "a" in texts[at] or (named and texts[at + 1] == "allexport"):
            scope.exports = texts[at].startswith("-")
        at += 2 if named else 1
    given = tuple(words[at + 1 :] if texts[at : at + 1] in (["-"], ["--"]) else words[at:])
    if given or (at < len(texts) and scope.arguments is not None):
        scope.arguments = given


def shift(words: Sequence[Pieces], scope: Scope) -> None:
    """`shift` and `shift 2`; more than there are shifts nothing. The script's own arguments stay unknown."""
    arguments = scope.arguments
    if arguments is None:
        return
    count = text_of(words[0]) if words else "1"
    if not count.isdigit() or any(argument in UNKNOWN_ARGUMENTS for argument in arguments[: int(count)]):
        scope.arguments = UNKNOWN_ARGUMENTS
    elif int(count) <= len(arguments):
        scope.arguments = arguments[int(count) :]
