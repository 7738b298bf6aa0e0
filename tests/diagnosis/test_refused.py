"""What the stack says when it refuses a configuration leads to the rule, in the words of every release at hand."""

from __future__ import annotations

import ast
import builtins
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ep_overlap_mcp.diagnosis import diagnose
from ep_overlap_mcp.diagnosis.signatures import SIGNATURES
from ep_overlap_mcp.diagnosis.signatures.refused import refused
from ep_overlap_mcp.rules.cited import statements
from ep_overlap_mcp.rules.refusals import GAP, Refusal, refusals

TRACEBACK = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/megatron-lm/pretrain_gpt.py", line 290, in <module>
[rank3]:     pretrain(
[rank3]:   File "/opt/megatron-lm/{file}", line 840, in validate
[rank3]:     {code}
[rank3]:            ^^^^^^^^^^^^^^^^^^^^^^^^
[rank3]: {error}
"""


def log_of(refusal: Refusal, value: str = "12") -> str:
    """A refusal as rank 3 prints it."""
    code = refusal.says if refusal.is_bare else "raise ValueError("
    error = "AssertionError" if refusal.is_bare else f"ValueError: {refusal.says.replace(GAP, value)}"
    return TRACEBACK.format(file=refusal.file, code=code, error=error)


def test_every_refusal_is_confirmed_as_its_rule_or_by_a_signature_of_its_own() -> None:
    """The exception is the first failure, its rank failed first; what a signature explains better stays with it."""
    wrong = []
    for refusal in refusals():
        result = diagnose(text=log_of(refusal))
        first, failed = result.causes[0], result.first_failure
        by_its_rule = first.cause == "config-rule-violated" and set(refusal.rules) <= set(first.rules)
        better = any(
            row.literal in log_of(refusal).splitlines()[-1] for row in SIGNATURES if row.confirms or row.points_to
        )
        if not (failed and (failed.rank, failed.line) == (3, 7) and (by_its_rule or better)):
            wrong.append((refusal, first.cause, first.rules, failed))
    assert wrong == []


class Anything(dict[str, Any]):
    """Names of whatever a statement looks at."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, MagicMock())


def really_raised(statement: ast.Assert | ast.Raise, file: Path) -> str:
    """The traceback of an assertion or `raise` at its place in a source file, whatever it depends on."""
    if isinstance(statement, ast.Assert):
        statement.test = ast.copy_location(ast.Constant(value=None), statement.test)
    try:
        exec(compile(ast.Module([statement], []), str(file), "exec"), Anything())  # noqa: S102 - the installed Megatron's
    except Exception:  # noqa: BLE001
        return traceback.format_exc()
    raise AssertionError(f"{file}:{statement.lineno} raises nothing")


def test_what_the_installed_megatron_really_raises_names_its_rule() -> None:
    """Its own file, line and words, as this Python prints them."""
    found = find_spec("megatron")
    if found is None or not found.submodule_search_locations:
        pytest.skip("megatron-core is not installed")
    root = Path(next(iter(found.submodule_search_locations))).parent
    rules = {(refusal.file, refusal.says): refusal.rules for refusal in refusals()}
    raised, unnamed = 0, []
    for file in {file for file, _ in rules if (root / file).is_file()}:
        text = (root / file).read_text(encoding="utf-8")
        wanted = {s.first: rules[file, s.says] for s in statements(text) if (file, s.says) in rules}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assert | ast.Raise) and node.lineno in wanted:
                raised += 1
                first = diagnose(text=really_raised(node, root / file)).causes[0]
                if first.confidence != "confirmed" or not {*wanted[node.lineno]} & {*first.rules}:
                    unnamed.append((file, node.lineno, wanted[node.lineno], first.cause, first.rules))
    assert raised > 100
    assert unnamed == []


FP8 = "moe_act and layernorm recompute for fp8 needs transformer-engine>=2.6.0dev0, but your version is 2.4.0."


@pytest.mark.parametrize(
    ("message", "rules"),
    [
        (FP8, ["fp8-recompute-needs-te-2-6"]),
        # a message that holds another one whole is the longer one
        ("Full-layer CUDA graphs not supported with activation recomputation.", ["recompute-stays-outside-graph"]),
        ("CUDA graphs not supported with activation recomputation.", ["graph-excludes-full-recompute"]),
        ("world_size (12) is not divisible by 16", ["world-divides-parallelism"]),
    ],
)
def test_a_message_is_told_from_those_it_resembles(message: str, rules: list[str]) -> None:
    """By all its parts in order, whatever the values between them."""
    first = diagnose(text=f"[rank0]: ValueError: {message}\n").causes[0]
    assert (first.confidence, first.rules) == ("confirmed", rules)


@pytest.mark.parametrize(
    "said",
    [
        FP8[:60],  # the log ends there
        FP8.replace("needs transformer-engine>=2.6.0dev0, but your version is", "wants Transformer Engine 2.6, not"),
    ],
)
def test_the_start_of_a_message_makes_its_rule_likely(said: str) -> None:
    """A log that is cut, or another release's words for it."""
    first = diagnose(text=f"[rank0]: ValueError: {said}\n").causes[0]
    assert (first.cause, first.confidence, first.rules) == (
        "config-rule-violated",
        "likely",
        ["fp8-recompute-needs-te-2-6"],
    )


def test_an_assertion_without_words_is_known_by_its_code_in_its_file() -> None:
    """The same code elsewhere checks something else."""
    own = Refusal("megatron/core/transformer/transformer_config.py", "assert not self.add_bias_linear", ())
    result = diagnose(text=log_of(own))
    assert result.causes[0].rules == ["inference-layers-limits"]
    assert result.causes[0].evidence[0].text == "AssertionError: assert not self.add_bias_linear"
    elsewhere = Refusal("megatron/core/models/bert/bert_model.py", own.says, ())
    assert diagnose(text=log_of(elsewhere)).causes[0].cause == "unknown"


def test_code_that_a_stack_shows_is_no_failure() -> None:
    """A stack may show the very words of a message that was not raised: the exception counts."""
    text = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/megatron-lm/megatron/training/arguments.py", line 900, in validate_args
[rank0]:     raise ValueError("fp8_param must be used together with fp8 mode." if args.fp8_param else "odd")
[rank0]: ValueError: odd
"""
    result = diagnose(text=text)
    assert (result.causes[0].cause, result.first_failure and result.first_failure.line) == ("config-rule-violated", 4)
    assert result.causes[0].rules == []


def test_a_message_alone_is_enough() -> None:
    """An agent may paste no more than the words."""
    assert [row.rules for row in refused("fp8_param must be used together with fp8 mode.", ())] == [
        ("quantised-parameters-need-their-format",)
    ]
    assert refused("fp8 mode is on", ()) == []
