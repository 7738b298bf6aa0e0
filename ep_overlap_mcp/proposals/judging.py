"""Judges many variants of one request at the price of their differences.

The first judgement notes, for every rule, each path that it looked at. A variant then asks only those rules again
that looked at a path whose setting differs; the outcome of the others cannot have changed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.engine import judge
from ep_overlap_mcp.rules.view import EVERYTHING, View, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ep_overlap_mcp.results.check import Verdict
    from ep_overlap_mcp.rules.engine import Outcome, Rule
    from ep_overlap_mcp.rules.view import Look, Sights
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.stack import Release


class Judge:
    """Outcomes of all rules for a request as written and for variants of it, which differ in settings alone.

    `rules` are all rules unless given. `likely` are changes that most variants make: the first judgement makes them
    too, so that less differs.
    """

    def __init__(
        self, request: Request, likely: Mapping[str, Any] | None = None, *, rules: Mapping[str, Rule] | None = None
    ) -> None:
        self._rules = all_rules() if rules is None else rules
        self._plain = replace(request, settings=dict(request.as_written), assume="as_written")
        self._request = self.changed(likely or {})
        self._bases: dict[tuple[Release, ...], _Base] = {}
        self._known: dict[str, list[Outcome]] = {}
        self._releases: dict[frozenset[str], tuple[Release, ...]] = {}

    def changed(self, changes: Mapping[str, Any]) -> Request:
        """The request as written with the changes made, judged as written."""
        return self._plain.with_settings(changes, "proposed")

    def views(self, changes: Mapping[str, Any]) -> Iterator[View]:
        """The request with the changes made, as each of its releases sees it."""
        request = self.changed(changes)
        return (View(request, release) for release in self._releases_of(request, changes))

    def after(self, changes: Mapping[str, Any]) -> list[Outcome]:
        """The outcomes once the changes are made."""
        key = json.dumps(changes, sort_keys=True, default=str)
        if key not in self._known:
            self._known[key] = self.outcomes(self.changed(changes))
        return self._known[key]

    def errors(self, changes: Mapping[str, Any]) -> list[Outcome]:
        """The violated error rules once the changes are made.

        A rule is violated only where it is on every release, so all are asked about the first, few about the others.
        """
        request = self.changed(changes)
        releases = self._releases_of(request, changes)
        suspects = [o for o in self._base(releases[:1]).outcomes(request) if o.state == "violated"]
        if len(releases) > 1:
            views = [View(request, release) for release in releases]
            suspects = [o for suspect in suspects if (o := judge(suspect.rule, views)) is not None]
        return [o for o in suspects if o.state == "violated" and o.severity == "error"]

    def violates(self, changes: Mapping[str, Any], names: AbstractSet[str]) -> bool:
        """Whether one of these rules alone is violated, as an error, once the changes are made."""
        views = list(self.views(changes))
        asked = (judge(rule, views) for rule in self._rules.values() if rule.name in names)
        return any(o is not None and o.state == "violated" and o.severity == "error" for o in asked)

    def outcomes(self, request: Request) -> list[Outcome]:
        """How every rule in force comes out for a variant, in the order of the codes."""
        return self._base(request.releases()).outcomes(request)

    def touched(self, request: Request, paths: Iterable[str]) -> list[Outcome]:
        """The outcomes of just those rules that look at one of the paths, for a variant and on its own releases."""
        base = self._base(self._request.releases())
        views = [View(request, release) for release in request.releases()]
        asked = base.asked_by(paths)
        return [o for code in sorted(asked) if (o := judge(self._rules[code], views)) is not None]

    def _releases_of(self, request: Request, changes: Mapping[str, Any]) -> tuple[Release, ...]:
        """The releases of a variant, which hang on what is written in it and not on the values."""
        paths = frozenset(changes)
        if paths not in self._releases:
            self._releases[paths] = request.releases()
        return self._releases[paths]

    def _base(self, releases: tuple[Release, ...]) -> _Base:
        if releases not in self._bases:
            self._bases[releases] = _Base(self._request, releases, self._rules)
        return self._bases[releases]


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict that a check of the same request comes to."""
    if any(o.state == "violated" and o.severity == "error" for o in outcomes):
        return "invalid"
    return "undetermined" if any(undecided_error(o) for o in outcomes) else "valid"


def undecided_error(outcome: Outcome) -> bool:
    """Whether an open rule leaves the verdict open."""
    return outcome.state == "undecided" and outcome.severity == "error" and outcome.unknown == "undecided"


class _Base:
    """The outcomes of one request on some releases, and what every rule looked at to come to them."""

    def __init__(self, request: Request, releases: tuple[Release, ...], rules: Mapping[str, Rule]) -> None:
        self._request = request
        self._rules = rules
        self._releases = releases
        self._writes = [View(request, release).effective.writes for release in releases]
        self._outcomes: dict[str, Outcome | None] = {}
        self._rules_by_path: dict[str, set[str]] = {}
        traced = [_TracedView(request, release) for release in releases]
        for code, rule in rules.items():
            self._outcomes[code] = judge(rule, traced)
            for path in {*rule.about, *(path for view in traced for path in view.looked_at())}:
                self._rules_by_path.setdefault(path, set()).add(code)

    def asked_by(self, paths: Iterable[str]) -> set[str]:
        """The rules that looked at one of the paths, or at everything."""
        return set().union(*(self._rules_by_path.get(path, ()) for path in (*paths, path_of(EVERYTHING))))

    def outcomes(self, request: Request) -> list[Outcome]:
        views = [View(request, release) for release in self._releases]
        differing = self._differing(request, views)
        asked = self.asked_by(differing) if differing else set()
        found = {code: judge(self._rules[code], views) if code in asked else o for code, o in self._outcomes.items()}
        return [outcome for outcome in found.values() if outcome is not None]

    def _differing(self, request: Request, views: Sequence[View]) -> set[str]:
        paths = set(_differences(self._request.settings, request.settings))
        for before, after in zip(self._writes, views, strict=True):
            paths.update(_differences(before, after.effective.writes))
        return paths


def _differences(before: Any, after: Any) -> Iterator[str]:
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is not new and old != new:
            yield path


class _TracedView(View):
    """A view that keeps all looks of a rule, also where one clause after the other is asked."""

    def __init__(self, request: Request, release: Release) -> None:
        super().__init__(request, release)
        self._looks: list[Iterable[Look]] = []

    def begin(self) -> None:
        super().begin()
        self._looks.append(self.looks)

    def shows_again(self, sights: Sights) -> bool:
        self._looks.append([look for look, _ in sights])
        return super().shows_again(sights)

    def looked_at(self) -> set[str]:
        """The paths that were looked at since this was last asked."""
        looks, self._looks = self._looks, []
        return {path_of(look) for some in looks for look in some}
