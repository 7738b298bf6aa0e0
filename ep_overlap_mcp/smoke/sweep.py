"""Several smoke runs as one request: every combination of the varied settings, one after the other, or as one array job
on Slurm. A sweep is a file beside the runs, so that it goes on where it was whoever asks; a point that fails, or that
the rules refuse, is a row like the others.
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.smoke import SmokePlanResult, SweepPoint, SweepResult
from ep_overlap_mcp.smoke import slurm
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.planning import SmokePlan
from ep_overlap_mcp.smoke.relay import Far
from ep_overlap_mcp.smoke.run_folder import read_json, write_json
from ep_overlap_mcp.smoke.runs import end_lost_runs, start_run
from ep_overlap_mcp.smoke.store import Store
from ep_overlap_mcp.training_env import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ep_overlap_mcp.refusal import Refusal
    from ep_overlap_mcp.results.smoke import SmokeResult

MOST_POINTS = 32  # the runs of a sweep must all be kept
VARIANT = "variant"  # the axis that is no setting
AGAIN = ("cancelled", "lost")  # statuses that say nothing of the point
POLL_S = 1.0
_ID = re.compile(r"sweep-\d{4}-\d{6}-[0-9a-f]{6}")


@dataclass
class Point:
    """One combination: how it was planned, or why it was refused; its run; its row once it has ended."""

    settings: dict[str, str]
    plan: dict[str, Any] | None = None
    refused: str | None = None
    run: str | None = None
    row: dict[str, Any] | None = field(default=None)

    @property
    def open(self) -> bool:
        """It has no answer yet."""
        return self.plan is not None and self.row is None


def combinations(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination of the values; SmokeError when there are none or too many."""
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if not axes or not 1 <= len(every) <= MOST_POINTS:
        raise SmokeError(f"a sweep has 1 to {MOST_POINTS} points, this one has {len(every) if axes else 0}")
    return every


def create(
    axes: Mapping[str, Sequence[str]], plan: Callable[[dict[str, str]], SmokePlan], refusals: type[Refusal]
) -> str:
    """Plan every point and write the sweep down; its id. Nothing is started.

    `plan` is asked for each combination; what it refuses with `refusals`, and what it cannot plan at all, becomes the
    row of that point.
    """
    points = [_planned(settings, plan, refusals) for settings in combinations(axes)]
    sweep_id = f"sweep-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    _write(sweep_id, points)
    return sweep_id


def _planned(settings: dict[str, str], plan: Callable[[dict[str, str]], SmokePlan], refusals: type[Refusal]) -> Point:
    try:
        return Point(settings, plan=_as_json(plan(settings)))
    except refusals as problem:
        return Point(settings, refused=str(problem))
    except Exception as problem:  # noqa: BLE001 - a fault of ours in one point must not cost the others
        place = traceback.extract_tb(problem.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        return Point(settings, refused=f"it could not be planned, a fault here: {problem!r} at {where}")


def go_on(
    sweep_id: str,
    on_change: Callable[[SweepResult], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> SweepResult:
    """Run what has no answer yet, to the end of all; what was cancelled or lost runs again.

    Once `stopped` says so the run of this host is cancelled, and the rest waits; Slurm's jobs stay in its queue.
    SmokeError when the devices are taken by another run: then go on later.
    """
    points = _read(sweep_id)
    for point in points:
        if point.row is not None and point.row["status"] in AGAIN:
            point.run = point.row = None
    _note(points)
    _write(sweep_id, points)
    fresh = [point for point in points if point.open and point.run is None]
    if fresh and fresh[0].plan and fresh[0].plan["cluster"]:
        _submit(fresh)
        _write(sweep_id, points)
    while any(point.open for point in points):
        if stopped():
            _cancel_here(points)
            break
        if not any(point.open and point.run for point in points):
            point = next(point for point in points if point.open)
            point.run = start_run(_plan_of(point)).id
            _write(sweep_id, points)
        time.sleep(POLL_S)
        if _note(points):
            _write(sweep_id, points)
            on_change(result(sweep_id))
    if _note(points):
        _write(sweep_id, points)
    return result(sweep_id)


def _cancel_here(points: Sequence[Point]) -> None:
    """End the runs that a supervisor of this host looks after."""
    from ep_overlap_mcp import smoke

    for point in points:
        if point.open and point.run is not None and not slurm.is_job(Store().get(point.run)):
            smoke.cancel(point.run)


def result(sweep_id: str) -> SweepResult:
    """Where the sweep stands: a row a point, in the order of the request."""
    points = _read(sweep_id)
    rows = [_row(point) for point in points]
    ended = sum(row.status not in ("waiting", "queued", "running") for row in rows)
    sound = [row for row in rows if (row.overlap_ran, row.numerics) == ("yes", "unchanged")]
    left = (
        ""
        if ended == len(rows) and not any(row.status in AGAIN for row in rows)
        else f" Go on with `smoke sweep --resume {sweep_id}`."
    )
    return SweepResult(
        summary=(
            f"Sweep {sweep_id}: {ended} of {len(rows)} points have ended; in {len(sound)} overlap ran with unchanged"
            f" numerics.{left}"
        ),
        id=sweep_id,
        points=rows,
        applies_to=next((row.applies_to for row in rows if row.applies_to), ""),
        next=_next(rows, sound),
    )


def _next(rows: Sequence[SweepPoint], sound: Sequence[SweepPoint]) -> str:
    """What its rows allow, never more."""
    if sound:
        return "take the points whose numerics are unchanged; `smoke report RUN` shows one in full"
    if any(row.status in ("waiting", "queued", "running", *AGAIN) for row in rows):
        return "wait for the points that have not ended: none has shown unchanged numerics yet"
    if all(row.status == "refused" for row in rows):
        return "every point was refused: the note of each says why"
    return "no point has shown overlap with unchanged numerics: take none; `smoke report RUN` shows one in full"


def _submit(points: Sequence[Point]) -> None:
    """All as one array job."""
    store = Store()
    plans = [_plan_of(point) for point in points]
    cluster = plans[0].cluster
    assert cluster is not None  # noqa: S101 - asked by the caller
    for point, run in zip(points, slurm.submit(store, plans, cluster), strict=True):
        point.run = run.id


def _note(points: Iterable[Point]) -> bool:
    """Take the rows of points whose runs have ended; whether there was one."""
    from ep_overlap_mcp import smoke

    end_lost_runs(Store())
    found = False
    for point in points:
        if point.open and point.run is not None:
            answer = smoke.get(point.run)
            if answer.status not in ("queued", "running"):
                point.row, found = _row_of(answer), True
    return found


def _row_of(answer: SmokeResult) -> dict[str, Any]:
    done = answer.status == "done"
    return {
        "status": answer.status,
        "overlap_ran": answer.overlap_ran.verdict,
        "numerics": answer.numerics.verdict,
        "speed": answer.speed.verdict,
        "ratio": answer.speed.ratio,
        "ci95": answer.speed.ci95,
        "hidden_pct": answer.hidden.hidden_pct if answer.hidden else None,
        "applies_to": answer.speed.applies_to if done else "",
        "elapsed_s": answer.elapsed_s,
        "world_size": answer.world_size,
        "note": answer.failure.cause if answer.failure else "",
    }


def _row(point: Point) -> SweepPoint:
    known: dict[str, Any] = {"settings": point.settings, "run": point.run}
    if point.refused is not None:
        return SweepPoint(**known, status="refused", note=point.refused)
    if point.row is None:
        known["status"] = "waiting" if point.run is None else Store().get(point.run).status
        return SweepPoint(**known)
    return SweepPoint(**known, **point.row)


def _as_json(plan: SmokePlan) -> dict[str, Any]:
    return {
        **{name: getattr(plan, name) for name in ("python", "request", "device_set", "stall_s", "variables")},
        "shown": plan.shown.model_dump(mode="json"),
        "far": asdict(plan.far) if plan.far else None,
        "cluster": asdict(plan.cluster) if plan.cluster else None,
    }


def _plan_of(point: Point) -> SmokePlan:
    """The plan as it was made: a file that has changed since changes nothing."""
    values = dict(point.plan or {})
    far, cluster = values.pop("far"), values.pop("cluster")
    lists: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in (cluster or {}).items()
    }
    return SmokePlan(
        **{**values, "shown": SmokePlanResult.model_validate(values["shown"])},
        far=Far(**far) if far else None,
        cluster=Cluster(**lists) if cluster else None,
    )


def _file(sweep_id: str) -> Path:
    return Store().folder / f"{sweep_id}.json"


def _write(sweep_id: str, points: Sequence[Point]) -> None:
    write_json(_file(sweep_id), [asdict(point) for point in points])


def _read(sweep_id: str) -> list[Point]:
    folder = Store().folder
    rows = read_json(_file(sweep_id)) if _ID.fullmatch(sweep_id) else None  # anything else could lead out of the folder
    if not isinstance(rows, list):
        known = ", ".join(sorted((p.stem for p in folder.glob("sweep-*.json")), reverse=True)[:5]) or "none"
        raise SmokeError(f"no sweep `{sweep_id}` in {folder}; the newest here: {known}")
    return [Point(**row) for row in rows]
