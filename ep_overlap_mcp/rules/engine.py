"""Rules as data, and their three-valued judgement over every release that a stack may be."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from ep_overlap_mcp.rules.truth import TRUE, any_of
from ep_overlap_mcp.rules.view import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ep_overlap_mcp.rules.truth import Truth
    from ep_overlap_mcp.rules.view import Sights, View
    from ep_overlap_mcp.settings.setting import Setting
    from ep_overlap_mcp.stack import Framework, Release

Severity = Literal["error", "warning", "info"]
Layer = Literal["megatron-core", "megatron-lm", "bridge", "run time", "evidence"]
UnknownClass = Literal["undecided", "noted", "met"]

ERROR: Final = "error"
WARNING: Final = "warning"
INFO: Final = "info"

UNDECIDED: Final = "undecided"  # an unknown leaves the rule undecided at its own severity
NOTED: Final = "noted"  # an unknown is worth a note and never changes the verdict
MET: Final = "met"  # every supported stack passes this floor: an unknown counts as met, and is said

_WORST: Final = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Clause:
    """One layer that enforces a rule, the releases in which it does, and what differs there.

    `core` and `bridge` are version ranges; `frameworks` limits the clause to some frameworks; `severity` and `unknown`
    replace those of the rule.
    """

    layer: Layer
    core: str = ""
    bridge: str = ""
    frameworks: tuple[Framework, ...] = ()
    severity: Severity | None = None
    params: tuple[tuple[str, Any], ...] = ()
    unknown: UnknownClass | None = None

    def in_force(self, framework: Framework, release: Release) -> bool:
        """Whether this layer judges that framework and release."""
        if self.layer in ("megatron-lm", "bridge") and framework != self.layer:
            return False
        if self.frameworks and framework not in self.frameworks:
            return False
        if self.core and not release.core.within(self.core):
            return False
        return not self.bridge or (framework == "bridge" and release.bridge_within(self.bridge))


def core(versions: str = "", *, severity: Severity | None = None, **params: Any) -> Clause:
    """Enforced by megatron-core's configuration classes, in every framework."""
    return Clause("megatron-core", core=versions, severity=severity, params=tuple(params.items()))


def megatron_lm(versions: str = "", *, severity: Severity | None = None, **params: Any) -> Clause:
    """Enforced by Megatron-LM's argument validation; versions are of core."""
    return Clause("megatron-lm", core=versions, severity=severity, params=tuple(params.items()))


def bridge(
    versions: str = "", *, severity: Severity | None = None, unknown: UnknownClass | None = None, **params: Any
) -> Clause:
    """Enforced by Megatron-Bridge; versions are of Bridge."""
    return Clause("bridge", bridge=versions, severity=severity, params=tuple(params.items()), unknown=unknown)


def run_time(
    versions: str = "",
    *,
    on: tuple[Framework, ...] = (),
    bridge: str = "",
    severity: Severity | None = None,
    **params: Any,
) -> Clause:
    """Raises, hangs or corrupts while building or training; versions are of core."""
    return Clause("run time", versions, bridge, on, severity, tuple(params.items()))


def evidence(
    versions: str = "",
    *,
    on: tuple[Framework, ...] = (),
    bridge: str = "",
    severity: Severity | None = None,
    **params: Any,
) -> Clause:
    """Rests on published reports; versions are of core."""
    return Clause("evidence", versions, bridge, on, severity, tuple(params.items()))


@dataclass(frozen=True)
class Fix:
    """A way to satisfy a rule: alternative sets of changes, best first, for the case at hand.

    `safe` changes neither numerics nor memory use nor the training recipe; `gives_up` says what is lost otherwise.
    """

    options: Callable[[View], Iterable[Mapping[str, Any]]]
    safe: bool = True
    gives_up: str | None = None


def put(safe: bool = True, gives_up: str | None = None, **values: Any) -> Fix:  # noqa: FBT001, FBT002
    """Set fields of `model`: `put(moe_token_dispatcher_type="alltoall")`."""
    return put_paths({f"model.{name}": value for name, value in values.items()}, safe=safe, gives_up=gives_up)


def put_paths(changes: Mapping[str, Any], *, safe: bool = True, gives_up: str | None = None) -> Fix:
    """Set canonical paths of any object."""
    return Fix(lambda _view: [changes], safe and gives_up is None, gives_up)


def without(path: str, *items: str, gives_up: str | None = None) -> Fix:
    """Drop items from a list setting and keep the rest."""

    def options(view: View) -> Iterable[Mapping[str, Any]]:
        current = view.effective[path]
        if current.known and isinstance(current.value, list):
            yield {path: [item for item in current.value if item not in items]}

    return Fix(options, gives_up is None, gives_up)


@dataclass(frozen=True)
class Check:
    """What a rule's function answers: whether it is violated, what to say then, and what would be right.

    `why` says why it is open, where that is not for want of a setting.
    """

    violated: Truth
    message: str
    expected: str = ""
    settings: tuple[str, ...] | None = None
    why: str = ""


def undecided(condition: Truth, why: str) -> Check:
    """The rule is open where the condition is unknown, for a reason that no setting settles, and else met."""
    return Check(condition, "", settings=(), why=why)


def violated(condition: Truth, message: str, *, expected: str = "", settings: Iterable[str] | None = None) -> Check:
    """The rule is violated where the condition holds. `settings` replaces the settings that were read."""
    return Check(condition, message, expected, None if settings is None else tuple(settings))


def violated_by(
    parts: Iterable[tuple[Truth, str]],
    *,
    when: Truth = TRUE,
    expected: str = "",
    settings: Iterable[str] | None = None,
) -> Check:
    """The rule is violated where `when` and any of the parts hold; the message says each part that does."""
    said = list(parts)
    message = "; ".join(text for condition, text in said if condition.value)
    return violated(when & any_of(condition for condition, _ in said), message, expected=expected, settings=settings)


@dataclass(frozen=True)
class Rule:
    """One constraint. `sources` are `repository@revision:path:lines`; `doc` has the sections of its page.

    `about` names the settings whose default is fine: a text that states none of them meets the rule, however much of
    it is unknown.
    """

    code: str
    name: str
    severity: Severity
    clauses: tuple[Clause, ...]
    function: Callable[..., Check]
    sources: tuple[str, ...]
    unknown: UnknownClass = UNDECIDED
    fixes: tuple[Fix, ...] = ()
    about: tuple[str, ...] = ()
    _in_force: dict[tuple[str, str, str | None], tuple[_Together, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def in_force(self, framework: Framework, release: Release) -> tuple[_Together, ...]:
        """The clauses that hold there, those of equal severity and parameters together; worked out once."""
        key = (framework, release.core.label, release.bridge)  # strings, which keep their hashes
        groups = self._in_force.get(key)
        if groups is None:
            groups = self._in_force[key] = _groups(self, framework, release)
        return groups

    @property
    def doc(self) -> str:
        """What, why, example, fix and references, as the function's docstring has them."""
        return inspect.cleandoc(self.function.__doc__ or "")


_RULES: dict[str, Rule] = {}


def rule(
    code: str,
    name: str,
    severity: Severity,
    *,
    enforced: Sequence[Clause],
    source: str | Sequence[str],
    unknown: UnknownClass = UNDECIDED,
    fixes: Sequence[Fix] = (),
    about: Sequence[str] = (),
) -> Callable[[Callable[..., Check]], Callable[..., Check]]:
    """Register the function below as a rule; its docstring is the rule's page."""

    def register(function: Callable[..., Check]) -> Callable[..., Check]:
        if code in _RULES or any(known.name == name for known in _RULES.values()):
            raise ValueError(f"rule {code} {name} is registered twice")
        sources = (source,) if isinstance(source, str) else tuple(source)
        _RULES[code] = Rule(
            code, name, severity, tuple(enforced), function, sources, unknown, tuple(fixes), tuple(about)
        )
        return function

    return register


def registered() -> dict[str, Rule]:
    """Every rule registered so far, by code."""
    return _RULES


@dataclass(frozen=True)
class Outcome:
    """How one rule came out: violated, undecided or met; `unknown` is what an unknown makes of it."""

    rule: Rule
    state: Literal["violated", "undecided", "met"]
    severity: Severity
    unknown: UnknownClass
    message: str = ""
    expected: str = ""
    needs: frozenset[str] = frozenset()
    why: str = ""
    layers: tuple[Layer, ...] = ()
    reads: Mapping[str, Setting] = field(default_factory=dict)


def judge(rule: Rule, views: Sequence[View]) -> Outcome | None:
    """The rule's outcome over all candidate releases; None where no layer enforces it in any of them."""
    if len(views) == 1:
        return _on_release(rule, views[0])
    outcomes = [(view, outcome) for view in views for outcome in [_on_release(rule, view)] if outcome is not None]
    if not outcomes:
        return None
    if len(outcomes) < len(views):
        outcomes += [(v, _met(rule)) for v in views if v not in [seen for seen, _ in outcomes]]
    return _agreed([outcome for _, outcome in outcomes], [view for view, _ in outcomes])


def _on_release(rule: Rule, view: View) -> Outcome | None:
    """The worst outcome over the layers in force; clauses with equal parameters are evaluated once."""
    groups = rule.in_force(view.framework, view.release)
    if not groups:
        return None
    if rule.about and not view.states(rule.about):
        return groups[0].met
    if len(groups) == 1:
        return _evaluate(rule, view, groups[0])
    outcomes = [_evaluate(rule, view, group) for group in groups]
    order = {"violated": 0, "undecided": 1, "met": 2}
    return min(outcomes, key=lambda o: (order[o.state], _WORST[o.severity]))


@dataclass
class _Together:
    """What clauses of equal severity and parameters have in common, and the outcome where the rule is met.

    `met_by` is what the rule saw when it was last met: where it would see the same again, it is met again.
    """

    params: Mapping[str, Any]
    severity: Severity
    unknown: UnknownClass
    layers: tuple[Layer, ...]
    met: Outcome
    met_by: Sights | None = None


def _groups(rule: Rule, framework: Framework, release: Release) -> tuple[_Together, ...]:
    groups: dict[str, list[Clause]] = {}
    for clause in rule.clauses:
        if clause.in_force(framework, release):
            groups.setdefault(repr((clause.severity, clause.unknown, clause.params)), []).append(clause)
    return tuple(_together(rule, clauses) for clauses in groups.values())


def _together(rule: Rule, clauses: Sequence[Clause]) -> _Together:
    severity, unknown = clauses[0].severity or rule.severity, clauses[0].unknown or rule.unknown
    layers = tuple(clause.layer for clause in clauses)
    met = Outcome(rule, "met", severity, unknown, layers=layers)
    return _Together(dict(clauses[0].params), severity, unknown, layers, met)


def _evaluate(rule: Rule, view: View, group: _Together) -> Outcome:
    if group.met_by is not None and view.shows_again(group.met_by):
        return group.met
    view.begin()
    check = rule.function(view, **group.params)
    if check.violated.value is False:
        group.met_by = None if EVERYTHING in view.looks else tuple(view.looks.items())
        return group.met
    severity, unknown, layers, reads = group.severity, group.unknown, group.layers, view.reads
    if check.settings is not None:
        reads = {path: view.effective[path] for path in check.settings}
    if check.violated.value is None:
        return Outcome(
            rule, "undecided", severity, unknown, needs=check.violated.needs, why=check.why, layers=layers, reads=reads
        )
    return Outcome(rule, "violated", severity, unknown, check.message, check.expected, layers=layers, reads=reads)


def _met(rule: Rule) -> Outcome:
    return Outcome(rule, "met", rule.severity, rule.unknown)


def _agreed(outcomes: Sequence[Outcome], views: Sequence[View]) -> Outcome:
    """One outcome where all releases agree; else undecided, for want of the release and of what some release needs."""
    if len(outcomes) == 1:
        return outcomes[0]
    states = {outcome.state for outcome in outcomes}
    worst = min(outcomes, key=lambda o: _WORST[o.severity])
    if len(states) == 1:
        first = outcomes[0]
        if first.state != "undecided":
            return worst
        needs = frozenset().union(*(o.needs for o in outcomes))
        return Outcome(
            first.rule, "undecided", worst.severity, first.unknown, needs=needs, layers=first.layers, reads=first.reads
        )
    needs = frozenset().union(*(o.needs for o in outcomes)) | {_release_setting(views)}
    telling = next(o for o in outcomes if o.state != "met")
    bad = [_label(view) for outcome, view in zip(outcomes, views, strict=True) if outcome.state == "violated"]
    good = [_label(view) for outcome, view in zip(outcomes, views, strict=True) if outcome.state == "met"]
    return Outcome(
        telling.rule,
        "undecided",
        worst.severity,
        telling.unknown,
        needs=needs,
        why=_differs(bad, good),
        layers=telling.layers,
        reads=telling.reads,
    )


def _differs(bad: Sequence[str], good: Sequence[str]) -> str:
    parts = [f"violated on {', '.join(bad)}"] if bad else []
    parts += [f"met on {', '.join(good)}"] if good else []
    return "; ".join(parts)


def _release_setting(views: Sequence[View]) -> str:
    bridges = {view.release.bridge for view in views}
    return "runtime.megatron_bridge" if len(bridges) > 1 else "runtime.megatron_core"


def _label(view: View) -> str:
    return view.release.bridge or view.release.core.label
