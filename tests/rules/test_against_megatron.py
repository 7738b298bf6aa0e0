"""The rules against the real `TransformerConfig`: thousands of random configurations, no unexplained disagreement.

The installed release is judged always; further unpacked releases under $EP_OVERLAP_RELEASES/<version> on demand.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.engine import judge
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import Core, parse_stack
from ep_overlap_mcp.training_env import TrainingEnvironment
from tests.rules.random_configurations import random_configurations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.training_env.judgement import Judgement

pytestmark = pytest.mark.megatron

COUNT = int(os.environ.get("EP_OVERLAP_CONFIGURATIONS", "5000"))
SEED = int(os.environ.get("EP_OVERLAP_SEED", "20261201"))
RELEASES = Path(os.environ.get("EP_OVERLAP_RELEASES", "/nowhere"))


@dataclass(frozen=True)
class Sample:
    """Configurations of one release, what Megatron says of each and which of our core rules are violated."""

    release: str
    configurations: list[dict[str, Any]]
    judgements: list[Judgement]
    violated: list[frozenset[str]]

    def judged(self) -> Iterator[tuple[dict[str, Any], bool, Judgement, frozenset[str]]]:
        """The configurations that the library could judge."""
        for configuration, judgement, violated in zip(self.configurations, self.judgements, self.violated, strict=True):
            if judgement.judged and judgement.accepted is not None:
                yield configuration, judgement.accepted, judgement, violated


def releases() -> list[str]:
    on_demand = sorted(p.name for p in RELEASES.iterdir() if p.is_dir()) if RELEASES.is_dir() else []
    return ["installed", *on_demand]


@pytest.fixture(scope="module", params=releases())
def sample(request: pytest.FixtureRequest) -> Sample:
    release = request.param
    variables = {} if release == "installed" else {"PYTHONPATH": str(RELEASES / release)}
    with TrainingEnvironment(variables=variables) as environment:
        version = environment.judge("megatron-core", {"model.num_layers": 2}).versions["megatron-core"]
        te = environment.describe(fast=True).components["transformer-engine"].version
        configurations = list(random_configurations(Core(version), COUNT, SEED))
        judgements = environment.judge_all("megatron-core", configurations)
    stack = f"megatron-core=={version},transformer-engine=={te or 'none'},torch==2.13.0"
    return Sample(version, configurations, judgements, [core_errors(c, stack) for c in configurations])


def core_errors(configuration: dict[str, Any], stack: str) -> frozenset[str]:
    """Names of the error rules that core enforces and the configuration violates."""
    reading = Reading("json", "random.json", framework="megatron-core")
    for path, value in configuration.items():
        reading.add(path, value, line=1, text=path)
    request = build_request([reading], stack=parse_stack(stack), assume="as_written")
    view = View(request, request.releases()[0])
    outcomes = [judge(rule, [view]) for rule in all_rules().values()]
    return frozenset(
        o.rule.name
        for o in outcomes
        if o is not None
        and o.state == "violated"
        and o.severity == "error"
        and ("megatron-core" in o.layers or o.rule.code in ("EPO801", "EPO810"))
    )


def test_the_rules_agree_with_the_real_class(sample: Sample) -> None:
    """Megatron accepts exactly what no core rule rejects; what the library cannot judge is left out."""
    disagreements = [
        (sorted(violated), judgement.exception, judgement.at, configuration)
        for configuration, accepted, judgement, violated in sample.judged()
        if accepted is bool(violated)
    ]
    kinds = Counter((str(v), at) for v, _, at, _ in disagreements)
    assert not disagreements, (sample.release, kinds.most_common(5), disagreements[0])


def test_the_sample_reaches_both_sides(sample: Sample) -> None:
    """Neither side is rare, so agreement means something."""
    judged = [accepted for _, accepted, _, _ in sample.judged()]
    assert len(judged) > COUNT * 0.6
    assert 0.1 < sum(judged) / len(judged) < 0.9


_WITHOUT_TE = "the library compares the version of an absent Transformer Engine before or beside it"
# Rules that cannot be the only violation that the library judges here, each with the reason.
NEVER_ALONE = {
    "bf16-end-layers-limits": _WITHOUT_TE,
    "custom-recipe-needs-quantizer": _WITHOUT_TE,
    "fp8-experts-need-te": _WITHOUT_TE,
    "fp8-recompute-excludes-delayed-scaling": _WITHOUT_TE,
    "fp8-recompute-needs-te-2-6": _WITHOUT_TE,
    "one-quantised-format": _WITHOUT_TE,
    "permute-fusion-needs-te": _WITHOUT_TE,
    "symmetric-all-reduce-needs-te-2-3": _WITHOUT_TE,
    "te-graph-with-delayed-wgrad-needs-te-2-10": _WITHOUT_TE,
    "no-full-recompute": "full recompute needs a method or a number of layers, which rules of their own reject",
    "inference-graph-scope-needs-0-17": "the judge does not know that module's name before 0.17",
    "torch-at-least-2-6": "the torch that runs the library is newer",
}


def test_removing_any_core_rule_shows(sample: Sample) -> None:
    """Every core rule is the only one violated in some rejected configuration: without it the rules would disagree."""
    release = Core(sample.release)
    enforced = {
        rule.name
        for rule in all_rules().values()
        for clause in rule.clauses
        if clause.layer == "megatron-core"
        and (not clause.core or release.within(clause.core))
        and (clause.severity or rule.severity) == "error"
    }
    alone = {
        name for _, accepted, _, violated in sample.judged() if not accepted and len(violated) == 1 for name in violated
    }
    unexplained = enforced - alone - NEVER_ALONE.keys()
    assert sorted(unexplained) == [], sample.release
