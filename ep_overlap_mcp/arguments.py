"""What is wrong with a tool's arguments, in a sentence that the caller can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationError

_LONGEST = 60  # characters of a value that are shown


def told(problem: ValidationError, schema: Mapping[str, Any]) -> str:
    """Each argument that is wrong, once: unknown, missing, or what it takes; `schema` is the tool's."""
    found: dict[str, list[Any]] = {}
    for error in problem.errors(include_url=False):
        found.setdefault(str(error["loc"][0]) if error["loc"] else "", []).append(error)
    return "; ".join(_of_one(name, errors, schema) for name, errors in found.items())


def truths_for_numbers(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Each truth value that stands where a number is wanted, which pydantic would count as 1 or 0; empty for none."""
    kinds = {
        name: {"integer": "a valid integer", "number": "a valid number"}.get(said.get("type"))
        for name, said in schema["properties"].items()
    }
    wrong = [name for name, value in arguments.items() if isinstance(value, bool) and kinds.get(name)]
    return "; ".join(f"`{name}` is {arguments[name]}; it takes {kinds[name]}" for name in wrong)


def _of_one(name: str, errors: list[Any], schema: Mapping[str, Any]) -> str:
    kinds = {error["type"] for error in errors}
    if "extra_forbidden" in kinds:
        return f"there is no argument `{_cut(name)}`; it takes {', '.join(schema['properties'])}"
    if "missing" in kinds:
        return f"the argument `{name}` is missing"
    place = ".".join([name, *(str(part) for part in errors[0]["loc"][1:] if isinstance(part, int))])
    wanted = dict.fromkeys(
        error["msg"].partition(", unable to")[0].removeprefix("Input should be ") for error in errors
    )
    return f"`{place}` is {_cut(repr(errors[0]['input']))}; it takes {' or '.join(wanted)}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
