"""Delayed weight gradients against CUDA graphs and Transformer Engine, for each framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.verbs import Question, wgrad_conflicts

if TYPE_CHECKING:
    from ep_overlap_mcp.results.conflicts import ConflictsResult

MOE = (
    "num_layers: 16\nhidden_size: 2048\nnum_attention_heads: 16\nadd_bias_linear: false\nbf16: true\n"
    "num_moe_experts: 32\nexpert_model_parallel_size: 8\nmoe_token_dispatcher_type: alltoall\n"
    "gradient_accumulation_fusion: true\n"
)
LM = (
    "python pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --disable-bias-linear --bf16 "
    "--num-experts 32 --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall "
    "--transformer-impl transformer_engine"
)
BRIDGE = (
    "comm_overlap:\n  tp_comm_overlap: false\n  delay_wgrad_compute: true\n"
    "  overlap_moe_expert_parallel_comm: true\nmodel:\n" + "".join(f"  {line}\n" for line in MOE.splitlines())
)


def judged(text: str, stack: str, **question: Any) -> ConflictsResult:
    [result] = wgrad_conflicts(Question(text=text, stack=stack, **question))
    return result


def floors(result: ConflictsResult) -> dict[str, str | None]:
    """From which Transformer Engine each implementation and scope is allowed."""
    return {" ".join((r.cuda_graph_impl, "+".join(r.scope))).strip(): r.allowed_from for r in result.rows}


@pytest.mark.parametrize("delayed", ["", " --delay-wgrad-compute"])
def test_the_matrix_has_delayed_wgrad_on_though_the_way_out_turns_it_off(delayed: str) -> None:
    """TE graphs with delayed wgrad need 2.10 (core 0.16.1 transformer_config.py:1916-1920), asked for here or not."""
    text = (
        f"{LM} --overlap-moe-expert-parallel-comm --cuda-graph-impl transformer_engine --cuda-graph-scope attn{delayed}"
    )
    found = judged(text, "megatron-core==0.16.1,transformer-engine==2.9.0,torch==2.9.0", gpu="H100")
    assert [f.rule for f in found.findings if f.severity == "error"] == ["EPO208"]
    assert floors(found)["transformer_engine attn"] == "2.10.0"
    assert floors(found)["none"] == "2.3.0"


def test_core_looks_at_the_graph_implementation_alone() -> None:
    """Core asks for 2.10 with Transformer Engine graphs, whatever the scope; the whole layer is never allowed."""
    assert floors(judged(MOE, "megatron-core==0.18.2")) == {
        "none": "2.3.0",
        "transformer_engine attn": "2.10.0",
        "transformer_engine moe_router": "2.10.0",
        "transformer_engine moe_router+moe_preprocess": "2.10.0",
        "transformer_engine attn+moe_router+moe_preprocess": "2.10.0",
        "transformer_engine moe": None,
        "transformer_engine": None,
        "local": "2.3.0",
        "full_iteration": "2.3.0",
    }


def test_megatron_lm_asks_more_of_graphed_attention_with_grad_reduce() -> None:
    """2.8 with overlapped reduction, 2.12 with attention in the graph."""
    found = floors(judged(f"{LM} --overlap-grad-reduce", "megatron-lm==0.18.2"))
    assert (found["none"], found["transformer_engine attn"]) == ("2.8.0", "2.12.0")


@pytest.mark.parametrize(("extra", "floor"), [("", "2.3.0"), ("--no-gradient-accumulation-fusion", "2.7.0")])
def test_fusion_has_its_own_polarity_in_megatron_lm(extra: str, floor: str) -> None:
    """Megatron-LM asks for 2.7 where fusion is off."""
    assert floors(judged(f"{LM} {extra}", "megatron-lm==0.18.2"))["none"] == floor


def test_bridge_asks_for_a_version_where_fusion_is_on() -> None:
    """The other polarity: Bridge asks for 2.7 with fusion on."""
    assert floors(judged(BRIDGE, "megatron-bridge==0.6.0"))["none"] == "2.7.0"


def test_every_no_names_its_rule() -> None:
    """No cell says no, or unknown, without a rule and a reason."""
    matrix = judged(MOE, "megatron-core==0.18.2").matrix
    assert all(cell.rules and cell.why for cell in matrix if cell.allowed != "yes")
    assert {cell.allowed for cell in matrix} == {"yes", "no"}


def test_other_conflicts_do_not_hide_in_the_matrix() -> None:
    """Full recompute excludes graphs by itself; the matrix is about delayed weight gradients."""
    full = "recompute_granularity: full\nrecompute_method: uniform\nrecompute_num_layers: 1\n"
    assert floors(judged(MOE + full, "megatron-core==0.18.2")) == floors(judged(MOE, "megatron-core==0.18.2"))


def test_ways_out_that_keep_more_come_first() -> None:
    """Without graphs delayed wgrad stays; without delayed wgrad the graphs stay."""
    text = (
        MOE
        + "cuda_graph_impl: transformer_engine\ncuda_graph_modules: [attn]\noverlap_moe_expert_parallel_comm: true\n"
    )
    ways = judged(text + "delay_wgrad_compute: true\n", "megatron-core==0.18.2,transformer-engine==2.9.0").way_out
    assert {"model.delay_wgrad_compute": False} in [way.changes for way in ways]
    assert [len(way.keeps) for way in ways] == sorted((len(way.keeps) for way in ways), reverse=True)


def test_without_a_conflict_there_is_no_way_out() -> None:
    """What plain overlap needs, here a dispatcher, is no conflict of delayed weight gradients."""
    text = LM.replace("alltoall", "allgather")
    found = judged(text, "megatron-lm==0.16.1,transformer-engine==2.9.0,torch==2.9.0")
    assert found.summary.startswith("Delayed weight gradients here: no conflict found.")
    assert found.way_out == []
