"""Several files of one configuration: what one leaves to another that is there as well is not missing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.shell import NO_COMMAND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.sources.reading import Reading

_ARRAY: Final = re.compile(r"`\"?\$\{\w+\[@\]\}")


def together(readings: Sequence[Reading]) -> list[Reading]:
    """The readings of one configuration without the gaps that they close for each other.

    A script that sources `models/moe.sh` and passes on `${MODEL_ARGS[@]}` waits for both; the file of that name that
    holds options in `MODEL_ARGS` waits for a command. Its settings are its own, and files given later win.
    """
    scripts = [reading for reading in readings if reading.dialect == "shell"]
    given = frozenset[str]().union(*(reading.gives for reading in scripts))
    files = {reading.file for reading in scripts}
    commands = any(NO_COMMAND not in reading.partial for reading in scripts)
    return [_closed(reading, given, files, commands=commands) if reading.gaps else reading for reading in readings]


def _closed(reading: Reading, given: frozenset[str], files: set[str], *, commands: bool) -> Reading:
    """One reading without the gaps that the given variables, files and commands close.

    An array that nothing sets is empty, as no array comes out of the environment: where all that is sourced is there.
    """
    others = {PurePath(file).name for file in files - {reading.file}}
    closed = {
        why
        for why, wanted in reading.gaps.items()
        if (all(name in given or PurePath(name).name in others for name in wanted) if wanted else commands)
    }
    empty = {why for why, wanted in reading.gaps.items() if _ARRAY.match(why) and reading.unset.issuperset(wanted)}
    if closed | empty == reading.gaps.keys():
        closed |= empty
    sourced = {f"source {name}" for why in closed for name in reading.gaps[why]}
    return replace(
        reading,
        partial=[why for why in reading.partial if why not in closed],
        omissions=[o for o in reading.omissions if o.why not in closed and o.text not in sourced],
    )
