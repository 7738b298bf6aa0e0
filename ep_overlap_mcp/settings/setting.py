"""A setting, its value and where the value came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

OriginKind = Literal["explicit", "default", "derived", "assumed", "unknown"]


class _Unknown:
    """The value of a setting that the text does not settle."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a place in a text, a release's default, other settings, or the caller's what-if.

    `order` is the position among all assignments of the request, later ones overwriting earlier ones; `span` is the
    half-open character range of the value in the file, where a patch can replace it.
    """

    kind: OriginKind
    file: str | None = None
    line: int | None = None
    text: str | None = None
    note: str | None = None
    order: int = -1
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        return ", ".join(str(part) for part in (place or self.kind, self.note) if part)


@dataclass(frozen=True)
class Setting:
    """One setting of a run: a JSON value or UNKNOWN. `needs` names what would make an unknown value known."""

    path: str
    value: Any
    origin: Origin
    needs: frozenset[str] = frozenset()
    earlier: tuple[Setting, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the value is settled."""
        return self.value is not UNKNOWN

    @property
    def written(self) -> bool:
        """Whether the text, the caller or a what-if states this setting, be its value known or not."""
        return self.origin.kind in ("explicit", "assumed") or self.origin.order >= 0


def unknown(path: str, note: str | None = None, needs: frozenset[str] = frozenset()) -> Setting:
    """A setting nobody stated, or one whose value hangs on others."""
    return Setting(path, UNKNOWN, Origin("unknown", note=note), needs or frozenset((path,)))
