"""The installed Megatron's word on a request: asked with the stack in question, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules.checking import check
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.sources import read_text
from ep_overlap_mcp.stack import parse_stack
from ep_overlap_mcp.training_env import FakePipe, TrainingEnvironment
from ep_overlap_mcp.training_env.judging import judge_request

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import MegatronJudgement

LEGAL = (
    "num_layers: 16\nhidden_size: 2048\nnum_attention_heads: 16\nadd_bias_linear: false\nbf16: true\n"
    "num_moe_experts: 32\nexpert_model_parallel_size: 8\nmoe_token_dispatcher_type: alltoall\n"
    "overlap_moe_expert_parallel_comm: true\n"
)


REFUSED = {"model.moe_router_fusion": True}  # what the Megatron of these tests does not take


def judged(
    stack: str, installed: dict[str, str], emulated: tuple[str, ...] = (), text: str = LEGAL
) -> MegatronJudgement:
    """What a Megatron says that accepts all but one setting."""

    def answer(_program: str, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("hello"):
            return {"cannot_judge": None}
        empty: dict[str, Any] = {"missing_layers": [], "unknown_fields": [], "left_out": [], "effective": {}}
        said = {"judged": True, "exception": None, "at": None, "cannot_judge": None}
        stand_ins = [{"path": "model.pipeline_dtype", "value": "bf16"}]
        layers = {"layers": ["megatron-core"], "stand_ins": stand_ins, "emulated": list(emulated)}
        common = empty | said | layers | {"versions": installed}
        return {"answers": [common | {"accepted": not REFUSED.items() <= one.items()} for one in request["batch"]]}

    request = build_request(read_text(text, "model.yaml"), stack=parse_stack(stack))
    environment = TrainingEnvironment(open_pipe=FakePipe.opener(answer))
    return judge_request(request, check(request), environment)


def test_the_stand_ins_are_named_with_the_word() -> None:
    """An acceptance with an empty Transformer Engine is one of its version checks, and says so."""
    word = judged(
        "megatron-core==0.16.1,transformer-engine==2.9.0",
        {"megatron-core": "0.16.1", "transformer-engine": "2.9.0"},
        ("transformer_engine",),
    )
    assert (word.accepted, word.agrees) == (True, True)
    assert word.stand_ins == ["transformer_engine", "model.pipeline_dtype"]


def test_another_version_than_the_one_in_question_does_not_judge() -> None:
    """Megatron's checks compare versions: the word of another stack is none on this one."""
    installed = {"megatron-core": "0.16.1", "transformer-engine": "2.12.0"}
    word = judged("megatron-core==0.16.1,transformer-engine==2.9.0", installed)
    assert not word.judged
    assert word.why == "transformer-engine 2.12.0 is installed there, 2.9.0 is asked about"
    word = judged("megatron-core==0.16.1,transformer-engine==none", installed)
    assert word.why == "transformer-engine 2.12.0 is installed there, none is asked about"


def test_a_builds_own_suffix_and_an_open_version_do_not_matter() -> None:
    """2.9.0+c1f2 is 2.9.0; who asks about no version takes the installed one."""
    installed = {"megatron-core": "0.16.1", "transformer-engine": "2.9.0+c1f2"}
    assert judged("megatron-core==0.16.1,transformer-engine==2.9.0", installed).judged
    assert judged("megatron-core==0.16.1", installed).judged


INSTALLED = {"megatron-core": "0.16.1", "transformer-engine": "2.9.0"}
STACK = "megatron-core==0.16.1,transformer-engine==2.9.0"


def test_an_open_switch_is_judged_both_ways() -> None:
    """Accepted whatever the template's variable says, and named among what is not the configuration's."""
    word = judged(STACK, INSTALLED, text=f"{LEGAL}moe_grouped_gemm: ${{GROUPED}}\nseq_length: ${{LENGTH}}\n")
    assert (word.judged, word.accepted) == (True, True)
    assert word.stand_ins == ["model.pipeline_dtype", "model.moe_grouped_gemm", "model.seq_length"]


def test_an_open_switch_that_decides_is_no_verdict() -> None:
    """One way is refused, the other is not."""
    word = judged(STACK, INSTALLED, text=f"{LEGAL}moe_router_fusion: ${{FUSION}}\n")
    assert (word.judged, word.why) == (False, "accepted or rejected as model.moe_router_fusion is, which is not known")


def test_an_open_setting_that_rules_hang_on_is_not_judged() -> None:
    """The rules have no verdict that the word could be held against."""
    word = judged(STACK, INSTALLED, text=LEGAL.replace("alltoall", "${DISPATCHER}"))
    assert (word.judged, word.why) == (False, "not known: model.moe_token_dispatcher_type")
