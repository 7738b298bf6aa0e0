"""The words of each surface. A message is written in the words of whoever asks: a person at a shell, or an agent.

Where our own text names something that can be called or given, it takes the word for it from here while it is written.
Nothing is turned into other words afterwards, so what a text quotes, of a file, a log or a patch, stays as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Surface = Literal["people", "agents"]
PROGRAM = "ep-overlap-mcp"
COMMANDS = {  # the command that does what a tool does
    "check_overlap_config": "check",
    "propose_overlap_config": "propose",
    "detect_wgrad_conflicts": "conflicts",
    "start_smoke_run": "smoke run",
    "get_smoke_run": "smoke status ID",
    "cancel_smoke_run": "smoke cancel ID",
    "diagnose_run": "diagnose",
    "analyze_overlap_profile": "profile",
    "estimate_overlap_gain": "estimate",
    "explain_rule": "explain",
    "check_environment": "environment",
}
_CALLS = {  # the same with what it is called with
    "get_smoke_run": "smoke status {id}",
    "cancel_smoke_run": "smoke cancel {id}",
    "diagnose_run": "diagnose --smoke-run {smoke_runs[0]}",
    "explain_rule": "explain {rule}",
}
_ARGUMENTS = {  # for people and for agents, where the option is not spelled as the argument is
    "settings": ("--set PATH=VALUE", "settings"),
    "select": ("--select NAME", "select"),
    "limit_s": ("--limit", "limit_s"),
    "python": ("--python PATH", "EP_OVERLAP_PYTHON of the server"),
}
_asking: ContextVar[Surface] = ContextVar("surface", default="people")


@contextmanager
def speaking_to(surface: Surface) -> Iterator[None]:
    """What is written within is for `surface`; without it, for people."""
    before = _asking.set(surface)
    try:
        yield
    finally:
        _asking.reset(before)


def tool(name: str) -> str:
    """The tool, or its command."""
    return name if _to_agents() else f"`{PROGRAM} {COMMANDS[name]}`"


def call(name: str, **arguments: Any) -> str:
    """A call of the tool, or the command with what it acts on."""
    if _to_agents():
        return f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})"
    return f"`{PROGRAM} {_CALLS[name].format(**arguments)}`"


def argument(name: str) -> str:
    """The argument of that name, or the option."""
    people, agents = _ARGUMENTS.get(name, (f"--{name.replace('_', '-')}", name))
    return agents if _to_agents() else people


def given(name: str, value: str | None = None) -> str:
    """The argument or option with a value; without one it is a flag that is set."""
    if _to_agents():
        return f"{name}={'true' if value is None else json.dumps(value, ensure_ascii=False)}"
    return argument(name) if value is None else f"{argument(name)} {shlex.quote(value)}"


def everything() -> str:
    """What makes an answer hold all that there is."""
    return given("detail", "full") if _to_agents() else given("format", "json")


def rule_list() -> str:
    """What lists all rules."""
    return "epo://rules" if _to_agents() else tool("explain_rule")


def filled(text: str) -> str:
    """A text of ours that was written before anyone asked, its `{names}` of tools and arguments in their words."""
    return re.sub(r"\{(\w+)\}", lambda named: tool(named[1]) if named[1] in COMMANDS else argument(named[1]), text)


def _to_agents() -> bool:
    return _asking.get() == "agents"
