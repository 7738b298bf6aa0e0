"""The incremental judge answers as the rules do when all of them are asked."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.proposals.judging import Judge, verdict_of
from ep_overlap_mcp.rules.checking import check, outcomes_of
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.request import MODEL_SWITCH, Request, build_request
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import parse_stack
from tests.rules.random_configurations import BASE, DIALS

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Outcome

STACKS = {
    "megatron-core": "megatron-core==0.16.1,transformer-engine==2.9.0",
    "megatron-lm": "megatron-lm==0.18.2,transformer-engine==2.6.0,torch==2.9.0",
    "bridge": "megatron-bridge==0.6.0,transformer-engine==2.12.0",
    "any": "",
}


def request(framework: str, *, partial: bool) -> Request:
    reading = Reading("json", "fields.json", framework=None if framework == "any" else framework)  # type: ignore[arg-type]
    for line, (name, value) in enumerate(BASE.items(), 1):
        reading.add(f"model.{name}", value, line=line, text=name)
    if partial:
        reading.partial.append("a fragment")
    return build_request([reading], stack=parse_stack(STACKS[framework]), assume="overlap")


def random_changes(source: random.Random) -> dict[str, Any]:
    known = [name for name in DIALS if field_table().get(f"model.{name}")]
    chosen = source.sample(known, source.randint(1, 4))
    return {f"model.{name}": source.choice(DIALS[name]) for name in chosen}


def said(outcomes: list[Outcome]) -> list[tuple[object, ...]]:
    return [(o.rule.name, o.state, o.severity, o.message, o.needs, o.why, o.layers) for o in outcomes]


@pytest.mark.parametrize("partial", [False, True], ids=["complete", "partial"])
@pytest.mark.parametrize("framework", STACKS)
def test_only_what_can_have_changed_is_asked_again(framework: str, partial: bool) -> None:  # noqa: FBT001
    """Every outcome of 40 random variants is that of a fresh judgement, and so are errors and verdict."""
    source = random.Random(f"{framework} {partial}")
    asked = request(framework, partial=partial)
    judge = Judge(asked, {MODEL_SWITCH: True})
    for _ in range(40):
        changes = random_changes(source)
        changed = judge.changed(changes)
        fresh = outcomes_of([View(changed, release) for release in changed.releases()])
        assert said(judge.after(changes)) == said(fresh), changes
        errors = [o for o in fresh if o.state == "violated" and o.severity == "error"]
        assert said(judge.errors(changes)) == said(errors), changes
        assert verdict_of(fresh) == check(changed).verdict
