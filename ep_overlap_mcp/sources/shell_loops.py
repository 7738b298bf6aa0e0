"""Loops of a shell script: followed round by round where the text settles how often they run.

Where it does not, what the rounds would change is unknown: they may run not at all, once or more often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.shell_arithmetic import UndecidedError, arithmetic, assignment
from ep_overlap_mcp.sources.shell_conditions import Decision, decide, is_test
from ep_overlap_mcp.sources.shell_leaving import LeaveError, Left, outer
from ep_overlap_mcp.sources.shell_merge import joined
from ep_overlap_mcp.sources.shell_scope import Array, Scalar, unknown, unknown_array, unresolved_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tree_sitter import Node

    from ep_overlap_mcp.sources.shell_run import Walker
    from ep_overlap_mcp.sources.shell_scope import Scope, Value
    from ep_overlap_mcp.sources.shell_syntax import Source

_MAX_ROUNDS: Final = 512
_MAX_NAMES: Final = 8
_BODIES: Final = {"do_group", "compound_statement"}


def for_(walker: Walker, node: Node) -> None:
    """`for x in a b`, `for x` over the arguments, and `select`, whose choice nobody knows."""
    name = walker.source.written(node.named_children[0])
    body = [child for child in node.named_children if child.type in _BODIES]
    lists = [c for c in node.named_children[1:] if c.type not in (*_BODIES, "comment", "ERROR")]
    over_arguments = not lists and not any(child.type in ("in", "ERROR") for child in node.children)
    if walker.scope.arguments is None and (over_arguments or _names_arguments(lists, walker.source)):
        _not_followed(walker, node, body)
    values = list(walker.scope.arguments or ()) if over_arguments else walker.expander.words(lists)
    causes = [cause for value in values for cause in unresolved_in(value)]
    loop = _Loop(walker, body)
    if node.children[0].type == "select" or causes or len(values) > _MAX_ROUNDS:
        walker.scope.variables[name] = Scalar((unknown(name),))
        loop.maybe(causes[0] if causes else name)
    else:
        for value in values:
            walker.scope.variables[name] = Scalar(value)
            if not loop.round():
                break
    loop.end()


def counted(walker: Walker, node: Node) -> None:
    """`for ((i=0; i<n; i++))`."""
    first, condition, step = _header(node, walker.source)
    walker.calculate(first)

    def decision() -> Decision:
        try:
            return Decision(bool(arithmetic(condition.replace("$", "") or "1", walker.expander.integer)))
        except UndecidedError as undecided:
            return Decision(None, undecided.names)

    loop = _Loop(walker, [c for c in node.named_children if c.type in _BODIES])
    if not loop.follow(decision, after=lambda: walker.calculate(step)):
        written = assignment(step)
        if written is not None:
            walker.scope.variables[written[0]] = Scalar((unknown(written[0]),))
        loop.maybe(*decision().causes[:1])
    loop.end()


def while_(walker: Walker, node: Node) -> None:
    """`while` and `until`; one over the script's own arguments has none to read."""
    body = [child for child in node.named_children if child.type == "do_group"]
    conditions = [c for c in node.named_children if c.type not in ("do_group", "comment", "ERROR")]
    written = " ".join(walker.source.written(condition) for condition in conditions)
    if walker.scope.arguments is None and any(s in written for s in ("$#", "getopts", "$1", "${1")):
        _not_followed(walker, node, body)
        return
    ends_where_true = node.children[0].type == "until"

    def decision() -> Decision:
        walker.statements([condition for condition in conditions if not is_test(condition)])
        found = decide(conditions[-1], walker.source, walker.scope) if conditions else Decision(None)
        return found.negated() if ends_where_true else found

    loop = _Loop(walker, body)
    if not loop.follow(decision):
        loop.maybe(*loop.causes[:1])
    loop.end()


class _Loop:
    """A loop on its way: what its rounds left by `break` and `continue` waits in the walker until they end."""

    def __init__(self, walker: Walker, body: Sequence[Node]) -> None:
        self.walker = walker
        self.body = body
        self.mark = len(walker.left)
        self.before = walker.scope.copy()
        self.reaches_end = True
        self.causes: tuple[str, ...] = ()

    def follow(self, decision: Callable[[], Decision], after: Callable[[], None] = lambda: None) -> bool:
        """Rounds while the condition holds; False where it is not known which is the last."""
        for _ in range(_MAX_ROUNDS):
            decided = decision()
            if decided.holds is None:
                self.causes = decided.causes
                return False
            known = dict(self.walker.scope.variables), self.walker.scope.arguments
            if not (decided.holds and self.round()):
                return True
            after()
            if len(self.walker.left) > self.mark:
                return False  # a branch of the round may have left the loop
            if known == (self.walker.scope.variables, self.walker.scope.arguments):
                return True  # `while true`: another round does the same again
        return False

    def round(self) -> bool:
        """Run the body once; whether its end or a `continue` is reached."""
        walker = self.walker
        walker.loops += 1
        ends = [walker.scope]
        try:
            walker.statements(self.body)
        except LeaveError as leave:
            if leave.way in ("break", "continue"):
                walker.left.append(Left(leave.way, leave.loops, walker.scope.copy(), "a condition"))
            elif leave.way != "all" and not leave.failed:
                raise
            ends = [walker.scope] if leave.failed else []
        finally:
            walker.loops -= 1
        self._join(ends, self._taken("continue"))
        return self.reaches_end

    def maybe(self, cause: str = "a loop") -> None:
        """Rounds that nobody counts."""
        walker = self.walker
        none = walker.scope.copy()
        if not self.round():
            self._join([], [Left("continue", 1, none, cause)])
            return
        once = walker.scope.copy()
        with walker.unheard():
            again = self.round()
        changed = _changed(once, walker.scope) if again else ()
        walker.scope.become(joined(none, [once, none], cause))
        for name in changed:
            walker.scope.variables[name] = _no_longer_known(name, walker.scope.variables.get(name))
        self.reaches_end = True

    def end(self) -> None:
        """What holds behind the loop."""
        self._join([self.walker.scope] if self.reaches_end else [], self._taken("break"))
        self.walker.left[self.mark :] = outer(self.walker.left[self.mark :])
        if not self.reaches_end:
            raise LeaveError("all")

    def _taken(self, way: str) -> list[Left]:
        """The branches that left the round, or the loop, this way."""
        waiting = self.walker.left[self.mark :]
        taken = [left for left in waiting if (left.way, left.loops) == (way, 1)]
        if taken:
            self.walker.left[self.mark :] = [left for left in waiting if (left.way, left.loops) != (way, 1)]
        return taken

    def _join(self, ends: list[Scope], taken: list[Left]) -> None:
        if taken:
            ends = [*(scope.copy() for scope in ends), *(left.scope for left in taken)]
            self.walker.scope.become(joined(self.before, ends, taken[0].cause))
        self.reaches_end = bool(ends)


def _changed(once: Scope, twice: Scope) -> list[str]:
    """What a second round makes another thing of than the first."""
    return [name for name, value in twice.variables.items() if value != once.variables.get(name)]


def _no_longer_known(name: str, value: Value | None) -> Value | None:
    """A value that the next round changes; options that hang on the rounds already say so."""
    if isinstance(value, Array):
        open_ended = any(unresolved_in(element) for element in value.elements)
        return value if open_ended else unknown_array(name)
    open_ended = isinstance(value, Scalar) and bool(unresolved_in(value.pieces))
    return value if open_ended else Scalar((unknown(name),))


def _names_arguments(lists: Sequence[Node], source: Source) -> bool:
    """`for a in "$@"`."""
    return any(name in source.written(n) for n in lists for name in ("$@", "${@", "$*", "${*"))


def _header(node: Node, source: Source) -> list[str]:
    """The three parts between the double parentheses."""
    opened, closed = (next((c for c in node.children if c.type == t), node) for t in ("((", "))"))
    parts = source.text[source.stop(opened) : source.start(closed)].split(";")
    return [part.strip() for part in [*parts, "", "", ""][:3]]


def _not_followed(walker: Walker, node: Node, body: Sequence[Node]) -> None:
    """A loop over the script's own arguments, of which there are none: what it would set is said."""
    source = walker.source
    names = list(dict.fromkeys(_targets(body, source)))
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    could = ", ".join(f"`{name}`" for name in names[:_MAX_NAMES]) + more if names else "no variable"
    head = source.text[source.start(node) :].partition("\n")[0].partition(" do")[0].rstrip(" ;")
    why = f"a loop over the script's own arguments; the script is judged as called without any (it could set {could})"
    walker.run.unread.append((head, source.place(node), why))


def _targets(nodes: Sequence[Node], source: Source) -> Iterator[str]:
    """The variables that some statements assign, in order."""
    for node in nodes:
        if node.type == "variable_assignment":
            target = node.children[0]
            yield source.written(target if target.type != "subscript" else target.children[0])
        yield from _targets(node.named_children, source)
