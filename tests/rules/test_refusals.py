"""What the stack says when a rule is broken: read out of the cited lines, one fingerprint a message."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ep_overlap_mcp.rules import all_rules, cited
from ep_overlap_mcp.rules.cited import Statement, statements
from ep_overlap_mcp.rules.refusals import PLACE, Refusal, checksum_of, fingerprint_of, refusals, words_of

# rules of the stack whose lines hold no assertion or `raise` with words of its own
SAY_NOTHING = {
    "overlap-field-needs-core-0-14",  # cites the block of checks that came with the field, each of a rule of its own
    "delayed-wgrad-excludes-tp-bulk-wgrad",
    "transformer-engine-layers-need-te",  # a NameError
    "inference-graph-scope-needs-0-17",
    "no-xavier-initialization",  # a TypeError
    "topk-at-most-experts",  # torch.topk's own error
    "topk-fits-routing-groups",  # torch's own
    "dropout-is-a-share",  # torch's own
    "microbatches-cover-pipeline",  # the message is put together in a variable
    "alltoall-needs-two-local-experts",  # a kernel fails later
    "deepep-topk-limit",  # DeepEP's kernels
    "deepep-2-not-importable",
    "hybridep-needs-hybrid-branch",
}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("assert x > 1, 'x must be above one'", "x must be above one"),
        ("assert x, ('a message '\n    'in two parts')", "a message in two parts"),
        ("assert x, f'{x.name=} must divide {x:.2f} tokens'", "x.name={} must divide {} tokens"),
        ("assert x, '{} argument is missing'.format(x)", "{} argument is missing"),
        ("assert x, 'got %d of the ranks' % x", "got {} of the ranks"),
        ("assert x, 'one part and ' + str(x)", "one part and {}"),
        ("assert x, 'the first line\\nand another'", "the first line"),
        ("raise ValueError(f'no such module: {x}')", "no such module: {}"),
        ("assert args.min_lr <= args.lr", "assert args.min_lr <= args.lr"),
    ],
)
def test_a_statement_is_read_with_gaps_for_its_values(code: str, says: str) -> None:
    """However the message is put together; an assertion without one stands for itself."""
    assert [statement.says for statement in statements(code)] == [says]


@pytest.mark.parametrize(
    "code", ["raise ValueError(message)", "raise", "assert x, f'{x}'", "assert (\n    x.long_name\n)"]
)
def test_a_statement_without_words_of_its_own_is_left_out(code: str) -> None:
    """It cannot be told from others in a log."""
    assert not list(statements(code))


def test_a_raise_hangs_on_the_nearest_condition() -> None:
    """By which the same check is found in another release that words it otherwise."""
    code = """\
if a:
    if b:
        raise ValueError('b is not allowed')
    else:
        assert c, 'c is needed here'
"""
    assert [*statements(code)] == [
        Statement(3, 3, "b", "b is not allowed"),
        Statement(5, 5, "c", "c is needed here"),
    ]


CITED = """\
def validate(self):
    if self.narrow:
        raise ValueError("the narrow rule is broken")
    if self.other:
        raise ValueError("another rule is broken")
    if self.last:
        raise ValueError("the last rule is broken")
"""


def test_a_statement_is_of_the_rule_that_cites_little_else() -> None:
    """A rule that cites the whole block owns what nobody cites more closely; other releases' words count too."""
    narrow, wide = all_rules()["EPO101"], all_rules()["EPO110"]
    place = "NVIDIA/Megatron-LM@core_v0.16.1:megatron/core/made_up.py"
    rules = [replace(narrow, sources=(f"{place}:2-3",)), replace(wide, sources=(f"{place}:1-7",))]

    def read(_repo: str, revision: str, _path: str) -> str:
        return CITED.replace("the narrow rule is", "the narrow rule was") if revision == "core_v0.19.0" else CITED

    assert cited.table(read, rules) == {
        "megatron/core/made_up.py": {
            "another rule is broken": [wide.name],
            "the last rule is broken": [wide.name],
            "the narrow rule is broken": [narrow.name],
            "the narrow rule was broken": [narrow.name],
        }
    }


def test_the_installed_megatron_says_what_the_table_holds() -> None:
    """Of every rule that cites the release at hand; `python -m ep_overlap_mcp.rules.cited` writes the table."""
    megatron = find_spec("megatron")
    if megatron is None or not megatron.submodule_search_locations:
        pytest.skip("megatron-core is not installed")
    root = Path(next(iter(megatron.submodule_search_locations))).parent
    version = (root / "megatron/core/package_info.py").read_text()
    release = ".".join(str(part) for part in _version(version))

    def read(_repo: str, revision: str, path: str) -> str | None:
        file = root / path
        return file.read_text() if revision == f"core_v{release}" and file.is_file() else None

    known = {(refusal.file, refusal.fingerprint) for refusal in refusals()}
    table = cited.table(read, all_rules().values())
    said = {(file, fingerprint_of(says)) for file, rows in table.items() for says in rows}
    assert said
    assert said <= known


def _version(package_info: str) -> tuple[int, int, int]:
    found = dict(
        line.split(" = ") for line in package_info.splitlines() if line.startswith(("MAJOR", "MINOR", "PATCH"))
    )
    return int(found["MAJOR"]), int(found["MINOR"]), int(found["PATCH"])


def test_every_rule_of_the_stack_has_its_words() -> None:
    """A new rule with a source in Megatron brings its messages: write the table again."""
    named = {name for refusal in refusals() for name in refusal.rules}
    of_the_stack = filter(cited.refuses, all_rules().values())
    of_megatron = {rule.name for rule in of_the_stack if any(re.search(r"[:/]megatron/", s) for s in rule.sources)}
    assert of_megatron - named == SAY_NOTHING
    assert named <= {rule.name for rule in all_rules().values()}


def test_no_two_rules_share_words() -> None:
    """The same words in several files are of the same rules."""
    rules = {(refusal.fingerprint, refusal.rules) for refusal in refusals()}
    assert [said for said, count in Counter(said for said, _ in rules).items() if count > 1] == []


def test_the_table_holds_names_and_fingerprints_alone() -> None:
    """Files of the stack, rules of this project, and no sentence or code of anybody."""
    one = r"(?:code:[0-9a-f]{8}|\d+:[0-9a-f]{8}(?:\+\d+:[0-9a-f]{8})*)"
    for file, by_rule in json.loads(PLACE.read_text(encoding="utf-8")).items():
        assert re.fullmatch(r"megatron/[\w/]+\.py", file)
        assert by_rule.keys() <= {rule.name for rule in all_rules().values()}
        assert [said for said in by_rule.values() if not re.fullmatch(rf"{one}(?: {one})*", said)] == []


@pytest.mark.parametrize(
    ("says", "runs"),
    [
        ("x must be above one", ["x must be above one"]),
        ("--x-y='z' needs `w`", ["x y z needs w"]),
        ("x {} must divide y ({}).", ["x", "must divide y"]),
        ("stage_{} of 4: {}layers are too many", ["of 4", "are too many"]),
        ("one two three four five six, seven and {}", ["one two three four five six", "seven and"]),
    ],
)
def test_a_message_is_its_runs_of_words(says: str, runs: list[str]) -> None:
    """What stands between words does not count, nor does a word that a value touches; a long run is cut once."""
    refusal = Refusal("f.py", fingerprint_of(says), ())
    assert refusal.runs == tuple((len(words_of(run)), checksum_of(words_of(run))) for run in runs)


def test_code_stands_for_an_assertion_without_words() -> None:
    """Its operators count, its spaces do not; a message is no code."""
    code = fingerprint_of("assert args.lr > 0")
    assert Refusal("f.py", code, ()).is_bare
    assert code == fingerprint_of("assert  args.lr  > 0") != fingerprint_of("assert args.lr >= 0")
    assert not Refusal("f.py", fingerprint_of("lr must be positive"), ()).is_bare
