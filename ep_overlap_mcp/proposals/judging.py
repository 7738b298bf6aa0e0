"""Judges many variants of one request at the price of their differences.

The first judgement notes, for every rule, each path that it looked at. A variant then asks only those rules again
that looked at a path whose setting differs; the outcome of the others cannot have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.rules.engine import judge
from ep_overlap_mcp.rules.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ep_overlap_mcp.results.check import Verdict
    from ep_overlap_mcp.rules.engine import Outcome
    from ep_overlap_mcp.settings.effective import Effective
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.settings.setting import Setting
    from ep_overlap_mcp.stack import Release

_EVERYTHING = "*"  # stands for a look at the request as a whole


class Judge:
    """Outcomes of all rules for a request and for variants of it, which differ in settings alone."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._bases: dict[tuple[Release, ...], _Base] = {}

    def outcomes(self, request: Request) -> list[Outcome]:
        """How every rule in force comes out for a variant, in the order of the codes."""
        releases = request.releases()
        if releases not in self._bases:
            self._bases[releases] = _Base(self._request, releases)
        return self._bases[releases].outcomes(request)


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict that a check of the same request comes to."""
    if any(o.state == "violated" and o.severity == "error" for o in outcomes):
        return "invalid"
    return "undetermined" if any(undecided_error(o) for o in outcomes) else "valid"


def undecided_error(outcome: Outcome) -> bool:
    """Whether an open rule leaves the verdict open."""
    return outcome.state == "undecided" and outcome.severity == "error" and outcome.rule.unknown == "undecided"


class _Base:
    """The outcomes of one request on some releases, and what every rule looked at to come to them."""

    def __init__(self, request: Request, releases: tuple[Release, ...]) -> None:
        self._request = request
        self._releases = releases
        self._writes = [View(request, release).effective.writes for release in releases]
        self._outcomes: dict[str, Outcome | None] = {}
        self._rules_by_path: dict[str, set[str]] = {}
        looks: set[str] = set()
        traced = [_traced(request, release, looks) for release in releases]
        for code, rule in all_rules().items():
            looks.clear()
            self._outcomes[code] = judge(rule, traced)
            for path in looks:
                self._rules_by_path.setdefault(path, set()).add(code)

    def outcomes(self, request: Request) -> list[Outcome]:
        views = [View(request, release) for release in self._releases]
        asked = set().union(*(self._rules_by_path.get(path, ()) for path in self._differing(request, views)))
        rules = all_rules()
        found = {code: judge(rules[code], views) if code in asked else o for code, o in self._outcomes.items()}
        return [outcome for outcome in found.values() if outcome is not None]

    def _differing(self, request: Request, views: Sequence[View]) -> set[str]:
        paths = set(_differences(self._request.settings, request.settings))
        for before, after in zip(self._writes, views, strict=True):
            paths.update(_differences(before, after.effective.writes))
        return {*paths, _EVERYTHING} if paths else paths


def _differences(before: Any, after: Any) -> Iterator[str]:
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is not new and old != new:
            yield path


def _traced(request: Request, release: Release, looks: set[str]) -> View:
    """A view that notes in `looks` every path that a rule asks for."""
    view = View(request, release)
    view.effective = cast("Effective", _TracedEffective(view.effective, looks))
    view.request = cast("Request", _TracedRequest(request, looks))
    return view


class _TracedEffective:
    """Effective settings that note what is asked for; any other use counts as a look at everything."""

    def __init__(self, effective: Effective, looks: set[str]) -> None:
        self._effective = effective
        self._looks = looks

    def __getitem__(self, path: str) -> Setting:
        self._looks.add(path)
        return self._effective[path]

    def requested(self, path: str) -> Setting:
        self._looks.add(path)
        return self._effective.requested(path)

    def value(self, path: str) -> Any:
        self._looks.add(path)
        return self._effective.value(path)

    def __getattr__(self, name: str) -> Any:
        self._looks.add(_EVERYTHING)
        return getattr(self._effective, name)


class _TracedRequest:
    """A request whose settings note what is asked for; all but the framework counts as a look at everything."""

    def __init__(self, request: Request, looks: set[str]) -> None:
        self._request = request
        self._looks = looks
        self.framework = request.framework
        self.settings = _TracedSettings(request.settings, looks)

    def __getattr__(self, name: str) -> Any:
        self._looks.add(_EVERYTHING)
        return getattr(self._request, name)


class _TracedSettings:
    """The settings of a request by path, noting what is asked for."""

    def __init__(self, settings: Any, looks: set[str]) -> None:
        self._settings = settings
        self._looks = looks

    def get(self, path: str) -> Setting | None:
        self._looks.add(path)
        return cast("Setting | None", self._settings.get(path))

    def __getattr__(self, name: str) -> Any:
        self._looks.add(_EVERYTHING)
        return getattr(self._settings, name)
