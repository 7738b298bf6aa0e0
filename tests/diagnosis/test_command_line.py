"""A command line that argparse or Hydra refuses: the flag is named, with what it needs."""

from __future__ import annotations

import argparse

import pytest

from ep_overlap_mcp.diagnosis import diagnose


def refused(*arguments: str) -> str:
    """What the parser of a small pretrain_gpt.py prints before it ends."""
    said: list[str] = []
    parser = argparse.ArgumentParser("pretrain_gpt.py", allow_abbrev=False)
    parser._print_message = lambda message, _file=None: said.append(message)  # type: ignore[assignment]
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--moe-token-dispatcher-type", choices=["allgather", "alltoall", "flex"])
    parser.add_argument("--optimizer", choices=["adam", "sgd"])
    parser.add_argument("--bf16", action="store_true")
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    return "".join(said)


@pytest.mark.parametrize(
    ("arguments", "rules", "fix"),
    [
        (
            ["--micro-batch-size=1", "--moe-token-dispatcher-type", "flexx"],
            ["value-not-allowed"],
            "`--moe-token-dispatcher-type`: invalid choice: 'flexx' (choose from",
        ),
        (["--micro-batch-size", "1.5"], ["value-not-allowed"], "`--micro-batch-size`: invalid int value: '1.5'"),
        (["--micro-batch-size"], ["value-not-allowed"], "`--micro-batch-size`: expected one argument"),
        (["--bf16=1", "--micro-batch-size=1"], ["value-not-allowed"], "`--bf16`: ignored explicit argument '1'"),
        (
            ["--micro-batch-size=1", "--optimizer=lion"],
            ["value-unknown-to-version"],
            "`--optimizer`: invalid choice: 'lion' (choose from",
        ),
        (["--bf16"], ["required-arguments-stated"], "give `--micro-batch-size`"),
        (
            ["--micro-batch-size=1", "--moe-token-dispatcher-typ", "flex"],
            ["setting-unknown-to-version"],
            "write `--moe-token-dispatcher-type`",
        ),
        (
            ["--micro-batch-size=1", "--no-such-thing"],
            ["setting-unknown-to-version"],
            "`--no-such-thing` is no flag of Megatron-LM: leave it out",
        ),
        (
            ["--micro-batch-size=1", "--overlap-moe-expert-parallel-comm"],
            ["setting-unknown-to-version"],
            "`--overlap-moe-expert-parallel-comm` is a flag of Megatron-LM: run a release that has it",
        ),
    ],
)
def test_what_argparse_says_names_the_flag(arguments: list[str], rules: list[str], fix: str) -> None:
    """In the words of this Python's own argparse, on a rank that torchrun names."""
    log = "".join(f"[default3]:{line}\n" for line in refused(*arguments).splitlines())
    result = diagnose(text=log)
    first = result.causes[0]
    assert (first.cause, first.confidence, first.rules) == ("config-rule-violated", "confirmed", rules)
    assert fix in first.fix
    assert result.first_failure
    assert result.first_failure.rank == 3


def test_an_argument_that_megatron_misses_itself() -> None:
    """Its own check of what has no default."""
    first = diagnose(text="[rank0]: AssertionError: hidden_size argument is None\n").causes[0]
    assert (first.cause, first.rules) == ("config-rule-violated", ["required-arguments-stated"])


def test_a_refusal_without_a_rule_is_told_in_its_own_words() -> None:
    """The summary names what is wrong, whether or not a rule is about it."""
    said = "ValueError: moe_new_thing must be positive, got 0"
    frame = '[rank0]:   File "/opt/megatron/core/transformer/transformer_config.py", line 9, in __post_init__\n'
    assert f"(config-rule-violated: {said})" in diagnose(text=f"{frame}[rank0]: {said}\n").summary


def test_an_override_of_bridge_that_no_field_takes() -> None:
    """Hydra's words inside Bridge's own exception."""
    said = "Failed to parse Hydra overrides: Could not override 'model.moe_flex_backend'."
    text = f"[rank0]: megatron.bridge.training.utils.omegaconf_utils.OverridesError: {said}\n"
    first = diagnose(text=text).causes[0]
    assert (first.cause, first.rules) == ("config-rule-violated", ["setting-unknown-to-version"])
