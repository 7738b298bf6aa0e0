"""Whether two logs are two runs, or two ranks (nodes, streams) of one."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.prefixes import rank_of_file

if TYPE_CHECKING:
    from ep_overlap_mcp.diagnosis.evidence import Evidence, Iteration

_DIGITS = re.compile(r"\d+")
_PART = re.compile(r"rank|node|host|worker|gpu|proc|task|local|stage", re.IGNORECASE)
_OWN = ("rank", "local_rank", "node_rank")  # settings that differ between the ranks of a run


def two_runs(evidence: Evidence) -> tuple[str, str] | None:
    """The two timed logs of two runs; None for one run, for more than two logs, or for the ranks of one run."""
    files = evidence.files()
    if len(files) != 2 or _same_run(evidence, files[0], files[1]):
        return None
    return files[0], files[1]


def _same_run(evidence: Evidence, first: str, second: str) -> bool:
    if _settings_differ(evidence, first, second):
        return False
    if any(rank_of_file(file) is not None for file in (first, second)) or _parts_by_name(first, second):
        return True
    steps, others = (
        {i.step: i for i in evidence.iterations if i.line.file == file and i.step is not None}
        for file in (first, second)
    )
    pairs = [(steps[number], others[number]) for number in steps if number in others]
    return _ranks_apart(pairs) or _together(pairs)


def _settings_differ(evidence: Evidence, first: str, second: str) -> bool:
    one, two = (
        {p.path: p.value for p in evidence.printed if p.line.file == file and p.name not in _OWN}
        for file in (first, second)
    )
    return any(one[path] != two[path] for path in one if path in two)


def _parts_by_name(first: str, second: str) -> bool:
    """`node_0.log` and `node_1.log`: equal but for a number after a word for a part of a job."""
    one, two = PurePath(first).name, PurePath(second).name
    return one != two and _DIGITS.sub("#", one) == _DIGITS.sub("#", two) and bool(_PART.search(one))


def _ranks_apart(pairs: list[tuple[Iteration, Iteration]]) -> bool:
    """Every step that both log is logged by two different ranks: two runs log from the same rank."""
    ranks = [(one.line.rank, two.line.rank) for one, two in pairs]
    return bool(ranks) and all(None not in pair and pair[0] != pair[1] for pair in ranks)


def _together(pairs: list[tuple[Iteration, Iteration]]) -> bool:
    """Three steps or more, and each ends at the same moment in both: within half of its own time."""
    moments = [
        abs(one.line.time - two.line.time) < one.ms / 2000
        for one, two in pairs
        if one.line.time is not None and two.line.time is not None and one.ms
    ]
    return len(moments) >= 3 and all(moments)
