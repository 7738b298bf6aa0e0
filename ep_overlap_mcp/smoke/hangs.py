"""Names the rank that keeps the others waiting, from the state files and the stacks of all ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')


def name_odd_rank(
    states: Mapping[int, Mapping[str, Any]], stacks: Mapping[int, Sequence[str]], world_size: int
) -> tuple[int | None, list[str]]:
    """The odd rank, None when the evidence names none, and a line for each rank.

    The odd rank is the only one in no collective while others wait; else the only one that dumped no stack when all
    were asked, which only a stopped process does not. Counts of calls tell nothing: pipeline stages call differently
    often.
    """
    mute = _mute_rank(stacks, world_size)
    rank = _odd_rank(states, world_size)
    rank = mute if rank is None else rank
    lines = [_line(number, states.get(number), stacks.get(number, ())) for number in range(world_size)]
    if mute is not None:
        lines[mute] += "; it did not answer when asked for its stack: gone, stopped, or stuck in the kernel"
    return rank, lines if rank is None else [lines[rank], *(line for n, line in enumerate(lines) if n != rank)]


def _odd_rank(states: Mapping[int, Mapping[str, Any]], world_size: int) -> int | None:
    ranks = range(world_size)
    waiting = [rank for rank in ranks if states.get(rank, {}).get("in_flight")]
    idle = [rank for rank in ranks if rank not in waiting]
    return idle[0] if waiting and len(idle) == 1 else None


def _mute_rank(stacks: Mapping[int, Sequence[str]], world_size: int) -> int | None:
    mute = [rank for rank in range(world_size) if not stacks.get(rank)]
    return mute[0] if len(mute) == 1 < world_size else None


def _line(rank: int, state: Mapping[str, Any] | None, stack: Sequence[str]) -> str:
    if state is None:
        return f"rank {rank}: left no state file, so it never started or was not reached"
    where = " ".join(str(state[name]) for name in ("phase", "variant") if state.get(name) is not None)
    step = f" step {state['step']}" if state.get("step") is not None else ""
    return f"rank {rank}: in {where}{step}; {_collective(state)}{_innermost(stack)}"


def _collective(state: Mapping[str, Any]) -> str:
    flying = state.get("in_flight") or []
    call = flying[0] if flying else state.get("last")
    if not call:
        return "has called no collective"
    verb = "waits in" if flying else "is in no collective; its last was"
    return f"{verb} {call.get('name')} #{call.get('seq')} of group {call.get('group')} ({call.get('bytes')} bytes)"


def _innermost(stack: Sequence[str]) -> str:
    """Where the main thread is, by the newest dump of faulthandler: its threads come with the main one last."""
    frames = [match for line in stack if (match := _FRAME.match(line))]
    starts = [n for n, line in enumerate(stack) if line.startswith(("Thread ", "Current thread "))]
    newest = [match for line in stack[starts[-1] :] if (match := _FRAME.match(line))] if starts else frames
    if not newest:
        return ""
    top = newest[0]
    return f"; main thread at {top['file'].rpartition('/')[2]}:{top['line']} in {top['name']}"
