"""What a reader makes of one text: assignments in order, each with its line, and a reason for every omission."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.settings.fields import ValueNotAllowedError, field_table
from ep_overlap_mcp.settings.setting import UNKNOWN

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.fields import Field
    from ep_overlap_mcp.stack import Framework

OmissionKind = Literal[
    "not resolved",  # the value needs running or an unset variable: the setting is unknown
    "not allowed",  # no parser of the stack takes the value
    "look-alike",  # a flag of another program
    "unknown name",  # a name in the Megatron part that is no known setting
    "dead",  # an attribute that nothing reads
    "not read",  # a part of the text that the reader does not understand
    "line ends",  # carriage returns that break a shell text, which is read as if they were not there
]


# What to do about a text that is broken, and about one that is beyond the bounds of a configuration.
MEND: Final = "mend it there, or paste the flags or overrides alone"
CUT_DOWN: Final = "give only the part that configures the training"


class UnreadableError(Refusal):
    """A source that cannot be read at all; the text says which, where and what to do. Exit code 2."""


@dataclass(frozen=True)
class Assignment:
    """One statement of a value. `derived_from` names the spelling that implies it, such as a harness flag."""

    path: str
    value: Any
    line: int | None
    text: str
    derived_from: str | None = None
    file: str | None = None
    span: tuple[int, int] | None = None

    @property
    def known(self) -> bool:
        """Whether the text settles the value."""
        return self.value is not UNKNOWN


@dataclass(frozen=True)
class Mend:
    """The one edit that makes a part mean what it plainly should: characters `start` to `stop` of its file.

    They become `text`, which is empty where they go; quotes around them are not counted. `path` is the setting that the
    part is about, None for the whole text.
    """

    start: int
    stop: int
    text: str
    path: str | None = None


@dataclass(frozen=True)
class Omission:
    """A part of the text that set nothing, or nothing certain, and why; with its mend where no choice is left."""

    kind: OmissionKind
    text: str
    line: int | None
    why: str
    file: str | None = None
    path: str | None = None
    mend: Mend | None = None


@dataclass
class Reading:
    """What one text says. `framework` is what its dialect implies; `partial` says why unwritten settings are unknown.

    `strict` says that Megatron-LM's own parser reads the flags, which takes no other spelling than its own. `name` is
    set where a file holds several configurations, such as recipe functions. `gaps` are the reasons of `partial` that
    another file closes, each with the variables or the file that it waits for; `gives` are the variables whose options
    a fragment holds for the file that sources it; `unset` are those that a script, there from its first line, uses and
    sets nowhere.
    """

    dialect: str
    file: str
    framework: Framework | None = None
    name: str | None = None
    strict: bool = False
    partial: list[str] = field(default_factory=list)
    gaps: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gives: frozenset[str] = frozenset()
    unset: frozenset[str] = frozenset()
    assignments: list[Assignment] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)

    def add(
        self,
        target: Field | str,
        raw: Any,
        *,
        line: int | None,
        text: str,
        derived_from: str | None = None,
        span: tuple[int, int] | None = None,
        file: str | None = None,
    ) -> None:
        """Record a value as written; one that the stack's parsers refuse is an omission and leaves it unknown.

        `span` is the half-open character range of the value in the file, where a patch can replace it.
        """
        known = target if not isinstance(target, str) else field_table().get(target)
        if known is None:
            raise KeyError(f"{target} is no setting of the field table")
        try:
            # forks add choices to the arguments that no rule of theirs concerns; Megatron-LM's own parser has its own
            flags = self.framework == "megatron-lm" and (self.strict or not known.path.startswith("args."))
            value = raw if raw is UNKNOWN else known.parse(raw, command_line=flags, strict=self.strict)
        except ValueNotAllowedError as refusal:
            mend = None if refusal.meant is None or span is None else Mend(*span, refusal.meant, known.path)
            self.left_out(text, line, str(refusal), kind="not allowed", path=known.path, file=file, mend=mend)
            value = UNKNOWN
        self.assignments.append(Assignment(known.path, value, line, text, derived_from, file or self.file, span))

    def unresolved(
        self, target: Field | str, *, line: int | None, text: str, why: str, file: str | None = None
    ) -> None:
        """Record that the text sets something whose value it does not settle: unknown, never the default."""
        path = target if isinstance(target, str) else target.path
        self.left_out(text, line, why, kind="not resolved", path=path, file=file)
        self.assignments.append(Assignment(path, UNKNOWN, line, text, file=file or self.file))

    def left_out(
        self,
        text: str,
        line: int | None,
        why: str,
        *,
        kind: OmissionKind = "not read",
        path: str | None = None,
        file: str | None = None,
        mend: Mend | None = None,
    ) -> None:
        """Record a part of the text that was not taken."""
        self.omissions.append(Omission(kind, text[:200], line, why, file or self.file, path, mend))

    def waits_for(self, why: str, *wanted: str) -> None:
        """Record that this is a part only, until the file is read that sets these variables or has this name."""
        self.partial.append(why)
        self.gaps[why] = wanted

    @property
    def complete(self) -> bool:
        """Whether what is not written has the default of the version."""
        return not self.partial

    def recognised(self) -> bool:
        """Whether anything at all of a Megatron run was found."""
        return bool(self.assignments)
