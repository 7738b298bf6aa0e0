"""From profiles to hidden and exposed communication, and what overlap could gain at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.profiles.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ep_overlap_mcp.profiles.gain import estimate
    from ep_overlap_mcp.results.profile import DevicePicture, ProfileResult

__all__ = ["ProfileError", "analyze", "draw", "estimate"]


def analyze(
    paths: Sequence[Path],
    *,
    compat: Literal["none", "hta"] = "none",
    before: Path | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> ProfileResult:
    """Hidden and exposed communication of profiles: Kineto JSON or Nsight Systems SQLite, told by content.

    `paths` are files, or folders holding one file a rank; `before` is the other side of an A/B. `compat="hta"`
    gives HolisticTraceAnalysis 0.5.0's numbers instead, for Kineto traces. `on_progress` is called with the
    share done, 0 to 1. Files are opened read-only.

    Errors: `ProfileError` when a file cannot be read or no honest percentage follows from it.
    """
    from ep_overlap_mcp.profiles.analysis import Sides, conclude

    sides = Sides.of(paths, before)
    if compat == "hta":
        from ep_overlap_mcp.profiles.hta import account_as_hta

        return conclude(sides, account_as_hta, compat=compat, on_progress=on_progress)
    return conclude(sides, on_progress=on_progress)


def draw(
    paths: Sequence[Path],
    *,
    before: Path | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[DevicePicture]:
    """The lanes of computation and communication that `reports.profile_page` draws, from the same files."""
    from ep_overlap_mcp.profiles.analysis import Sides
    from ep_overlap_mcp.profiles.picture import draw_devices

    return draw_devices(Sides.of(paths, before), on_progress)


def __getattr__(name: str) -> object:
    """`estimate` is loaded when it is asked for: reading a profile does not need it."""
    if name == "estimate":
        from ep_overlap_mcp.profiles.gain import estimate

        return estimate
    raise AttributeError(name)
