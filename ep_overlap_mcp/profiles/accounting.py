"""Hidden and exposed communication of a device, over the whole profile and over each step window.

A sweep gives the time during which each set of kinds was active (a coverage); communication, computation, what
hides what, and idle time are sums over it. Activities in flight at the edge of a window are clipped there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.profiles.kernels import COMMUNICATION, COMPUTE, Kind
from ep_overlap_mcp.results.profile import ByKind, DeviceProfile, KindTime, PerStep, Unclassified

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ep_overlap_mcp.profiles.timeline import Stretch, Window
    from ep_overlap_mcp.profiles.trace import Device, Profile, Tally

_MATERIAL = 0.01  # of the window, or of the activities: less cannot change a verdict
_OUTSIDE = 0.1  # of the communication: more outside the step windows is said
_REPORTED = {
    "dispatch": Kind.DISPATCH,
    "combine": Kind.COMBINE,
    "all_to_all": Kind.ALL_TO_ALL,
    "collective": Kind.COLLECTIVE,
    "p2p": Kind.P2P,
}


@dataclass(frozen=True)
class Coverage:
    """Nanoseconds of a window by the set of kinds that were active."""

    window: int
    ns: Mapping[int, int]

    def time(self, *masks: int) -> int:
        """Time during which at least one kind of every mask was active: a union, or their intersection."""
        return sum(ns for kinds, ns in self.ns.items() if all(kinds & mask for mask in masks))

    @property
    def idle(self) -> int:
        """Time without any activity."""
        return self.window - sum(self.ns.values())

    def hidden_pct(self, compute: int = COMPUTE) -> float | None:
        """The share of communication covered by computation; None without communication."""
        return _pct(self.time(COMMUNICATION, compute), self.time(COMMUNICATION))


def cover(stretches: Iterable[Stretch], whole: Window, steps: Sequence[Window] = ()) -> tuple[Coverage, list[Coverage]]:
    """Coverage of the whole and of each step; `steps` are in order and do not overlap."""
    total: dict[int, int] = defaultdict(int)
    parts: list[dict[int, int]] = [defaultdict(int) for _ in steps]
    first = 0
    for start, end, kinds in stretches:
        total[kinds] += end - start
        while first < len(steps) and steps[first].end <= start:
            first += 1
        at = first
        while at < len(steps) and steps[at].start < end:
            parts[at][kinds] += min(end, steps[at].end) - max(start, steps[at].start)
            at += 1
    whole_coverage = Coverage(whole.end - whole.start, total)
    return whole_coverage, [Coverage(step.end - step.start, part) for step, part in zip(steps, parts, strict=True)]


def account(profile: Profile) -> tuple[list[DeviceProfile], list[str]]:
    """The devices of a profile as results, and what limits the numbers.

    Errors: `ProfileError` when no percentage would be honest: no communication was recognised anywhere, or a
    kernel that matters holds communication this package cannot measure.
    """
    results, caveats = [], list(profile.caveats)
    for device in profile.devices:
        caveats += _damage(profile, device)
    devices = [device for device in profile.devices if device.timeline.extent]
    if not devices:
        raise ProfileError(f"{profile.path}: the devices in it ran nothing; profile whole training steps")
    for device in devices:
        result, notes = _account_device(profile, device)
        results.append(result)
        caveats += notes
    if all(result.hidden_pct is None for result in results):
        raise ProfileError(_no_communication(profile, devices))
    return results, caveats


def _account_device(profile: Profile, device: Device) -> tuple[DeviceProfile, list[str]]:
    window = device.timeline.extent
    assert window is not None  # noqa: S101 (devices that ran nothing were left out)
    coverage, steps = cover(device.timeline.sweep(), window, device.steps)
    caveats = _refuse_or_warn(profile, device, coverage.window)
    hidden, comm = coverage.time(COMMUNICATION, COMPUTE), coverage.time(COMMUNICATION)
    result = DeviceProfile(
        device=device.name,
        rank=device.rank,
        file=str(profile.path),
        window_ms=ms(coverage.window),
        steps=len(steps),
        compute_ms=ms(coverage.time(COMPUTE)),
        comm_ms=ms(comm),
        control_ms=ms(coverage.time(Kind.CONTROL)),
        idle_ms=ms(coverage.idle),
        hidden_ms=ms(hidden),
        exposed_ms=ms(comm - hidden),
        hidden_pct=coverage.hidden_pct(),
        hidden_pct_gemm_attention=coverage.hidden_pct(Kind.GEMM_ATTENTION),
        by_kind=_by_kind(device, coverage),
        per_step=_per_step(steps),
        unclassified=_unclassified(device, coverage.window),
    )
    outside = comm - sum(step.time(COMMUNICATION) for step in steps)
    if steps and outside > _OUTSIDE * comm:
        caveats.append(
            f"{device.name} of {profile.path.name}: {100 * outside / comm:.0f} % of the communication ran outside"
            " the step windows, which the host marks while the device runs behind; per_step describes the rest"
        )
    if result.hidden_pct is None:
        caveats.append(f"{device.name} of {profile.path.name}: no communication kernel recognised on this device")
    return result, caveats


def _by_kind(device: Device, coverage: Coverage) -> ByKind:
    kinds = {}
    for name, kind in _REPORTED.items():
        total = coverage.time(kind)
        if total:
            hidden = coverage.time(kind, COMPUTE)
            kinds[name] = KindTime(
                ms=ms(total),
                hidden_ms=ms(hidden),
                hidden_pct=_pct(hidden, total) or 0.0,
                activities=device.timeline.count(kind),
            )
    return ByKind(**kinds)


def _per_step(steps: Sequence[Coverage]) -> PerStep | None:
    shares = [share for step in steps if (share := step.hidden_pct()) is not None]
    if not shares:
        return None
    return PerStep(n=len(shares), median=round(median(shares), 2), min=min(shares), max=max(shares))


def _unclassified(device: Device, window: int) -> list[Unclassified]:
    material = [(name, tally) for name, tally in device.unclassified.items() if tally.ns >= _MATERIAL * window]
    return [
        Unclassified(name=_short(name), ms=ms(tally.ns), pct_of_window=_pct(tally.ns, window) or 0.0, count=tally.count)
        for name, tally in sorted(material, key=lambda item: -item[1].ns)
    ]


def _refuse_or_warn(profile: Profile, device: Device, window: int) -> list[str]:
    """Caveats of a device. What would make its percentage meaningless is an error instead."""
    where = f"{device.name} of {profile.path.name}"
    caveats = []
    for tallies, what, remedy in (
        (
            device.fused,
            "holds expert-parallel communication and computation in one kernel, so intervals cannot tell them apart",
            "prove the gain by an unprofiled A/B of step times",
        ),
        (
            device.suspicious(),
            "may be communication, yet is in no row of the name table",
            "report its name and library, so that it can be classified",
        ),
    ):
        for name, tally in tallies.items():
            share = 100 * tally.ns / window
            text = f"{where}: kernel `{_short(name)}` ({share:.2f} % of the window) {what}; {remedy}"
            if tally.ns >= _MATERIAL * window:
                raise ProfileError(text)
            caveats.append(text)
    for stream, ns in device.timeline.stream_overlap.items():
        if ns >= _MATERIAL * window:
            caveats.append(
                f"{where}: stream {stream} runs two kernels at once for {ms(ns)} ms; a stream is serial, except"
                " for programmatic launches, so check the durations in the file"
            )
    return caveats


def _damage(profile: Profile, device: Device) -> list[str]:
    """The caveat of activities without a time. Where they may be a material part of a sum it is an error instead."""
    timeline = device.timeline
    damaged = timeline.damaged()
    if not damaged:
        return []
    text = (
        f"{device.name} of {profile.path.name}: {damaged} of {timeline.count()} activities have no duration or a"
        " negative one, so they are in no number here"
    )
    for name, kinds in (("communication", COMMUNICATION), ("computation", COMPUTE)):
        lost, total = timeline.damaged(kinds), timeline.count(kinds)
        if lost >= _MATERIAL * total > 0:
            raise ProfileError(
                f"{text}; with {lost} of {total} of {name} missing no percentage would be honest: export it again, or"
                " profile again"
            )
    return [text]


def _no_communication(profile: Profile, devices: Sequence[Device]) -> str:
    tallies: dict[str, Tally] = {}
    for device in devices:
        tallies |= device.unclassified
    longest = sorted(tallies, key=lambda name: -tallies[name].ns)[:3]
    unknown = (
        f" Unknown kernels, longest first: {', '.join(f'`{_short(name)}`' for name in longest)}." if longest else ""
    )
    kernels = sum(device.timeline.count() for device in devices)
    return (
        f"{profile.path}: no communication kernel recognised among {kernels} activities, so there is nothing to"
        f" hide and no percentage.{unknown} Profile a rank that communicates, over whole training steps; if"
        " it did communicate, its kernels have names this package does not know: report them"
    )


def ms(ns: int) -> float:
    """Milliseconds, to the nanosecond."""
    return round(ns / 1e6, 6)


def _pct(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 2) if whole else None


def _short(name: str, limit: int = 120) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"
