"""Configurations beside a failure: the rules name what is wrong with them, and what their settings exclude."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.diagnosis import Configuration, diagnose, of_request
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.sources import read_text
from ep_overlap_mcp.stack import parse_stack

if TYPE_CHECKING:
    from ep_overlap_mcp.results.diagnose import DiagnoseResult

CORE = {
    "num_layers": 12,
    "num_moe_experts": 16,
    "expert_model_parallel_size": 8,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "bf16": True,
    "overlap_moe_expert_parallel_comm": True,
}
SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS={connections}
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
    --num-experts 64 --moe-router-topk 6 --moe-grouped-gemm --moe-token-dispatcher-type alltoall \\
    --expert-model-parallel-size 16 {switch} --bf16 --micro-batch-size 1 --global-batch-size 256
"""
OVERLAP = "--overlap-moe-expert-parallel-comm"
BRIDGE: dict[str, dict[str, Any]] = {
    "model": {"num_moe_experts": 16, "num_layers": 8, "expert_model_parallel_size": 8, "bf16": True},
    "comm_overlap": {"overlap_moe_expert_parallel_comm": False},
}


def configuration(text: str | dict[str, Any], stack: str = "megatron-core==0.18.2", gpu: str | None = None) -> Any:
    """A configuration as the rules judge it."""
    readings = read_text(text if isinstance(text, str) else json.dumps(text), "run.conf")
    return of_request(build_request(readings, stack=parse_stack(stack), assume="as_written", gpu=gpu))


def causes(result: DiagnoseResult) -> dict[str, str]:
    """Causes with their confidence."""
    return {cause.cause: cause.confidence for cause in result.causes}


def ruled_out(result: DiagnoseResult) -> dict[str, str]:
    """Causes that were ruled out, and why."""
    return {item.cause: item.why for item in result.ruled_out}


def test_a_broken_rule_is_named_with_its_place() -> None:
    """The configuration alone is enough: the rule, its message, where the setting stands, and the fix."""
    text = json.dumps({**CORE, "moe_shared_expert_overlap": True}, indent=1)
    (cause,) = diagnose(after=configuration(text)).causes
    told = (cause.cause, cause.confidence, cause.rules)
    assert told == ("config-rule-violated", "likely", ["no-shared-expert-overlap"])
    assert (cause.evidence[0].file, cause.evidence[0].line) == ("run.conf", 9)
    assert cause.evidence[0].text.startswith("no-shared-expert-overlap: ")
    assert "model.moe_shared_expert_overlap=false" in cause.fix


def test_a_rule_that_was_broken_before_as_well_is_not_the_cause() -> None:
    """Full recompute was there when the run was fine (its stack did not check it): the new error is named alone."""
    before = configuration({**CORE, "recompute_granularity": "full"})
    after = configuration({**CORE, "recompute_granularity": "full", "moe_shared_expert_overlap": True})
    result = diagnose(before=before, after=after)
    assert result.causes[0].rules == ["no-shared-expert-overlap"]
    assert [change.path for change in result.changed] == ["model.moe_shared_expert_overlap"]


def test_a_refusal_at_the_start_cannot_slow_a_run_that_trains() -> None:
    """It is shown first, as possible, with what follows: settings or versions must be others."""
    result = diagnose(after=configuration({**CORE, "recompute_granularity": "full"}), symptom="slower")
    assert causes(result)["config-rule-violated"] == "possible"
    assert "its settings or versions are others" in result.causes[0].evidence[0].text


def test_a_warning_is_evidence_for_its_cause() -> None:
    """One connection with overlap newly on; the place of the setting is the evidence."""
    before = configuration(SCRIPT.format(connections=1, switch=""), "megatron-lm==0.18.2")
    after = configuration(SCRIPT.format(connections=1, switch=OVERLAP), "megatron-lm==0.18.2")
    result = diagnose(before=before, after=after, symptom="no gain")
    first = result.causes[0]
    assert (first.cause, first.confidence) == ("one-cuda-connection-serialises", "likely")
    assert (first.evidence[0].file, first.evidence[0].line) == ("run.conf", 1)


def test_a_setting_that_is_fine_rules_its_cause_out() -> None:
    """32 connections on both sides, alltoall, no delayed wgrad: said with the setting."""
    before = configuration(SCRIPT.format(connections=32, switch=""), "megatron-lm==0.18.2")
    after = configuration(SCRIPT.format(connections=32, switch=OVERLAP), "megatron-lm==0.18.2")
    result = diagnose(before=before, after=after, symptom="slower")
    assert ruled_out(result)["one-cuda-connection-serialises"] == "env.CUDA_DEVICE_MAX_CONNECTIONS is 32"
    assert ruled_out(result)["hybridep-domain-size-wrong"] == "model.moe_token_dispatcher_type is alltoall"
    assert ruled_out(result)["too-few-microbatches"] == "every rank has micro-batches that overlap"


def test_what_a_log_shows_beats_what_a_configuration_says() -> None:
    """The file says 32, the run printed 1: the run counts."""
    log = "CUDA_DEVICE_MAX_CONNECTIONS=1\n  overlap_moe_expert_parallel_comm ................ True\n"
    after = configuration(SCRIPT.format(connections=32, switch=OVERLAP), "megatron-lm==0.18.2")
    assert causes(diagnose(text=log, after=after))["one-cuda-connection-serialises"] == "likely"


@pytest.mark.parametrize("symptom", ["slower", "no gain"])
def test_causes_of_another_framework_are_not_offered(symptom: str) -> None:
    """Bridge's own code does not run under Megatron-LM; without a configuration it may."""
    bridge = {"bridge-reset-the-flag", "harness-false-ignored", "deepep-fell-back-to-alltoall"}
    after = configuration(SCRIPT.format(connections=8, switch=""), "megatron-lm==0.18.2")
    result = diagnose(after=after, symptom=symptom)
    assert not bridge & set(causes(result))
    assert bridge & set(causes(diagnose(symptom=symptom)))


def test_a_switch_without_effect_is_said_to_be_one() -> None:
    """Bridge writes False over the model's flag: nothing differs, and that is the answer."""
    after = {**BRIDGE, "model": {**BRIDGE["model"], "overlap_moe_expert_parallel_comm": True}}
    stack = "megatron-bridge==0.5.1"
    result = diagnose(before=configuration(BRIDGE, stack), after=configuration(after, stack), symptom="no gain")
    first = result.causes[0]
    assert (first.cause, first.confidence) == ("bridge-reset-the-flag", "likely")
    assert first.rules == ["bridge-needs-comm-overlap-flag"]
    assert result.changed == []
    assert result.intended is not None
    assert result.intended.settings == {"model.overlap_moe_expert_parallel_comm": True}
    assert result.intended.why == "asked for without effect: both run with False"


RECIPE = """\
from megatron.bridge.recipes.qwen import qwen3_30b_a3b_pretrain_config
from megatron.bridge.training.flex_dispatcher_backend import apply_flex_dispatcher_backend

cfg = qwen3_30b_a3b_pretrain_config()
cfg.model.num_moe_experts = 128
apply_flex_dispatcher_backend(cfg.model, "deepep")
"""


def test_the_same_recipe_on_another_gpu_falls_back() -> None:
    """Bridge admits DeepEP on H100 and turns to alltoall on GB200: not asked for, so a confounder with its evidence."""
    readings = read_text(RECIPE, "recipe.py")
    stack = parse_stack("megatron-bridge==0.6.0")
    before, after = (
        of_request(build_request(readings, stack=stack, assume="as_written", gpu=gpu)) for gpu in ("H100", "GB200")
    )
    result = diagnose(before=before, after=after, symptom="slower")
    first = result.causes[0]
    assert (first.cause, first.confidence) == ("deepep-fell-back-to-alltoall", "likely")
    assert "bridge-gpu-fallback" in first.rules
    assert [(c.path, c.before, c.after) for c in result.changed] == [
        ("hardware.gpu", "H100", "GB200"),
        ("model.moe_flex_dispatcher_backend", "deepep", None),
        ("model.moe_shared_expert_overlap", False, None),  # the helper writes it with flex, else the recipe's counts
        ("model.moe_token_dispatcher_type", "flex", "alltoall"),
    ]


FLEX = Configuration(
    effective={"model.moe_token_dispatcher_type": "flex", "env.CUDA_DEVICE_MAX_CONNECTIONS": 32},
    requested={"model.moe_token_dispatcher_type": "flex"},
)
FELL_BACK = Configuration(
    effective={"model.moe_token_dispatcher_type": "alltoall", "env.CUDA_DEVICE_MAX_CONNECTIONS": 8},
    requested={"model.moe_token_dispatcher_type": "flex", "env.CUDA_DEVICE_MAX_CONNECTIONS": 8},
    framework="bridge",
)


def test_a_fallback_is_a_confounder_that_no_setting_takes_back() -> None:
    """Flex is asked for on both sides and runs on one: the A/B brings alltoall into the fine configuration."""
    result = diagnose(before=FLEX, after=FELL_BACK, symptom="slower after CUDA_DEVICE_MAX_CONNECTIONS")
    assert result.intended is not None
    assert result.intended.settings == {"env.CUDA_DEVICE_MAX_CONNECTIONS": 8}
    assert [(c.settings, c.why) for c in result.confounders] == [
        ({"model.moe_token_dispatcher_type": "alltoall"}, "asked for flex, the stack runs alltoall")
    ]
    assert [(e.base, e.settings) for e in result.experiments] == [
        ("before", {"model.moe_token_dispatcher_type": "alltoall"})
    ]
    assert causes(result)["deepep-fell-back-to-alltoall"] == "likely"


def test_a_fallback_that_was_asked_for_is_none() -> None:
    """The user chose alltoall: nothing fell back."""
    asked = Configuration(FELL_BACK.effective, FELL_BACK.effective, framework="bridge")
    result = diagnose(before=FLEX, after=asked, symptom="slower")
    assert "deepep-fell-back-to-alltoall" not in causes(result)
    assert ruled_out(result)["deepep-fell-back-to-alltoall"] == "alltoall runs, and no other dispatcher was asked for"


def test_an_unknown_exception_leaves_a_warning_possible() -> None:
    """Nothing links the exception to the warning: unknown comes first, with the exception."""
    after = {**BRIDGE, "model": {**BRIDGE["model"], "overlap_moe_expert_parallel_comm": True}}
    result = diagnose(text="RuntimeError: odd\n", after=configuration(after, "megatron-bridge==0.5.1"))
    assert [c.cause for c in result.causes] == ["unknown", "bridge-reset-the-flag"]
    assert result.summary.startswith("No known signature. First exception: RuntimeError: odd.")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: CUDA error: misaligned address", "expert-input-freed-early"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'tokenizer.model'", "unknown"),
    ],
)
def test_a_rule_that_a_run_does_not_survive_explains_some_exceptions(error: str, cause: str) -> None:
    """One local expert on 0.16.1 crashes with words that vary; a missing file is something else."""
    after = configuration({**CORE, "num_moe_experts": 8}, "megatron-core==0.16.1")
    assert diagnose(text=f"[rank0]: {error}\n", after=after).causes[0].cause == cause


def test_a_silent_trap_does_not_explain_a_crash() -> None:
    """The last layer is dense, which changes numbers; the exception has another cause."""
    log = "megatron-core 0.18.2\n  overlap_moe_expert_parallel_comm ... True\n  moe_layer_freq ... [1, 0]\n"
    crash = diagnose(text=f"{log}[rank0]: RuntimeError: odd\n")
    nan = diagnose(text=f"{log}[rank0]: RuntimeError: found NaN in local grad norm\n")
    assert (crash.causes[0].cause, crash.causes[0].confidence) == ("unknown", "possible")
    assert (nan.causes[0].cause, nan.causes[0].confidence) == ("last-layer-dense-drops-final-norm", "confirmed")


TABLE = """\
megatron-core 0.18.2
------------------------ arguments ------------------------
  bf16 ............................................ True
  expert_model_parallel_size ...................... 8
  moe_token_dispatcher_type ....................... alltoall
  num_experts ..................................... 64
  num_layers ...................................... 24
  overlap_moe_expert_parallel_comm ................ True
  recompute_granularity ........................... full
"""


def test_printed_arguments_are_judged_by_the_rules() -> None:
    """The table is what the run will be built from: the broken rule is named at its line, without any error text."""
    (cause,) = diagnose(text=TABLE).causes
    assert (cause.cause, cause.rules) == ("config-rule-violated", ["no-full-recompute"])
    assert cause.evidence[0].line == 9


def test_printed_arguments_without_a_version_are_not_judged() -> None:
    """Rules hold for versions; the same table alone names no cause."""
    assert causes(diagnose(text=TABLE.partition("\n")[2])) == {"unknown": "possible"}
    assert causes(diagnose(text=TABLE.partition("\n")[2], stack={"megatron-core": "0.18.2"})) == {
        "config-rule-violated": "likely"
    }


def test_a_run_that_trains_has_passed_the_checks_at_its_start() -> None:
    """A logged step excludes the rules that only the start enforces, whatever the log seems to say."""
    step = " iteration 10/ 100 | elapsed time per iteration (ms): 100.0 | lm loss: 9.0E+00\n"
    assert causes(diagnose(text=TABLE + step)) == {"unknown": "possible"}


def test_a_printed_trap_of_a_run_that_trains_is_still_one() -> None:
    """A last dense layer is enforced by nothing: the run trains on other numbers."""
    step = " iteration 10/ 100 | elapsed time per iteration (ms): 100.0 | lm loss: 9.0E+00\n"
    table = TABLE.replace("recompute_granularity ........................... full", "moe_layer_freq .... [1, 1, 0]")
    table = table.replace("num_layers ...................................... 24", "num_layers ...... 3")
    first = diagnose(text=table + step).causes[0]
    assert (first.cause, first.confidence) == ("last-layer-dense-drops-final-norm", "confirmed")
    assert first.rules == ["last-layer-must-be-moe"]


def test_a_bridge_dump_is_judged_by_the_rules() -> None:
    """Sections with their own objects; the trap is Bridge's."""
    log = """\
megatron-bridge 0.5.1
model:
  expert_model_parallel_size: 8
  num_moe_experts: 64
  overlap_moe_expert_parallel_comm: true
comm_overlap:
  overlap_moe_expert_parallel_comm: false
"""
    assert causes(diagnose(text=log, symptom="no gain"))["bridge-reset-the-flag"] == "likely"


def test_what_a_parser_made_of_a_text_is_not_refused() -> None:
    """Unset numbers, members of torch and the defaults of retired flags stand in every table of Megatron-LM's."""
    table = TABLE.replace("recompute_granularity ........................... full", "recompute_granularity .... None")
    parsed = """\
  ddp_bucket_size ................................. None
  exp_avg_dtype ................................... torch.float32
  moe_enable_deepep ............................... False
  moe_flex_dispatcher_backend ..................... deepep
  moe_layer_recompute ............................. False
  no_load_optim ................................... None
  pipeline_model_parallel_size .................... 2
  num_layers_per_virtual_pipeline_stage ........... None
  virtual_pipeline_model_parallel_size ............ 2
"""
    assert causes(diagnose(text=table + parsed)) == {"unknown": "possible"}


def test_members_of_enumerations_are_read() -> None:
    """Megatron-LM prints graph scopes as members; mlp in the graph is refused with overlap."""
    log = TABLE.replace(
        "recompute_granularity ........................... full", "cuda_graph_impl .... transformer_engine"
    )
    log += "  cuda_graph_scope ................................ [<CudaGraphScope.attn: 1>, <CudaGraphScope.moe: 3>]\n"
    result = diagnose(text=log.replace("0.18.2", "0.17.1"))
    assert "graph-leaves-experts-out" in result.causes[0].rules


def test_printed_names_become_canonical_paths() -> None:
    """Two logs that differ in arguments of several objects: paths as the rest of the project writes them."""
    from ep_overlap_mcp.diagnosis.naming import canonical

    assert {name: canonical(name) for name in ("num_experts", "micro_batch_size", "overlap_grad_reduce", "bf16")} == {
        "num_experts": "model.num_moe_experts",
        "micro_batch_size": "train.micro_batch_size",
        "overlap_grad_reduce": "ddp.overlap_grad_reduce",
        "bf16": "model.bf16",
    }
    assert canonical("overlap_grad_reduce", "comm_overlap") == "comm_overlap.overlap_grad_reduce"
    assert canonical("world_size") == "hardware.world_size"
    assert canonical("NCCL_GRAPH_REGISTER") == "env.NCCL_GRAPH_REGISTER"


PRINTED = st.sampled_from(
    ["True", "False", "None", "8", "0", "-3", "1.5", "alltoall", "['attn']", "[1, 0]", "[<S.a: 1>]", "{}", "full", "'"]
)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(
        ["megatron-core 0.9.0", "megatron-core 0.16.1", "megatron-core 1.0.0", "megatron-bridge 0.4.0", ""]
    ),
    st.dictionaries(st.sampled_from(sorted({path.partition(".")[2] for path in field_table().by_path})), PRINTED),
)
def test_any_printed_table_is_answered(version: str, rows: dict[str, str]) -> None:
    """Whatever a run prints of its settings, in whatever version: causes, and never an exception."""
    table = "".join(f"  {name} {'.' * 20} {value}\n" for name, value in rows.items())
    assert diagnose(text=f"{version}\n{table}\nend\n").causes
