"""What the stack says when it refuses a configuration leads to the rule, in the words of every release at hand."""

from __future__ import annotations

import ast
import builtins
import re
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ep_overlap_mcp.diagnosis import diagnose
from ep_overlap_mcp.diagnosis.signatures.refused import refused
from ep_overlap_mcp.rules.cited import statements
from ep_overlap_mcp.rules.refusals import fingerprint_of, refusals


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


RAISED = r"\[rank3\]: \w+Error"


def test_what_the_installed_megatron_really_raises_names_its_rule() -> None:
    """Its own file, line and words, as this Python prints them, whatever the values; the exception is the failure."""
    found = find_spec("megatron")
    if found is None or not found.submodule_search_locations:
        pytest.skip("megatron-core is not installed")
    root = Path(next(iter(found.submodule_search_locations))).parent
    rules = {(refusal.file, refusal.fingerprint): refusal.rules for refusal in refusals()}
    raised, unnamed = 0, []
    for file in {file for file, _ in rules if (root / file).is_file()}:
        text = (root / file).read_text(encoding="utf-8")
        said = {s.first: (file, fingerprint_of(s.says)) for s in statements(text)}
        wanted = {line: rules[key] for line, key in said.items() if key in rules}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assert | ast.Raise) and node.lineno in wanted:
                raised += 1
                log = [f"[rank3]: {line}\n" for line in really_raised(node, root / file).splitlines()]
                result = diagnose(text="".join(log))
                first, failed = result.causes[0], result.first_failure
                named = first.confidence == "confirmed" and {*wanted[node.lineno]} & {*first.rules}
                if not (named and failed and failed.rank == 3 and re.match(RAISED, log[(failed.line or 0) - 1])):
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
        ("attn cuda graph is not supported with None recompute.", ["recompute-stays-outside-graph"]),
        ("Invalid choices for recompute_modules: {'a b'}. Allowed modules are: {'moe'}", ["recompute-modules-known"]),
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


BARE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/megatron-lm/megatron/core/{file}", line 840, in __post_init__
[rank3]:     assert not self.add_bias_linear
[rank3]:            ^^^^^^^^^^^^^^^^^^^^^^^^
[rank3]: AssertionError
"""


def test_an_assertion_without_words_is_known_by_its_code_in_its_file() -> None:
    """The same code elsewhere checks something else."""
    result = diagnose(text=BARE.format(file="transformer/transformer_config.py"))
    assert result.causes[0].rules == ["inference-layers-limits"]
    assert result.causes[0].evidence[0].text == "AssertionError: assert not self.add_bias_linear"
    elsewhere = diagnose(text=BARE.format(file="models/bert/bert_model.py"))
    assert elsewhere.causes[0].cause == "unknown"


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
    """An agent may paste no more than the words; in a line that tells of no error they must come first."""
    assert [row.rules for row in refused("fp8_param must be used together with fp8 mode.", ())] == [
        ("quantised-parameters-need-their-format",)
    ]
    assert refused("fp8 mode is on", ()) == []
    assert refused("by the way, fp8_param must be used together with fp8 mode.", ()) == []
