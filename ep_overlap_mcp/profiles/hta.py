"""HolisticTraceAnalysis 0.5.0's overlap, for comparison with numbers it gave.

Its definition differs in four ways: communication is what begins with `nccl…Kernel`; kernels launched in the last
ProfilerStep are dropped, and so are those whose launch the trace does not hold; time stamps that are floats are
rounded inwards to whole microseconds. Source: facebookresearch/HolisticTraceAnalysis @ f4d0062 :
hta/common/trace.py `_filter_irrelevant_gpu_kernels`, hta/common/trace_parser.py `round_down_time_stamps`,
hta/utils/utils.py `get_kernel_type`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from ep_overlap_mcp.profiles.accounting import cover, ms
from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.kernels import COMMUNICATION, Kind
from ep_overlap_mcp.profiles.kineto_file import KinetoFile
from ep_overlap_mcp.profiles.trace import Device, Profile
from ep_overlap_mcp.results.profile import ByKind, DeviceProfile, KindTime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LATEST = 1e18  # microseconds; no clock is there in this millennium
_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"^Memcpy|^Memset|^dma")
_NOT_COMPUTE = re.compile(r"^nccl.*Kernel|.*Memcpy|Memset|.*Sync")


def account_as_hta(path: Path, on_progress: Callable[[float], None]) -> tuple[Profile, list[DeviceProfile], list[str]]:
    """One device for the whole file, as HTA pools them.

    Errors: `ProfileError` where HTA answers NaN: no kernel it would call communication.
    """
    file = KinetoFile(path, on_progress)
    on_streams, on_host = _collect(file)
    kept = _launched_before_last_step(on_streams, on_host)
    rounded = any(isinstance(activity.start, float) for activity in (*on_streams, *on_host))
    device = Device("all GPUs, as HTA pools them", file.rank)
    for activity in kept:
        device.add(_kind(activity.name), "", *_nanoseconds(activity, rounded=rounded))
    if not device.timeline.count(Kind.COLLECTIVE):
        raise ProfileError(
            f"{path}: HolisticTraceAnalysis recognises no communication here and answers NaN; it knows no kernel"
            " but NCCL's. Analyse without compat"
        )
    notes = [f"HTA's definition: {len(on_streams) - len(kept)} of {len(on_streams)} activities dropped by its filters"]
    if negative := sum(activity.duration < 0 for activity in kept):
        notes.append(f"{negative} of {len(kept)} activities have a negative duration, so they are in no number here")
    return Profile(path, "Kineto"), [_result(path, device)], notes


def _result(path: Path, device: Device) -> DeviceProfile:
    window = device.timeline.extent
    if window is None:
        raise ProfileError(f"{path}: its kernels took no time; profile whole training steps")
    coverage, _ = cover(device.timeline.sweep(), window)
    comm, hidden = coverage.time(COMMUNICATION), coverage.time(COMMUNICATION, Kind.OTHER_COMPUTE)
    share = coverage.hidden_pct() or 0.0
    return DeviceProfile(
        device=device.name,
        rank=device.rank,
        file=str(path),
        window_ms=ms(coverage.window),
        steps=0,
        compute_ms=ms(coverage.time(Kind.OTHER_COMPUTE)),
        comm_ms=ms(comm),
        control_ms=0.0,
        idle_ms=ms(coverage.idle),
        hidden_ms=ms(hidden),
        exposed_ms=ms(comm - hidden),
        hidden_pct=share,
        hidden_pct_gemm_attention=None,
        by_kind=ByKind(
            collective=KindTime(
                ms=ms(comm),
                hidden_ms=ms(hidden),
                hidden_pct=share,
                activities=device.timeline.count(Kind.COLLECTIVE),
            )
        ),
        per_step=None,
        unclassified=[],
    )


class _Activity(NamedTuple):
    start: float  # microseconds, as in the file
    duration: float
    name: str
    correlation: object


def _collect(file: KinetoFile) -> tuple[list[_Activity], list[_Activity]]:
    """Everything on a stream, and everything else, which HTA takes for the host."""
    on_streams: list[_Activity] = []
    on_host: list[_Activity] = []
    for event in file.events(None):
        if event.cat in (None, "Trace") or event.dur is None or not isinstance(event.ts, (int, float)):
            continue
        if isinstance(event.dur, str):
            raise ProfileError(f"event `{event.name}` has duration {event.dur!r:.40}: not a Kineto trace")
        args = event.args
        correlation = -1 if args is None or args.correlation is None else args.correlation
        activity = _Activity(event.ts, float(event.dur), str(event.name), correlation)
        (on_host if args is None or args.stream is None else on_streams).append(activity)
    return on_streams, on_host


def _launched_before_last_step(on_streams: list[_Activity], on_host: list[_Activity]) -> list[_Activity]:
    """All but the kernels of the last step; with one step or none HTA keeps everything."""
    steps = [activity for activity in on_host if "ProfilerStep" in activity.name]
    if len({step.name for step in steps}) < 2:
        return on_streams
    last = max(step.start for step in steps)
    launched = {activity.correlation for activity in on_host if activity.start < last}
    return [activity for activity in on_streams if activity.correlation in launched]


def _nanoseconds(activity: _Activity, *, rounded: bool) -> tuple[int, int]:
    start, end = activity.start, activity.start + activity.duration
    if not abs(end) < _LATEST:
        raise ProfileError(f"event `{activity.name}` begins at {start!r} and ends at {end!r} us: not a Kineto trace")
    return (math.ceil(start) * 1000, math.floor(end) * 1000) if rounded else (round(start * 1000), round(end * 1000))


def _kind(name: str) -> Kind:
    if _COMMUNICATION.match(name):
        return Kind.COLLECTIVE
    return Kind.MEMORY if _MEMORY.match(name) or _NOT_COMPUTE.match(name) else Kind.OTHER_COMPUTE
