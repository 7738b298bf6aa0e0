"""The verdict where the rules and the installed Megatron say different things."""

from __future__ import annotations

from ep_overlap_mcp.results.check import CheckResult, MegatronJudgement
from ep_overlap_mcp.rules.checking import check, with_judgement
from ep_overlap_mcp.settings.request import build_request
from ep_overlap_mcp.sources import read_text
from ep_overlap_mcp.stack import parse_stack

LEGAL = """model:
  num_layers: 16
  hidden_size: 2048
  num_attention_heads: 16
  add_bias_linear: false
  bf16: true
  num_moe_experts: 32
  expert_model_parallel_size: 8
  moe_token_dispatcher_type: alltoall
  overlap_moe_expert_parallel_comm: true
"""
STACK = "megatron-core==0.16.1,transformer-engine==2.9.0,torch==2.9.0"


def checked(text: str, stack: str = STACK) -> CheckResult:
    return check(build_request(read_text(text, "model.yaml"), stack=parse_stack(stack), gpu="H100"))


def test_what_the_installed_megatron_rejects_is_invalid_whatever_the_rules_say() -> None:
    """It does not start; exit 0 would let it through."""
    legal = checked(LEGAL)
    assert legal.verdict == "valid"
    word = MegatronJudgement(
        judged=True, accepted=False, agrees=False, exception="AssertionError: batch", at="config.py:1"
    )
    found = with_judgement(legal, word)
    assert found.verdict == "invalid"
    assert found.summary.startswith("DISAGREEMENT: the installed Megatron rejects this configuration (AssertionError")
    assert "VALID for" in found.summary.partition("By the rules alone:")[2]


def test_what_the_installed_megatron_accepts_stays_invalid_where_a_rule_says_so() -> None:
    """Its constructor does not see what fails later."""
    illegal = checked(LEGAL.replace("expert_model_parallel_size: 8", "expert_model_parallel_size: 1"))
    found = with_judgement(illegal, MegatronJudgement(judged=True, accepted=True, agrees=False))
    assert found.verdict == illegal.verdict == "invalid"
    assert found.summary.startswith("DISAGREEMENT: the installed Megatron accepts")


def test_agreement_changes_nothing_but_is_told() -> None:
    """The word stands beside the verdict."""
    legal, word = checked(LEGAL), MegatronJudgement(judged=True, accepted=True, agrees=True)
    assert with_judgement(legal, word) == legal.model_copy(update={"megatron": word})


NEWER = "megatron-core==9.9.9,transformer-engine==2.14.0,torch==2.12.0"
DOUBT = "release-known-to-the-rules"


def doubt(result: CheckResult) -> list[str]:
    """The severity at which a result doubts its rules."""
    return [u.severity for u in result.undecided if u.name == DOUBT]


def test_a_release_newer_than_the_rules_never_passes_by_the_rules_alone() -> None:
    """Exit 0 would say that rules of another release speak for it; a violation is told as ever."""
    legal = checked(LEGAL, NEWER)
    assert (legal.verdict, doubt(legal)) == ("undetermined", ["error"])
    assert "UNDETERMINED for megatron-core 9.9.9 (newer than every release known here" in legal.summary
    assert checked(LEGAL.replace("parallel_size: 8", "parallel_size: 1"), NEWER).verdict == "invalid"


def test_the_installed_newer_release_decides() -> None:
    """Its acceptance makes the verdict the rules' own, with a note; its rejection is invalid."""
    legal = checked(LEGAL, NEWER)
    accepted = with_judgement(legal, MegatronJudgement(judged=True, accepted=True, agrees=True))
    assert (accepted.verdict, doubt(accepted)) == ("valid", ["info"])
    said = "VALID for megatron-core 9.9.9 (newer than every release known here: judged like main, and accepted by"
    assert said in accepted.summary
    rejected = with_judgement(
        legal, MegatronJudgement(judged=True, accepted=False, agrees=False, exception="E", at="x")
    )
    assert rejected.verdict == "invalid"
    unasked = with_judgement(legal, MegatronJudgement(judged=False, accepted=None, why="the text is partial"))
    assert (unasked.verdict, doubt(unasked)) == ("undetermined", ["error"])
