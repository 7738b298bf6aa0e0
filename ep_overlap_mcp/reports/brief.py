"""Answers cut to what fits an agent's context, with a count of what was left out and a way to get it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ep_overlap_mcp.results.base import Result

    Answer = dict[str, Any]

_WHOLE = frozenset({"overlap", "stack", "plan", "patch", "overlap_ran", "numerics", "speed"})  # never cut
LIMIT = 4000  # bytes of JSON
_VALUES = frozenset({"to", "before", "after", "value"})  # values of settings: null says unset and stays
_SETTINGS = frozenset({"set", "settings", "changes"})  # objects of such values


def brief(result: Result, limit: int = LIMIT) -> Answer:
    """The answer as an object of at most about `limit` bytes: empty fields dropped, then what matters least.

    `omitted` counts what was cut from each field. Errors of a check are shortened, and cut last of all.
    """
    kind = type(result).__module__.rpartition(".")[2]  # the answer's own module, without loading the others
    full = result.model_dump(mode="json")
    answer = without_empty(_telling(full) if kind == "check" else full)
    whole = {key: _length(full[key], answer[key]) for key in answer if isinstance(full[key], (list, dict))}
    if kind == "check":
        for shorten in _CHECK_STEPS:
            answer = shorten(answer) if _size(answer) > limit else answer
    if kind == "propose":
        for shorten in _PROPOSE_STEPS:
            answer = shorten(answer) if _size(answer) > limit else answer
    if kind == "smoke" and "id" in answer:  # a run; a plan that was asked for is told in full
        answer["plan"] = _counted_plan(answer["plan"])
    while _size(answer) > limit and (field := _longest(answer)) is not None:
        answer[field] = _shortened(answer[field])
    omitted = {key: count - len(answer[key]) for key, count in whole.items() if count > len(answer[key])}
    if omitted:
        answer["omitted"] = omitted
        answer["more"] = 'ask again with detail="full" for everything'
    return answer


def _length(full: Any, shown: Any) -> int:
    """Items there are: all of a list and of settings by path, the fields of an object that say something."""
    return len(full) if isinstance(full, list) or any("." in key for key in full) else len(shown)


def _counted_plan(plan: Answer) -> Answer:
    """What was planned, told in full when it was planned; a poll needs the counts."""
    counted = {key: len(value) for key, value in plan.items() if isinstance(value, (dict, list)) and key != "variants"}
    return {**plan, **counted}


def without_empty(value: Mapping[str, Any]) -> Answer:
    """The same object without nulls and empty containers inside objects; the top level keeps its lists."""
    return {key: _pruned(item, settings=key in _SETTINGS) for key, item in value.items() if item is not None}


def _pruned(value: Any, *, settings: bool = False) -> Any:
    if isinstance(value, dict):
        shown = {key: _pruned(item, settings=key in _SETTINGS) for key, item in value.items()}
        return {k: v for k, v in shown.items() if settings or k in _VALUES or v not in (None, [], {}, "")}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


def _telling(answer: Answer) -> Answer:
    """Errors and warnings with their places; open errors; settings that the stack derived."""
    return {
        **answer,
        "findings": [_finding(f) for f in answer["findings"] if f["severity"] != "info"],
        "undecided": [u for u in answer["undecided"] if u["severity"] == "error"],
        "settings": {p: s.get("value") for p, s in answer["settings"].items() if s["origin"]["kind"] == "derived"},
    }


def _without_settings(answer: Answer) -> Answer:
    return {**answer, "settings": {}}


def _needs_only(answer: Answer) -> Answer:
    """Open rules with what they need; why is told of those that no setting decides."""
    return {**answer, "undecided": [_open_rule(u) for u in answer["undecided"]]}


def _open_rule(rule: Answer) -> Answer:
    kept = ("rule", "name", "needs") if rule.get("needs") else ("rule", "name", "why")
    return {key: rule[key] for key in kept if key in rule}


def _warnings_in_a_line(answer: Answer) -> Answer:
    return {**answer, "findings": [f if f["severity"] == "error" else _in_a_line(f) for f in answer["findings"]]}


def _fewer_undecided(answer: Answer) -> Answer:
    return {**answer, "undecided": answer["undecided"][:8]}


def _errors_in_a_line(answer: Answer) -> Answer:
    return {**answer, "findings": [_in_a_line(f) for f in answer["findings"]]}


_CHECK_STEPS: tuple[Callable[[Answer], Answer], ...] = (
    _without_settings,
    _needs_only,
    _warnings_in_a_line,
    _fewer_undecided,
    _errors_in_a_line,
)


def _first_alternative(answer: Answer) -> Answer:
    return {**answer, "alternatives": answer["alternatives"][:1]}


def _short_dispatchers(answer: Answer) -> Answer:
    """Every dispatcher stays; those that are not supported keep only the reason, the others one measurement each."""
    return {**answer, "dispatchers": [_candidate(d) for d in answer["dispatchers"]]}


def _candidate(dispatcher: Mapping[str, Any]) -> Answer:
    if dispatcher["supported"] == "no":
        return {key: dispatcher[key] for key in ("dispatcher", "backend", "supported", "why") if key in dispatcher}
    return {key: value[:1] if key == "evidence" else value for key, value in dispatcher.items()}


def _without_alternatives(answer: Answer) -> Answer:
    return {**answer, "alternatives": []}


def _without_plan(answer: Answer) -> Answer:
    return {
        **answer,
        "plan": [{key: step[key] for key in ("name", "compare_with") if key in step} for step in answer["plan"]],
    }


_PROPOSE_STEPS: tuple[Callable[[Answer], Answer], ...] = (
    _first_alternative,
    _short_dispatchers,
    _without_alternatives,
    _without_plan,
)


def _finding(finding: Mapping[str, Any]) -> Answer:
    """A finding without what `explain_rule` tells."""
    kept = {k: v for k, v in finding.items() if k in ("rule", "name", "severity", "message", "expected", "fix")}
    kept["settings"] = {s["path"]: _where(s) for s in finding.get("settings", [])[:4]}
    return kept


def _in_a_line(finding: Mapping[str, Any]) -> Answer:
    return {key: finding[key] for key in ("rule", "name", "severity", "message") if key in finding}


def _where(setting: Mapping[str, Any]) -> str:
    origin = setting["origin"]
    place = f"{origin['file']}:{origin['line']}" if origin.get("line") else origin.get("file") or origin["kind"]
    return f"{json.dumps(setting.get('value'))} ({place})"


def _longest(answer: Mapping[str, Any]) -> str | None:
    """The list or mapping that takes most room and can still be cut."""
    sizes = {
        key: _size(value)
        for key, value in answer.items()
        if isinstance(value, (list, dict)) and len(value) > 1 and key not in _WHOLE
    }
    return max(sizes, key=sizes.__getitem__) if sizes else None


def _shortened(value: Any) -> Any:
    """Without its last quarter: no more than is needed is cut."""
    keep = len(value) - max(1, len(value) // 4)
    return dict(list(value.items())[:keep]) if isinstance(value, dict) else value[:keep]


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
