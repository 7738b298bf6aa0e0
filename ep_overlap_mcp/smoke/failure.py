"""Why a run did not end well: the cause, the rank, and what shows it."""

from __future__ import annotations

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
    explained = part(read_json(folder.result), "failure")
    if isinstance(explained, dict):
        return _explained(explained, ended, folder, run)
    if isinstance(stall, dict):
        found = _of_stall(stall, folder)
        return found.model_copy(update={"cause": f"{found.cause}; {ended}"})
    return Failure(cause=_without_evidence(ended, folder), rank=None, evidence=_log_end(folder))


def _of_stall(stall: dict[str, Any], folder: RunFolder) -> Failure:
    rank = stall.get("rank")
    who = f"rank {rank} keeps the others waiting" if rank is not None else "a stall; no single rank stands out"
    evidence = [str(line) for line in stall.get("evidence") or []]
    stacks = f"stacks of all ranks: {folder.path}/rank*.stacks.txt"
    return Failure(cause=f"{who}: {stall.get('cause')}", rank=rank, evidence=[*evidence[:MOST_LINES], stacks])


def _still(stall: dict[str, Any], run: Run, folder: RunFolder) -> bool:
    """Nothing has moved since the stall was written down."""
    return bool(folder.states(run.plan["world_size"]) == {int(k): v for k, v in (stall.get("states") or {}).items()})


def _explained(explained: dict[str, Any], ended: str, folder: RunFolder, run: Run) -> Failure:
    """From what the ranks wrote down: the first that failed, or the odd one that the others waited for."""
    rank, error = explained.get("rank"), explained.get("error")
    status = part(explained, "ranks", str(rank))
    message = _short(error)
    if status == "no report":
        cause = f"rank {rank} died without a word (killed, or crashed in native code); {ended}"
    elif rank in (explained.get("odd_ranks") or []):
        cause = f"rank {rank} kept the others waiting; {message or ended}"
    else:
        cause = f"rank {rank} failed: {message or ended}"
    where = " ".join(str(explained[key]) for key in ("phase", "variant", "step") if explained.get(key) is not None)
    evidence = [f"in {where}"] if where else []
    if (at := part(error, "at")) and status != "no report":  # else it is where a peer noticed
        evidence.append(f"raised at {at}")
    if explained.get("odd_ranks"):
        stacks = {number: tail(folder.stacks(number)) for number in range(run.plan["world_size"])}
        _, lines = name_odd_rank(folder.states(run.plan["world_size"]), stacks, run.plan["world_size"])
        evidence += lines[:MOST_LINES]
    return Failure(cause=cause, rank=rank, evidence=evidence)


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
