"""What a log states, frozen: the reader produces it, the detectors only look at it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from ep_overlap_mcp.diagnosis.naming import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ep_overlap_mcp.diagnosis.signatures import Signature

# Megatron, what it stands on, and the frameworks on top of it
_STACK_CODE = re.compile(
    r"(?:^|/)(?:megatron\w*|transformer_engine|deep_ep|nemo\w*|torch|triton|verl|slime|swift|miles|roll"
    r"|(?:site|dist)-packages)/|pretrain_\w+\.py|^<"
)


@dataclass(frozen=True)
class Line:
    """One line of one file, prefixes (ANSI, rank, time) taken off; `time` is in seconds within a year.

    `number` is None for what stands in no line: a default, a finding about several settings, a smoke run.
    """

    file: str
    number: int | None
    text: str
    rank: int | None = None
    time: float | None = None
    order: int = 0


@dataclass(frozen=True)
class Hit:
    """A signature found in a line; `frames` are the stack frames read just before it on the same rank."""

    signature: Signature
    line: Line
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """An exception or an abort; `recognised` when a signature explains it, `waits` when it says a peer is missing."""

    line: Line
    recognised: bool
    follows: bool
    waits: bool = False
    frames: tuple[str, ...] = ()

    @property
    def in_own_program(self) -> bool:
        """Whether the innermost frame is neither Megatron's nor a library's; False where no stack is shown."""
        return bool(self.frames) and not _STACK_CODE.search(self.frames[-1])


@dataclass(frozen=True)
class Printed:
    """A setting as printed; `form` is table, yaml, override (`name=value`) or flag (`--name value`).

    `value` is as far as the text tells it, `raw` the text itself.
    """

    name: str
    section: str
    value: object
    form: str
    line: Line
    raw: str = ""

    @property
    def path(self) -> str:
        """The canonical path."""
        return canonical(self.name, self.section)


@dataclass(frozen=True)
class PrintedVersion:
    """A component version as printed; `role` is `device` for what NVSHMEM device code was built with."""

    component: str
    version: str
    role: str
    line: Line


@dataclass(frozen=True)
class Iteration:
    """One training step as logged: milliseconds, loss, gradient norm, counts of skipped and NaN steps."""

    step: int | None
    ms: float | None
    loss: float | None
    grad_norm: float | None
    skipped: int
    nan: int
    line: Line


@dataclass(frozen=True)
class MemoryUse:
    """Device memory in use as a share of the device, 0 to 1."""

    share: float
    line: Line


@dataclass(frozen=True)
class Evidence:
    """All that was read; later prints of a setting override earlier ones of the same form.

    `root_rank` and `root_exit` are the launcher's word on the rank that failed first and how its process ended;
    of the `opened` files those in `empty` hold nothing but white space;
    `stack` and `symptom` are the caller's: versions that no log prints, and what is wrong in words.
    """

    hits: tuple[Hit, ...] = ()
    failures: tuple[Failure, ...] = ()
    printed: tuple[Printed, ...] = ()
    versions: tuple[PrintedVersion, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    opened: int = 0
    empty: tuple[str, ...] = ()
    root_rank: int | None = None
    root_exit: Line | None = None
    stack: dict[str, str] = field(default_factory=dict)
    symptom: str = ""

    def of(self, name: str, *forms: str) -> Iterator[Printed]:
        """Prints of a setting by its last name, in order, of the given forms (all when none is given)."""
        return (p for p in self.printed if p.name == name and (not forms or p.form in forms))

    def setting(self, *names: str) -> object:
        """The effective value: dumps (table, yaml) beat overrides and flags, the last print wins."""
        for forms in (("table", "yaml"), ("override", "flag")):
            found = [p for name in names for p in self.of(name, *forms)]
            if found:
                return found[-1].value
        return None

    def where(self, *names: str) -> tuple[Line, ...]:
        """The lines that printed a setting, the effective one last."""
        return tuple(p.line for name in names for p in self.of(name))

    def version(self, component: str) -> Version | None:
        """A component's version: the caller's stack beats the log; None when unknown or `none`."""
        text = self.stack.get(component) or next(
            (v.version for v in reversed(self.versions) if v.component == component), None
        )
        return parsed(text)

    def settings_of(self, file: str, *forms: str) -> dict[str, object]:
        """Settings one file prints in the given forms, by path; the last print wins."""
        return {p.path: p.value for p in self.printed if p.line.file == file and p.form in forms}

    def files(self) -> list[str]:
        """Files with timed iterations, in the order read."""
        return list(dict.fromkeys(i.line.file for i in self.iterations if i.ms is not None))


def not_finite(step: Iteration) -> bool:
    """Whether a step's loss or gradient norm is NaN or infinite, or the step counts as such."""
    return bool(step.nan) or any(value is not None and not isfinite(value) for value in (step.loss, step.grad_norm))


def parsed(text: str | None) -> Version | None:
    """A version, or None for text that is none (`main`, `none`, a hash)."""
    if not text:
        return None
    try:
        return Version(text.split("+")[0])
    except InvalidVersion:
        return None


def earliest(lines: Iterable[Line]) -> Line | None:
    """The line that came first: by time where all carry one, else in reading order."""
    found = list(lines)
    if not found:
        return None
    if all(line.time is not None for line in found):
        return min(found, key=lambda line: (line.time or 0.0, line.order))
    return min(found, key=lambda line: line.order)
