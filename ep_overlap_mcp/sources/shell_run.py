"""A walk through a shell script that runs nothing: which commands it would start, with which words and environment.

Where the text does not decide a condition, all branches are followed. What they agree on is known; options that only
some of them add stay in the command, marked with the variable that decides.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from ep_overlap_mcp.sources.shell_arguments import set_options, shift
from ep_overlap_mcp.sources.shell_assignments import (
    assign,
    assign_number,
    declare,
    evaluated,
    formatted,
    read_in,
    unset,
)
from ep_overlap_mcp.sources.shell_cases import case
from ep_overlap_mcp.sources.shell_conditions import UNDECIDED, Decision, arms, decide, is_test
from ep_overlap_mcp.sources.shell_leaving import LeaveError, Left
from ep_overlap_mcp.sources.shell_loops import counted, for_, while_
from ep_overlap_mcp.sources.shell_merge import joined, merge
from ep_overlap_mcp.sources.shell_scope import Pieces, Scalar, Scope, scalar_of, text_of
from ep_overlap_mcp.sources.shell_syntax import Source, Unquoted
from ep_overlap_mcp.sources.shell_words import Expander, heredoc
from ep_overlap_mcp.sources.words import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_leaving import Way

_MAX_DEPTH: Final = 12
MAX_STEPS: Final = 20_000
_SHELLS: Final = {"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"}
_PRINTS: Final = {"echo", "printf"}
_AMPERSAND: Final = re.compile(r"[ \t]*&(?![&>])")
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


def walk(source: Source, scope: Scope) -> Run:
    """Follow a script from its first to its last line; `scope` ends as the script leaves it."""
    run = Run()
    Walker(source, scope, run).script()
    return run


def walk_functions(scope: Scope) -> Run:
    """Follow the functions that a script defines, for one that calls them in a way that the text does not show."""
    run = Run()
    for source, body in scope.functions.values():
        with suppress(LeaveError):
            Walker(source, scope.branch(), run).to_end([body])
    return run


class Walker:
    """One source, one scope; nested scripts get a walker of their own."""

    def __init__(
        self, source: Source, scope: Scope, run: Run, depth: int = 0, launcher: tuple[Pieces, ...] = ()
    ) -> None:
        self.source = source
        self.scope = scope
        self.run = run
        self.depth = depth
        self.launcher = launcher
        self.left: list[Left] = []
        self.loops = 0

    @property
    def expander(self) -> Expander:
        """What expands the words of this source on what is known now."""
        return Expander(self.source, self.scope)

    def script(self) -> None:
        """Follow the whole source. A branch that may end it is an exit, or the guard of a file that was sourced."""
        self.run.unquoted += [(found, self.depth > 0) for found in self.source.unquoted()]
        with suppress(LeaveError):
            self.to_end(self.source.root.children, returns=False)

    def to_end(self, nodes: Sequence[Node], *, returns: bool = True) -> None:
        """Follow a function: its branches that may have returned before its end count too."""
        before = self.scope.copy()
        ends = [self.scope]
        try:
            self.statements(nodes)
        except LeaveError as leave:
            if leave.way == "exit":
                raise
            ends = [self.scope] if leave.way != "all" else []
        if self.left and (returns or not ends):
            ends = [*(scope.copy() for scope in ends), *(left.scope for left in self.left)]
            self.scope.become(joined(before, ends, self.left[0].cause))

    def statements(self, nodes: Sequence[Node]) -> None:
        """Follow some statements, unless the script takes too many steps."""
        for node in nodes:
            self.run.steps += 1
            if self.run.steps > MAX_STEPS:
                return
            if self._in_background(node):
                with self._process():
                    self._statement(node)
            else:
                self._statement(node)

    def _statement(self, node: Node) -> None:
        visit = self._visits.get(node.type)
        if visit is not None:
            visit(self, node)
        elif node.is_named and node.type not in _SKIPPED:
            self.statements(node.named_children)

    def _in_background(self, node: Node) -> bool:
        """Whether `&` follows."""
        text, stop = self.source.text, self.source.stop(node)
        return node.is_named and _AMPERSAND.match(text, stop) is not None

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Follow statements once more, whose commands and parts are noted already."""
        run = self.run
        self.run = Run(steps=run.steps)
        try:
            yield
        finally:
            run.steps = self.run.steps
            self.run = run

    # assignments

    def _assignment(self, node: Node) -> None:
        assign(node, self.expander)

    def _declaration(self, node: Node) -> None:
        declare(node, self.expander)

    def _unset(self, node: Node) -> None:
        unset(node, self.expander)

    def calculate(self, text: str) -> None:
        """The assignments between double parentheses."""
        for part in text.split(","):
            assign_number(part, self.expander)

    # control flow

    def _if(self, node: Node) -> None:
        conditions, otherwise = arms(node)
        undecided: list[tuple[Decision, Sequence[Node]]] = []
        for condition, body in conditions:
            self.decided(condition)  # a command may stand there, or an assignment by default
            decision = decide(condition[-1], self.source, self.scope) if condition else UNDECIDED
            if decision.holds:
                otherwise = body
                break
            if decision.holds is None:
                undecided.append((decision, body))
        if not undecided:
            self.decided(otherwise)
            return
        causes = tuple(name for decision, _ in undecided for name in decision.causes)
        absent = undecided[0][0].absent if len(undecided) == 1 else None
        self.branches([*(body for _, body in undecided), otherwise], causes, absent)

    def decided(self, body: Sequence[Node]) -> None:
        """A branch that ends in a failing exit is the script's complaint about its caller: it did not happen."""
        kept = self.scope.branch()
        try:
            self.statements(body)
        except LeaveError as leave:
            if not leave.failed:
                raise
            self.scope.become(kept)

    def branches(self, bodies: list[Sequence[Node]], causes: tuple[str, ...], absent: str | None) -> None:
        """Follow several branches, of which one runs, and keep what they agree on."""
        before, waiting = self.scope, len(self.left)
        cause = causes[0] if causes else "a condition"
        after: list[Scope] = []
        for body in bodies:
            self.scope = before.branch()
            try:
                self.statements(body)
                after.append(self.scope)
            except LeaveError as leave:
                if leave.way not in ("exit", "all"):
                    self.left.append(Left(leave.way, leave.loops, self.scope, cause))
        self.scope = before
        if not after and len(self.left) > waiting:
            raise LeaveError("all")
        if after:
            default = after[0].variables.get(absent) if absent else None
            merge(before, after, cause)
            if absent and default is not None and absent not in after[-1].variables:
                before.variables[absent] = default

    def _and_or(self, node: Node) -> None:
        """`a && b` and `a || b`; a command that is neither a test nor a function is taken to succeed."""
        if len(node.named_children) < 2:
            self.statements(node.named_children)
            return
        left, right = node.named_children[0], node.named_children[-1]
        sign = next((child.type for child in node.children if child.type in ("&&", "||")), "&&")
        decision = decide(left, self.source, self.scope) if is_test(left) else Decision(holds=True)
        if not is_test(left):
            self.statements([left])
            if self._is_function(left):
                decision = UNDECIDED
            if left.type == "list" and sign == "||" and is_test(left.named_children[0]):
                decision = decide(left.named_children[0], self.source, self.scope)
        if decision.holds is None:
            absent = decision.absent if sign == "&&" else None
            self.branches([[right], []], decision.causes, absent)
        elif decision.holds is (sign == "&&"):
            self.decided([right])

    def _subshell(self, node: Node) -> None:
        with self._process():
            self.statements(node.named_children)

    def _pipeline(self, node: Node) -> None:
        for part in node.named_children:
            with self._process():
                self._statement(part)

    @contextmanager
    def _process(self) -> Iterator[None]:
        """A process of its own: what is assigned in it does not stay, and only it ends by an `exit`."""
        before, waiting = self.scope, len(self.left)
        self.scope = before.branch()
        try:
            with suppress(LeaveError):
                yield
        finally:
            self.scope = before
            del self.left[waiting:]

    def _is_function(self, node: Node) -> bool:
        name = node.child_by_field_name("name") if node.type == "command" else None
        return name is not None and self.source.written(name) in self.scope.functions

    def _function(self, node: Node) -> None:
        named = node.named_children
        if len(named) > 1:
            self.scope.functions[self.source.written(named[0])] = (self.source, named[-1])

    def _compound(self, node: Node) -> None:
        if not node.children or node.children[0].type != "((":
            self.statements(node.named_children)
            return
        start, stop = self.source.start(node) + 2, self.source.stop(node) - 2
        self.calculate(self.source.text[start:stop])

    # commands

    def _command(self, node: Node) -> None:
        self._start(node, None)

    def _redirected(self, node: Node) -> None:
        """A here-document is the input of its command: a script for a shell, text for anything else."""
        body = node.child_by_field_name("body") or (node.named_children[0] if node.named_children else None)
        if body is None or body.type != "command" or heredoc(node) is None:
            self.statements([body] if body is not None else [])
            return
        self._start(body, node)

    def _start(self, node: Node, redirected: Node | None) -> None:
        prefix = _prefix(node)
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
            self._nested(text, self.scope.child(closed=not self.run.sourced))
            return True
        return False

    def _builtin(self, name: str, words: list[Pieces], node: Node) -> bool:
        if name in ("source", "."):
            self.run.sourced.append((text_of(words[1]) if len(words) > 1 else "", self.source.place(node)))
        elif name == "eval":
            self._nested(_spaced(words[1:]), self.scope)
        elif name in ("exit", "return"):
            status = text_of(words[1]) if len(words) > 1 else "0"
            raise LeaveError("exit" if name == "exit" else "return", failed=status != "0" and name == "exit")
        elif name in ("break", "continue"):
            self._leave_loops("break" if name == "break" else "continue", words[1:])
        elif name == "set":
            set_options(words[1:], self.scope)
        elif name == "shift":
            shift(words[1:], self.scope)
        elif name in ("read", "mapfile", "readarray"):
            read_in(words, node, self.expander)
        elif name == "printf" and len(words) > 3 and text_of(words[1]) == "-v":
            self.scope.variables[text_of(words[2])] = Scalar(formatted(words[3], words[4:]))
        elif name == "let":
            for word in words[1:]:
                self.calculate(text_of(word))
        elif name in self.scope.functions and self.depth < _MAX_DEPTH:
            self._call(name, words, node)
        elif name not in ("echo", "printf", "cd", "mkdir", "trap", "shopt", "ulimit"):
            return False
        return True

    def _leave_loops(self, way: Way, words: list[Pieces]) -> None:
        """`break` and `continue`, which mean nothing outside a loop; of how many where nobody knows, of one."""
        count = text_of(words[0]) if words else "1"
        if self.loops:
            raise LeaveError(way, loops=min(int(count) if count.isdigit() else 1, self.loops))

    def _call(self, name: str, words: list[Pieces], node: Node) -> None:
        source, body = self.scope.functions[name]
        caller = self.scope.arguments
        self.scope.enter(tuple(words[1:]))
        try:
            for assignment in _prefix(node):
                variable, value = evaluated(assignment, self.expander)
                self.scope.own(variable)
                self.scope.variables[variable] = value
                self.scope.exported[variable] = self.source.place(assignment)
            Walker(source, self.scope, self.run, self.depth + 1, self.launcher).to_end([body])
        finally:
            self.scope.leave(caller)

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
            own = self.scope.child(closed=not self.run.sourced)
            own.variables.update({n: None if p is None else Scalar(p) for n, (p, _) in environment.items()})
            own.exported.update({n: place for n, (_, place) in environment.items()})
            shell, script = inline
            own.arguments = tuple(words[script + 2 :])
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
            Walker(Source.of(text), scope, self.run, self.depth + 1, words).script()

    _visits: ClassVar[dict[str, Callable[[Walker, Node], object]]] = {
        "variable_assignment": _assignment,
        "declaration_command": _declaration,
        "unset_command": _unset,
        "if_statement": _if,
        "case_statement": case,
        "for_statement": for_,
        "c_style_for_statement": counted,
        "while_statement": while_,
        "list": _and_or,
        "subshell": _subshell,
        "pipeline": _pipeline,
        "function_definition": _function,
        "compound_statement": _compound,
        "test_command": lambda _walker, _node: None,
        "command": _command,
        "redirected_statement": _redirected,
    }


def _prefix(node: Node) -> list[Node]:
    """The assignments before a command."""
    return [child for child in node.children if child.type == "variable_assignment"]


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
