"""The lists of a plan are complete and true: whatever the text says is kept and sent, or named as something else."""

from __future__ import annotations

import pytest
from plans import MODEL, PIPELINE, machine, planned, reduced

from ep_overlap_mcp import smoke
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.smoke.gradients import SETTLED
from ep_overlap_mcp.smoke.options import SmokeOptions
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.stack import Core

CORE = Core("0.16.1")
ROWS = [row for row in field_table().by_path.values()
        if row.path.partition(".")[0] in ("model", "ddp", "optimizer") and row.exists_in(CORE)]  # fmt: skip
SHARES = 31  # of the rows, each in a plan of its own
IN_NO_LIST = SETTLED | {
    "model.overlap_moe_expert_parallel_comm",  # the variant
    "model.delay_wgrad_compute",
    "model.gated_linear_unit",  # kept as `activation`
    "model.moe_enable_deepep",  # said with the dispatcher
    "model.moe_flex_dispatcher_backend",
    "model.moe_router_group_topk",  # nothing without groups
    "model.q_lora_rank",  # nothing without latent attention, which is listed as a whole
    "model.kv_lora_rank",
    "model.qk_head_dim",
    "model.qk_pos_emb_head_dim",
    "model.v_head_dim",
    "model.provider",  # said as what the text does not show
    "model.hybrid_override_pattern",  # act through settings that are listed
    "model.num_layers_per_virtual_pipeline_stage",
    "model.num_virtual_stages_per_pipeline_rank",
}


def other_than_default(row):
    """A value that the class does not have by itself; None for types of which the table names no value."""
    default = row.default(CORE)
    if row.type == "str":
        return next((choice for choice in row.choices or ("text",) if choice not in (default, None)), None)
    numbers = {"int": (default if isinstance(default, int) else 0) + 2, "float": 0.25}
    return default is not True if row.type == "bool" else numbers.get(row.type)


@pytest.mark.parametrize("share", range(SHARES))
def test_every_setting_is_in_exactly_one_list_and_what_is_kept_is_sent(share):
    """All settings of the model, of DDP and of the optimizer that the tool knows."""
    values = {row.path: other_than_default(row) for row in ROWS[share::SHARES]}
    written = {path: value for path, value in values.items() if value is not None}
    given = {path.removeprefix("model."): value for path, value in written.items()}
    plan = planned(given, force=True)
    shown = plan.shown.plan
    sent = {f"{top}.{name}": value for top in ("model", "ddp", "optimizer")
            for name, value in plan.request[top].items()}  # fmt: skip
    sent |= {f"model.{name}": value for name, value in plan.request["train"].items()}
    left_out = {line.partition("=")[0] for line in shown.not_tested}
    lists = (set(shown.kept), {row.setting for row in shown.reduced}, left_out)
    for path in written.keys() - IN_NO_LIST:
        assert sum(path in one for one in lists) == 1, path
    kept = {path: value for path, value in shown.kept.items() if "." in path and not path.startswith("train.")}
    assert kept == {path: sent.get(path) for path in kept}


def test_dropout_that_is_written_as_the_class_has_it_is_named_too():
    """The value is Megatron's default, and still one that the run does without."""
    plan = planned({"hidden_dropout": 0.1, "attention_dropout": 0.0})
    assert "model.hidden_dropout=0.1: each schedule would draw other masks" in plan.shown.plan.not_tested
    assert plan.shown.plan.kept["model.attention_dropout"] == 0.0


def test_an_unknown_bias_is_a_listed_stand_in():
    """The class default has one, and shared experts take none; other defaults follow from what is known as well."""
    known = {"add_bias_linear": ..., "moe_shared_expert_intermediate_size": 512, "moe_router_enable_expert_bias": True}
    plan = planned(known, partial=True)
    assert plan.request["model"]["add_bias_linear"] is False
    assert reduced(plan)["model.add_bias_linear"] is False
    assert reduced(plan)["model.moe_router_score_function"] == "sigmoid"
    assert reduced(planned({"moe_router_topk": 1}, partial=True))["model.moe_router_pre_softmax"] is True


def test_what_local_layers_cannot_do_is_listed_and_not_sent():
    """Latent experts, fp32 residuals and other norms need Transformer Engine; deferred embeddings a CUDA kernel."""
    asked = {"moe_latent_size": 64, "fp32_residual_connection": True, "layernorm_zero_centered_gamma": True,
             "context_parallel_size": 2, "tensor_model_parallel_size": 2, "sequence_parallel": True}  # fmt: skip
    plan = planned(asked, force=True)
    sent = {name: value for name, value in plan.request["model"].items() if name in asked}
    assert sent == {
        "context_parallel_size": 1,
        "tensor_model_parallel_size": 1,
        "sequence_parallel": False,
    }
    left_out = {line.partition("=")[0] for line in plan.shown.plan.not_tested}
    assert left_out >= {f"model.{name}" for name in list(asked)[:3]}
    assert {f"model.{name}" for name in list(asked)[3:]} <= set(reduced(plan))
    gpu = planned(asked, environment=machine(gpus=2, te="2.9.0"), force=True)
    assert gpu.request["model"]["moe_latent_size"] == 64


def test_parameters_are_gathered_by_the_distributed_optimizer_only():
    """Without one the setting is not kept; where a partial text leaves it open one is taken, and listed."""
    gather = {"ddp.overlap_param_gather": True}
    plan = planned(gather)
    assert (plan.request["ddp"], "ddp.overlap_param_gather" in plan.shown.plan.kept) == ({}, False)
    line = "ddp.overlap_param_gather=true: needs use_distributed_optimizer, which is off"
    assert line in plan.shown.plan.not_tested
    plan = planned(gather, partial=True)
    assert plan.request["ddp"] == {"use_distributed_optimizer": True, "overlap_param_gather": True}
    assert reduced(plan)["ddp.use_distributed_optimizer"] is True


def test_gradient_and_optimizer_settings_are_listed_wherever_they_end():
    """Sent ones are kept, with false as well; what the run does without is named."""
    asked = {"ddp.grad_reduce_in_fp32": False, "ddp.bucket_size": 10**7, "ddp.align_param_gather": True,
             "ddp.num_distributed_optimizer_instances": 2, "optimizer.lr": 3e-4, "optimizer.min_lr": 1e-5}  # fmt: skip
    plan = planned(asked, force=True)
    kept = plan.shown.plan.kept
    assert (kept["ddp.grad_reduce_in_fp32"], kept["optimizer.lr"]) == (False, 3e-4)
    assert (plan.request["ddp"]["grad_reduce_in_fp32"], plan.request["optimizer"]["lr"]) == (False, 3e-4)
    left_out = {line.partition("=")[0] for line in plan.shown.plan.not_tested}
    assert left_out >= set(asked) - {"ddp.grad_reduce_in_fp32", "optimizer.lr"}


def test_a_partial_text_says_what_it_does_not_show():
    """What a recipe adds is no part of the run, and the plan says which recipe."""
    (line,) = [line for line in planned(partial=True).shown.plan.not_tested if "text does not show" in line]
    assert line.endswith(": the recipe is imported")


def test_recompute_without_a_module_left_is_not_kept():
    """Selective recompute of nothing is none."""
    modules = {"recompute_granularity": "selective", "recompute_modules": ["moe_act", "mla_up_proj"]}
    plan = planned(modules | {"moe_grouped_gemm": True, "multi_latent_attention": True})
    assert not {"recompute_granularity", "recompute_modules"} & set(plan.request["model"])
    assert not any("recompute" in path for path in plan.shown.plan.kept)
    assert "model.recompute_granularity=selective: the run has nothing there to recompute" in plan.shown.plan.not_tested


def test_alltoall_in_the_place_of_deepep_has_two_experts_a_rank():
    """With one it would crash before 0.17, which is no defect of the configuration."""
    plan = planned({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep",
                    "num_moe_experts": 16, "moe_router_dtype": "fp32"})  # fmt: skip
    (row,) = [row for row in plan.shown.plan.reduced if row.setting == "model.num_moe_experts"]
    assert (row.to, row.why) == (4, "2 experts a rank, as alltoall stands in and takes no fewer")


def test_two_virtual_stages_stand_in_for_one():
    """One is legal and interleaves nothing; the smaller model must not lose its stages for it."""
    plan = planned({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 1})
    (row,) = [row for row in plan.shown.plan.reduced if "virtual" in row.setting]
    assert (row.before, row.to, row.why) == (1, 2, "one virtual stage is not run: two stand in")


def test_positions_that_megatron_lm_only_has_by_default_give_way_to_mtp():
    """The check warns of what is not written; the run takes rotary embeddings instead of refusing, and says so."""
    reading = Reading("shell", "job.sh", framework="megatron-lm")
    for line, (name, value) in enumerate({**MODEL, **PIPELINE, "mtp_num_layers": 1}.items(), start=1):
        reading.add(f"model.{name}", value, line=line, text=name)
    plan = smoke.plan(build_request([reading]), machine(), SmokeOptions())
    assert plan.request["train"]["position_embedding_type"] == "rope"
    (row,) = [row for row in plan.shown.plan.reduced if row.setting == "model.position_embedding_type"]
    assert (row.before, row.why) == ("learned_absolute", "not written; MTP takes no other")


def test_fewer_ranks_than_asked_are_said():
    """EP 16 has no part of three."""
    plan = planned(ranks=3)
    assert plan.shown.world_size == 2
    assert "3 ranks as asked: EP 16 divides into 2, so 2 run" in plan.shown.plan.not_tested
    assert not any("as asked" in line for line in planned(ranks=4).shown.plan.not_tested)
