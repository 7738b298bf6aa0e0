"""Reads the refusals out of the lines that the rules cite, in clones of the repositories; writes their fingerprints.

`python -m ep_overlap_mcp.rules.cited NVIDIA/Megatron-LM=CLONE NVIDIA-NeMo/Megatron-Bridge=CLONE`
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.refusals import BARE, GAP, PLACE, fingerprint_of
from ep_overlap_mcp.rules.sources import megatron
from ep_overlap_mcp.stack import CORE_RELEASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ep_overlap_mcp.rules.engine import Rule

    Read = Callable[[str, str, str], str | None]  # (repository, revision, path) -> text
    Table = dict[str, dict[str, list[str]]]  # file -> what it says -> names of rules

SHORTEST = 8  # characters without digits that tell one message from others
ALIKE = 0.75  # of two messages on the same condition
NEAR = 1.5  # times the statements of the closest citation: a rule that cites more means others of them
_RELEASES = (*(core.label for core in CORE_RELEASES), "dev")
_SOURCE = re.compile(  # `file`: the path as a traceback ends with it
    r"(?P<repo>[^@]+)@(?P<revision>[^:]+):(?P<path>(?:src/)?(?P<file>megatron/.+\.py)):(?P<first>\d+)(?:-(?P<last>\d+))?$"
)


@dataclass(frozen=True)
class Statement:
    """An assertion or a `raise`: where it stands, the condition it hangs on, and what it says."""

    first: int
    last: int
    condition: str
    says: str


def table(read: Read, rules: Iterable[Rule]) -> Table:
    """What each file says of which rules; a statement that several rules cite is of those that cite few others."""
    cites = _cites(read, [rule for rule in rules if refuses(rule)])
    for file, says, same in [*_in_other_words(read, cites)]:
        cites[file][says] = cites[file][same]
    return {
        file: {says: _closest(by) for says, by in sorted(rows.items()) if says} for file, rows in sorted(cites.items())
    }


def statements(text: str) -> Iterator[Statement]:
    """The assertions and `raise`s of a module that say something, with what they say."""
    for node, condition in _refusing(ast.parse(text), ""):
        says = _words(node, text)
        if len(longest_piece(says).removeprefix(BARE)) >= SHORTEST:
            yield Statement(node.lineno, node.end_lineno or node.lineno, condition, says)


def longest_piece(says: str) -> str:
    """The longest part of a message without values and digits."""
    return max(re.split(rf"{re.escape(GAP)}|\d+", says), key=len)


def refuses(rule: Rule) -> bool:
    """Whether a configuration that breaks the rule ends in an error of the stack."""
    return any(clause.layer != "evidence" and (clause.severity or rule.severity) == "error" for clause in rule.clauses)


def _cites(read: Read, rules: Iterable[Rule]) -> dict[str, dict[str, list[tuple[int, str]]]]:
    """For each file and message the rules that cite it, with how many statements that citation holds."""
    cites: dict[str, dict[str, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))
    for rule in rules:
        for source in filter(None, map(_SOURCE.match, rule.sources)):
            first, last = int(source["first"]), int(source["last"] or source["first"])
            own = _within(_statements(read, source["repo"], source["revision"], source["path"]), first, last)
            for statement in own:
                cites[source["file"]][statement.says].append((len(own), rule.name))
    return cites


def _within(found: Sequence[Statement], first: int, last: int) -> list[Statement]:
    """The statements that lie in a range; where none does, those that it touches."""
    inside = [s for s in found if first <= s.first and s.last <= last]
    return inside or [s for s in found if s.first <= last and first <= s.last]


def _in_other_words(read: Read, cites: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, str, str]]:
    """What other releases say on the same condition: (file, their words, the cited words)."""
    for file, rows in cites.items():
        releases = [megatron(core, file.removeprefix("megatron/"), "1") for core in _RELEASES]
        found = [s for source in releases for s in _statements(read, *re.split("[@:]", source)[:3])]
        cited = {(s.condition, s.says) for s in found if s.says in rows}
        for new in sorted({(s.condition, s.says) for s in found if s.says not in rows}):
            alike = {says: _alike(says, new[1]) for condition, says in cited if condition == new[0]}
            same = max(alike, key=lambda says: alike[says], default="")
            if alike.get(same, 0.0) >= ALIKE:
                yield file, new[1], same


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _closest(by: Iterable[tuple[int, str]]) -> list[str]:
    by = list(by)
    most = NEAR * min(count for count, _ in by)
    return sorted({rule for count, rule in by if count <= most})


@lru_cache(maxsize=256)
def _statements(read: Read, repo: str, revision: str, path: str) -> tuple[Statement, ...]:
    text = read(repo, revision, path)
    return tuple(statements(text)) if text else ()


def _refusing(node: ast.AST, condition: str) -> Iterator[tuple[ast.Assert | ast.Raise, str]]:
    """Assertions and `raise`s with what they hang on: their own test, else the nearest `if`."""
    for name, children in ast.iter_fields(node):
        inner = condition
        if isinstance(node, ast.If) and name in ("body", "orelse"):
            inner = f"{'not ' if name == 'orelse' else ''}{ast.unparse(node.test)}"
        for child in children if isinstance(children, list) else [children]:
            if isinstance(child, ast.Assert):
                yield child, ast.unparse(child.test)
            elif isinstance(child, ast.Raise):
                yield child, inner
            elif isinstance(child, ast.AST):
                yield from _refusing(child, inner)


def _words(node: ast.Assert | ast.Raise, text: str) -> str:
    """The first line of the message; of an assertion without one the first line of its code."""
    if isinstance(node, ast.Assert) and node.msg is None:
        code = text.splitlines()[node.lineno - 1].strip()
        return code if code.startswith(BARE) else ""
    if isinstance(node, ast.Raise):
        message = node.exc.args[0] if isinstance(node.exc, ast.Call) and node.exc.args else None
    else:
        message = node.msg
    return re.sub(rf"(?:{re.escape(GAP)})+", GAP, _template(message).split("\n")[0]).strip()


def _template(message: ast.AST | None) -> str:
    """A message's text with gaps for its values."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case ast.BinOp(left=left, op=ast.Mod()):
            return re.sub(r"%[a-z]", GAP, _template(left))
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            return re.sub(r"\{[^}]*\}", GAP, _template(value))
    return GAP


def _reader(clones: Mapping[str, str]) -> Read:
    """Reads a file of a revision out of the clone of its repository; None where there is no such clone or file."""

    def read(repo: str, revision: str, path: str) -> str | None:
        if repo not in clones:
            return None
        shown = subprocess.run(
            ["git", "-C", clones[repo], "show", f"{revision}:{path}"], capture_output=True, text=True, check=False
        )
        return shown.stdout if shown.returncode == 0 else None

    return read


def _as_json(rows: Table) -> str:
    """Fingerprints by file and rule, a line a rule, so that a difference shows which changed."""

    def block(items: Iterable[str]) -> str:
        return "{\n" + ",\n".join(items) + "\n}"

    files = {
        file: [f" {json.dumps(rule)}: {json.dumps(said)}" for rule, said in _by_rule(of)] for file, of in rows.items()
    }
    return block(f"{json.dumps(file)}: {block(lines)}" for file, lines in files.items()) + "\n"


def _by_rule(rows: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """For each rule of a file the fingerprints of what it says of it."""
    prints: dict[str, set[str]] = defaultdict(set)
    for says, rules in rows.items():
        for rule in rules:
            prints[rule].add(fingerprint_of(says))
    return [(rule, " ".join(sorted(of))) for rule, of in sorted(prints.items())]


if __name__ == "__main__":
    read = _reader(dict(argument.split("=", 1) for argument in sys.argv[1:]))
    PLACE.write_text(_as_json(table(read, all_rules().values())), encoding="utf-8")
