"""Two profiles, or the ranks of one run, beside each other."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

from ep_overlap_mcp.results.profile import Compare, CriticalRank, Totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.results.profile import DeviceProfile


def compare(after: Sequence[DeviceProfile], before: Sequence[DeviceProfile] = ()) -> Compare | None:
    """A before and an after, or several ranks; None for one device alone."""
    if len(after) < 2 and not before:
        return None
    per_step = all(device.steps for device in (*after, *before))
    now, then = _totals(after, per_step=per_step), _totals(before, per_step=per_step) if before else None
    critical = _critical(after, per_step=per_step)
    exposed = [_scaled(device, device.exposed_ms, per_step=per_step) for device in after]
    readings = [_change(then, now) if then else "", _pace(critical, exposed) if critical else ""]
    return Compare(
        before=then,
        after=now,
        critical=critical,
        exposed_ms_range=(min(exposed), max(exposed)),
        reading=" ".join(reading for reading in readings if reading),
    )


def _totals(devices: Sequence[DeviceProfile], *, per_step: bool) -> Totals:
    def mean(name: str) -> float:
        return round(fmean(_scaled(device, getattr(device, name), per_step=per_step) for device in devices), 6)

    comm, hidden = mean("comm_ms"), mean("hidden_ms")
    return Totals(
        per="step" if per_step else "window",
        devices=len(devices),
        window_ms=mean("window_ms"),
        compute_ms=mean("compute_ms"),
        comm_ms=comm,
        control_ms=mean("control_ms"),
        hidden_ms=hidden,
        exposed_ms=mean("exposed_ms"),
        idle_ms=mean("idle_ms"),
        hidden_pct=round(100 * hidden / comm, 2) if comm else None,
    )


def _critical(devices: Sequence[DeviceProfile], *, per_step: bool) -> CriticalRank | None:
    """In lock-step the rank that waits least in communication is the one the others wait for."""
    if len(devices) < 2:
        return None
    own = {
        at: _scaled(device, device.window_ms - device.exposed_ms, per_step=per_step)
        for at, device in enumerate(devices)
    }
    slowest = max(own, key=lambda at: own[at])
    device = devices[slowest]
    return CriticalRank(
        device=device.device,
        rank=device.rank,
        file=device.file,
        own_ms=own.pop(slowest),
        others_median_ms=round(median(own.values()), 6),
    )


def _change(before: Totals, after: Totals) -> str:
    return (
        f"Per {after.per}: exposed communication {_arrow(before.exposed_ms, after.exposed_ms)} ms, all"
        f" communication {_arrow(before.comm_ms, after.comm_ms)} ms, computation"
        f" {_arrow(before.compute_ms, after.compute_ms)} ms, window"
        f" {_arrow(before.window_ms, after.window_ms)} ms. Profiling slows both sides; whether it pays is"
        " decided by unprofiled step times of the same pair."
    )


def _pace(critical: CriticalRank, exposed: Sequence[float]) -> str:
    name = f"rank {critical.rank}" if critical.rank is not None else f"{critical.device} of {critical.file}"
    return (
        f"The critical one is {name}: {critical.own_ms:.3f} ms outside exposed communication, the others"
        f" {critical.others_median_ms:.3f} ms (median); exposed communication is {min(exposed):.3f} to"
        f" {max(exposed):.3f} ms, and part of the larger values is waiting for it."
    )


def _arrow(before: float, after: float) -> str:
    return f"{before:.3f} -> {after:.3f}"


def _scaled(device: DeviceProfile, value: float, *, per_step: bool) -> float:
    return round(value / device.steps, 6) if per_step else value
