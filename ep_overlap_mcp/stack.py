"""Component versions: what a configuration is judged against, what is unknown, and the candidates then judged.

Pins of Megatron-Bridge's Megatron-LM submodule: `git ls-tree` of NVIDIA-NeMo/Megatron-Bridge at v0.2.0 to v0.6.0 and
main 067f987df. NVIDIA/Megatron-LM main (d98e8a64dd) calls itself 0.20.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

Framework = Literal["megatron-core", "megatron-lm", "bridge"]
StackOrigin = Literal["given", "installed", "pinned by megatron-bridge", "narrowed by a setting", "unknown"]

COMPONENTS = (
    "megatron-core",
    "megatron-lm",
    "megatron-bridge",
    "transformer-engine",
    "torch",
    "deep_ep",
    "nvshmem",
)
_SPELLINGS = {
    "mcore": "megatron-core",
    "megatron_core": "megatron-core",
    "megatron_lm": "megatron-lm",
    "megatron": "megatron-lm",
    "bridge": "megatron-bridge",
    "megatron_bridge": "megatron-bridge",
    "te": "transformer-engine",
    "transformer_engine": "transformer-engine",
    "pytorch": "torch",
    "deepep": "deep_ep",
    "deep-ep": "deep_ep",
}
_NOTHING_TO_JUDGE = "without {} there is nothing to judge; leave it out when its version is not known"
_NEWEST = {"main": "0.20.0", "dev": "0.20.0"}
_NEWEST_BRIDGE = "0.7.0"


class StackError(Refusal):
    """A stack that cannot be understood; the text names the component and what is allowed."""


@dataclass(frozen=True)
class Core:
    """One release of megatron-core: a version, `main` or `dev`."""

    label: str

    @property
    def is_dev(self) -> bool:
        """Whether this is Megatron-LM's `dev` branch, which has rules of its own."""
        return self.label == "dev"

    @property
    def version(self) -> Version:
        """`main` and `dev` count as 0.20.0, newer than every release."""
        return _version(self.label)

    @property
    def newer_than_known(self) -> bool:
        """Whether this is of a later minor release than any that the rules were written after; main is 0.20."""
        return self.minor > Core("main").minor

    @property
    def minor(self) -> tuple[int, ...]:
        """(major, minor), of a release candidate too: fields are added by minor release."""
        return _version(self.label).release[:2]

    def within(self, specifier: str) -> bool:
        """Whether this release lies in a range such as `>=0.16,<0.18`, `>=0.17,!dev` or `dev`."""
        return _within(self.label, specifier)


@dataclass(frozen=True)
class Release:
    """One candidate that a configuration is judged against: a core, and a Bridge where that is the framework."""

    core: Core
    bridge: str | None = None

    @property
    def newer_than_known(self) -> str | None:
        """The component that is of a later minor release than any that the rules were written after, if one is."""
        if self.bridge is not None and _bridge_version(self.bridge).release[:2] > _bridge_version("main").release[:2]:
            return f"megatron-bridge {self.bridge}"
        return f"megatron-core {self.core.label}" if self.core.newer_than_known else None

    @property
    def unread_patches(self) -> tuple[str, ...]:
        """Each component of a later patch release than any that was read of its minor, and what it is judged like."""
        given = {"megatron-core": self.core.label, **({"megatron-bridge": self.bridge} if self.bridge else {})}
        read = {"megatron-core": _LAST_PATCHES, "megatron-bridge": _LAST_BRIDGE_PATCHES}
        pairs = ((name, label, _last_patch(label, read[name])) for name, label in given.items())
        return tuple(f"{name} {label} is judged like {last}" for name, label, last in pairs if last)

    def bridge_within(self, specifier: str) -> bool:
        """Whether the Bridge release lies in a range; without a Bridge it lies in none."""
        return self.bridge is not None and _bridge_version(self.bridge) in _specifier(specifier)


CORE_RELEASES = tuple(Core(label) for label in ("0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.0", "main"))
_LAST_PATCHES = tuple(core.label for core in CORE_RELEASES if core.label != "main")
_LAST_BRIDGE_PATCHES = ("0.2.2", "0.3.1", "0.4.2", "0.5.1", "0.6.0")
BRIDGE_PINS = (
    ("0.2.0", "0.16.0rc0"),
    ("0.3.0", "0.16.0"),
    ("0.3.1", "0.16.1"),
    ("0.4.0", "0.17.0rc0"),
    ("0.4.2", "0.17.1"),
    ("0.5.0", "0.18.0"),
    ("0.5.1", "0.18.2"),
    ("0.6.0", "0.19.0"),
    ("main", "main"),
)
_BRIDGE_CANDIDATES = tuple(Release(Core(core), bridge) for bridge, core in BRIDGE_PINS)


@dataclass(frozen=True)
class Component:
    """A version, None for known to be absent, and where it is known from."""

    version: str | None
    origin: StackOrigin = "given"


@dataclass(frozen=True)
class Stack:
    """What is known of the versions; a component that is not listed is unknown."""

    components: Mapping[str, Component] = field(default_factory=dict)

    def version(self, component: str) -> str | None:
        """The version given for a component, or None when it is absent or unknown."""
        known = self.components.get(component)
        return known.version if known else None

    def framework(self) -> Framework | None:
        """The framework that the stack itself names, if any."""
        if self.version("megatron-bridge"):
            return "bridge"
        return "megatron-lm" if self.version("megatron-lm") else None

    def releases(self, framework: Framework) -> tuple[Release, ...]:
        """The candidates to judge: one when the versions are known, else every supported line."""
        core = self.version("megatron-core") or self.version("megatron-lm")
        if framework != "bridge":
            return (Release(Core(core)),) if core else tuple(Release(c) for c in CORE_RELEASES)
        bridge = self.version("megatron-bridge")
        if bridge:
            return (Release(Core(core or pinned_core(bridge)), bridge),)
        if core:
            same = tuple(r for r in _BRIDGE_CANDIDATES if r.core.minor == Core(core).minor)
            return tuple(Release(Core(core), r.bridge) for r in same or _BRIDGE_CANDIDATES)
        return _BRIDGE_CANDIDATES


def parse_stack(text: str) -> Stack:
    """`megatron-core==0.16.1,transformer-engine==2.9.0,deep_ep==none` -> Stack.

    `none` means known to be absent. Raises StackError for an unknown component, a version that is none, and versions
    that contradict each other.
    """
    components: dict[str, Component] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, separator, version = (p.strip() for p in part.partition("=="))
        if not separator or not version:
            raise StackError(f"`{part}` names no version; write NAME==VERSION, or NAME==none for what is absent")
        component = _SPELLINGS.get(name.lower(), name.lower())
        if component not in COMPONENTS:
            raise StackError(f"unknown stack component `{name}`; known: {', '.join(COMPONENTS)}")
        given = Component(_checked_version(component, version))
        if components.setdefault(component, given) != given:
            raise StackError(
                f"{component} is given as {components[component].version or 'none'} and as {version}; give one"
            )
    _refuse_two_cores(components)
    return Stack(components)


def _refuse_two_cores(components: Mapping[str, Component]) -> None:
    """A Megatron-LM holds the megatron-core of its own release; without either it takes a Bridge, which pins one."""
    if "megatron-lm" not in components:
        return
    lm = components["megatron-lm"].version
    core = components.get("megatron-core", Component(lm)).version
    if lm is None and core is None and "megatron-bridge" not in components:
        raise StackError(_NOTHING_TO_JUDGE.format("megatron-lm"))
    if lm is not None and core is not None and (_version(core), core == "dev") != (_version(lm), lm == "dev"):
        raise StackError(
            f"megatron-core=={core} and megatron-lm=={lm} contradict each other: a Megatron-LM release holds the"
            " megatron-core of that release; give the one that runs"
        )


def pinned_core(bridge: str) -> str:
    """The megatron-core release that a Megatron-Bridge release pins."""
    chosen = BRIDGE_PINS[0][1]
    for release, core in BRIDGE_PINS:
        if _bridge_version(release) <= _bridge_version(bridge):
            chosen = core
    return chosen


def _checked_version(component: str, text: str) -> str | None:
    if text.lower() in ("none", "null", "absent"):
        if component == "megatron-core":
            raise StackError(_NOTHING_TO_JUDGE.format(component))
        return None
    if text in ("main", "dev") and component.startswith("megatron"):
        if text == "dev" and component == "megatron-bridge":
            raise StackError("Megatron-Bridge has no `dev` line; write megatron-bridge==main or a release")
        return text
    text = text.removeprefix("core_").removeprefix("v")
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        raise StackError(f"`{text}` is not a version of {component}; write a release such as 0.16.1") from None
    return text


def _last_patch(label: str, read: tuple[str, ...]) -> str | None:
    """The last patch release of its minor that was read, where a release is a later one."""
    if label in _NEWEST:
        return None
    release = _version(label).release
    same = (last for last in read if _version(last).release[:2] == release[:2])
    return next((last for last in same if _version(last).release < release), None)


@lru_cache(maxsize=256)
def _version(label: str) -> Version:
    from packaging.version import Version

    return Version(_NEWEST.get(label, label))


@lru_cache(maxsize=64)
def _bridge_version(label: str) -> Version:
    from packaging.version import Version

    return Version(_NEWEST_BRIDGE if label == "main" else label)


@lru_cache(maxsize=512)
def _specifier(text: str) -> SpecifierSet:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(text, prereleases=True)


@lru_cache(maxsize=4096)
def _within(label: str, specifier: str) -> bool:
    if specifier == "dev":
        return label == "dev"
    numbers = re.sub(r",?\s*!dev", "", specifier)
    return not (label == "dev" and numbers != specifier) and _version(label) in _specifier(numbers)
