"""Proposals are legal, minimal, and as small as an exhaustive search finds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.proposals.search import Found, judge_of, judged, search
from ep_overlap_mcp.settings.request import MODEL_SWITCH, Request, build_request
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import parse_stack

BASE: dict[str, Any] = {
    "model.num_layers": 16,
    "model.hidden_size": 2048,
    "model.num_attention_heads": 16,
    "model.num_moe_experts": 32,
    "model.moe_grouped_gemm": True,
    "model.moe_router_dtype": "fp32",
    "model.moe_token_dispatcher_type": "alltoall",
    "model.expert_model_parallel_size": 8,
    "model.overlap_moe_expert_parallel_comm": True,
    "model.add_bias_linear": False,
    "model.bf16": True,
}
STACK = "megatron-core==0.18.2,transformer-engine==2.12.0,torch==2.9.0"


def request(changes: dict[str, Any], stack: str = STACK, framework: Any = "megatron-core") -> Request:
    reading = Reading("json", "fields.json", framework=framework)
    for line, (path, value) in enumerate({**BASE, **changes}.items(), 1):
        reading.add(path, value, line=line, text=f"{path}: {value}")
    return build_request([reading], stack=parse_stack(stack), assume="overlap")


def changes_of(found: Found) -> dict[str, Any]:
    assert found.best is not None, found.blocked_by
    return dict(found.best.changes)


def test_a_legal_configuration_needs_no_change() -> None:
    """Nothing is proposed where nothing is wrong."""
    assert changes_of(search(request({}))) == {}


def test_the_switch_is_a_change_where_the_text_leaves_it_off() -> None:
    """A proposal holds everything that must differ from the text, the switch included."""
    assert changes_of(search(request({MODEL_SWITCH: False}))) == {MODEL_SWITCH: True}


def test_full_recompute_is_three_settings() -> None:
    """All three have to go, and nothing else."""
    full = {
        "model.recompute_granularity": "full",
        "model.recompute_method": "uniform",
        "model.recompute_num_layers": 1,
    }
    assert changes_of(search(request(full))) == dict.fromkeys(full)


def test_moe_act_stays_where_moe_must_go() -> None:
    """A list is narrowed, not cleared."""
    asked = request(
        {"model.recompute_granularity": "selective", "model.recompute_modules": ["moe_act", "moe", "layernorm"]}
    )
    assert changes_of(search(asked)) == {"model.recompute_modules": ["moe_act", "layernorm"]}


def test_virtual_stages_before_less_pipeline() -> None:
    """A pipeline keeps its size: virtual stages are added, and PP 1 ranks after every other fix."""
    changes = changes_of(search(request({"model.pipeline_model_parallel_size": 2})))
    assert list(changes) == ["model.virtual_pipeline_model_parallel_size"]


def test_a_bridge_model_flag_does_not_count_as_on() -> None:
    """Bridge resets the model's flag; the change is the comm_overlap switch."""
    asked = request(
        {"comm_overlap.present": True, "comm_overlap.tp_comm_overlap": False},
        stack="megatron-bridge==0.6.0,transformer-engine==2.12.0",
        framework="bridge",
    )
    assert changes_of(search(asked)) == {"comm_overlap.overlap_moe_expert_parallel_comm": True}


def test_a_dense_model_has_no_proposal_and_says_why() -> None:
    """Nothing helps without experts; the rule that says so is named."""
    found = search(request({"model.num_moe_experts": None, "model.expert_model_parallel_size": 1}))
    assert found.best is None
    assert found.blocked_by


DIALS: dict[str, list[Any]] = {
    "model.moe_token_dispatcher_type": ["alltoall", "allgather"],
    "model.moe_shared_expert_overlap": [False, True],
    "model.recompute_granularity": [None, "full", "selective"],
    "model.recompute_method": [None, "uniform"],
    "model.recompute_num_layers": [None, 1],
    "model.mtp_num_layers": [None, 1, 2],
    "model.pipeline_model_parallel_size": [1, 2],
    "model.delay_wgrad_compute": [False, True],
    "model.cuda_graph_impl": ["none", "transformer_engine"],
    "model.cuda_graph_modules": [[], ["attn"], ["attn", "moe"]],
}
CONFIGURATIONS = st.fixed_dictionaries({path: st.sampled_from(values) for path, values in DIALS.items()})


FRAMEWORKS = {
    "megatron-core": "megatron-core==0.18.2",
    "megatron-lm": "megatron-lm==0.18.2",
    "bridge": "megatron-bridge==0.6.0",
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGURATIONS, st.sampled_from(["2.2.0", "2.9.0", "2.12.0"]), st.sampled_from(list(FRAMEWORKS)))
def test_a_proposal_is_legal_and_every_change_is_needed(dials: dict[str, Any], te: str, framework: str) -> None:
    """After the changes no error is left; with any one of them taken away there is one again."""
    stack = f"{FRAMEWORKS[framework]},transformer-engine=={te},torch==2.9.0"
    asked = request(dials, stack=stack, framework=framework)
    found = search(asked)
    assert found.best is not None, found.blocked_by
    changes = dict(found.best.changes)
    assert judged(asked, changes) == ([], []), changes
    for path in changes:
        rest = {p: v for p, v in changes.items() if p != path}
        assert judged(asked, rest) != ([], []), path


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGURATIONS, st.sampled_from(["megatron-core", "megatron-lm"]))
def test_no_smaller_proposal_exists(dials: dict[str, Any], framework: str) -> None:
    """An exhaustive search over all values of the dials finds nothing with fewer changes."""
    asked = request(
        dials, stack=f"{FRAMEWORKS[framework]},transformer-engine==2.12.0,torch==2.9.0", framework=framework
    )
    judge = judge_of(asked)
    smaller = range(len(changes_of(search(asked))))
    for paths in itertools.chain.from_iterable(itertools.combinations(DIALS, size) for size in smaller[-1:]):
        for values in itertools.product(*(DIALS[path] for path in paths)):
            changes = dict(zip(paths, values, strict=True))
            if any(dials[path] == value for path, value in changes.items()):
                continue
            if "model.pipeline_model_parallel_size" in changes:
                continue  # gives the layout up, and ranks after every other fix
            assert judged(asked, changes, judge) != ([], []), changes


@pytest.mark.parametrize("gpu", ["H100", "GB200"])
def test_proposals_are_the_same_for_any_gpu_with_alltoall(gpu: str) -> None:
    """Hardware narrows dispatchers; it changes nothing for alltoall."""
    reading = Reading("json", "fields.json", framework="megatron-core")
    for path, value in BASE.items():
        reading.add(path, value, line=1, text=path)
    asked = build_request([reading], stack=parse_stack(STACK), assume="overlap", gpu=gpu)
    assert changes_of(search(asked)) == {}


def alternatives_of(found: Found) -> list[dict[str, Any]]:
    return [dict(proposal.changes) for proposal in found.alternatives]


def test_another_backend_or_alltoall_is_the_users_choice() -> None:
    """DeepEP does not run on GB200: HybridEP comes first, alltoall is the alternative."""
    asked = request(
        {
            "model.moe_token_dispatcher_type": "flex",
            "model.moe_flex_dispatcher_backend": "deepep",
            "hardware.gpu": "GB200",
        },
        stack="megatron-bridge==0.6.0,transformer-engine==2.12.0",
        framework="bridge",
    )
    found = search(asked)
    assert changes_of(found) == {"model.moe_flex_dispatcher_backend": "hybridep"}
    assert alternatives_of(found) == [{"model.moe_token_dispatcher_type": "alltoall"}]


def test_less_recompute_is_an_alternative_to_none() -> None:
    """Selective recompute keeps some of the memory; it needs no more changes than dropping all of it."""
    full = {"model.recompute_granularity": "full", "model.recompute_method": "uniform", "model.recompute_num_layers": 1}
    found = search(request(full))
    assert [p["model.recompute_granularity"] for p in alternatives_of(found)] == ["selective"]


def test_one_gpu_has_no_expert_parallel_layout() -> None:
    """EP cannot exceed 1 on one GPU: both the rule that asks for it and the one that forbids it are named."""
    found = search(request({"model.expert_model_parallel_size": 1, "hardware.world_size": 1}))
    assert (found.best, found.blocked_by) == (None, ("needs-expert-parallelism", "world-divides-parallelism"))


def test_expert_parallelism_fits_the_experts_and_the_gpus() -> None:
    """27 experts on 9 GPUs: 2, 4 and 8 divide neither."""
    found = search(
        request({"model.num_moe_experts": 27, "model.expert_model_parallel_size": 1, "hardware.world_size": 9})
    )
    assert changes_of(found) == {"model.expert_model_parallel_size": 3}


def test_shared_expert_overlap_is_given_up_and_said() -> None:
    """It changes neither numerics nor memory, but it is a feature in use."""
    found = search(request({"model.moe_shared_expert_overlap": True}))
    assert found.best is not None
    assert dict(found.best.gives_up) == {
        "model.moe_shared_expert_overlap": "the overlap of shared experts with the dispatch"
    }
    assert not found.best.unsafe


def test_sizes_that_fit_neither_experts_nor_ranks_nor_batch_are_mended_together() -> None:
    """24 ranks hold EP 8 of 32 experts, not 16; 100 samples are no whole microbatches on them, 96 are."""
    sizes = {
        "model.expert_model_parallel_size": 24,
        "train.global_batch_size": 100,
        "train.micro_batch_size": 1,
        "hardware.nodes": 3,
        "hardware.gpus_per_node": 8,
        "hardware.world_size": 24,
    }
    assert changes_of(search(request(sizes))) == {
        "model.expert_model_parallel_size": 8,
        "train.global_batch_size": 96,
    }


def test_uneven_stages_keep_their_layers_in_a_layout() -> None:
    """61 layers as 16, 16, 16 and 13: no number divides both, so each rank's layers are split by a layout."""
    uneven = {
        "model.num_layers": 61,
        "model.pipeline_model_parallel_size": 4,
        "model.num_layers_in_last_pipeline_stage": 13,
    }
    eight = "t" * 8
    layout = "|".join([f"E{eight}", eight, eight, "t" * 7, eight, eight, eight, "t" * 6 + "L"])
    assert changes_of(search(request(uneven))) == {
        "model.pipeline_model_parallel_layout": layout,
        "model.num_layers_in_last_pipeline_stage": None,
    }


def test_uneven_stages_that_one_number_divides_need_no_layout() -> None:
    """94 layers as three times 24 and 22."""
    uneven = {
        "model.num_layers": 94,
        "model.pipeline_model_parallel_size": 4,
        "model.num_layers_in_last_pipeline_stage": 22,
    }
    assert changes_of(search(request(uneven))) == {"model.virtual_pipeline_model_parallel_size": 2}


def test_a_prime_number_of_layers_is_halved_rather_than_cut_into_single_ones() -> None:
    """62 layers on two ranks: two stages of 16 and two of 15 before 31 stages of one; those are the alternative."""
    found = search(request({"model.num_layers": 62, "model.pipeline_model_parallel_size": 2}))
    halves = "|".join(["E" + "t" * 16, "t" * 16, "t" * 15, "t" * 15 + "L"])
    assert changes_of(found) == {"model.pipeline_model_parallel_layout": halves}
    assert {"model.virtual_pipeline_model_parallel_size": 31} in [dict(p.changes) for p in found.alternatives]


def test_a_layout_in_bridge_comes_with_its_virtual_stages() -> None:
    """`CommOverlapConfig.setup` looks at the field before the layout sets it."""
    odd = {
        "model.num_layers": 61,
        "model.pipeline_model_parallel_size": 4,
        "model.num_layers_in_last_pipeline_stage": 13,
        "comm_overlap.present": True,
        "comm_overlap.overlap_moe_expert_parallel_comm": True,
    }
    found = changes_of(search(request(odd, "megatron-bridge==0.5.1,transformer-engine==2.12.0", "bridge")))
    assert found["model.virtual_pipeline_model_parallel_size"] == 2
    assert found["model.pipeline_model_parallel_layout"].count("|") == 7
