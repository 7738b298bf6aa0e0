"""Answers cut to what fits an agent's context, with a count of what was left out and a way to get it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.check import CheckResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ep_overlap_mcp.results.base import Result

LIMIT = 4000  # bytes of JSON


def brief(result: Result, limit: int = LIMIT) -> dict[str, Any]:
    """The answer as an object of at most about `limit` bytes: empty fields dropped, then the longest lists cut.

    `omitted` counts what was cut from each field.
    """
    answer = without_empty(result.model_dump(mode="json"))
    if isinstance(result, CheckResult):
        answer = _brief_check(answer)
    omitted: dict[str, int] = dict(answer.pop("omitted", {}))
    while _size(answer) > limit and (field := _longest(answer)) is not None:
        answer[field], dropped = _halved(answer[field])
        omitted[field] = omitted.get(field, 0) + dropped
    if omitted:
        answer["omitted"] = omitted
        answer["more"] = 'ask again with detail="full" for everything'
    return answer


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    """The same object without nulls and empty containers inside objects; the top level keeps its lists."""
    return {key: _pruned(item) for key, item in value.items() if item is not None}


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: p for k, v in value.items() if (p := _pruned(v)) not in (None, [], {}, "")}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


def _brief_check(answer: dict[str, Any]) -> dict[str, Any]:
    """Findings without what `explain_rule` tells, and only the settings that no one could have guessed."""
    findings = [_brief_finding(f) for f in answer["findings"] if f["severity"] != "info"]
    shown = {path for f in answer["findings"] for path in f.get("settings", {})}
    settings = {path: s.get("value") for path, s in answer["settings"].items() if s["origin"]["kind"] == "derived"}
    omitted = {
        "findings of severity info": len(answer["findings"]) - len(findings),
        "settings": len(answer["settings"]) - len(settings),
    }
    brief_answer = {**answer, "findings": findings, "settings": settings}
    brief_answer["omitted"] = {field: count for field, count in omitted.items() if count and field not in shown}
    return brief_answer


def _brief_finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in finding.items() if k not in ("source", "applies_to", "enforced_by", "settings")}
    kept["settings"] = {s["path"]: _where(s) for s in finding.get("settings", [])[:4]}
    return kept


def _where(setting: Mapping[str, Any]) -> str:
    origin = setting["origin"]
    place = f"{origin['file']}:{origin['line']}" if origin.get("line") else origin.get("file") or origin["kind"]
    return f"{json.dumps(setting.get('value'))} ({place})"


def _longest(answer: Mapping[str, Any]) -> str | None:
    """The list or mapping that takes most room and can still be cut; the worst findings come first and stay."""
    sizes = {
        key: _size(value)
        for key, value in answer.items()
        if isinstance(value, (list, dict)) and len(value) > 1 and key not in ("overlap", "stack", "omitted", "plan")
    }
    return max(sizes, key=sizes.__getitem__) if sizes else None


def _halved(value: Any) -> tuple[Any, int]:
    keep = max(1, len(value) // 2)
    kept = dict(list(value.items())[:keep]) if isinstance(value, dict) else value[:keep]
    return kept, len(value) - keep


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
