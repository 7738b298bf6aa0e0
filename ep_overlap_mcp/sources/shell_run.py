"""A walk through a shell script that runs nothing: which commands it would start, with which words and environment.

Where the text does not decide a condition, all branches are followed. What they agree on is known; options that only
some of them add stay in the command, marked with the variable that decides.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.shell_arithmetic import UndecidedError, arithmetic
from ep_overlap_mcp.sources.shell_assignments import assign, assign_number, declare, formatted, read_in, unset
from ep_overlap_mcp.sources.shell_conditions import UNDECIDED, Decision, arms, decide, is_test
from ep_overlap_mcp.sources.shell_scope import (
    Pieces,
    Scalar,
    Scope,
    merge,
    scalar_of,
    text_of,
    unresolved_in,
)
from ep_overlap_mcp.sources.shell_syntax import Source, Unquoted
from ep_overlap_mcp.sources.shell_words import Expander, heredoc
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tree_sitter import Node

_MAX_DEPTH: Final = 12
_MAX_ROUNDS: Final = 32
_MAX_COUNT: Final = 512
_MAX_NAMES: Final = 8
MAX_STEPS: Final = 20_000
_SHELLS: Final = {"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"}
_PRINTS: Final = {"echo", "printf"}
_SKIPPED: Final = {"comment", "function_definition", "heredoc_body"}


@dataclass(frozen=True)
class Command:
    """A command as it would start.

    `environment` maps exported names to their values, None where the text unsets one, and to where that is said.
    """

    words: tuple[Pieces, ...]
    place: int | None
    environment: dict[str, tuple[Pieces | None, int | None]]


@dataclass
class Run:
    """What a walk saw.

    `sourced` are the files that the script reads; nobody opened them. `unread` are parts that it leaves out or that
    bash does: the text, its place and the reason. `unquoted` are expressions without quotes, with whether a shell
    inside the script gets them.
    """

    commands: list[Command] = field(default_factory=list)
    sourced: list[tuple[str, int | None]] = field(default_factory=list)
    unread: list[tuple[str, int | None, str]] = field(default_factory=list)
    unquoted: list[tuple[Unquoted, bool]] = field(default_factory=list)
    steps: int = 0

    @property
    def finished(self) -> bool:
        """Whether the script was followed to its end."""
        return self.steps <= MAX_STEPS


class _LeaveError(Exception):
    """The script or function ends here. `failed` marks an exit that reports a mistake of the caller."""

    def __init__(self, *, failed: bool, function: bool) -> None:
        super().__init__()
        self.failed = failed
        self.function = function


def walk(source: Source, scope: Scope) -> Run:
    """Follow a script from its first to its last line; `scope` ends as the script leaves it."""
    run = Run()
    _Walker(source, scope, run).script()
    return run


def walk_functions(scope: Scope) -> Run:
    """Follow the functions that a script defines, for one that calls them in a way that the text does not show."""
    run = Run()
    for source, body in scope.functions.values():
        walker = _Walker(source, scope.branch(), run)
        with suppress(_LeaveError):
            walker.statements([body])
    return run


class _Walker:
    """One source, one scope; nested scripts get a walker of their own."""

    def __init__(
        self, source: Source, scope: Scope, run: Run, depth: int = 0, launcher: tuple[Pieces, ...] = ()
    ) -> None:
        self.source = source
        self.scope = scope
        self.run = run
        self.depth = depth
        self.launcher = launcher

    @property
    def expander(self) -> Expander:
        return Expander(self.source, self.scope)

    def script(self) -> None:
        self.run.unquoted += [(found, self.depth > 0) for found in self.source.unquoted()]
        with suppress(_LeaveError):
            self.statements(self.source.root.children)

    def statements(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.run.steps += 1
            if self.run.steps > MAX_STEPS:
                return
            visit = _VISITS.get(node.type)
            if visit is not None:
                visit(self, node)
            elif node.is_named and node.type not in _SKIPPED:
                self.statements(node.named_children)

    # assignments

    def assignment(self, node: Node) -> None:
        assign(node, self.expander)

    def declaration(self, node: Node) -> None:
        declare(node, self.expander)

    def unset(self, node: Node) -> None:
        unset(node, self.expander)

    def _arithmetic_assignment(self, text: str) -> None:
        assign_number(text, self.expander)

    # control flow

    def if_(self, node: Node) -> None:
        conditions, otherwise = arms(node)
        undecided: list[tuple[Decision, Sequence[Node]]] = []
        for condition, body in conditions:
            self._decided(condition)  # a command may stand there, or an assignment by default
            decision = decide(condition[-1], self.source, self.scope) if condition else UNDECIDED
            if decision.holds:
                otherwise = body
                break
            if decision.holds is None:
                undecided.append((decision, body))
        if not undecided:
            self._decided(otherwise)
            return
        causes = tuple(name for decision, _ in undecided for name in decision.causes)
        absent = undecided[0][0].absent if len(undecided) == 1 else None
        self._branches([*(body for _, body in undecided), otherwise], causes, absent)

    def _decided(self, body: Sequence[Node]) -> None:
        """A branch that ends in a failing exit is the script's complaint about its caller: it did not happen."""
        kept = self.scope.branch()
        try:
            self.statements(body)
        except _LeaveError as leave:
            if not leave.failed:
                raise
            self.scope.variables, self.scope.exported = kept.variables, kept.exported

    def _branches(self, bodies: list[Sequence[Node]], causes: tuple[str, ...], absent: str | None) -> None:
        """Follow several branches, of which one runs, and keep what they agree on."""
        before = self.scope
        after: list[Scope] = []
        for body in bodies:
            self.scope = before.branch()
            try:
                self.statements(body)
            except _LeaveError as leave:
                if not leave.failed and not leave.function:
                    continue
                if leave.failed:
                    continue
            after.append(self.scope)
        self.scope = before
        if after:
            default = after[0].variables.get(absent) if absent else None
            merge(before, after, causes[0] if causes else "a condition")
            if absent and default is not None and absent not in after[-1].variables:
                before.variables[absent] = default

    def case(self, node: Node) -> None:
        items = [child for child in node.named_children if child.type == "case_item"]
        subject = self.expander.value(next(iter(node.named_children), None))
        bodies = [(self._patterns(item), _body(item)) for item in items]
        if causes := unresolved_in(subject):
            rest: list[Sequence[Node]] = [] if any("*" in p for p, _ in bodies) else [[]]
            self._branches([*(body for _, body in bodies), *rest], tuple(causes), None)
            return
        text = text_of(subject)
        for patterns, body in bodies:
            if any(fnmatchcase(text, p) for p in patterns if p.count("*") <= 4):
                self._decided(body)
                return

    def _patterns(self, item: Node) -> list[str]:
        found = []
        for child in item.children:
            if child.type == ")":
                break
            if child.type not in ("|", "("):
                found.append(text_of(self.expander.value(child)))
        return found

    def for_(self, node: Node) -> None:
        name = self.source.written(node.named_children[0])
        body = [child for child in node.named_children if child.type in ("do_group", "compound_statement")]
        lists = [c for c in node.named_children[1:] if c.type not in ("do_group", "comment", "ERROR")]
        if self.scope.arguments is None and self._over_own_arguments(node, lists):
            self._not_followed(node, body)
        values = self.expander.words(lists)
        open_ended = any(unresolved_in(v) for v in values) or len(values) > _MAX_ROUNDS
        if node.children[0].type == "select" or open_ended:
            values = [(Piece(f"${{{name}}}", unresolved=name),)]
        for value in values:
            self.scope.variables[name] = Scalar(value)
            self._loop_body(body)

    def _over_own_arguments(self, node: Node, lists: Sequence[Node]) -> bool:
        """`for a in "$@"`, or `for a` without a list, which means the same."""
        if not lists:
            return not any(child.type in ("in", "ERROR") for child in node.children)
        return any(name in self.source.written(n) for n in lists for name in ("$@", "${@", "$*", "${*"))

    def _not_followed(self, node: Node, body: Sequence[Node]) -> None:
        """A loop over the script's own arguments, of which there are none: what it would set is said."""
        names = list(dict.fromkeys(_targets(body, self.source)))
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        could = ", ".join(f"`{name}`" for name in names[:_MAX_NAMES]) + more if names else "no variable"
        head = self.source.text[self.source.start(node) :].partition("\n")[0].partition(" do")[0].rstrip(" ;")
        why = (
            f"a loop over the script's own arguments; the script is judged as called without any (it could set {could})"
        )
        self.run.unread.append((head, self.source.place(node), why))

    def counted(self, node: Node) -> None:
        """`for ((i=0; i<n; i++))` with known bounds is followed; else the counter is unknown."""
        first, condition, step = (part.strip() for part in self._header(node))
        body = [c for c in node.named_children if c.type in ("do_group", "compound_statement")]
        self._arithmetic_assignment(first)
        try:
            for _ in range(_MAX_COUNT):
                if not arithmetic(condition.replace("$", ""), self.expander.integer):
                    return
                self._loop_body(body)
                self._arithmetic_assignment(step)
        except UndecidedError:
            self._loop_body(body)

    def _header(self, node: Node) -> list[str]:
        """The three parts between the double parentheses."""
        opened, closed = (next((c for c in node.children if c.type == t), node) for t in ("((", "))"))
        parts = self.source.text[self.source.stop(opened) : self.source.start(closed)].split(";")
        return [*parts, "", "", ""][:3]

    def while_(self, node: Node) -> None:
        """A loop over the script's own arguments has none to read; any other may run or not."""
        condition = node.named_children[0]
        written = self.source.written(condition)
        if self.scope.arguments is None and any(s in written for s in ("$#", "getopts", "$1", "${1")):
            self._not_followed(node, node.named_children[1:])
            return
        if node.children[0].type == "until":
            self._loop_body(node.named_children[1:])
            return
        decision = decide(condition, self.source, self.scope)
        if decision.holds is not False:
            self._branches([node.named_children[1:], []], decision.causes, None)

    def _loop_body(self, body: Sequence[Node]) -> None:
        try:
            self.statements(body)
        except _LeaveError as leave:
            if not leave.failed:
                raise

    def and_or(self, node: Node) -> None:
        """`a && b` and `a || b`; a command that is no test is taken to succeed."""
        if len(node.named_children) < 2:
            self.statements(node.named_children)
            return
        left, right = node.named_children[0], node.named_children[-1]
        sign = next((child.type for child in node.children if child.type in ("&&", "||")), "&&")
        decision = decide(left, self.source, self.scope) if is_test(left) else Decision(holds=True)
        if not is_test(left):
            self.statements([left])
            if left.type == "list" and sign == "||" and is_test(left.named_children[0]):
                decision = decide(left.named_children[0], self.source, self.scope)
        if decision.holds is None:
            absent = decision.absent if sign == "&&" else None
            self._branches([[right], []], decision.causes, absent)
        elif decision.holds is (sign == "&&"):
            self._decided([right])

    def subshell(self, node: Node) -> None:
        before = self.scope
        self.scope = before.branch()
        try:
            self.statements(node.named_children)
        except _LeaveError:
            pass
        finally:
            self.scope = before

    def function(self, node: Node) -> None:
        named = node.named_children
        if len(named) > 1:
            self.scope.functions[self.source.written(named[0])] = (self.source, named[-1])

    def compound(self, node: Node) -> None:
        if not node.children or node.children[0].type != "((":
            self.statements(node.named_children)
            return
        start, stop = self.source.start(node) + 2, self.source.stop(node) - 2
        for part in self.source.text[start:stop].split(","):
            self._arithmetic_assignment(part)

    # commands

    def command(self, node: Node) -> None:
        self._start(node, None)

    def redirected(self, node: Node) -> None:
        """A here-document is the input of its command: a script for a shell, text for anything else."""
        body = node.child_by_field_name("body") or (node.named_children[0] if node.named_children else None)
        if body is None or body.type != "command" or heredoc(node) is None:
            self.statements([body] if body is not None else [])
            return
        self._start(body, node)

    def _start(self, node: Node, redirected: Node | None) -> None:
        prefix = [child for child in node.children if child.type == "variable_assignment"]
        arguments = [
            child
            for child in node.named_children
            if child.type not in ("variable_assignment", "comment") and not child.type.endswith("_redirect")
        ]
        used = set(self.scope.used)
        words = self.expander.words(arguments)
        if not words:
            for child in prefix:
                assign(child, self.expander)
            return
        name = text_of(words[0])
        if name.startswith("--"):
            self._lost(words, node)
        if name in _PRINTS:
            self.scope.used = used
        if redirected is not None and self._heredoc(name, words, redirected):
            return
        if not self._builtin(name, words, node):
            self._external(words, prefix, node)

    def _lost(self, words: list[Pieces], node: Node) -> None:
        """Flags that begin a command of their own: the line before them ends without a backslash, or in a comment."""
        written = " ".join(text_of(word) for word in words)
        why = "these flags reach no program: bash ends the command before them at a comment or a line without `\\`"
        self.run.unread.append((written, self.source.place(node), why))

    def _heredoc(self, name: str, words: list[Pieces], redirected: Node) -> bool:
        text = self.expander.heredoc_text(redirected)
        written = self.source.written(redirected).partition("<<")[0]
        if name == "read":
            self.scope.variables[text_of(words[-1])] = Scalar(text)
            return True
        if name in _SHELLS or name in ("sbatch", "ssh", "srun") or (name in ("cat", "tee") and ".s" in written):
            self._nested(text, self.scope.branch())
            return True
        return False

    def _builtin(self, name: str, words: list[Pieces], node: Node) -> bool:
        if name in ("source", "."):
            self.run.sourced.append((text_of(words[1]) if len(words) > 1 else "", self.source.place(node)))
        elif name == "eval":
            self._nested(_spaced(words[1:]), self.scope)
        elif name in ("exit", "return"):
            status = text_of(words[1]) if len(words) > 1 else "0"
            raise _LeaveError(failed=status != "0" and name == "exit", function=name == "return")
        elif name in ("read", "mapfile", "readarray"):
            read_in(words, node, self.expander)
        elif name == "printf" and len(words) > 3 and text_of(words[1]) == "-v":
            self.scope.variables[text_of(words[2])] = Scalar(formatted(words[3], words[4:]))
        elif name == "let":
            for word in words[1:]:
                self._arithmetic_assignment(text_of(word))
        elif name in self.scope.functions and self.depth < _MAX_DEPTH:
            self._call(name, words)
        elif name not in ("set", "shift", "echo", "printf", "cd", "mkdir", "trap", "shopt", "ulimit"):
            return False
        return True

    def _call(self, name: str, words: list[Pieces]) -> None:
        source, body = self.scope.functions[name]
        before = self.scope.arguments
        self.scope.arguments = tuple(words[1:])
        walker = _Walker(source, self.scope, self.run, self.depth + 1, self.launcher)
        try:
            walker.statements([body])
        except _LeaveError as leave:
            if not leave.function:
                raise
        finally:
            self.scope.arguments = before

    def _external(self, words: list[Pieces], prefix: list[Node], node: Node) -> None:
        environment = self._environment()
        if prefix:
            own = Scope(variables=dict(self.scope.variables), spent=self.scope.spent)
            expander = Expander(self.source, own)
            names = [assign(child, expander) for child in prefix]
            place = self.source.place(node)
            environment.update({n: (scalar_of(own.variables.get(n)), place) for n in names})
        inline = _inline_script(words)
        if inline is not None and self.depth < _MAX_DEPTH:
            own = self.scope.branch()
            own.variables.update({n: None if p is None else Scalar(p) for n, (p, _) in environment.items()})
            own.exported.update({n: place for n, (_, place) in environment.items()})
            shell, script = inline
            self._nested(words[script], own, (*self.launcher, *words[:shell]))
            return
        command = Command((*self.launcher, *words), self.source.place(node), environment)
        self.run.commands.append(command)

    def _environment(self) -> dict[str, tuple[Pieces | None, int | None]]:
        variables, exported = self.scope.variables, self.scope.exported
        return {n: (scalar_of(variables[n]), place) for n, place in exported.items() if n in variables}

    def _nested(self, text: Pieces, scope: Scope, launcher: tuple[Pieces, ...] | None = None) -> None:
        if self.depth < _MAX_DEPTH and text:
            words = self.launcher if launcher is None else launcher
            _Walker(Source.of(text), scope, self.run, self.depth + 1, words).script()


_VISITS: Final[dict[str, Callable[[_Walker, Node], object]]] = {
    "variable_assignment": _Walker.assignment,
    "declaration_command": _Walker.declaration,
    "unset_command": _Walker.unset,
    "if_statement": _Walker.if_,
    "case_statement": _Walker.case,
    "for_statement": _Walker.for_,
    "c_style_for_statement": _Walker.counted,
    "while_statement": _Walker.while_,
    "list": _Walker.and_or,
    "subshell": _Walker.subshell,
    "function_definition": _Walker.function,
    "compound_statement": _Walker.compound,
    "test_command": lambda _walker, _node: None,
    "command": _Walker.command,
    "redirected_statement": _Walker.redirected,
}


def _targets(nodes: Sequence[Node], source: Source) -> Iterator[str]:
    """The variables that some statements assign, in order."""
    for node in nodes:
        if node.type == "variable_assignment":
            target = node.children[0]
            yield source.written(target if target.type != "subscript" else target.children[0])
        yield from _targets(node.named_children, source)


def _body(item: Node) -> list[Node]:
    at = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
    return item.children[at + 1 :]


def _inline_script(words: Sequence[Pieces]) -> tuple[int, int] | None:
    """Where in `srun bash -x -c "script"` the shell and its script stand."""
    texts = [text_of(w) for w in words]
    shell = next((at for at, text in enumerate(texts) if text in _SHELLS), len(texts))
    for at in range(shell + 1, len(texts) - 1):
        if not texts[at].startswith("-"):
            return None
        if texts[at].endswith("c") and not texts[at].startswith("--"):
            return shell, at + 1
    return None


def _spaced(words: Sequence[Pieces]) -> Pieces:
    found: list[Piece] = []
    for number, word in enumerate(words):
        found += [Piece(" "), *word] if number else word
    return tuple(found)
