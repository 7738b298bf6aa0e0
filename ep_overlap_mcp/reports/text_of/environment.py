"""A training environment: components, GPUs and what can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.lines import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.environment import Ability, EnvironmentResult

_WORDS = {True: "yes", False: "no", None: "not known"}


def lines(result: EnvironmentResult) -> Iterator[Line]:
    """The lines of one answer."""
    yield Line(result.summary, "bold")
    yield Line(f"  python {result.python_version} at {result.python}")
    for name, component in result.components.items():
        version = component.version or "not installed"
        yield Line(f"  {name} {version}" + (f": {component.why}" if component.why else ""))
    for gpu in result.gpus:
        memory = f", {gpu.memory_gib:.0f} GiB" if gpu.memory_gib else ""
        yield Line(f"  GPU {gpu.name}, compute capability {gpu.compute_capability or 'not known'}{memory}")
    if result.gpus_why:
        yield Line(f"  GPUs: {result.gpus_why}")
    for name in ("alltoall", "deepep", "hybridep", "ncclep", "delay_wgrad"):
        ability: Ability = getattr(result.can, name)
        yield Line(f"  {name}: {_WORDS[ability.possible]}; {ability.why}")
    yield Line(f"  smoke runs: {', '.join(result.can.smoke) or 'none'}; {result.can.smoke_why}")
