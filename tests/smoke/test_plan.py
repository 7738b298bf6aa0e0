"""The plan: what is kept, reduced, emulated and not tested, for the machine at hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import DROPOUT, PIPELINE, machine, planned, reduced, request_of

from ep_overlap_mcp import smoke
from ep_overlap_mcp.smoke.asked import Asked
from ep_overlap_mcp.smoke.options import SmokeOptions

TOOLS = Path(__file__).parents[2] / "tools"


def test_two_cores_take_two_ranks_with_the_experts_a_rank():
    """EP 16 becomes 2 with four experts a rank as before; sizes shrink; the combination stays."""
    plan = planned()
    assert (plan.shown.engine, plan.shown.world_size, plan.device_set) == ("gloo-cpu", 2, "cpu")
    assert plan.shown.plan.kept == {
        "experts per rank": 4,
        "model.moe_token_dispatcher_type": "alltoall",
        "model.bf16": True,
        "model.moe_router_topk": 8,
        "model.add_bias_linear": False,
        "model.expert_tensor_parallel_size": 1,
    }
    assert reduced(plan) == {
        "model.expert_model_parallel_size": 2,
        "model.num_layers": 2,
        "model.num_moe_experts": 8,
        "model.moe_ffn_hidden_size": 128,
        "model.hidden_size": 64,
        "model.num_attention_heads": 4,
        "model.ffn_hidden_size": 128,
        "model.seq_length": 32,
        "args.vocab_size": 256,
        "train.micro_batch_size": 1,
        "train.global_batch_size": 8,
    }
    assert plan.request["variants"] == ["baseline", "overlap"]
    assert "overlap_moe_expert_parallel_comm" not in plan.request["model"]


def test_a_pipeline_keeps_its_shape_on_four_ranks_that_share_the_cores():
    """PP 4 x VPP 3 x EP 16 becomes 2 x 2 x 2 with a layer a chunk; sharing cores is said."""
    plan = planned(PIPELINE)
    model = plan.request["model"]
    shape = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "expert_model_parallel_size")
    assert [model[name] for name in shape] == [2, 2, 2]
    assert (model["num_layers"], plan.shown.world_size) == (4, 4)
    assert "speed of ranks with a device each: 4 ranks share 2 cores" in plan.shown.plan.not_tested


@pytest.mark.parametrize(
    ("cores", "ep", "world"),
    [(1, 16, 4), (2, 16, 2), (4, 16, 4), (8, 16, 8), (64, 16, 8), (8, 6, 6), (4, 6, 3), (2, 3, 2), (8, 2, 2)],
)
def test_ranks_are_bounded_by_cores_and_eight(cores, ep, world):
    """EP takes the largest of its parts that the cores allow; a single core is shared."""
    plan = planned({"expert_model_parallel_size": ep, "num_moe_experts": 8 * ep}, environment=machine(cores=cores))
    assert plan.shown.world_size == (2 if cores == 1 else world)


@pytest.mark.parametrize(
    ("freq", "layers", "expected"),
    [
        (1, 2, 1),
        ([0, 0, 0, *[1] * 45], 2, [0, 1]),
        ([*[1] * 47, 0], 2, [1, 0]),
        ([0, *[1] * 46, 0], 3, [0, 1, 0]),
        (2, 2, [1, 0]),
    ],
)
def test_first_and_last_dense_layers_are_kept(freq, layers, expected):
    """The shape of moe_layer_freq survives, with at least one MoE layer."""
    model = planned({"moe_layer_freq": freq}, force=True).request["model"]
    assert (model["num_layers"], model["moe_layer_freq"]) == (layers, expected)


def test_the_combination_is_kept():
    """Shared experts, MTP, selective recompute, routing, precision and the distributed optimizer stay."""
    asked = {
        "moe_shared_expert_intermediate_size": 2048, "mtp_num_layers": 1, "recompute_granularity": "selective",
        "recompute_modules": ["moe_act", "layernorm"], "multi_latent_attention": True, "moe_router_dtype": "fp32",
        "moe_grouped_gemm": True,
        "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True, "gated_linear_unit": True,
        "activation_func": "torch.nn.functional.silu", "ddp.use_distributed_optimizer": True,
        "ddp.overlap_grad_reduce": True, "moe_router_load_balancing_type": ["seq_aux_loss"],
        "moe_aux_loss_coeff": ["1e-4"], "ep_overlap_early_attn_memory_release": True,
    }  # fmt: skip
    plan = planned(PIPELINE | asked)
    model = plan.request["model"]
    sent = {name: model[name] for name in asked if name in model}
    assert sent == {
        "moe_shared_expert_intermediate_size": 64, "mtp_num_layers": 1, "recompute_granularity": "selective",
        "recompute_modules": ["layernorm"], "moe_router_dtype": "fp32",
        "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True, "gated_linear_unit": True,
        "activation_func": "silu", "moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 1e-4,
        "ep_overlap_early_attn_memory_release": True,
    }  # fmt: skip
    assert plan.request["ddp"] == {"use_distributed_optimizer": True, "overlap_grad_reduce": True}
    assert plan.shown.plan.not_tested[0].startswith("speed of ranks with a device each")
    assert plan.shown.plan.not_tested[1:] == [
        "model.multi_latent_attention=true: needs Transformer Engine; standard attention stands in",
        "model.moe_grouped_gemm=true: needs Transformer Engine's grouped GEMM; experts run one after another",
        *DROPOUT,
        "model.recompute_modules=[moe_act]: the run has nothing there to recompute",
    ]


def test_what_a_cpu_cannot_do_is_listed_and_not_sent():
    """Flex backends, FP8, graphs, grouped GEMM and fusions are named with the reason; alltoall stands in."""
    asked = {
        "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep", "fp8": "hybrid",
        "moe_grouped_gemm": True, "moe_permute_fusion": True, "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ["attn"],
    }  # fmt: skip
    plan = planned(asked, force=True, stack="transformer-engine==2.9.0")
    assert plan.request["model"]["moe_token_dispatcher_type"] == "alltoall"  # noqa: S105 - a name
    assert not set(plan.request["model"]) & (set(asked) - {"moe_token_dispatcher_type"})
    assert set(plan.shown.plan.not_tested) == {
        "model.moe_flex_dispatcher_backend=deepep: needs a GPU a rank",
        "model.fp8=hybrid: FP8 needs Transformer Engine and a GPU",
        "model.moe_grouped_gemm=true: needs Transformer Engine's grouped GEMM; experts run one after another",
        "model.moe_permute_fusion=true: fused kernels are CUDA only",
        "model.cuda_graph_impl=transformer_engine: there are no CUDA graphs on the CPU",
        "model.cuda_graph_scope=[attn]: there are no CUDA graphs on the CPU",
        *DROPOUT,
    }


def test_what_draws_random_numbers_is_left_out():
    """Dropout and forced random routing would differ between two schedules without any defect; zero is kept."""
    plan = planned({"hidden_dropout": 0.0, "attention_dropout": 0.2, "moe_router_force_load_balancing": True})
    drawn = {"hidden_dropout", "attention_dropout", "moe_router_force_load_balancing"}
    assert drawn & set(plan.request["model"]) == {"hidden_dropout"}
    assert plan.shown.plan.not_tested == [
        "model.attention_dropout=0.2: each schedule would draw other masks",
        "model.moe_router_force_load_balancing=true: each schedule would draw other routes",
    ]


def test_gpus_with_transformer_engine_and_deepep_keep_them():
    """Eight GPUs run EP 8 with the flex dispatcher, FP8, grouped GEMM and latent attention."""
    asked = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep", "fp8": "hybrid",
             "moe_grouped_gemm": True, "moe_router_dtype": "fp32", "multi_latent_attention": True,
             "kv_lora_rank": 32}  # fmt: skip
    plan = planned(asked, environment=machine(gpus=8, te="2.9.0", deep_ep="1.2.1"), force=True)
    assert (plan.shown.engine, plan.shown.world_size, plan.device_set) == ("nccl-gpu", 8, "gpu")
    assert {name: plan.request["model"].get(name) for name in asked} == asked
    assert (plan.shown.plan.emulated, plan.shown.plan.not_tested) == ([], DROPOUT)


def test_one_gpu_is_shared_by_two_ranks_for_correctness():
    """gloo-gpu: NCCL takes one rank a GPU."""
    plan = planned(environment=machine(gpus=1))
    assert (plan.shown.engine, plan.shown.world_size) == ("gloo-gpu", 2)
    assert plan.shown.plan.emulated == ["collectives: gloo instead of NCCL"]


def test_two_gpus_drop_the_pipeline_and_say_so():
    """PP x EP takes four ranks, and NCCL takes one rank a GPU."""
    plan = planned(PIPELINE, environment=machine(gpus=2))
    assert plan.request["model"]["pipeline_model_parallel_size"] == 1
    assert "model.pipeline_model_parallel_size=4: PP x EP needs 4 ranks, there are 2" in plan.shown.plan.not_tested


def test_what_shrinking_would_break_is_refused_as_ours():
    """MTP needs a pipeline: on two GPUs there is none left, and the message does not blame the configuration."""
    with pytest.raises(smoke.SmokeError, match=r"cannot be shrunk to 2 ranks of nccl-gpu: .* mtp-needs-pipeline"):
        planned(PIPELINE | {"mtp_num_layers": 1}, environment=machine(gpus=2))


def test_unknown_settings_get_a_stated_stand_in():
    """What the text leaves open is listed with what was taken for it."""
    open_ones = {"num_layers": ..., "num_moe_experts": ..., "bf16": None}
    plan = planned(open_ones, partial=True)
    rows = {row.setting: (row.before, row.to) for row in plan.shown.plan.reduced if row.before == "unknown"}
    assert rows["model.num_layers"] == ("unknown", 2)
    assert rows["model.num_moe_experts"] == ("unknown", 8)
    assert rows["model.bf16"] == ("unknown", True)


def test_a_field_that_the_installed_core_does_not_know_is_not_sent():
    """It is listed; moe_shared_expert_gate is known and goes along."""
    plan = planned({"moe_mlp_glu_interleave_size": 32, "moe_shared_expert_gate": True})
    assert "moe_mlp_glu_interleave_size" not in plan.request["model"]
    assert plan.request["model"]["moe_shared_expert_gate"] is True
    (line,) = [line for line in plan.shown.plan.not_tested if "glu_interleave" in line]
    assert line == "model.moe_mlp_glu_interleave_size=32: megatron-core 0.16.1 has no such field"


def test_an_invalid_configuration_is_refused_with_its_findings():
    """Nothing is started; force plans it all the same and keeps the findings for the answer."""
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    with pytest.raises(smoke.SmokeError, match=r"nothing was started: .* no-full-recompute: .* --force runs it"):
        planned(full)
    plan = planned(full, force=True)
    assert [finding.split(":")[0] for finding in plan.shown.findings] == [
        "EPO105 no-full-recompute",
        "EPO106 no-recompute-method",
        "EPO107 no-recompute-num-layers",
    ]
    assert plan.request["model"]["recompute_granularity"] == "full"


def test_a_dense_last_layer_is_refused_as_the_known_defect():
    """The rule that knows of the silently wrong loss stands in the way."""
    with pytest.raises(smoke.SmokeError, match="EPO509 last-layer-must-be-moe"):
        planned({"moe_layer_freq": [*[1] * 47, 0]})


def test_one_local_expert_is_refused_as_the_known_crash():
    """alltoall with one expert a rank crashes before 0.17, and runs from there."""
    one = {"num_moe_experts": 16}
    with pytest.raises(smoke.SmokeError, match="alltoall-needs-two-local-experts"):
        planned(one)
    assert planned(one, environment=machine(core="0.17.1")).shown.plan.kept["experts per rank"] == 1


def test_what_the_release_that_was_asked_about_would_do_is_not_tested():
    """The installed release runs, whichever was named."""
    plan = planned(stack="megatron-core==0.18.2")
    assert "megatron-core 0.18.2: 0.16.1 is installed there and runs" in plan.shown.plan.not_tested


def test_delayed_weight_gradients_are_run_and_their_stand_in_is_said():
    """On the CPU Transformer Engine's delay is emulated; that none is installed there is no reason to refuse."""
    plan = planned(assume="overlap_delay_wgrad")
    assert plan.request["variants"] == ["baseline", "overlap_delay_wgrad"]
    assert "delayed weight gradients: a stand-in for Transformer Engine's" in plan.shown.plan.emulated


def test_a_configuration_without_overlap_taken_as_written_is_refused():
    """There is nothing to test, and what to ask instead is said."""
    with pytest.raises(smoke.SmokeError, match="take --assume overlap or --assume overlap_delay_wgrad"):
        planned({"overlap_moe_expert_parallel_comm": False}, assume="as_written")


def test_one_microbatch_stays_one():
    """With one microbatch nothing can overlap; a run that had four would hide it."""
    batch = {"train.global_batch_size": 16, "train.micro_batch_size": 1, "hardware.world_size": 16}
    plan = planned(batch)
    assert (plan.request["train"]["num_microbatches"], plan.shown.plan.microbatches) == (1, 1)
    assert Asked.of_plan(plan.shown.model_dump()).microbatches == 1


def test_memory_is_estimated_and_refused_beforehand():
    """A run that would not fit is never started; the numbers are said."""
    sizes = {"hidden_size": 8192, "ffn_hidden_size": 32768, "moe_ffn_hidden_size": 16384, "num_layers": 16}
    with pytest.raises(smoke.SmokeError, match=r"would take about \d+\.\d GiB and there are 80\.0 GiB of GPU memory"):
        planned(environment=machine(gpus=2), sizes=sizes)
    assert 1.0 < planned().shown.memory_gib < 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0; it takes 1 to 20"),
        ({"pairs": 4}, "pairs is 4; it takes 8 to 64, or 0"),
        ({"limit_s": 3600}, "--limit is 3600; it takes 5 to 900"),
        ({"engine": "tpu"}, "engine: `tpu` is none of gloo-cpu, gloo-gpu, nccl-gpu"),
        ({"variants": ("baseline",)}, "variants: `baseline` is none of overlap, overlap_delay_wgrad"),
        ({"sizes": {"layers": 2}}, "sizes: `layers` is none of"),
        ({"ranks": 64}, "ranks is 64; gloo-cpu takes at most 4 here"),
        ({"engine": "nccl-gpu"}, "engine nccl-gpu needs a GPU and torch in /opt/python has none"),
    ],
)
def test_options_out_of_bounds_are_refused(options, message):
    """The message says what it takes."""
    with pytest.raises(smoke.SmokeError, match=message):
        planned(**options)


def test_an_environment_without_megatron_is_refused():
    """What to install is said."""
    with pytest.raises(smoke.SmokeError, match="has no megatron-core: name the training environment's Python"):
        planned(environment=machine(core=None))


def test_known_variables_of_the_text_reach_gpus_and_no_others():
    """What Megatron reads goes along; what loads a library does not. CPU ranks see no GPU."""
    text = {"env.CUDA_DEVICE_MAX_CONNECTIONS": 32, "env.LD_PRELOAD": "/tmp/evil.so"}
    variables = planned(text, environment=machine(gpus=2)).variables
    assert (variables["CUDA_DEVICE_MAX_CONNECTIONS"], "LD_PRELOAD" in variables) == ("32", False)
    assert planned(text).variables["CUDA_VISIBLE_DEVICES"] == ""


@settings(max_examples=60, deadline=None)
@given(
    ep=st.sampled_from([2, 3, 4, 6, 8, 16, 32, 64]),
    local=st.integers(2, 32),
    topk=st.integers(1, 8),
    heads=st.sampled_from([1, 3, 8, 12, 40]),
    groups=st.sampled_from([None, 2, 8]),
    pipeline=st.booleans(),
    cores=st.integers(1, 16),
)
def test_every_plan_is_one_that_megatron_can_divide(ep, local, topk, heads, groups, pipeline, cores):
    """Experts divide by EP, layers by chunks, hidden by heads, top-k fits; ranks stay within bounds.

    And the rules find nothing in the small configuration that they do not find in the large one, else it is refused.
    """
    asked = {"expert_model_parallel_size": ep, "num_moe_experts": ep * local, "moe_router_topk": topk,
             "num_attention_heads": heads, "hidden_size": heads * 128, "moe_router_num_groups": groups,
             "moe_router_group_topk": groups and 2, **(PIPELINE if pipeline else {})}  # fmt: skip
    plan = planned(asked, environment=machine(cores=cores), force=True)
    model = plan.request["model"]
    chunks = model["pipeline_model_parallel_size"] * (model["virtual_pipeline_model_parallel_size"] or 1)
    assert plan.shown.world_size == model["pipeline_model_parallel_size"] * model["expert_model_parallel_size"]
    assert plan.shown.world_size <= max(min(cores, 8), 4)
    assert model["num_moe_experts"] % model["expert_model_parallel_size"] == 0
    assert model["num_moe_experts"] // model["expert_model_parallel_size"] == min(local, 8)
    assert model["num_layers"] % chunks == 0
    assert model["hidden_size"] % model["num_attention_heads"] == 0
    assert model["moe_router_topk"] <= model["num_moe_experts"]


@pytest.fixture
def tool(monkeypatch):
    """A module of tools/smoke, as the training environment has it."""
    monkeypatch.syspath_prepend(str(TOOLS))
    for name in [name for name in sys.modules if name == "smoke" or name.startswith("smoke.")]:
        monkeypatch.delitem(sys.modules, name)
    return lambda name: importlib.import_module(f"smoke.{name}")


def test_everything_that_the_cpu_engine_forces_is_said_beforehand(tool):
    """tools/smoke/config.py applies it; the plan names the same fields."""
    from ep_overlap_mcp.smoke.features import NOWHERE, ON_THE_CPU, WITHOUT_TRANSFORMER_ENGINE, _names

    config = tool("config")
    tables = [*NOWHERE, *WITHOUT_TRANSFORMER_ENGINE, *ON_THE_CPU]
    forced = set(config.CPU_FIELDS) - set(config.REPRODUCIBLE)
    assert {name for name in forced if not any(_names(given_name, name) for given_name in tables)} == set()


def test_a_plan_is_a_request_that_the_program_takes(tool):
    """Its own parser accepts what is sent, for every engine."""
    parser = tool("request")
    for environment in (machine(), machine(gpus=1), machine(gpus=4, te="2.9.0")):
        request = planned(PIPELINE, environment=environment).request
        assert parser.parse(request).engine == request["engine"]


@pytest.mark.megatron
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
def test_every_setting_that_can_be_passed_on_is_a_field_of_the_installed_config():
    """What the plan does not leave out must be known to TransformerConfig, or the run would be refused there."""
    from dataclasses import fields
    from importlib.metadata import version

    from megatron.core.transformer.transformer_config import MLATransformerConfig  # noqa: TID251

    from ep_overlap_mcp.settings.fields import field_table
    from ep_overlap_mcp.smoke.features import MLA_ONLY, NO_CONFIG_FIELD, NOWHERE, SETTLED, _names
    from ep_overlap_mcp.stack import Core

    core = Core(version("megatron-core"))
    known = {field.name for field in fields(MLATransformerConfig)}
    rows = [f for path, f in field_table().by_path.items() if path.startswith("model.") and f.exists_in(core)]
    left_out = NO_CONFIG_FIELD | SETTLED | MLA_ONLY
    passed = {f.name for f in rows if f.name not in left_out and not any(_names(n, f.name) for n in NOWHERE)}
    assert passed - known == set()


def test_the_python_that_was_named_starts_the_ranks(tmp_path, monkeypatch):
    """Also a script that sets up the interpreter behind it, a link, and a name on the PATH; none is resolved."""
    wrapper = tmp_path / "python-of-the-site"
    wrapper.write_text('#!/bin/sh\nexec /opt/python "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for named in (str(wrapper), "./python-of-the-site", "python-of-the-site"):
        environment = machine()
        environment.python = named
        assert smoke.plan(request_of(), environment, SmokeOptions()).python == str(wrapper)
