"""Requested and effective settings: what each layer of the stack writes over the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.settings.setting import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.settings.effective import Effective

MODEL, BRIDGE = "model.overlap_moe_expert_parallel_comm", "comm_overlap.overlap_moe_expert_parallel_comm"
DELAY, BRIDGE_DELAY, DDP_DELAY = (
    "model.delay_wgrad_compute",
    "comm_overlap.delay_wgrad_compute",
    "ddp.delay_wgrad_compute",
)
VPP = "model.virtual_pipeline_model_parallel_size"
TP, EP = "model.tensor_model_parallel_size", "model.expert_model_parallel_size"
B6 = "megatron-bridge==0.6.0"


# what no one states


def test_an_unwritten_setting_has_the_release_s_default(effective: Callable[..., Effective]) -> None:
    """And says of which release."""
    setting = effective({}, stack="megatron-core==0.16.1")["model.moe_token_dispatcher_type"]
    assert (setting.value, setting.origin.kind, setting.origin.note) == ("allgather", "default", "default of 0.16.1")


def test_megatron_lm_has_defaults_of_its_own(effective: Callable[..., Effective]) -> None:
    """Its command line differs from core's dataclass."""
    assert effective({}, stack="megatron-lm==0.16.1").value("model.bias_dropout_fusion") is True
    assert effective({}, stack="megatron-core==0.16.1").value("model.bias_dropout_fusion") is False


def test_megatron_lm_clears_rope_fusion_without_rotary_embeddings(effective: Callable[..., Effective]) -> None:
    """It is on by default, and so are learned positions; an unknown type leaves it as it is."""
    rope = {"position_embedding_type": "rope"}
    seen = [
        effective(settings, stack="megatron-lm==0.16.1").value("model.apply_rope_fusion")
        for settings in (rope, {}, {"position_embedding_type": "mrope"}, {"position_embedding_type": UNKNOWN})
    ]
    assert seen == [True, False, False, True]


def test_a_partial_text_leaves_the_rest_unknown(effective: Callable[..., Effective]) -> None:
    """Never the default: the part that was not read may state it."""
    settings = effective({"num_layers": 4}, partial=True)
    assert settings.value("model.moe_token_dispatcher_type") is UNKNOWN
    assert settings["model.moe_token_dispatcher_type"].needs == {"model.moe_token_dispatcher_type"}
    assert settings.value("model.num_layers") == 4


@pytest.mark.parametrize("path", ["env.CUDA_DEVICE_MAX_CONNECTIONS", "runtime.torch", "hardware.gpu"])
def test_what_is_around_a_run_has_no_default(effective: Callable[..., Effective], path: str) -> None:
    """Environment, versions and hardware are unknown where they are not given."""
    assert effective({}).value(path) is UNKNOWN


def test_a_field_that_the_release_lacks_is_none(effective: Callable[..., Effective]) -> None:
    """Not unknown: there is nothing to know."""
    setting = effective({}, stack="megatron-core==0.14.0")["model.moe_flex_dispatcher_num_sms"]
    assert (setting.value, setting.origin.note) == (None, "not in 0.14.0")


def test_no_setting_is_made_up(effective: Callable[..., Effective]) -> None:
    """A path outside the table is a slip of a rule."""
    with pytest.raises(KeyError, match="no_such"):
        effective({})["model.no_such"]


# megatron-core


@pytest.mark.parametrize(
    ("layout", "pp", "vpp"),
    [("Et|t|t|tL", 2, 2), ("Et|tL", 2, None), ("Et|t|tL", 2, None), ("Et|t|t|tL", ..., UNKNOWN), (..., 2, UNKNOWN)],
)
def test_a_layout_gives_virtual_stages(effective: Callable[..., Effective], layout: Any, pp: Any, vpp: Any) -> None:
    """Stages / PP; one a rank is none, and an unknown part leaves it unknown."""
    settings = effective({"pipeline_model_parallel_layout": layout, "pipeline_model_parallel_size": pp})
    assert settings.value(VPP) == vpp


def test_written_virtual_stages_stay(effective: Callable[..., Effective]) -> None:
    """The layout does not overrule them in core; another rule compares the two."""
    written = {
        "pipeline_model_parallel_layout": "Et|t|t|tL",
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 4,
    }
    assert effective(written).value(VPP) == 4


@pytest.mark.parametrize(
    ("written", "stack", "path", "value"),
    [
        ({"tensor_model_parallel_size": 4}, "megatron-core==0.16.1", "model.expert_tensor_parallel_size", 4),
        ({"moe_enable_deepep": True}, "megatron-core==0.15.3", "model.moe_flex_dispatcher_backend", "deepep"),
        ({}, "megatron-core==0.15.3", "model.moe_flex_dispatcher_backend", None),
        ({}, "megatron-core==0.16.1", "model.moe_flex_dispatcher_backend", "deepep"),
        ({"moe_expert_capacity_factor": -1.0}, "megatron-core==0.16.1", "model.moe_expert_capacity_factor", None),
        ({}, "megatron-core==0.16.1", "model.recompute_modules", ["core_attn"]),
        ({"external_cuda_graph": True}, "megatron-core==0.16.1", "model.cuda_graph_impl", "transformer_engine"),
        ({"enable_cuda_graph": True}, "megatron-core==0.16.1", "model.cuda_graph_impl", "local"),
        ({"cuda_graph_scope": ["full"]}, "megatron-core==0.16.1", "model.cuda_graph_scope", []),
        ({"cuda_graph_scope": ["attn"]}, "megatron-core==0.18.2", "model.cuda_graph_modules", ["attn"]),
        ({"cuda_graph_scope": ["attn"]}, "megatron-core==0.18.2", "model.cuda_graph_scope", None),
    ],
)
def test_what_core_writes(
    effective: Callable[..., Effective], written: dict[str, Any], stack: str, path: str, value: Any
) -> None:
    """As its `__post_init__` does."""
    assert effective(written, stack=stack).value(path) == value


def test_an_old_recompute_flag_adds_its_module(effective: Callable[..., Effective]) -> None:
    """`moe_layer_recompute` chooses selective recomputation and `moe` besides what is named."""
    settings = effective({"moe_layer_recompute": True, "recompute_modules": ["layernorm"]})
    assert settings.value("model.recompute_granularity") == "selective"
    assert settings.value("model.recompute_modules") == ["layernorm", "moe"]


# Megatron-LM


@pytest.mark.parametrize(
    ("written", "vpp"),
    [
        ({"num_layers": 24, "num_layers_per_virtual_pipeline_stage": 3}, 4),
        ({"num_layers": 24, "num_layers_per_virtual_pipeline_stage": 12}, None),
        ({"num_layers": ..., "num_layers_per_virtual_pipeline_stage": 3}, UNKNOWN),
        ({"num_virtual_stages_per_pipeline_rank": 3}, 3),
        ({"num_virtual_stages_per_pipeline_rank": 1}, None),
        ({"pipeline_model_parallel_layout": "Et|t|t|tL"}, 2),
        ({}, None),
    ],
)
def test_virtual_stages_of_megatron_lm(effective: Callable[..., Effective], written: dict[str, Any], vpp: Any) -> None:
    """There is no flag of that name: three others give it, and one stage is none."""
    settings = effective({"pipeline_model_parallel_size": 2, **written}, stack="megatron-lm==0.18.2")
    assert settings.value(VPP) == vpp


def test_the_checkpoint_says_what_the_text_does_not(effective: Callable[..., Effective]) -> None:
    """`--use-checkpoint-args` fills the model in, and the parallel sizes where asked; the text agrees with it."""
    written = {"hidden_size": 1024, "args.use_checkpoint_args": True}
    settings = effective(written, stack="megatron-lm==0.16.1")
    known = [settings[f"model.{name}"].known for name in ("hidden_size", "num_moe_experts", "mtp_num_layers")]
    assert known == [True, False, True]
    assert settings["model.num_moe_experts"].needs == {"model.num_moe_experts"}
    assert not effective(written, stack="megatron-lm==0.17.1")["model.mtp_num_layers"].known
    sizes = {**written, "args.use_mp_args_from_checkpoint_args": True}
    path = "model.expert_model_parallel_size"
    assert settings.value(path) == 1
    assert not effective(sizes, stack="megatron-lm==0.16.1")[path].known


@pytest.mark.parametrize(("release", "dispatcher"), [("0.15.3", UNKNOWN), ("0.16.1", "flex")])
def test_the_checkpoint_s_dispatcher_wins_before_0_16(
    effective: Callable[..., Effective], release: str, dispatcher: Any
) -> None:
    """Whatever the text asks for."""
    written = {"moe_token_dispatcher_type": "flex", "args.use_checkpoint_args": True}
    settings = effective(written, stack=f"megatron-lm=={release}")
    assert settings.value("model.moe_token_dispatcher_type") == dispatcher


def test_what_megatron_lm_writes_besides(effective: Callable[..., Effective]) -> None:
    """Sequence parallelism without tensor parallelism is cleared; the delay reaches ddp; graphs bring their tracker."""
    settings = effective(
        {"sequence_parallel": True, "delay_wgrad_compute": True, "cuda_graph_impl": "transformer_engine"},
        stack="megatron-lm==0.18.2",
    )
    assert settings.value("model.sequence_parallel") is False
    assert settings.value(DDP_DELAY) is True
    assert settings.value("rng.te_rng_tracker") is True
    assert settings["model.sequence_parallel"].earlier[0].value is True


# Megatron-Bridge: T01 to T05


@pytest.mark.parametrize(
    ("written", "overlap", "delay"),
    [
        ({MODEL: True, "comm_overlap.present": True}, False, False),
        ({MODEL: True, "comm_overlap.present": False}, True, False),
        ({MODEL: True}, True, False),
        ({"comm_overlap.present": True, BRIDGE: True}, True, False),
        ({BRIDGE: True}, True, False),
        ({"comm_overlap.present": True, BRIDGE: False, MODEL: True}, False, False),
        ({"comm_overlap.present": True, MODEL: True, BRIDGE_DELAY: True}, False, True),
        ({"comm_overlap.present": True, BRIDGE: True, DELAY: True}, True, False),
        ({"comm_overlap.present": True, BRIDGE: ...}, UNKNOWN, False),
    ],
)
def test_setup_writes_over_the_model_s_flags(
    effective: Callable[..., Effective], written: dict[str, Any], overlap: Any, delay: Any
) -> None:
    """T01, T02: with a comm_overlap object, its fields are what counts and an unset one counts as false."""
    settings = effective(written, stack=B6)
    assert (settings.value(MODEL), settings.value(DELAY)) == (overlap, delay)


def test_a_reset_keeps_what_was_asked_for(effective: Callable[..., Effective]) -> None:
    """Requested and effective stand side by side, with the reason."""
    settings = effective({MODEL: True, "comm_overlap.present": True}, stack=B6)
    assert settings.requested(MODEL).value is True
    assert settings[MODEL].origin.note == "CommOverlapConfig.setup"
    assert settings[MODEL].earlier[-1].value is True
    assert settings.core_receives()[MODEL].value is False


@pytest.mark.parametrize(("distributed_optimizer", "delay"), [(True, True), (False, False)])
def test_the_delay_reaches_ddp_with_the_distributed_optimizer(
    effective: Callable[..., Effective], *, distributed_optimizer: bool, delay: bool
) -> None:
    """T05: without it the hooks of delayed weight gradients are never asked for."""
    settings = effective(
        {
            "comm_overlap.present": True,
            BRIDGE: True,
            BRIDGE_DELAY: True,
            "ddp.use_distributed_optimizer": distributed_optimizer,
        },
        stack=B6,
    )
    assert settings.value(DDP_DELAY) is delay


@pytest.mark.parametrize(
    ("stack", "settings", "path", "value"),
    [
        ("megatron-bridge==0.3.1", {"sequence_parallel": True}, "model.sequence_parallel", True),
        ("megatron-bridge==0.4.2", {"sequence_parallel": True}, "model.sequence_parallel", False),
        ("megatron-bridge==0.4.2", {"sequence_parallel": True, TP: 2}, "model.sequence_parallel", True),
        ("megatron-bridge==0.5.1", {TP: 4, EP: 2}, "model.expert_tensor_parallel_size", 4),
        (B6, {TP: 4, EP: 2}, "model.expert_tensor_parallel_size", 1),
        (B6, {TP: 4, EP: 1}, "model.expert_tensor_parallel_size", 4),
        (B6, {TP: 4, EP: 2, "model.expert_tensor_parallel_size": 2}, "model.expert_tensor_parallel_size", 2),
        (B6, {TP: 4, EP: UNKNOWN}, "model.expert_tensor_parallel_size", UNKNOWN),
        (B6, {"dist.use_megatron_fsdp": True, "ddp.use_megatron_fsdp": False}, "ddp.use_megatron_fsdp", True),
        (B6, {"dist.use_megatron_fsdp": False, "ddp.use_megatron_fsdp": True}, "ddp.use_megatron_fsdp", True),
        (B6, {"dist.use_megatron_fsdp": UNKNOWN}, "ddp.use_megatron_fsdp", UNKNOWN),
        (B6, {}, "scheduler.lr_warmup_iters", 0),
        (B6, {}, "model.cross_entropy_loss_fusion", True),
    ],
)
def test_what_bridges_own_classes_write(
    stack: str, settings: dict[str, Any], path: str, value: Any, effective: Callable[..., Effective]
) -> None:
    """Sizes that follow from others, one flag for two, and defaults of its own."""
    assert effective(settings, stack=stack).value(path) == value


def test_what_bridge_alone_has_is_unknown_in_a_partial_text(effective: Callable[..., Effective]) -> None:
    """The recipe under the text may say it."""
    assert effective({}, stack=B6, partial=True).value("checkpoint.save") is UNKNOWN


def test_no_comm_overlap_object_leaves_ddp_alone(effective: Callable[..., Effective]) -> None:
    """T05: the model's own flags survive, and ddp is not told."""
    settings = effective({MODEL: True, DELAY: True, "comm_overlap.present": False}, stack=B6)
    assert (settings.value(MODEL), settings.value(DELAY), settings.value(DDP_DELAY)) == (True, True, False)


@pytest.mark.parametrize(
    ("gpu", "bridge", "dispatcher", "backend"),
    [
        ("H100", "0.6.0", "flex", "deepep"),
        ("GB200", "0.6.0", "alltoall", None),
        ("GB200", "0.5.1", "allgather", "deepep"),
        (None, "0.6.0", "flex", "deepep"),
    ],
)
def test_the_flex_helper(
    effective: Callable[..., Effective], gpu: str | None, bridge: str, dispatcher: str, backend: str | None
) -> None:
    """On a GPU it refuses, Bridge 0.6 falls back to alltoall; before it left the dispatcher as it was."""
    settings = effective(
        {"num_moe_experts": 8, "bridge.apply_flex_dispatcher_backend": "deepep"},
        stack=f"megatron-bridge=={bridge}",
        gpu=gpu,
    )
    assert settings.value("model.moe_token_dispatcher_type") == dispatcher
    assert settings.value("model.moe_flex_dispatcher_backend") == backend


def test_what_is_written_after_the_helper_wins(effective: Callable[..., Effective]) -> None:
    """A recipe is a program: order counts."""
    settings = effective(
        {
            "num_moe_experts": 8,
            "bridge.apply_flex_dispatcher_backend": "hybridep",
            "moe_token_dispatcher_type": "alltoall",
        },
        stack=B6,
        gpu="H100",
    )
    assert settings.value("model.moe_token_dispatcher_type") == "alltoall"


@pytest.mark.parametrize(
    ("pp", "vpp", "overlap", "batch"), [(1, None, False, False), (4, 2, True, False), (4, None, False, True)]
)
def test_point_to_point_of_bridge(
    effective: Callable[..., Effective], pp: int, vpp: int | None, *, overlap: bool, batch: bool
) -> None:
    """Interleaved pipelines overlap their exchanges, plain ones batch them."""
    settings = effective(
        {
            "comm_overlap.present": True,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": vpp,
        },
        stack=B6,
    )
    assert (settings.value("model.overlap_p2p_comm"), settings.value("model.batch_p2p_comm")) == (overlap, batch)


def test_layers_of_other_frameworks_do_not_write(effective: Callable[..., Effective]) -> None:
    """Plain core knows neither Bridge's setup nor Megatron-LM's arguments."""
    settings = effective({MODEL: True, "sequence_parallel": True}, stack="megatron-core==0.18.2")
    assert settings.value(MODEL) is True
    assert settings.value("model.sequence_parallel") is True
