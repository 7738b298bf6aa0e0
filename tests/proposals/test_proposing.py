"""The whole answer: advice, order of work, dispatchers, and why nothing helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.training_env import FakePipe, TrainingEnvironment
from ep_overlap_mcp.verbs import Question, propose_configuration

if TYPE_CHECKING:
    from ep_overlap_mcp.results.propose import ProposeResult

MODEL = "num_layers: 16\nhidden_size: 2048\nnum_attention_heads: 16\nadd_bias_linear: false\nbf16: true\n"
MOE = MODEL + "num_moe_experts: 32\nexpert_model_parallel_size: 8\nmoe_token_dispatcher_type: alltoall\n"
STACK = "megatron-core==0.18.2,transformer-engine==2.6.0,torch==2.9.0"


def proposed(text: str, *, stack: str = STACK, **question: Any) -> ProposeResult:
    [result] = propose_configuration(Question(text=text, stack=stack, **question))
    return result


def test_inline_text_is_patched_as_well() -> None:
    """A configuration given inline gets a diff too."""
    result = proposed(MOE, assume="overlap")
    assert result.patch is not None
    assert result.patch.format == "diff"
    assert result.patch.text.splitlines() == [
        "--- a/configuration",
        "+++ b/configuration",
        "@@ -6,3 +6,4 @@",
        " num_moe_experts: 32",
        " expert_model_parallel_size: 8",
        " moe_token_dispatcher_type: alltoall",
        "+overlap_moe_expert_parallel_comm: true",
    ]


def test_nothing_to_change_says_so() -> None:
    """A legal configuration has no change, no patch, and the A/B as next step."""
    result = proposed(MOE + "overlap_moe_expert_parallel_comm: true\n")
    assert (result.changes, result.patch, result.verdict_after) == ([], None, "valid")
    assert result.summary.startswith("Nothing to change")


def test_one_connection_is_advice_and_no_change() -> None:
    """It is legal, so it is no part of the smallest change; it costs the overlap, so it is said."""
    result = proposed(MOE, overrides=("env.CUDA_DEVICE_MAX_CONNECTIONS=1",), assume="overlap")
    assert [c.path for c in result.changes] == ["model.overlap_moe_expert_parallel_comm"]
    assert [(a.path, a.value, a.rule) for a in result.advice] == [
        ("env.CUDA_DEVICE_MAX_CONNECTIONS", 32, "more-than-one-cuda-connection")
    ]


def test_overlap_asked_for_can_also_be_left_off() -> None:
    """Where a feature in use would be given up for overlap, keeping it is offered."""
    result = proposed(MOE + "overlap_moe_expert_parallel_comm: true\nmoe_shared_expert_overlap: true\n")
    assert [{c.path: c.to for c in other} for other in result.alternatives] == [
        {"model.overlap_moe_expert_parallel_comm": False}
    ]


def test_plain_overlap_is_the_way_out_of_an_old_transformer_engine() -> None:
    """Both switches are asked for, delayed wgrad cannot be: overlap alone is the alternative."""
    text = MOE + "cuda_graph_impl: transformer_engine\ncuda_graph_modules: [attn]\n"
    result = proposed(text, stack=STACK.replace("2.6.0", "2.2.0"), assume="overlap_delay_wgrad")
    assert "delayed-wgrad-needs-te-2-3" in result.blocked_by
    assert [{c.path: c.to for c in other} for other in result.alternatives] == [
        {"model.overlap_moe_expert_parallel_comm": True}
    ]


def test_a_dense_model_says_which_rule_stands_in_the_way() -> None:
    """Overlap needs EP, and EP needs experts."""
    result = proposed(MODEL, assume="overlap")
    assert result.blocked_by == ["needs-expert-parallelism", "needs-experts"]
    assert "needs-experts" in result.summary


def test_the_order_of_work_turns_one_switch_at_a_time() -> None:
    """Three runs, each differing from the one before by one switch."""
    switches = ("model.overlap_moe_expert_parallel_comm", "model.delay_wgrad_compute")
    plan = proposed(MOE, assume="overlap").plan
    assert [tuple(step.settings[switch] for switch in switches) for step in plan] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_the_harness_flag_that_breaks_the_isolation_is_named() -> None:
    """`--moe_a2a_overlap` moves both switches; the plan says to leave it out."""
    text = "python scripts/performance/run_script.py --model_recipe_name qwen3_30b_a3b --moe_a2a_overlap true\n"
    plan = proposed(text, stack="megatron-bridge==0.4.0").plan
    assert "--moe_a2a_overlap" in plan[0].why


def test_hardware_narrows_the_dispatchers_and_picks_none() -> None:
    """On GB200 DeepEP is out; of the others none is said to win, and each has the A/B that decides."""
    found = {c.backend or c.dispatcher: c for c in proposed(MOE, assume="overlap", gpu="GB200").dispatchers}
    assert {name: c.supported for name, c in found.items()} == {
        "alltoall": "yes",
        "hybridep": "unknown",  # nothing is known of the installed deep_ep
        "deepep": "no",
        "ncclep": "no",
    }
    assert "deepep-needs-supported-gpu" in found["deepep"].why
    assert "alltoall against hybridep" in found["hybridep"].ab_test


def test_the_evidence_speaks_for_both_dispatchers_on_h100() -> None:
    """The fastest known step on 16 x H100 is HybridEP's; on 256 x H100 the recipe has alltoall. Each has its source."""
    found = {c.backend or c.dispatcher: c.evidence for c in proposed(MOE, assume="overlap", gpu="H100").dispatchers}
    assert any("16 x H100, EP 16: 24.714 to 20.992 s per step" in line for line in found["hybridep"])
    assert any("16 x H100, EP 16: 41.25 to 31.31 s per step" in line for line in found["alltoall"])
    assert any("256 x H100, EP 32: a recipe with overlap" in line for line in found["alltoall"])
    assert any("256 x H100, EP 32: 19.7 to 17.6 s per step" in line for line in found["deepep"])


def test_a_setting_of_a_newer_release_names_the_releases_that_have_it() -> None:
    """Nothing helps on the release in question; another one does."""
    text = MOE + "moe_use_grouped_tensor: true\n"
    result = proposed(text, stack="megatron-core==0.16.1,transformer-engine==2.9.0", assume="overlap")
    assert result.blocked_by == ["setting-unknown-to-version"]
    assert result.next.startswith("every setting is known to megatron-core ")
    assert "0.16.1" not in result.next


def test_without_a_known_error_and_undecided_is_not_nothing_to_change() -> None:
    """A part of a configuration shows no error; that decides nothing."""
    text = "defaults:\n  - base.yaml\n" + MOE + "overlap_moe_expert_parallel_comm: true\n"
    result = proposed(text)
    assert (result.changes, result.verdict_after) == ([], "undetermined")
    assert result.summary.startswith("No change is known to be needed, which decides nothing: ")


def test_a_release_newer_than_the_rules_leaves_the_proposal_open() -> None:
    """The change is found as for main; what would decide it is said, as no setting would."""
    result = proposed(MOE, stack="megatron-core==9.9.9,transformer-engine==2.14.0,torch==2.12.0", assume="overlap")
    assert [c.path for c in result.changes] == ["model.overlap_moe_expert_parallel_comm"]
    assert result.verdict_after == "undetermined"
    assert "Undecided as megatron-core 9.9.9 is newer than every release" in result.summary
    assert "--python PATH" in result.next


def installed_megatron(*, accepts: bool) -> TrainingEnvironment:
    """A training environment whose Megatron says the same of everything."""
    verdict = {
        "judged": True,
        "accepted": accepts,
        "exception": None if accepts else "ValueError: no",
        "at": None if accepts else "config.py:1",
        "cannot_judge": None,
        "layers": ["megatron-core"],
        "missing_layers": [],
        "versions": {"megatron-core": "0.18.2", "transformer-engine": "2.6.0"},
        "unknown_fields": [],
        "left_out": [],
        "stand_ins": [],
        "emulated": [],
        "effective": {},
    }

    def answer(program: str, request: dict[str, Any]) -> dict[str, Any]:
        if program == "describe_environment.py":
            nothing = {"possible": False, "why": "no GPU"}
            can = dict.fromkeys(("alltoall", "deepep", "hybridep", "ncclep", "delay_wgrad"), nothing)
            facts = {"python": "python3", "python_version": "3.11.7", "components": {}, "gpus": [], "gpus_why": None}
            cpu = {"cores": 2, "memory_gib": None}
            return {"summary": "", **facts, "cpu": cpu, "can": {**can, "smoke": [], "smoke_why": ""}}
        return {"cannot_judge": None} if "hello" in request else {"answers": [verdict for _ in request["batch"]]}

    return TrainingEnvironment(open_pipe=FakePipe.opener(answer))


def test_the_installed_megatron_judges_the_changed_configuration() -> None:
    """Its word stands beside the proposal; what it rejects is not valid."""
    asked = Question(text=MOE, stack=STACK, assume="overlap")
    [accepted] = propose_configuration(asked, environment=installed_megatron(accepts=True))
    assert (accepted.verdict_after, accepted.megatron and accepted.megatron.accepted) == ("valid", True)
    [rejected] = propose_configuration(asked, environment=installed_megatron(accepts=False))
    assert rejected.verdict_after == "invalid"
    assert rejected.summary.startswith("The installed Megatron REJECTS the changed configuration (ValueError: no")
