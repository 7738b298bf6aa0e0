"""EPO5xx: pipeline schedule, stages, microbatches and how ranks divide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.rules import all_rules, find_rule
from ep_overlap_mcp.rules.pipeline import overlapped_pairs
from ep_overlap_mcp.rules.view import View
from ep_overlap_mcp.rules.virtual_stages import uneven_fault, virtual_stage_options
from tests.rules.conftest import outcome_of, request_of
from tests.rules.tables import Tables, ThreeTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rules.tables import Case, OpenCase

ON: dict[str, Any] = {
    "overlap_moe_expert_parallel_comm": True,
    "moe_token_dispatcher_type": "alltoall",
    "num_moe_experts": 16,
    "expert_model_parallel_size": 8,
    "num_layers": 8,
    "bf16": True,
}
INTERLEAVED = {**ON, "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2}
LAYOUT = {"num_layers": 8, "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*4|t*4L"}
UNEVEN = {"num_layers": 9, "pipeline_model_parallel_size": 4, "num_layers_in_first_pipeline_stage": 3}
BATCH = {"train.micro_batch_size": 1, "hardware.world_size": 32}

VIOLATED: list[Case] = [
    (
        "context-parallel-needs-te",
        {"context_parallel_size": 2},
        {"stack": "megatron-core==0.16.1,transformer-engine==none"},
    ),
    ("virtual-stages-need-pipeline", {"virtual_pipeline_model_parallel_size": 2}, {}),
    ("single-virtual-stage", {**INTERLEAVED, "virtual_pipeline_model_parallel_size": 1}, {}),
    ("layers-divide-into-stages", {"num_layers": 9, "pipeline_model_parallel_size": 2}, {}),
    ("layers-divide-into-stages", {**INTERLEAVED, "num_layers": 12}, {}),
    ("layout-fits-pipeline", {**LAYOUT, "pipeline_model_parallel_layout": "Et*4|t*2|t*2L"}, {}),
    ("layout-fits-pipeline", {**LAYOUT, "num_layers": 9}, {}),
    ("layout-fits-pipeline", {**LAYOUT, "mtp_num_layers": 1}, {}),
    ("layout-fits-pipeline", {**LAYOUT, "virtual_pipeline_model_parallel_size": 2}, {}),
    ("layout-fits-pipeline", {**LAYOUT, "pipeline_model_parallel_layout": "t*4|t*4L"}, {}),
    ("layout-fits-pipeline", {**LAYOUT, "pipeline_model_parallel_layout": "Ex*4|t*4L"}, {}),
    ("microbatches-cover-pipeline", {**INTERLEAVED, **BATCH, "train.global_batch_size": 24}, {}),
    ("microbatches-cover-pipeline", {**INTERLEAVED, "microbatch_group_size_per_vp_stage": 2}, {}),
    (
        "p2p-modes-exclusive",
        {**INTERLEAVED, "overlap_p2p_comm": True, "batch_p2p_comm": True},
        {},
    ),
    ("too-few-microbatches-to-overlap", {**ON, **BATCH, "train.global_batch_size": 32}, {}),
    ("too-few-microbatches-to-overlap", {**INTERLEAVED, **BATCH, "train.global_batch_size": 32}, {}),
    (
        "uneven-virtual-chunks",
        {**ON, "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et|t*3|t*3|tL"},
        {},
    ),
    ("last-layer-must-be-moe", {**ON, "moe_layer_freq": [1] * 7 + [0]}, {}),
    ("last-layer-must-be-moe", {**ON, "moe_layer_freq": "([1]*7+[0]*1)"}, {}),
    ("last-layer-must-be-moe", {**ON, "moe_layer_freq": 2}, {"stack": "megatron-core==main"}),
    (
        "world-divides-parallelism",
        {"hardware.world_size": 16, "tensor_model_parallel_size": 2, "expert_model_parallel_size": 16},
        {},
    ),
    (
        "world-divides-parallelism",  # whatever expert TP is
        {"hardware.world_size": 32, "expert_model_parallel_size": 64, "expert_tensor_parallel_size": ...},
        {},
    ),
    ("experts-divide-by-ep", {"num_moe_experts": 12, "expert_model_parallel_size": 8}, {}),
    ("alltoall-needs-two-local-experts", {**ON, "num_moe_experts": 8}, {"stack": "megatron-core==0.15.3"}),
    ("sequence-parallel-needs-tp", {"sequence_parallel": True}, {}),
    (
        "tensor-parallel-experts-need-sequence-parallel",
        {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4},
        {},
    ),
    ("dense-layers-lose-overlap", {**ON, "moe_layer_freq": [0] + [1] * 7}, {}),
    (
        "variable-length-with-batched-p2p",
        {"variable_seq_lengths": True, "pipeline_model_parallel_size": 4, "num_moe_experts": 8},
        {},
    ),
    (
        "standalone-mtp-stage",
        {"pipeline_model_parallel_layout": "Et*4|t*4|m|L", "pipeline_model_parallel_size": 4},
        {"stack": "megatron-bridge==0.5.0"},
    ),
    (
        "layout-places-mtp-last",
        {"pipeline_model_parallel_layout": "Et|m|t|tL", "pipeline_model_parallel_size": 4},
        {},
    ),
    (
        "layout-places-mtp-last",
        {"pipeline_model_parallel_layout": "Et|t|tm|L", "pipeline_model_parallel_size": 4},
        {"stack": "megatron-core==0.15.3"},
    ),
    ("layout-excludes-other-placement", {**LAYOUT, "num_layers_in_first_pipeline_stage": 4}, {}),
    (
        "uneven-stages-exclude-split-accounting",
        {**UNEVEN, "account_for_loss_in_pipeline_split": True},
        {},
    ),
    ("uneven-stages-fit", {**UNEVEN, "num_layers": 10}, {}),
    (
        "accounted-layers-divide",
        {"num_layers": 8, "pipeline_model_parallel_size": 2, "account_for_embedding_in_pipeline_split": True},
        {},
    ),
    (
        "one-way-to-virtual-stages",
        {"num_virtual_stages_per_pipeline_rank": 2, "num_layers_per_virtual_pipeline_stage": 2},
        {"stack": "megatron-lm==0.16.1"},
    ),
    (
        "interleaving-without-p2p-overlap-needs-three-stages",
        {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 2, "overlap_p2p_comm": False},
        {"stack": "megatron-lm==0.16.1"},
    ),
    (
        "layers-per-virtual-stage-divide",
        {"num_layers": 24, "pipeline_model_parallel_size": 4, "num_layers_per_virtual_pipeline_stage": 4},
        {"stack": "megatron-lm==0.16.1"},
    ),
    ("heads-divide-by-tp", {"num_attention_heads": 12, "tensor_model_parallel_size": 8}, {}),
    (
        "heads-divide-by-tp",
        {"num_attention_heads": 8, "num_query_groups": 2, "tensor_model_parallel_size": 4},
        {"stack": "megatron-core==0.15.3"},
    ),
    ("p2p-warmup-overlap-needs-overlapped-p2p", {"overlap_p2p_comm_warmup_flush": True}, {}),
    ("deferred-embedding-wgrad-needs-pipeline", {"defer_embedding_wgrad_compute": True}, {}),
    ("moe-layer-pattern-fits", {**ON, "moe_layer_freq": [1] * 7}, {}),
    (
        "sequence-divides-by-context-parallel",
        {"seq_length": 1000, "context_parallel_size": 8},
        {"stack": "megatron-lm==0.16.1"},
    ),
    ("global-batch-divides", {**BATCH, "train.global_batch_size": 100}, {}),
]

SILENT: list[Case] = [
    (
        "context-parallel-needs-te",
        {"context_parallel_size": 2},
        {"stack": "megatron-core==0.16.1,transformer-engine==2.9.0"},
    ),
    ("virtual-stages-need-pipeline", INTERLEAVED, {}),
    ("single-virtual-stage", INTERLEAVED, {}),
    ("layers-divide-into-stages", INTERLEAVED, {}),
    ("layers-divide-into-stages", {**LAYOUT, "num_layers": 9}, {}),
    ("layout-fits-pipeline", LAYOUT, {}),
    (
        "layout-fits-pipeline",
        {
            **LAYOUT,
            "pipeline_model_parallel_layout": "Et*2|t*2|t*2|t*2mL",
            "virtual_pipeline_model_parallel_size": 2,
            "mtp_num_layers": 1,
        },
        {},
    ),
    (
        "layout-fits-pipeline",
        {
            **LAYOUT,
            "pipeline_model_parallel_layout": [["embedding"] + ["decoder"] * 4, ["decoder"] * 4 + ["loss"]],
        },
        {},
    ),
    ("microbatches-cover-pipeline", {**INTERLEAVED, **BATCH, "train.global_batch_size": 64}, {}),
    ("p2p-modes-exclusive", {**INTERLEAVED, "overlap_p2p_comm": True, "batch_p2p_comm": False}, {}),
    ("too-few-microbatches-to-overlap", {**ON, **BATCH, "train.global_batch_size": 64}, {}),
    ("too-few-microbatches-to-overlap", {**INTERLEAVED, **BATCH, "train.global_batch_size": 64}, {}),
    ("uneven-virtual-chunks", {**ON, **LAYOUT}, {}),
    ("last-layer-must-be-moe", {**ON, "moe_layer_freq": [0] + [1] * 7}, {}),
    ("last-layer-must-be-moe", {**ON, "moe_layer_freq": 2, "num_layers": 9}, {}),
    ("world-divides-parallelism", {"hardware.world_size": 16, "expert_model_parallel_size": 16}, {}),
    ("experts-divide-by-ep", ON, {}),
    ("alltoall-needs-two-local-experts", ON, {"stack": "megatron-core==0.15.3"}),
    ("sequence-parallel-needs-tp", {"sequence_parallel": True}, {"stack": "megatron-lm==0.16.1"}),
    (
        "tensor-parallel-experts-need-sequence-parallel",
        {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, "sequence_parallel": True},
        {},
    ),
    ("dense-layers-lose-overlap", ON, {}),
    (
        "variable-length-with-batched-p2p",
        {"variable_seq_lengths": True, "pipeline_model_parallel_size": 2, "num_moe_experts": 8},
        {},
    ),
    (
        "standalone-mtp-stage",
        {"pipeline_model_parallel_layout": "Et*4|t*4mL", "pipeline_model_parallel_size": 2},
        {"stack": "megatron-bridge==0.5.0"},
    ),
    (
        "layout-places-mtp-last",
        {"pipeline_model_parallel_layout": "Et|t|tm|L", "pipeline_model_parallel_size": 4},
        {},
    ),
    ("layout-excludes-other-placement", LAYOUT, {}),
    ("uneven-stages-exclude-split-accounting", UNEVEN, {}),
    ("uneven-stages-fit", UNEVEN, {}),
    (
        "accounted-layers-divide",
        {"num_layers": 7, "pipeline_model_parallel_size": 2, "account_for_embedding_in_pipeline_split": True},
        {},
    ),
    (
        "one-way-to-virtual-stages",
        {"num_virtual_stages_per_pipeline_rank": 2},
        {"stack": "megatron-lm==0.16.1"},
    ),
    (
        "interleaving-without-p2p-overlap-needs-three-stages",
        {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 2},
        {"stack": "megatron-lm==0.16.1"},
    ),
    (
        "layers-per-virtual-stage-divide",
        {"num_layers": 24, "pipeline_model_parallel_size": 4, "num_layers_per_virtual_pipeline_stage": 3},
        {"stack": "megatron-lm==0.16.1"},
    ),
    ("heads-divide-by-tp", {"num_attention_heads": 8, "num_query_groups": 2, "tensor_model_parallel_size": 4}, {}),
    (
        "p2p-warmup-overlap-needs-overlapped-p2p",
        {"overlap_p2p_comm_warmup_flush": True, "overlap_p2p_comm": True, "batch_p2p_comm": False},
        {},
    ),
    (
        "deferred-embedding-wgrad-needs-pipeline",
        {
            "defer_embedding_wgrad_compute": True,
            "pipeline_model_parallel_size": 2,
            "gradient_accumulation_fusion": True,
        },
        {},
    ),
    ("moe-layer-pattern-fits", {**ON, "moe_layer_freq": "[0]*1+[1]*7"}, {}),
    (
        "sequence-divides-by-context-parallel",
        {"seq_length": 4096, "context_parallel_size": 8},
        {"stack": "megatron-lm==0.16.1"},
    ),
    ("global-batch-divides", {**BATCH, "train.global_batch_size": 64}, {}),
]

PP, VPP = "model.pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"
LM = {"stack": "megatron-lm==0.16.1"}

UNDECIDED: list[OpenCase] = [
    ("context-parallel-needs-te", {"context_parallel_size": 2}, {}, {"runtime.transformer_engine"}),
    ("virtual-stages-need-pipeline", {VPP: 2, PP: ...}, {}, {PP}),
    ("single-virtual-stage", {**INTERLEAVED, VPP: ...}, {}, {VPP}),
    ("layers-divide-into-stages", {"num_layers": ..., PP: 2}, {}, {"model.num_layers"}),
    ("layout-fits-pipeline", {**LAYOUT, "num_layers": ...}, {}, {"model.num_layers"}),
    (
        "microbatches-cover-pipeline",
        INTERLEAVED,
        {},
        {"hardware.world_size", "train.global_batch_size", "train.micro_batch_size"},
    ),
    (
        "p2p-modes-exclusive",
        {**INTERLEAVED, "overlap_p2p_comm": ...},
        {},
        {"model.overlap_p2p_comm"},
    ),
    ("too-few-microbatches-to-overlap", {**ON, **BATCH}, {}, {"train.global_batch_size"}),
    (
        "uneven-virtual-chunks",
        {**ON, **LAYOUT, "pipeline_model_parallel_layout": ...},
        {},
        {"model.pipeline_model_parallel_layout"},
    ),
    ("last-layer-must-be-moe", {**ON, "moe_layer_freq": 2, "num_layers": ...}, {}, {"model.num_layers"}),
    ("world-divides-parallelism", {"tensor_model_parallel_size": 2}, {}, {"hardware.world_size"}),
    (
        "world-divides-parallelism",
        {"hardware.world_size": 64, "expert_model_parallel_size": 64, "expert_tensor_parallel_size": ...},
        {},
        {"model.expert_tensor_parallel_size"},
    ),
    (
        "experts-divide-by-ep",
        {"num_moe_experts": 12, "expert_model_parallel_size": ...},
        {},
        {"model.expert_model_parallel_size"},
    ),
    ("alltoall-needs-two-local-experts", {**ON, "num_moe_experts": ...}, {}, {"model.num_moe_experts"}),
    ("sequence-parallel-needs-tp", {"sequence_parallel": ...}, {}, {"model.sequence_parallel"}),
    (
        "tensor-parallel-experts-need-sequence-parallel",
        {"tensor_model_parallel_size": 2, "expert_model_parallel_size": ...},
        {},
        {"model.expert_model_parallel_size"},
    ),
    ("dense-layers-lose-overlap", {**ON, "moe_layer_freq": ...}, {}, {"model.moe_layer_freq"}),
    (
        "variable-length-with-batched-p2p",
        {"variable_seq_lengths": True, PP: ..., "num_moe_experts": 8},
        {},
        {PP},
    ),
    (
        "standalone-mtp-stage",
        {"pipeline_model_parallel_layout": ...},
        {"stack": "megatron-bridge==0.5.0"},
        {"model.pipeline_model_parallel_layout"},
    ),
    ("layout-places-mtp-last", {"pipeline_model_parallel_layout": "Et|m|t|tL", PP: ...}, {}, {PP}),
    (
        "layout-excludes-other-placement",
        {**LAYOUT, "num_layers_in_first_pipeline_stage": ...},
        {},
        {"model.num_layers_in_first_pipeline_stage"},
    ),
    (
        "uneven-stages-exclude-split-accounting",
        {**UNEVEN, "account_for_loss_in_pipeline_split": ...},
        {},
        {"model.account_for_loss_in_pipeline_split"},
    ),
    ("uneven-stages-fit", {**UNEVEN, "num_layers": ...}, {}, {"model.num_layers"}),
    (
        "accounted-layers-divide",
        {"num_layers": ..., PP: 2, "account_for_embedding_in_pipeline_split": True},
        {},
        {"model.num_layers"},
    ),
    (
        "one-way-to-virtual-stages",
        {"num_virtual_stages_per_pipeline_rank": 2, "num_layers_per_virtual_pipeline_stage": ...},
        LM,
        {"model.num_layers_per_virtual_pipeline_stage"},
    ),
    (
        "interleaving-without-p2p-overlap-needs-three-stages",
        {PP: ..., "num_virtual_stages_per_pipeline_rank": 2, "overlap_p2p_comm": False},
        LM,
        {PP},
    ),
    (
        "layers-per-virtual-stage-divide",
        {"num_layers": ..., PP: 4, "num_layers_per_virtual_pipeline_stage": 4},
        LM,
        {"model.num_layers"},
    ),
    (
        "heads-divide-by-tp",
        {"num_attention_heads": 12, "tensor_model_parallel_size": ...},
        {},
        {"model.tensor_model_parallel_size"},
    ),
    (
        "p2p-warmup-overlap-needs-overlapped-p2p",
        {"overlap_p2p_comm_warmup_flush": ...},
        {},
        {"model.overlap_p2p_comm_warmup_flush"},
    ),
    (
        "deferred-embedding-wgrad-needs-pipeline",
        {"defer_embedding_wgrad_compute": ...},
        {},
        {"model.defer_embedding_wgrad_compute"},
    ),
    ("moe-layer-pattern-fits", {**ON, "moe_layer_freq": [1] * 7, "num_layers": ...}, {}, {"model.num_layers"}),
    ("sequence-divides-by-context-parallel", {"seq_length": ..., "context_parallel_size": 8}, LM, {"model.seq_length"}),
    ("global-batch-divides", BATCH, {}, {"train.global_batch_size"}),
]


class TestRules(ThreeTables):
    """Every row is a test."""

    tables = Tables(VIOLATED, SILENT, UNDECIDED)


def test_severity_follows_the_release(outcome: Callable[..., Any]) -> None:
    """Tensor and expert parallelism without sequence parallelism: an error up to 0.15, a warning since."""
    settings = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4}
    rule = "tensor-parallel-experts-need-sequence-parallel"
    found = {core: outcome(rule, settings, stack=f"megatron-core=={core}").severity for core in ("0.14.0", "0.16.1")}
    assert found == {"0.14.0": "error", "0.16.1": "warning"}


@pytest.mark.parametrize(("overlap", "severity"), [(True, "warning"), (False, "error")])
def test_only_the_combined_schedule_passes_by_the_moe_layers_own_check(outcome, overlap, severity) -> None:
    """Without EP overlap the same layer raises in its first step on every release."""
    settings = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, "num_moe_experts": 8}
    settings["overlap_moe_expert_parallel_comm"] = overlap
    found = outcome("tensor-parallel-experts-need-sequence-parallel", settings, stack="megatron-core==0.16.1")
    assert (found.state, found.severity) == ("violated", severity)


FIRST, LAST = "model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage"
PLACES = "model.pipeline_model_parallel_layout"
COUNTED = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
STAGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # what is said of the stages, and the first fix of a pipeline without virtual stages
    ({"num_layers": 48, PP: 2}, {VPP: 2}),
    ({"num_layers": 30, PP: 2}, {VPP: 3}),
    ({"num_layers": 11, PP: 2, FIRST: 5}, {PLACES: "Ettt|ttt|tt|tttL", FIRST: None}),
    ({"num_layers": 30, PP: 2, LAST: 14}, {VPP: 2}),
    ({"num_layers": 30, PP: 2, FIRST: 14, LAST: 14}, {PP: 1, FIRST: None, LAST: None}),
    ({"num_layers": 48, PP: 2, **COUNTED}, {VPP: 5}),
    ({"num_layers": 47, PP: 2, **COUNTED}, {PP: 1}),
    ({"num_layers": 13, PP: 4}, {PLACES: "Ett|tt|tt|tt|t|tt|t|tL"}),
]


@pytest.mark.parametrize(("stages", "first"), STAGES, ids=[str(stages) for stages, _ in STAGES])
def test_virtual_stages_that_a_fix_offers_are_legal(stages: dict[str, Any], first: dict[str, Any]) -> None:
    """No other rule of stages rejects a fix: where no number divides, a layout leaves each rank its layers."""
    settings = {**ON, **stages}
    fixes = options_of("pipeline-needs-virtual-stages", settings)
    assert fixes[0] == first
    for changes in fixes:
        for rule in (
            "layers-divide-into-stages",
            "layout-fits-pipeline",
            "uneven-stages-fit",
            "accounted-layers-divide",
        ):
            outcome = outcome_of(rule, {**settings, **changes})
            assert outcome is not None
            assert outcome.state == "met", (rule, changes)


def test_expert_tp_of_one_is_the_fix_where_it_lets_the_ranks_hold_the_experts() -> None:
    """It follows TP unless it is written; where it is, or does not help, the sizes are the user's to choose."""
    tp = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 8, "hardware.world_size": 8}
    rule = "world-divides-parallelism"
    assert options_of(rule, tp) == [{"model.expert_tensor_parallel_size": 1}]
    assert options_of(rule, {**tp, "expert_tensor_parallel_size": 2}) == []
    assert options_of(rule, {**tp, "expert_model_parallel_size": 16}) == []


def options_of(rule: str, settings: dict[str, Any]) -> list[Any]:
    """Every set of changes that a rule's fixes offer."""
    known, request = find_rule(rule), request_of(settings)
    assert known is not None
    return [changes for fix in known.fixes for changes in fix.options(View(request, request.releases()[0]))]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"context_parallel_size": 3}, "TP x PP x CP = 3; context_parallel_size 1, 2, 4, 8, 16 would fit"),
        ({"tensor_model_parallel_size": 3, PP: 2}, "TP x PP x CP = 6; tensor_model_parallel_size 1, 2, 4, 8 would fit"),
        ({PP: 3, "context_parallel_size": 3}, "TP x PP x CP = 9"),
    ],
)
def test_sizes_that_would_fit_are_named(outcome: Callable[..., Any], sizes: dict[str, int], said: str) -> None:
    """Only where one size alone is at fault."""
    message = outcome("world-divides-parallelism", {"hardware.world_size": 16, **sizes}).message
    assert message.split("; 16 ranks")[0] == f"16 ranks are no multiple of {said}"


def test_an_unwritten_release_leaves_a_dense_last_layer_undecided(outcome: Callable[..., Any]) -> None:
    """0.14 and 0.15 apply the final norm elsewhere, so the release would decide."""
    found = outcome("last-layer-must-be-moe", {**ON, "moe_layer_freq": [1] * 7 + [0]}, stack="torch==2.9.0")
    assert (found.state, set(found.needs)) == ("undecided", {"runtime.megatron_core"})


@pytest.mark.parametrize(
    ("microbatches", "pp", "vpp", "group", "pairs"),
    [
        (1, 1, 1, 1, (0,)),
        (2, 1, 1, 1, (1,)),
        (8, 8, 4, 8, (0, 0, 0, 0, 1, 3, 5, 7)),
        (16, 8, 4, 8, (25, 27, 29, 31, 33, 35, 37, 39)),
        (4, 2, 2, 2, (3, 5)),
    ],
)
def test_counts_overlapped_pairs_by_rank(microbatches: int, pp: int, vpp: int, group: int, pairs: tuple) -> None:
    """Early ranks spend their microbatches on warm-up; as many microbatches as stages leave half the ranks nothing."""
    assert overlapped_pairs(microbatches, pp, vpp, group) == pairs


@given(
    st.integers(min_value=1, max_value=64),
    st.integers(min_value=1, max_value=16),
    st.integers(min_value=1, max_value=8),
)
def test_later_ranks_and_more_microbatches_never_pair_less(microbatches: int, pp: int, vpp: int) -> None:
    """Pairs grow along the pipeline and with the microbatches, and never exceed the passes of a rank."""
    pairs = overlapped_pairs(microbatches, pp, vpp, pp)
    assert list(pairs) == sorted(pairs)
    assert all(more >= less for more, less in zip(overlapped_pairs(microbatches + 1, pp, vpp, pp), pairs, strict=True))
    assert max(pairs) <= microbatches * vpp


def test_proposed_batch_gives_every_rank_a_pair(asked: Callable[..., Any]) -> None:
    """The global batch that is proposed is the smallest multiple of the stages that overlaps on all ranks."""
    request = asked({**INTERLEAVED, **BATCH, "train.global_batch_size": 32})
    view = View(request, request.releases()[0])
    assert [list(fix.options(view)) for fix in all_rules()["EPO507"].fixes] == [[{"train.global_batch_size": 64}]]


def test_proposed_virtual_stages_divide_the_layers(asked: Callable[..., Any]) -> None:
    """Twelve layers on two stages: six a stage, in two, three or six chunks."""
    request = asked({"num_layers": 12, "pipeline_model_parallel_size": 2})
    assert virtual_stage_options(View(request, request.releases()[0])) == [2, 3, 6]


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "first", "last", "fault"),
    [
        (9, 4, 0, 3, "unset", []),
        (10, 4, 0, 3, "unset", ["7 layers between do not divide over 3 stages"]),
        (10, 4, 0, 3, 3, []),
        (8, 2, 0, 3, 4, ["1 layers are left for 0 stages between"]),
        (8, 4, 0, 0, "unset", ["the first stage has 0 layers"]),
        (12, 4, 2, 3, 3, ["3 layers of the first stage do not divide into 2 virtual stages"]),
        (10, 4, 2, 2, 2, ["3 layers of a stage between do not divide into 2 virtual stages"]),
    ],
)
def test_names_uneven_stages_that_do_not_fit(
    layers: int, pp: int, vpp: int, first: Any, last: Any, fault: list[str]
) -> None:
    """The layers between divide over the stages between, and over virtual stages."""
    assert uneven_fault(layers, pp, vpp, first, last, ends_may_leave=False) == fault


def test_before_0_16_layers_may_be_left_between_the_ends() -> None:
    """The check for layers without a stage came with 0.16."""
    assert uneven_fault(8, 2, 0, 3, 4, ends_may_leave=True) == []
