"""Requests and outcomes for the tests of rules, with every input visible in the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.rules import find_rule
from ep_overlap_mcp.rules.engine import judge
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import parse_stack
from tests.rules.tables import parametrize

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.rules.engine import Outcome
    from ep_overlap_mcp.settings.request import Assume, Request


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a row of a table of rules."""
    parametrize(metafunc)


OVERLAP = {
    "num_layers": 8,
    "num_moe_experts": 8,
    "expert_model_parallel_size": 4,
    "moe_token_dispatcher_type": "alltoall",
    "bf16": True,
    "overlap_moe_expert_parallel_comm": True,
}
"""A configuration of core fields in which EP overlap is legal on every release."""


def request_of(
    settings: dict[str, Any],
    *,
    stack: str = "megatron-core==0.16.1",
    partial: bool = False,
    assume: Assume = "as_written",
    gpu: str | None = None,
) -> Request:
    """A request for settings by path, bare names being fields of `model`; `...` is a value the text leaves open."""
    versions = parse_stack(stack)
    reading = Reading("json", "job.json", framework=versions.framework() or "megatron-core")
    for line, (name, value) in enumerate(settings.items(), start=1):
        path = name if "." in name else f"model.{name}"
        reading.add(path, UNKNOWN if value is ... else value, line=line, text=f"{name}={value}")
    if partial:
        reading.partial.append("the recipe is imported")
    return build_request([reading], stack=versions, assume=assume, gpu=gpu)


def outcome_of(rule: str, settings: dict[str, Any], **given: Any) -> Outcome | None:
    """How one rule, by name or code, comes out for `request_of(settings, ...)`; None where no layer enforces it."""
    known = find_rule(rule)
    assert known is not None, f"no rule {rule}"
    request = request_of(settings, **given)
    return judge(known, [View(request, release) for release in request.releases()])


@pytest.fixture
def state() -> Callable[..., str]:
    """`state("needs-experts", {...}, stack=...)` is violated, undecided, met or `not enforced`."""

    def state_of(rule: str, settings: dict[str, Any], **given: Any) -> str:
        outcome = outcome_of(rule, settings, **given)
        return outcome.state if outcome else "not enforced"

    return state_of


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    """`outcome("needs-experts", {...}, stack=...)` in full, for its message, needs or severity."""

    def whole(rule: str, settings: dict[str, Any], **given: Any) -> Outcome:
        found = outcome_of(rule, settings, **given)
        assert found is not None, f"{rule} is not enforced there"
        return found

    return whole


@pytest.fixture
def overlapping() -> Callable[..., dict[str, Any]]:
    """`overlapping(mtp_num_layers=2)`: a configuration with legal EP overlap, and the changes to it."""
    return lambda **changes: {**OVERLAP, **changes}


@pytest.fixture
def asked() -> Callable[..., Request]:
    """`asked({...}, stack=..., gpu=...)`: the request itself."""
    return request_of


@pytest.fixture
def states_after_fixes() -> Callable[..., list[str]]:
    """`states_after_fixes("needs-experts", {...}, stack=...)`: the rule's state after each of its fixes."""

    def states(rule: str, settings: dict[str, Any], **given: Any) -> list[str]:
        known = find_rule(rule)
        assert known is not None, f"no rule {rule}"
        request = request_of(settings, **given)
        view = View(request, request.releases()[0])
        fixed = [request.with_settings(c, "a fix") for fix in known.fixes for c in fix.options(view)]
        outcomes = [judge(known, [View(f, release) for release in f.releases()]) for f in fixed]
        return [outcome.state if outcome else "not enforced" for outcome in outcomes]

    return states


@pytest.fixture
def cured() -> Callable[..., str]:
    """`cured("needs-experts", {...}, stack=...)` is the rule's state after its first fix, or `no fix`."""

    def state_after(rule: str, settings: dict[str, Any], **given: Any) -> str:
        known = find_rule(rule)
        assert known is not None, f"no rule {rule}"
        request = request_of(settings, **given)
        view = View(request, request.releases()[0])
        changes = next((change for fix in known.fixes for change in fix.options(view)), None)
        if changes is None:
            return "no fix"
        fixed = request.with_settings(changes, "the rule's fix")
        outcome = judge(known, [View(fixed, release) for release in fixed.releases()])
        return outcome.state if outcome else "not enforced"

    return state_after
