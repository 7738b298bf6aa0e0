"""Why a run did not end well: the cause, the rank, and what shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.smoke import Failure
from ep_overlap_mcp.smoke.asked import part
from ep_overlap_mcp.smoke.hangs import name_odd_rank
from ep_overlap_mcp.smoke.run_folder import read_json, tail

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.run_folder import RunFolder
    from ep_overlap_mcp.smoke.store import Run

MOST_LINES = 8
LONGEST = 200  # characters of an error message
_SIGNALLED = re.compile(r"^ *rank +: (\d+) .*\n *exitcode +: -\d+ .*\((SIG\w+)\)", re.MULTILINE)


def failure_of(run: Run, folder: RunFolder) -> Failure | None:
    """None for runs that ended well, were cancelled or go on without a stall."""
    stall = read_json(folder.stall)
    if run.open:
        return _of_stall(stall, folder) if isinstance(stall, dict) and _still(stall, run, folder) else None
    if run.status not in ("failed", "lost"):
        return None
    far = part(read_json(folder.far_end), "cause")
    ended = str(far or run.ending.get("cause") or "its end was not written down")
    if run.status == "lost":
        return Failure(cause=ended, rank=None, evidence=_log_end(folder))
    result = read_json(folder.result)
    explained = part(result, "failure")
    if isinstance(explained, dict) and _struck(result, explained):
        ended = _limit(explained, run)
    if isinstance(stall, dict) and (explained is None or _lasted(stall, explained, folder)):
        found = _of_stall(stall, folder)
        return found.model_copy(update={"cause": f"{found.cause}; {ended}"})
    if isinstance(explained, dict):
        if isinstance(stall, dict) and _still(stall, run, folder):  # of no single rank
            ended += f"; {stall.get('cause')}"
        return _explained(explained, ended, folder, run, struck=_struck(result, explained))
    if signals := _signals(folder):
        rank = min(signals)
        return Failure(
            cause=f"rank {rank} was killed by {signals[rank]}; {ended}", rank=rank, evidence=_log_end(folder)
        )
    return Failure(cause=_without_evidence(ended, folder), rank=None, evidence=_log_end(folder))


def _struck(result: Any, explained: dict[str, Any]) -> bool:
    """The program's own wall limit ended it. The ranks that torchrun closes then may be the ones that write it down."""
    ranks = explained.get("ranks") or {}
    return part(result, "status") == "timed_out" or (explained.get("error") is None and "timed_out" in ranks.values())


def _limit(explained: dict[str, Any], run: Run) -> str:
    return f"the limit of {run.limit_s:g} s was reached in phase {_place(explained)}"


def _lasted(stall: dict[str, Any], explained: Any, folder: RunFolder) -> bool:
    """The rank that the stall named never moved again, and no error of its own explains more."""
    rank = stall.get("rank")
    if rank is None or part(explained, "ranks", str(rank)) == "failed":
        return False
    return bool(read_json(folder.state(rank)) == (stall.get("states") or {}).get(str(rank)))


def _of_stall(stall: dict[str, Any], folder: RunFolder) -> Failure:
    rank = stall.get("rank")
    who = f"rank {rank} keeps the others waiting" if rank is not None else "a stall; no single rank stands out"
    evidence = [str(line) for line in stall.get("evidence") or []]
    stacks = f"stacks of all ranks: {folder.path}/rank*.stacks.txt"
    return Failure(cause=f"{who}: {stall.get('cause')}", rank=rank, evidence=[*evidence[:MOST_LINES], stacks])


def _still(stall: dict[str, Any], run: Run, folder: RunFolder) -> bool:
    """Nothing has moved since the stall was written down."""
    return bool(folder.states(run.plan["world_size"]) == {int(k): v for k, v in (stall.get("states") or {}).items()})


def _explained(explained: dict[str, Any], ended: str, folder: RunFolder, run: Run, *, struck: bool) -> Failure:
    """From what the ranks wrote down: the first that failed, or the odd one that the others waited for."""
    rank, error = explained.get("rank"), explained.get("error")
    silent = [int(one) for one, status in (explained.get("ranks") or {}).items() if status == "no report"]
    signals = _signals(folder)
    killed = next((one for one in silent if one in signals), None)
    message = _short(error)
    if killed is not None:
        rank, cause = killed, f"rank {killed} was killed by {signals[killed]}; {ended}"
    elif struck and len(silent) == 1:
        (rank,) = silent
        cause = f"{ended}. Rank {rank} did not answer at the limit: it was stopped or hung in native code"
    elif struck:
        rank, cause = None, f"{ended}; raise limit_s (--limit)"
    elif rank in silent:
        cause = f"rank {rank} died without a word (killed, or crashed in native code); {ended}"
    elif rank is None:
        cause = _without_evidence(ended, folder)
    elif rank in (explained.get("odd_ranks") or []):
        cause = f"rank {rank} kept the others waiting; {message or ended}"
    else:
        cause = f"rank {rank} failed: {message or ended}"
    evidence = [f"in {where}"] if (where := _place(explained)) else []
    if (at := part(error, "at")) and rank not in silent:  # else it is where a peer noticed
        evidence.append(f"raised at {at}")
    if explained.get("odd_ranks"):
        stacks = {number: tail(folder.stacks(number)) for number in range(run.plan["world_size"])}
        _, lines = name_odd_rank(folder.states(run.plan["world_size"]), stacks, run.plan["world_size"])
        evidence += lines[:MOST_LINES]
    return Failure(cause=cause, rank=rank, evidence=evidence or _log_end(folder))


def _place(explained: dict[str, Any]) -> str:
    return " ".join(str(explained[key]) for key in ("phase", "variant", "step") if explained.get(key) is not None)


def _signals(folder: RunFolder) -> dict[int, str]:
    """The rank that a signal ended first, by torchrun's summary in the log, and not what followed."""
    summary = "\n".join(tail(folder.log)).rpartition("Root Cause")[2]
    found = {int(rank): name for rank, name in _SIGNALLED.findall(summary)}
    return {rank: name for rank, name in found.items() if name != "SIGTERM"}


def _short(error: Any) -> str:
    if not isinstance(error, dict):
        return ""
    message = " ".join(str(error.get("message", "")).split())
    return f"{error.get('type')}: {message[:LONGEST]}"


def _without_evidence(ended: str, folder: RunFolder) -> str:
    if not folder.result.exists():
        return f"{ended}; it left no result.json"
    return f"{ended}; its result.json is not that of a completed run"


def _log_end(folder: RunFolder) -> list[str]:
    lines = [line.strip()[:200] for line in tail(folder.log) if line.strip()]
    return [f"log: {line}" for line in lines[-MOST_LINES:]] or ["the log is empty"]
