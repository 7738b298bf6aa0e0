"""Files and folders to one result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.profiles.accounting import account
from ep_overlap_mcp.profiles.compare import compare
from ep_overlap_mcp.profiles.errors import ProfileError
from ep_overlap_mcp.refusal import no_file
from ep_overlap_mcp.results.profile import ProfileResult, ProfileSource, ScheduleEvidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ep_overlap_mcp.profiles.trace import Profile
    from ep_overlap_mcp.results.profile import DeviceProfile

    Progress = Callable[[float], None]
    Account = Callable[[Path, Progress], tuple[Profile, list[DeviceProfile], list[str]]]

_SUFFIXES = (".json", ".json.gz", ".sqlite")


@dataclass(frozen=True)
class Sides:
    """The files asked about, and in an A/B the files of the other side."""

    after: tuple[Path, ...]
    before: tuple[Path, ...] = ()

    @classmethod
    def of(cls, paths: Sequence[Path], before: Path | None) -> Sides:
        """Folders opened up. Errors: `ProfileError` for what does not exist or holds no profile."""
        if not paths:
            raise ProfileError("no profile was given; name a Kineto .json(.gz), an nsys .sqlite or a folder of them")
        sides = cls(tuple(file for path in paths for file in _files(path)), tuple(_files(before)) if before else ())
        sides._refuse_twice()
        return sides

    def _refuse_twice(self) -> None:
        """A file given twice would be counted as another device, or compared with itself."""
        seen: dict[tuple[int, int], Path] = {}
        for _, path in self:
            status = path.stat()
            first = seen.setdefault((status.st_dev, status.st_ino), path)
            if first is not path:
                raise ProfileError(f"{path}: is the same file as {first}; name each profile once, one file a rank")

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        yield from (("before", path) for path in self.before)
        yield from (("after" if self.before else "profile", path) for path in self.after)

    def progress(self, on_progress: Progress | None) -> list[Progress]:
        """For each file a report that turns its own share into the share of all files, weighed by size."""
        sizes = [path.stat().st_size or 1 for _, path in self]
        return [_part_of(sum(sizes), sum(sizes[:at]), size, on_progress) for at, size in enumerate(sizes)]


def read(path: Path, on_progress: Progress | None = None) -> Profile:
    """One profile, its format told by its first bytes.

    Errors: `ProfileError`; a report of Nsight Systems itself has to be exported first.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(16)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    if magic == b"SQLite format 3\0":
        from ep_overlap_mcp.profiles.nsys import read_nsys

        return read_nsys(path, on_progress)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise ProfileError(
            f"{path}: is a report of Nsight Systems; export it with `nsys export --type sqlite --output"
            f" {path.stem}.sqlite {path.name}` and give the .sqlite file"
        )
    from ep_overlap_mcp.profiles.kineto import read_kineto

    return read_kineto(path, on_progress)


def _part_of(total: int, before: int, size: int, on_progress: Progress | None) -> Progress:
    return lambda share: on_progress((before + share * size) / total) if on_progress else None


def _by_name(path: Path, on_progress: Progress) -> tuple[Profile, list[DeviceProfile], list[str]]:
    profile = read(path, on_progress)
    return profile, *account(profile)


def conclude(
    sides: Sides,
    account_file: Account = _by_name,
    *,
    compat: Literal["none", "hta"] = "none",
    on_progress: Progress | None = None,
) -> ProfileResult:
    """Every file accounted for, compared and summed up."""
    devices: dict[str, list[DeviceProfile]] = {"before": [], "after": [], "profile": []}
    sources, caveats = [], []
    combined: Counter[str] = Counter()
    for (side, path), progress in zip(sides, sides.progress(on_progress), strict=True):
        profile, results, notes = account_file(path, progress)
        sources.append(ProfileSource(file=str(path), format=profile.format, side=side))
        devices[side] += results
        caveats += [note for note in notes if note not in caveats]
        if side != "before":
            combined += profile.combined
    after = devices["after"] or devices["profile"]
    caveats += _ranks_of_several_files(after)
    comparison = compare(after, devices["before"])
    return ProfileResult(
        summary=_summary(after, comparison.reading if comparison else "", caveats),
        source=sources,
        compat=compat,
        devices=after,
        schedule_evidence=_evidence(combined),
        compare=comparison,
        caveats=caveats,
    )


def _files(path: Path) -> list[Path]:
    try:
        wrong = no_file(path.stat())
        if wrong is None:
            return [path]
        if wrong != "a directory":
            raise ProfileError(f"{path}: {wrong}; write the profile to a file first, and name that")
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES) and file.is_file())
    except FileNotFoundError:
        raise ProfileError(f"{path}: not found") from None
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    if not files:
        raise ProfileError(f"{path}: holds no profile; expected files ending in {', '.join(_SUFFIXES)}")
    return files


def _ranks_of_several_files(devices: Sequence[DeviceProfile]) -> list[str]:
    """Copies of a file, or a rank profiled twice, are no devices of their own."""
    places: dict[tuple[int, str], list[str]] = {}
    for device in devices:
        if device.rank is not None:
            places.setdefault((device.rank, device.device), []).append(device.file)
    return [
        f"rank {rank} ({name}) is in {len(files)} files and counts as {len(files)} devices:"
        f" {', '.join(files[:3])}{', …' * (len(files) > 3)}; give one file a rank"
        for (rank, name), files in places.items()
        if len(files) > 1
    ]


def _evidence(combined: Counter[str]) -> ScheduleEvidence:
    if combined:
        return ScheduleEvidence(
            combined_1f1b="yes",
            ranges=combined.total(),
            example=next(iter(combined)),
            why="Megatron marks each pair of layers its combined forward-backward schedule runs together",
        )
    return ScheduleEvidence(
        combined_1f1b="unknown",
        ranges=0,
        example=None,
        why="no range `layer_{i}f-layer_{j}b`; absence proves nothing, the marks need --nvtx-ranges (Megatron-LM)"
        " or nvtx_ranges (Bridge) and an nsys profile",
    )


def _summary(devices: Sequence[DeviceProfile], reading: str, caveats: Sequence[str]) -> str:
    talking = [device for device in devices if device.hidden_pct is not None]
    if len(talking) == 1:
        text = _sentence(talking[0])
    else:
        shares = [device.hidden_pct or 0.0 for device in talking]
        least = min(talking, key=lambda device: device.hidden_pct or 0.0)
        text = (
            f"On {len(talking)} devices {min(shares):.2f} to {max(shares):.2f} % of the communication is hidden."
            f" Least on {_sentence(least)}"
        )
    notes = f" {len(caveats)} caveat{'s' * (len(caveats) != 1)} below." if caveats else ""
    return f"{text} {reading or 'Hidden is not gain: only unprofiled step times of a matched A/B decide.'}{notes}"


def _sentence(device: DeviceProfile) -> str:
    name = device.device if device.rank is None else f"rank {device.rank} ({device.device})"
    gemm = device.hidden_pct_gemm_attention
    narrower = "" if gemm is None else f", {gemm:.2f} % while matrix multiplication or attention ran"
    waiting = (
        f"; control kernels, which wait, were {device.control_ms:.3f} ms of the communication"
        if device.control_ms
        else ""
    )
    return (
        f"{name}: {device.hidden_ms:.3f} of {device.comm_ms:.3f} ms communication ran while any computation did"
        f" ({device.hidden_pct:.2f} %{narrower}), {device.exposed_ms:.3f} ms were exposed in a window of"
        f" {device.window_ms:.3f} ms{waiting}."
    )
