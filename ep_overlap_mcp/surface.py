"""The words of each surface. A message is written once, and told here in the words of whoever asked.

Messages name tools as agents call them, `get_smoke_run(id="…")`, and options as people type them, `--select NAME`:
the command line turns the first into its own commands, the server the second into its tools' arguments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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
_FOR_PEOPLE = (
    (r'\bget_smoke_run\(id="([^"]*)"[^)]*\)', rf"`{PROGRAM} smoke status \1`"),
    (r'\bcancel_smoke_run\(id="([^"]*)"\)', rf"`{PROGRAM} smoke cancel \1`"),
    (r'\bdiagnose_run\(smoke_runs=\["([^"]*)"\]\)', rf"`{PROGRAM} diagnose --smoke-run \1`"),
    *((rf"\b{tool}\b(?!\()", f"`{PROGRAM} {command}`") for tool, command in COMMANDS.items()),
    (r"\bforce=true\b", "--force"),
    (r"(?<![\w-])dry_run\b", "--dry-run"),
    (r'\bassume="(\w+)" or "(\w+)"', r"--assume \1 or \2"),
    (r'\bassume="?(\w+)"?', r"--assume \1"),
    (r"^(pairs|steps|ranks) is ", r"--\1 is "),
    (r"^limit_s is ", "--limit is "),
    (r"--symptom \(tool: symptom\)", "--symptom"),
)
_FOR_AGENTS = (
    (r"--set PATH=VALUE", "settings"),
    (r"--select NAME", "select"),
    (r"--assume (\w+)", r'assume="\1"'),
    (r"--stack ([^\s,;`]+[=…][^\s;`]*)", r'stack="\1"'),
    (r"--stack\b", "stack"),
    (r"--nodes, --gpus-per-node\b", "nodes, gpus_per_node"),
    (r"^--gpu (?=`)|(?<=Without )--gpu(?=,)", lambda found: found[0][2:]),
    (r"^--nodes is ", "nodes is "),
    (r"^--gpus-per-node is ", "gpus_per_node is "),
    (r"--symptom \(tool: symptom\)|--symptom\b", "symptom"),
    (r"--before, --after\b", "before, after"),
    (r"--python PATH, or EP_OVERLAP_PYTHON for the server", "EP_OVERLAP_PYTHON of the server"),
    (r"which --python would", "which EP_OVERLAP_PYTHON would"),
    (rf"`{PROGRAM} explain NAME`", 'explain_rule(rule="NAME")'),
    (r"--format json has", 'detail="full" has'),
)


def for_people(message: str) -> str:
    """The message in the words of the command line."""
    return _told(message, _FOR_PEOPLE)


def for_agents(message: str) -> str:
    """The message in the words of the tools."""
    return _told(message, _FOR_AGENTS)


def everywhere(told: Callable[[str], str], answer: Any) -> Any:
    """All texts of an answer's JSON told so; its keys stay."""
    if isinstance(answer, str):
        return told(answer)
    if isinstance(answer, list):
        return [everywhere(told, item) for item in answer]
    return {key: everywhere(told, item) for key, item in answer.items()} if isinstance(answer, dict) else answer


def _told(message: str, words: tuple[tuple[str, Any], ...]) -> str:
    for pattern, own in words:
        message = re.sub(pattern, own, message)
    return message
