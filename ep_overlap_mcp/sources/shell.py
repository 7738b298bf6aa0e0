"""Shell scripts: the training commands in them, or the option strings of a fragment -> readings.

Nothing is executed and no other file is opened: what a script sources is named and left unknown.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.sources.flags import field_of, read_flags, split_flags
from ep_overlap_mcp.sources.launchers import (
    Launch,
    Variable,
    add_variable,
    kind_of,
    launch_of,
    read_environment_json,
    read_launch,
)
from ep_overlap_mcp.sources.reading import Mend, Reading, UnreadableError
from ep_overlap_mcp.sources.shell_line_ends import line_broken_by_crlf
from ep_overlap_mcp.sources.shell_run import MAX_STEPS, Command, Run, walk, walk_functions
from ep_overlap_mcp.sources.shell_scope import Array, Scalar, Scope, fields, text_of
from ep_overlap_mcp.sources.shell_syntax import Source, errors, refuse_unreadable
from ep_overlap_mcp.sources.words import Piece, Word

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.launchers import Kind
    from ep_overlap_mcp.sources.shell_scope import Pieces, Value

NO_COMMAND: Final = "no training command is in the text: it is a part of one"
_SBATCH: Final = re.compile(r"^#SBATCH[ \t]+(?:--nodes[= \t]+|-N[ \t]*)(\d{1,6})[ \t\r]*$", re.MULTILINE)
_MAX_COMMANDS: Final = 64
_MAX_ERRORS: Final = 20


@dataclass(frozen=True)
class _Lines:
    """Line numbers of a file's characters."""

    starts: list[int]

    @classmethod
    def of(cls, text: str) -> _Lines:
        return cls([0, *(match.end() for match in re.finditer("\n", text))])

    def at(self, place: int | None, default: int = 1) -> int:
        return default if place is None else bisect_right(self.starts, place)

    def word(self, pieces: Pieces, default: int) -> Word:
        for piece in pieces:
            if piece.at is not None:
                return Word.of(pieces, bisect_right(self.starts, piece.at))
        return Word.of(pieces, default)


def read_shell(text: str, file: str) -> list[Reading]:
    """The readings of a script: one, or one for each of several training commands that really differ.

    A script without a training command is a fragment, read from the options that it collects in variables. Raises
    UnreadableError for an open quote or a text beyond the bounds. CRLF line ends are read as LF, and noted.
    """
    source = Source.of((Piece(text, 0),))
    refuse_unreadable(source, file)
    given = _directives(text)
    scope = Scope(variables=given, inherited=frozenset(given))
    lines = _Lines.of(text)
    try:
        run = walk(source, scope)
        launches = _launches(run, lines) or _launches(_written_commands(scope), lines)
    except UnreadableError as refusal:
        raise UnreadableError(f"{file}: {refusal}") from None
    readings = _distinct([_command(launch, kind, file) for launch, kind in launches])
    if not readings:
        readings = [_fragment(scope, lines, file)]
    for reading in readings:
        _say_what_is_missing(reading, run, source, lines)
        if text.startswith("#!") and not run.unread:
            wanted = frozenset(name for names in reading.gaps.values() for name in names)
            reading.unset = wanted - scope.variables.keys()
        _say_what_breaks(reading, source)
        _say_what_lacks_quotes(reading, run, lines)
    return readings


def _directives(text: str) -> dict[str, Value | None]:
    """`#SBATCH --nodes=4` gives the job its variable."""
    found = _SBATCH.search(text)
    if found is None:
        return {}
    nodes = Scalar((Piece(found[1], found.start(1)),))
    return dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes)


def _launches(run: Run, lines: _Lines) -> list[tuple[Launch, Kind]]:
    found: list[tuple[Launch, Kind]] = []
    for command in run.commands:
        launch = _launch(command, lines)
        kind = kind_of(launch) if launch is not None else None
        if launch is not None and kind is not None:
            found.append((launch, kind))
    trained = [pair for pair in found if pair[1] != "wrapper"] or found
    return trained[:_MAX_COMMANDS]


def _written_commands(scope: Scope) -> Run:
    """Commands that a script only puts into functions or variables, to be started in a way that it does not show."""
    found = walk_functions(scope)
    for value in list(scope.variables.values()):
        if isinstance(value, Scalar) and ".py" in value.text and " --" in value.text:
            found.commands += walk(Source.of(value.pieces), scope.branch()).commands
        elif isinstance(value, Array) and any(text_of(e).endswith(".py") for e in value.elements):
            found.commands.append(Command(value.elements, None, {}))
    return found


def _launch(command: Command, lines: _Lines) -> Launch | None:
    line = lines.at(command.place)
    words = [lines.word(pieces, line) for pieces in command.words]
    environment = {
        name: Variable(None if pieces is None else lines.word(pieces, lines.at(place, line)), lines.at(place, line))
        for name, (pieces, place) in command.environment.items()
    }
    return launch_of(words, environment, line)


def _command(launch: Launch, kind: Kind, file: str) -> Reading:
    reading = Reading("shell", file, name=f"line {launch.line}")
    read_launch(launch, kind, reading)
    return reading


def _distinct(readings: list[Reading]) -> list[Reading]:
    """Readings that differ in more than the launcher's arguments; a single one needs no name."""
    found: dict[tuple[object, ...], Reading] = {}
    for reading in readings:
        found.setdefault(_essence(reading) if len(readings) > 1 else (), reading)
    kept = list(found.values())
    names = [reading.name for reading in kept]
    for number, reading in enumerate(kept):
        if len(kept) == 1:
            reading.name = None
        elif names.count(reading.name) > 1:
            reading.name = f"{names[number]} ({names[: number + 1].count(names[number])})"
    return kept


def _essence(reading: Reading) -> tuple[object, ...]:
    last = {
        a.path: repr(a.value)
        for a in reading.assignments
        if not a.path.startswith(("args.", "hardware.")) and a.path != "env.MASTER_ADDR"
    }
    return (reading.framework, *sorted(last.items()))


def _fragment(scope: Scope, lines: _Lines, file: str) -> Reading:
    """A file that others source: its exports, and the options in variables that no other variable took up."""
    reading = Reading("shell", file, "megatron-lm")
    for name, place in scope.exported.items():
        value, line = scope.variables.get(name), lines.at(place)
        if value is None or isinstance(value, Scalar):
            word = lines.word(value.pieces, line) if value is not None else None
            add_variable(name, Variable(word, line), reading)
    for name, value in scope.variables.items():
        words = [lines.word(pieces, 1) for pieces in _words_of(value)]
        if "RUNTIME_ENV" in name and isinstance(value, Scalar) and value.text.lstrip().startswith("{"):
            read_environment_json(lines.word(value.pieces, 1), reading)
        elif name not in scope.used and any(word.text.startswith("--") for word in words):
            read_flags([word for flag in split_flags(words)[0] for word in (flag.head, *flag.values)], reading)
            reading.gives |= {name}
    if reading.assignments:
        reading.waits_for(NO_COMMAND)
    return reading


def _words_of(value: Value | None) -> list[Pieces]:
    if isinstance(value, Array):
        return list(value.elements)
    return fields([piece._replace(quoted=False) for piece in value.pieces]) if isinstance(value, Scalar) else []


def _say_what_breaks(reading: Reading, source: Source) -> None:
    broken = line_broken_by_crlf(source)
    if broken is not None:
        job = "; sbatch refuses the script" if "#SBATCH" in source.text else ""
        mend = Mend(0, len(source.text), source.text.replace("\r\n", "\n"))
        reading.left_out(broken.text, broken.number, broken.why + job, kind="line ends", mend=mend)


def _say_what_lacks_quotes(reading: Reading, run: Run, lines: _Lines) -> None:
    for (flag, value, place), nested in dict.fromkeys(run.unquoted):
        quote = "'" if nested else '"'
        what = "stops at `(` with a syntax error" if "(" in value else "takes `|` for a pipe or stops there"
        why = f"it lacks quotes, and bash {what}; write `{flag} {quote}{value}{quote}`"
        meant, _ = field_of(flag) or (None, False)
        path = meant.path if meant is not None else None
        mend = None if place is None else Mend(place, place + len(value), f"{quote}{value}{quote}", path)
        reading.left_out(f"{flag} {value}", lines.at(place), why, kind="not allowed", mend=mend)


def _say_what_is_missing(reading: Reading, run: Run, source: Source, lines: _Lines) -> None:
    for name, place in run.sourced:
        line = lines.at(place)
        why = f"line {line} sources `{name}`, whose text is not here"
        reading.waits_for(why, name)
        reading.left_out(f"source {name}", line, "what it sets is unknown")
    for written, place, why in dict.fromkeys(run.unread):
        reading.left_out(written, lines.at(place), why)
    if not run.finished:
        reading.partial.append(f"the script takes more than {MAX_STEPS} steps; its end was not followed")
    for node in islice(errors(source.root), _MAX_ERRORS):
        line, written = node.start_point.row + 1, source.written(node).strip()
        if written in ("", "\\") and source.text.rstrip().endswith("\\"):
            continue  # a file that ends in a continued line
        reading.left_out(written, line, "no shell that this reader understands; what it sets is unknown")
        reading.partial.append(f"line {line} is no shell that this reader understands")
