"""Component versions: parsing, ranges, and the candidates that are judged where one is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from ep_overlap_mcp.stack import (
    BRIDGE_PINS,
    COMPONENTS,
    CORE_RELEASES,
    Component,
    Core,
    Release,
    Stack,
    StackError,
    parse_stack,
    pinned_core,
)

LABELS = [core.label for core in CORE_RELEASES]


def test_a_stack_is_named_versions() -> None:
    """Known spellings mean the same component; `none` is known to be absent; spaces and empty parts do not matter."""
    assert parse_stack(" mcore==core_v0.16.1, TE == 2.9.0,,deepep==none,pytorch==2.9.0+cu128") == Stack(
        {
            "megatron-core": Component("0.16.1"),
            "transformer-engine": Component("2.9.0"),
            "deep_ep": Component(None),
            "torch": Component("2.9.0+cu128"),
        }
    )


def test_an_empty_stack_knows_nothing() -> None:
    """No component is listed, which is not the same as absent."""
    assert parse_stack("") == Stack()
    assert Stack().version("torch") is None
    assert "torch" not in Stack().components


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tensorflow==2.0", "unknown stack component `tensorflow`; known: megatron-core"),
        ("torch", "`torch` names no version; write NAME==VERSION"),
        ("torch>=2.6", "`torch>=2.6` names no version; write NAME==VERSION"),
        ("megatron-core==", "names no version"),
        ("megatron-core==sixteen", "`sixteen` is not a version of megatron-core; write a release such as 0.16.1"),
        ("torch==main", "`main` is not a version of torch"),
        ("megatron-bridge==dev", "Megatron-Bridge has no `dev` line"),
        ("mcore==0.16.1,megatron-core==0.15.0", "megatron-core is given as 0.16.1 and as 0.15.0; give one"),
        ("te==none,te==2.9.0", "transformer-engine is given as none and as 2.9.0; give one"),
        ("megatron-core==0.16.1,megatron-lm==0.18.2", "megatron-core==0.16.1 and megatron-lm==0.18.2 contradict"),
        ("megatron-lm==main,megatron-core==dev", "megatron-core==dev and megatron-lm==main contradict"),
        ("megatron-core==none", "without megatron-core there is nothing to judge"),
        ("megatron-lm==none", "without megatron-lm there is nothing to judge"),
    ],
)
def test_what_is_no_stack_is_refused(text: str, told: str) -> None:
    """The message names the part and what is allowed."""
    with pytest.raises(StackError) as refused:
        parse_stack(text)
    assert told in str(refused.value)


@given(
    versions=st.dictionaries(
        st.sampled_from(COMPONENTS), st.from_regex(r"[0-9]{1,2}\.[0-9]{1,2}(\.[0-9]{1,2})?", fullmatch=True)
    )
)
def test_what_is_written_is_read_back(versions: dict[str, str]) -> None:
    """Any set of components with release numbers; a Megatron-LM is of the release of its core."""
    if {"megatron-core", "megatron-lm"} <= versions.keys():
        versions["megatron-lm"] = versions["megatron-core"]
    stack = parse_stack(",".join(f"{name}=={version}" for name, version in versions.items()))
    assert {name: c.version for name, c in stack.components.items()} == versions


@pytest.mark.parametrize(
    "text",
    [
        "megatron-core==0.16.1,mcore==core_v0.16.1",
        "megatron-core==0.16.1,megatron-lm==v0.16.1",
        "megatron-core==0.16.1,megatron-lm==none",
        "megatron-bridge==0.6.0,megatron-lm==none",
    ],
)
def test_what_is_said_twice_is_no_contradiction(text: str) -> None:
    """The same version again, and a Megatron-LM that is not there beside what stands in its place."""
    assert parse_stack(text).version("megatron-lm") in (None, "0.16.1")


@given(text=st.text(alphabet="torch=,.01 -edvm\u00e9", max_size=40))
def test_any_text_is_a_stack_or_refused(text: str) -> None:
    """No other error, and nothing but known components."""
    try:
        stack = parse_stack(text)
    except StackError:
        return
    assert set(stack.components) <= set(COMPONENTS)


@pytest.mark.parametrize(
    ("label", "specifier", "inside"),
    [
        ("0.16.1", ">=0.16", True),
        ("0.16.1", ">=0.16,<0.16.1", False),
        ("0.16.0rc0", ">=0.16", False),
        ("0.17.0rc0", ">=0.16,<0.18", True),
        ("main", ">=0.19", True),
        ("main", "<0.20", False),
        ("dev", ">=0.17", True),
        ("dev", ">=0.17,!dev", False),
        ("main", ">=0.17,!dev", True),
        ("dev", "dev", True),
        ("main", "dev", False),
        ("0.14.0", "", True),
    ],
)
def test_ranges(label: str, specifier: str, *, inside: bool) -> None:
    """`main` is newer than every release; `dev` is a line of its own that a range may name or leave out."""
    assert Core(label).within(specifier) is inside


@pytest.mark.parametrize(
    ("core", "bridge", "newer"),
    [
        ("0.19.7", None, None),
        ("0.20.0", None, None),
        ("0.20.3", None, None),  # 0.20 is what main calls itself
        ("main", "main", None),
        ("dev", None, None),
        ("0.21.0rc0", None, "megatron-core 0.21.0rc0"),
        ("9.9.9", None, "megatron-core 9.9.9"),
        ("main", "0.7.1", None),
        ("main", "0.8.0", "megatron-bridge 0.8.0"),
    ],
)
def test_a_release_is_newer_than_known_from_the_next_minor_on(core: str, bridge: str | None, newer: str | None) -> None:
    """What main calls itself is known; what comes after it is not."""
    assert Release(Core(core), bridge).newer_than_known == newer


def test_minor_releases_of_candidates_count_as_the_release() -> None:
    """Fields are added by minor release, so a release candidate has them."""
    assert Core("0.17.0rc0").minor == (0, 17)
    assert Core("main").minor == (0, 20)


def test_a_release_without_bridge_lies_in_no_bridge_range() -> None:
    """Bridge's rules are not asked of plain core."""
    assert not Release(Core("0.16.1")).bridge_within(">=0.1")
    assert Release(Core("0.16.1"), "0.3.1").bridge_within(">=0.3,<0.4")
    assert Release(Core("main"), "main").bridge_within(">=0.7")


@pytest.mark.parametrize(
    ("stack", "framework", "judged"),
    [
        ("megatron-core==0.16.1", "megatron-core", [("0.16.1", None)]),
        ("megatron-lm==0.18.2", "megatron-lm", [("0.18.2", None)]),
        ("megatron-bridge==0.6.0", "bridge", [("0.19.0", "0.6.0")]),
        ("megatron-bridge==0.6.0,megatron-core==0.18.2", "bridge", [("0.18.2", "0.6.0")]),
        ("megatron-core==0.16.1", "bridge", [("0.16.1", "0.2.0"), ("0.16.1", "0.3.0"), ("0.16.1", "0.3.1")]),
        ("", "megatron-core", [(label, None) for label in LABELS]),
        ("torch==2.9.0", "bridge", [(core, bridge) for bridge, core in BRIDGE_PINS]),
    ],
)
def test_the_candidates_that_are_judged(stack: str, framework: str, judged: list[tuple[str, str | None]]) -> None:
    """One where the versions are known, else every supported line that fits what is known."""
    releases = parse_stack(stack).releases(framework)  # type: ignore[arg-type]
    assert [(r.core.label, r.bridge) for r in releases] == judged


@pytest.mark.parametrize(
    ("bridge", "core"),
    [("0.2.0", "0.16.0rc0"), ("0.3.1", "0.16.1"), ("0.4.1", "0.17.0rc0"), ("0.4.2", "0.17.1"), ("main", "main")],
)
def test_a_bridge_release_pins_a_core(bridge: str, core: str) -> None:
    """A patch release that is not listed has the pin of the one before it."""
    assert pinned_core(bridge) == core


def test_candidates_are_in_order() -> None:
    """Oldest first, and no release twice."""
    versions = [Version("0.20.0" if label == "main" else label) for label in LABELS]
    assert versions == sorted(set(versions))


def test_the_stack_names_the_framework() -> None:
    """A Bridge or Megatron-LM version says which it is; core alone does not."""
    assert parse_stack("megatron-bridge==0.6.0").framework() == "bridge"
    assert parse_stack("megatron-lm==0.16.1").framework() == "megatron-lm"
    assert parse_stack("megatron-core==0.16.1,megatron-lm==none").framework() is None
