"""Conditions of `if`, `while`, `&&` and `||`, decided on known values; what depends on anything else is undecided."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.shell_arithmetic import UndecidedError, arithmetic
from ep_overlap_mcp.sources.shell_patterns import glued, holds_expression, matches, pattern
from ep_overlap_mcp.sources.shell_scope import text_of, unresolved_in
from ep_overlap_mcp.sources.shell_words import Expander

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_scope import Pieces, Scope
    from ep_overlap_mcp.sources.shell_syntax import Source

_NESTS: Final = {"unary_expression", "binary_expression", "parenthesized_expression"}
_SIGNS: Final = {"-", "--", "+", "++", "~"}
_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_TEXTS: Final = {"=", "==", "!=", "<", ">", "=~"}
_OPERATORS: Final = {*_NUMBERS, *_TEXTS, "!", "(", ")", "&&", "||", "-a", "-o"}


@dataclass(frozen=True)
class Decision:
    """Whether a condition holds, None where the text does not say; `causes` are the variables that would decide.

    `absent` is the variable whose absence the condition asks for, as in `[ -z "$X" ]`.
    """

    holds: bool | None
    causes: tuple[str, ...] = ()
    absent: str | None = None

    def negated(self) -> Decision:
        """The opposite."""
        return Decision(None if self.holds is None else not self.holds, self.causes)


@dataclass(frozen=True)
class _Operand:
    pieces: Pieces

    @property
    def text(self) -> str:
        return text_of(self.pieces)

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(unresolved_in(self.pieces))


UNDECIDED: Final = Decision(None)


def decide(node: Node, source: Source, scope: Scope) -> Decision:
    """A condition's truth."""
    expander = Expander(source, scope, strict=True)
    kind = node.type
    if kind == "negated_command":
        return decide(node.named_children[0], source, scope).negated()
    if kind == "list" and len(node.named_children) == 2:
        left, right = (decide(child, source, scope) for child in node.named_children)
        return _both(left, right) if node.children[1].type == "&&" else _either(left, right)
    if kind == "compound_statement" and node.children[0].type == "((":
        return _number(node, expander)
    if kind == "test_command" and node.children[0].type == "((":
        return _number(node, expander)
    if kind == "test_command":
        extended = node.children[0].type == "[["
        return _Test(_tokens(node.children[1:-1], expander), expander if extended else None).decision()
    if kind == "command":
        return _command(node, expander)
    return UNDECIDED


def is_test(node: Node) -> bool:
    """Whether a statement only decides something, as `[ … ]` does."""
    if node.type == "negated_command":
        return is_test(node.named_children[0])
    if node.type == "list":
        return all(is_test(child) for child in node.named_children)
    arithmetic_test = node.type == "compound_statement" and node.children[0].type == "(("
    return node.type == "test_command" or arithmetic_test or _name(node) in ("test", "true", "false", ":")


def _name(node: Node) -> str:
    first = node.child_by_field_name("name") if node.type == "command" else None
    return (first.text or b"").decode("utf-8", "replace") if first is not None else ""


def arms(node: Node) -> tuple[list[tuple[list[Node], list[Node]]], list[Node]]:
    """The conditions of an `if`, each with its branch, and the branch without one."""
    found = [_arm(node.children)]
    otherwise: list[Node] = []
    for child in node.named_children:
        if child.type == "elif_clause":
            found.append(_arm(child.children))
        elif child.type == "else_clause":
            otherwise = child.named_children
    return found, otherwise


def _arm(children: list[Node]) -> tuple[list[Node], list[Node]]:
    at = next((i for i, child in enumerate(children) if child.type == "then"), len(children))
    kept = [child for child in children[at:] if child.type not in ("elif_clause", "else_clause")]
    return [c for c in children[:at] if c.is_named and c.type != "comment"], kept


def _command(node: Node, expander: Expander) -> Decision:
    words = [_Operand(w) for w in expander.words(node.named_children)]
    name = words[0].text if words else ""
    if name in ("true", ":", "false"):
        return Decision(name != "false")
    if name != "test":
        return UNDECIDED
    return _Test([w.text if w.text in _OPERATORS else w for w in words[1:]]).decision()


def _number(node: Node, expander: Expander) -> Decision:
    start, stop = expander.source.start(node) + 2, expander.source.stop(node) - 2
    try:
        text = expander.expanded(expander.source.text[start:stop], node.named_children, start)
        return Decision(bool(arithmetic(text, expander.integer)))
    except UndecidedError as undecided:
        return Decision(None, undecided.names)


def _tokens(nodes: list[Node], expander: Expander) -> list[str | _Operand]:
    """The words of a test in order: the grammar nests them without regard to precedence."""
    found: list[str | _Operand] = []
    for group in glued([leaf for node in nodes for leaf in _leaves(node)]):
        written = expander.source.written(group[0])
        if len(group) == 1 and written in _OPERATORS and group[0].child_count == 0:
            found.append(written)
        elif len(group) == 1 and group[0].type == "unary_expression":  # the word `--flag`, to the grammar
            start, stop = expander.source.start(group[0]), expander.source.stop(group[0])
            inner = expander.between(group[0].children[1:], start, stop, quoted=False)
            found.append(_Operand(tuple(piece for piece in inner if piece is not None)))
        else:
            found.append(_Operand(pattern(group, expander)))
    return found


def _leaves(node: Node) -> Iterator[Node]:
    """The words and signs that the grammar nests."""
    if node.type in _NESTS and not (node.type == "unary_expression" and node.children[0].type in _SIGNS):
        for child in node.children:
            yield from _leaves(child)
    else:
        yield node


class _Test:
    """`[ … ]`, `[[ … ]]` and `test …`, read by precedence; only `[[` has patterns and calculates, with the expander."""

    def __init__(self, tokens: list[str | _Operand], expander: Expander | None = None) -> None:
        self.tokens = tokens
        self.expander = expander
        self.at = 0

    def decision(self) -> Decision:
        found = self._or()
        return found if self.at == len(self.tokens) else UNDECIDED

    def _next(self, *expected: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at] in expected:
            self.at += 1
            return True
        return False

    def _or(self) -> Decision:
        found = self._and()
        while self._next("||", "-o"):
            found = _either(found, self._and())
        return found

    def _and(self) -> Decision:
        found = self._not()
        while self._next("&&", "-a"):
            found = _both(found, self._not())
        return found

    def _not(self) -> Decision:
        if self._next("!"):
            return self._not().negated()
        if self._next("("):
            found = self._or()
            return found if self._next(")") else UNDECIDED
        return self._comparison()

    def _comparison(self) -> Decision:
        rest = self.tokens[self.at : self.at + 3]
        if len(rest) == 3 and isinstance(rest[1], str) and rest[1] in (*_TEXTS, *_NUMBERS):
            left, sign, right = rest
            if isinstance(left, _Operand) and isinstance(right, _Operand):
                self.at += 3
                return _compared(left, str(sign), right, self.expander)
        if len(rest) >= 2 and isinstance(rest[0], _Operand) and re.fullmatch(r"-[a-zA-Z]", rest[0].text):
            subject = rest[1]
            if isinstance(subject, _Operand):
                self.at += 2
                return _unary(rest[0].text, subject)
        if rest and isinstance(rest[0], _Operand):
            self.at += 1
            return _unary("-n", rest[0])
        self.at = len(self.tokens) + 1
        return UNDECIDED


def _unary(sign: str, subject: _Operand) -> Decision:
    if sign not in ("-z", "-n"):
        return Decision(None, subject.causes)
    if subject.causes:
        only = subject.causes[0] if len(subject.causes) == 1 else None
        return Decision(None, subject.causes, absent=only if sign == "-z" else None)
    return Decision((subject.text == "") is (sign == "-z"))


def _compared(left: _Operand, sign: str, right: _Operand, expander: Expander | None) -> Decision:
    causes = (*left.causes, *right.causes)
    if causes:
        empty = sign in ("=", "==") and right.text == "" and len(left.causes) == 1
        return Decision(None, causes, absent=left.causes[0] if empty else None)
    if sign in _NUMBERS:
        return _numbers_compared(left.text, sign, right.text, expander)
    if sign in ("<", ">"):
        return Decision(left.text < right.text if sign == "<" else left.text > right.text)
    if sign == "=~":
        return Decision(holds_expression(left.text, right.pieces))
    same = left.text == right.text if expander is None else matches(left.text, right.pieces)
    return Decision(same) if sign != "!=" else Decision(same).negated()


def _numbers_compared(left: str, sign: str, right: str, expander: Expander | None) -> Decision:
    if expander is not None:
        try:
            return Decision(_NUMBERS[sign](*(arithmetic(text, expander.integer) for text in (left, right))))
        except UndecidedError as undecided:
            return Decision(None, undecided.names)
    numbers = [int(text) for text in (left, right) if re.fullmatch(r"[-+]?\d{1,18}", text.strip())]
    if len(numbers) == 2:
        return Decision(_NUMBERS[sign](*numbers))
    return UNDECIDED if left and right else Decision(holds=False)  # `[ "" -eq 1 ]` is an error


def _both(left: Decision, right: Decision) -> Decision:
    if left.holds is False or right.holds is False:
        return Decision(holds=False)
    if left.holds and right.holds:
        return Decision(holds=True)
    return Decision(None, (*left.causes, *right.causes))


def _either(left: Decision, right: Decision) -> Decision:
    if left.holds or right.holds:
        return Decision(holds=True)
    if left.holds is False and right.holds is False:
        return Decision(holds=False)
    return Decision(None, (*left.causes, *right.causes))
