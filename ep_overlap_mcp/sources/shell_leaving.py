"""Ends before the last line: `exit`, `return`, `break` and `continue`, also those that only some branches take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_overlap_mcp.sources.shell_scope import Scope

Way = Literal["exit", "return", "break", "continue", "all"]


class LeaveError(Exception):
    """The statements end here, by the way that it names; `all` where each branch left by a way of its own.

    `failed` marks an exit that reports a mistake of the caller; `loops` counts the loops that `break` and `continue`
    leave.
    """

    def __init__(self, way: Way, *, failed: bool = False, loops: int = 1) -> None:
        super().__init__()
        self.way = way
        self.failed = failed
        self.loops = loops


class Left(NamedTuple):
    """A branch that may have left, with what it knew then and the variable that decides about it."""

    way: Way
    loops: int
    scope: Scope
    cause: str


def outer(left: Iterable[Left]) -> list[Left]:
    """The same branches seen from outside a loop that ended; `break 2` leaves one more."""
    return [one._replace(loops=one.loops - 1) if one.way in ("break", "continue") else one for one in left]
