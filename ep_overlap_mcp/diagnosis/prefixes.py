"""Takes the prefixes of launchers off a line: rank, task, host, actor and time.

Understood: `[rank3]:`, `[Rank 3]`, `[default3]:` (torchrun), `3:` (srun --label), `(Actor pid=1)` (Ray),
`[node03]`, ISO and glog times, in any order and combination. `[rank8]` beats the task number, which beats
`[Rank 0]` (within a process group in NCCL's messages) and `[default3]` (within a node).
"""

from __future__ import annotations

import re
from pathlib import PurePath

_PREFIX = re.compile(
    r"""\s{0,64}(?:
      \[?(?:rank|RANK)[ =:_]{0,2}(?P<rank>\d{1,6})\]?:?
    | \[?Rank\ (?P<group>\d{1,6})\]?:?
    | \[default(?P<local>\d{1,4})\]:
    | (?P<task>\d{1,6}):(?=\s)
    | \((?:\w[\w.]{0,60}\ )?pid=\d{1,9}[^)\n]{0,80}\)
    | [\[\u3010]?(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d)[ T]
      (?P<clock>\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)(?:Z|[+-]\d\d:?\d\d)?[\]\u3011]?
    | \[?[EWIF](?P<glog>\d{3,4})\ (?P<glog_clock>\d\d:\d\d:\d\d(?:\.\d{1,9})?)[^\]\n]{0,80}\]
    | \[(?:start|INFO|WARNING|ERROR|E\ ProcessGroup[^\]\n]{0,60}|node\S{1,40}|host\S{1,40})\]
    )""",
    re.VERBOSE,
)
_IN_NAME = re.compile(r"rank[-_.]?(\d{1,6})")
_RANKS = ("rank", "task", "group", "local")
_STREAM_NAMES = ("stdout.log", "stderr.log")


def strip_prefixes(text: str) -> tuple[str, int | None, float | None]:
    """The line without its prefixes, the rank and the time in seconds (None where not printed)."""
    ranks: dict[str, int] = {}
    time: float | None = None
    start = 0
    for _ in range(5):
        found = _PREFIX.match(text, start)
        if not found:
            break
        start = found.end()
        ranks |= {kind: int(found[kind]) for kind in _RANKS if found[kind]}
        time = _time(found) if found["clock"] or found["glog_clock"] else time
    rank = next((ranks[kind] for kind in _RANKS if kind in ranks), None)
    return text[start:].strip(), rank, time


def rank_of_file(name: str) -> int | None:
    """The rank in a file's name (`rank_3.log`), or the folder's (`3/stderr.log` of torchrun)."""
    path = PurePath(name)
    if found := _IN_NAME.search(path.name):
        return int(found[1])
    if path.name in _STREAM_NAMES and path.parent.name.isdigit():
        return int(path.parent.name)
    return None


def _time(found: re.Match[str]) -> float:
    """Seconds since the start of a year: enough to order the lines of one job."""
    if found["glog"]:
        month, day = int(found["glog"][:-2]), int(found["glog"][-2:])
    else:
        month, day = int(found["month"]), int(found["day"])
    parts = (found["clock"] or found["glog_clock"]).replace(",", ".").split(":")
    seconds = float(parts[2]) if len(parts) > 2 else 0.0
    return (month * 31 + day) * 86400.0 + int(parts[0]) * 3600 + int(parts[1]) * 60 + seconds
