"""What a profile says about hidden and exposed communication. Milliseconds are of interval unions."""

from __future__ import annotations

from pydantic import Field

from ep_overlap_mcp.results.base import Record, Result


class KindTime(Record):
    """One kind of communication on one device: its union, and the part computation covered."""

    ms: float
    hidden_ms: float
    hidden_pct: float
    activities: int = Field(description="kernels and copies, not a union")


class ByKind(Record):
    """Communication by kind; the unions of two kinds may overlap, so they need not add up to comm_ms."""

    dispatch: KindTime | None = None
    combine: KindTime | None = None
    all_to_all: KindTime | None = Field(default=None, description="all-to-all whose direction the file does not tell")
    collective: KindTime | None = None
    p2p: KindTime | None = Field(default=None, description="pipeline traffic, peer copies, SendRecv not told apart")


class PerStep(Record):
    """The share of communication hidden under any computation, per cent, over the step windows."""

    n: int = Field(description="step windows that hold communication")
    median: float
    min: float
    max: float


class Unclassified(Record):
    """A kernel no row of the name table knows; it counts as computation."""

    name: str
    ms: float
    pct_of_window: float
    count: int


class DeviceProfile(Record):
    """One device over the whole profile, from its first activity to its last."""

    device: str
    rank: int | None
    file: str
    window_ms: float
    steps: int = Field(description="step windows found; 0: the profile names no steps")
    compute_ms: float
    comm_ms: float = Field(description="communication, control kernels included")
    control_ms: float = Field(description="of it notify, layout and barrier kernels: waiting, not transfer")
    idle_ms: float = Field(description="neither kernel, copy nor memset")
    hidden_ms: float = Field(description="communication covered by any computation")
    exposed_ms: float
    hidden_pct: float | None = Field(description="hidden_ms of comm_ms; null: no communication here")
    hidden_pct_gemm_attention: float | None = Field(
        description="the same under matrix multiplication and attention kernels only"
    )
    by_kind: ByKind
    per_step: PerStep | None
    unclassified: list[Unclassified] = Field(description="unknown kernels of at least 1 % of the window")


class ProfileSource(Record):
    """A file that was read; nothing is ever written to it."""

    file: str
    format: str
    side: str = Field(description="`profile`, or in an A/B `before` and `after`")


class ScheduleEvidence(Record):
    """Whether Megatron's combined forward-backward schedule left its marks (`layer_{i}f-layer_{j}b`)."""

    combined_1f1b: str = Field(description="`yes` or `unknown`: the marks are off by default")
    ranges: int
    example: str | None
    why: str


class Totals(Record):
    """One side of a comparison: means over its devices, per step where both sides name their steps."""

    per: str = Field(description="`step` or `window`")
    devices: int
    window_ms: float
    compute_ms: float
    comm_ms: float
    control_ms: float
    hidden_ms: float
    exposed_ms: float
    idle_ms: float
    hidden_pct: float | None


class CriticalRank(Record):
    """The device the others wait for: the one with most time outside exposed communication."""

    device: str
    rank: int | None
    file: str
    own_ms: float = Field(description="its window less its exposed communication")
    others_median_ms: float


class Compare(Record):
    """Two sides (before, after), or the ranks of one run, beside each other."""

    before: Totals | None
    after: Totals
    critical: CriticalRank | None
    exposed_ms_range: tuple[float, float] = Field(description="smallest and largest over the devices after")
    reading: str


class ProfileResult(Result):
    """Hidden and exposed communication per device, what the schedule left behind, and comparisons."""

    source: list[ProfileSource]
    compat: str = Field(description="`none`, or whose definition the numbers follow")
    devices: list[DeviceProfile]
    schedule_evidence: ScheduleEvidence
    compare: Compare | None
    caveats: list[str]


class Lane(Record):
    """A row of the picture: stretches of one kind, nanoseconds since the window began."""

    name: str
    style: str = Field(description="`compute`, `gemm`, `communication`, `control` or `exposed`")
    stretches: list[tuple[int, int]]


class StepPicture(Record):
    """One window of one device as lanes."""

    title: str
    window_ns: int
    resolution_ns: int = Field(description="stretches closer than this are drawn as one")
    lanes: list[Lane]


class DevicePicture(Record):
    """What is drawn for one device."""

    device: str
    rank: int | None
    file: str
    side: str
    steps: list[StepPicture]
    left_out: int = Field(description="steps not drawn")
