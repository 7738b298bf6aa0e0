"""A profile: hidden and exposed communication a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import Line
from ep_overlap_mcp.surface import everything

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.profile import DeviceProfile, ProfileResult


def lines(result: ProfileResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, "bold")
    for device in result.devices[:16]:
        yield from _device(device)
    if len(result.devices) > 16:
        yield Line(f"  and {len(result.devices) - 16} more devices; {everything()} has them all", "dim")
    if result.compare is not None:
        yield Line(f"  {result.compare.reading}")
    yield Line(f"  schedule: {result.schedule_evidence.why}")
    yield from (Line(f"  caveat: {caveat}", "yellow") for caveat in result.caveats)


def _device(device: DeviceProfile) -> Iterator[Line]:
    name = f"  {device.device}" + (f" rank {device.rank}" if device.rank is not None else "")
    if device.hidden_pct is None:
        yield Line(f"{name}: window {device.window_ms:.3f} ms, no communication")
        return
    attention = device.hidden_pct_gemm_attention
    under = f", {attention:.2f} % under GEMM and attention" if attention is not None else ""
    yield Line(
        f"{name}: window {device.window_ms:.3f} ms, compute {device.compute_ms:.3f}, communication "
        f"{device.comm_ms:.3f}: hidden {device.hidden_ms:.3f} ({device.hidden_pct:.2f} % under any compute{under}), "
        f"exposed {device.exposed_ms:.3f}, control {device.control_ms:.3f}, idle {device.idle_ms:.3f}"
    )
    if device.per_step is not None:
        step = device.per_step
        yield Line(
            f"      per step (n={step.n}): median {step.median:.2f} %, {step.min:.2f} to {step.max:.2f} %", "dim"
        )
