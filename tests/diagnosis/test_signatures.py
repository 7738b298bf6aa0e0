"""The signature rows: every cause is covered, every row has its source and can be met."""

from __future__ import annotations

import re

import pytest

from ep_overlap_mcp.diagnosis import diagnose
from ep_overlap_mcp.diagnosis.causes import CAUSES
from ep_overlap_mcp.diagnosis.detectors import FAILED_RUN
from ep_overlap_mcp.diagnosis.gates import GATES
from ep_overlap_mcp.diagnosis.signatures import SIGNATURES, Signature
from ep_overlap_mcp.diagnosis.silent import QUIET_RUN

# causes that no line alone shows: they need settings, which detectors weigh
WEIGHED = {
    "attention-graph-nan",
    "stale-flex-backend-metadata",
    "bridge-reset-the-flag",
    "harness-false-ignored",
    "too-few-microbatches",
    "last-layer-dense-drops-final-norm",
}


def test_at_least_sixty_rows_name_a_cause() -> None:
    """Consequences do not count."""
    assert len([row for row in SIGNATURES if row.confirms or row.points_to]) >= 60


def test_every_cause_is_covered() -> None:
    """By a row, or by a detector that weighs settings; `unknown` is what is left."""
    named = {cause for row in SIGNATURES for cause in (*row.confirms, *row.points_to)}
    source = "".join(open(d.__code__.co_filename).read() for d in (FAILED_RUN[0], QUIET_RUN[0]))  # noqa: PTH123, SIM115
    assert named | WEIGHED | {"unknown"} == set(CAUSES)
    assert all(f'Support("{cause}"' in source for cause in WEIGHED)


@pytest.mark.parametrize("row", SIGNATURES, ids=lambda row: f"{row.literal}-{row.source}"[:60])
def test_a_row_is_well_formed(row: Signature) -> None:
    """A source, a literal without digits (lines are deduplicated without them), no unbounded repetition."""
    assert row.source
    assert len(row.literal) >= 4
    assert not re.search(r"\d", row.literal)
    if row.pattern:
        assert not re.search(r"(?<!\\)[*+](?!\?)|\{\d+,\}", re.sub(r"\[[^]]*\]", "", row.pattern.pattern))


def test_gates_hold_no_digits() -> None:
    """Lines that differ in numbers alone must pass the same gates."""
    assert not any(re.search(rb"\d", gate) for gate in GATES)


def test_one_signature_can_point_to_several_causes() -> None:
    """A DeepEP time-out is a mismatch or the transport, and the answer says so."""
    row = next(row for row in SIGNATURES if row.literal == "timeout (dispatch CPU)")
    assert row.points_to == ("deepep-transport-timeout", "deepep-nvshmem-mismatch")


@pytest.mark.parametrize(
    ("message", "cause", "rules"),
    [
        ("Flex token dispatcher requires TPxEP > 1", "config-rule-violated", ["flex-needs-larger-expert-group"]),
        ("NCCL EP dispatcher requires TPxEP > 1", "config-rule-violated", ["flex-needs-larger-expert-group"]),
        (
            "Please set --moe-flex-dispatcher-backend to deepep, hybridep, or ncclep",
            "config-rule-violated",
            ["flex-backend-must-be-known"],
        ),
        (
            "Shared expert overlap is not supported in Flex Token Dispatcher.",
            "config-rule-violated",
            ["shared-expert-overlap-needs-dispatcher"],
        ),
        (
            "multi token prediction + sequence packing is not yet supported.",
            "config-rule-violated",
            ["mtp-excludes-packed-sequences"],
        ),
        (
            "EP overlap 1F1B with FSDP is not supported for interleaved pipelines.",
            "config-rule-violated",
            ["fsdp-overlap-limits"],
        ),
        (
            "The 'ncclep' backend requires moe_expert_rank_capacity_factor to be set",
            "config-rule-violated",
            ["ncclep-needs-rank-capacity"],
        ),
        ("MTP layer in a2a overlap only supports MoE layer for now.", "config-rule-violated", []),
        (
            "'TransformerConfig' object has no attribute 'overlap_moe_expert_parallel_comm'",
            "config-rule-violated",
            ["setting-unknown-to-version"],
        ),
        (
            "The final unwrapped model must be a GPTModel instance",
            "no-schedule-plan",
            ["only-gpt-models-overlap", "forward-step-must-return-plan"],
        ),
        (
            "TransformerEngine NCCL EP is unavailable. The 'ncclep' backend requires a",
            "transformer-engine-too-old",
            ["ncclep-needs-te-2-17"],
        ),
    ],
)
def test_what_the_real_library_says_names_its_rule(message: str, cause: str, rules: list[str]) -> None:
    """Messages of megatron-core 0.16.1 and 0.19.0, as the dispatcher and the schedule raise them."""
    first = diagnose(text=f"[rank0]: AssertionError: {message}\n").causes[0]
    assert (first.cause, first.rules) == (cause, rules)
