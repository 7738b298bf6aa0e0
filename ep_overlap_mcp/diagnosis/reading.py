"""Reads logs of any size into `Evidence`, block by block: memory and time per line stay bounded.

A line that equals an earlier one but for its digits is read again only when the earlier one stated something,
and not without end. Of each file the first `HEAD` bytes, where versions and settings are printed, are read line
by line; of the rest only lines that hold a gate.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ep_overlap_mcp.diagnosis import printed
from ep_overlap_mcp.diagnosis.errors import UnreadableLog
from ep_overlap_mcp.diagnosis.evidence import Evidence, Failure, Hit, Line
from ep_overlap_mcp.diagnosis.gates import suspicious
from ep_overlap_mcp.diagnosis.prefixes import rank_of_file, strip_prefixes
from ep_overlap_mcp.diagnosis.signatures import SIGNATURES
from ep_overlap_mcp.diagnosis.signatures.refused import refused
from ep_overlap_mcp.diagnosis.told import denies, is_of_script, is_sentence
from ep_overlap_mcp.refusal import no_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ep_overlap_mcp.diagnosis.evidence import (
        Iteration,
        MemoryUse,
        Printed,
        PrintedVersion,
    )
    from ep_overlap_mcp.diagnosis.signatures import Signature

T = TypeVar("T")

BLOCK = 1 << 20
HEAD = 1 << 18
LONGEST_LINE = 4096
SHAPES = 40_000
READ_BYTES = 4 << 20  # of lines that differ in more than digits; then only the last ones are read
READ_AGAIN = 512
KEPT = 20_000
FIRST_STEPS = 4000
LAST_STEPS = 500
LAST_LINES = 500
DUMP_LINES = 400
KEPT_HITS = 64
MANY_LINES = 1000  # to read in one block, for which looking for the signatures' literals beforehand pays

_ANSI = re.compile(rb"\x1b\[[0-9;?]{0,24}[@-~]")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]{0,120}\.)?(?:[A-Z]\w{0,60})?(?:Error|Exception|Exit|Interrupt)(?::|$)")
_BARE = re.compile(r"^(?:[A-Za-z_][\w.]{0,120})?Error:?$")
_ASSERTION = re.compile(r"[Aa]ssertion.{0,400}failed|static assertion failed|Assertion error|Assertion failed")
_ROOT_RANK = re.compile(r"^rank {0,8}: (\d{1,6}) \(local_rank")
_EXIT = re.compile(r"^exitcode {0,8}: {0,4}-?\d")
_FRAME = re.compile(r'^File "([^"]{1,300})", line (\d{1,7})(,)? in (.{1,120})')  # a traceback's with a comma
_ASIDE = re.compile(r"[Ww]arning|WARN|INFO|DEBUG")  # a message that ends nothing
_CODE = ("assert ", "raise ")
_DIGITS = b"0123456789"
_STEP = -1


def read_logs(
    logs: Sequence[Path],
    texts: Mapping[str, str],
    on_progress: Callable[[int, int], None] | None = None,
    *,
    stack: Mapping[str, str] | None = None,
    symptom: str = "",
) -> Evidence:
    """Evidence of all files and of texts by their names; `on_progress(bytes read, bytes in all)` after each block.

    Raises `UnreadableLog` for a file that is missing, not a file, not readable or not text.
    """
    total = sum(_size(path) for path in logs)
    reader, read = _Reader(), 0
    for path in logs:
        reader.open(str(path))
        for block in _blocks(path):
            reader.read(block)
            read += len(block)
            if on_progress:
                on_progress(read, total)
    for name, text in texts.items():
        reader.open(name)
        reader.read(text.encode("utf-8", "replace"), whole=True)
    return replace(reader.evidence(), stack=dict(stack or {}), symptom=symptom)


def _size(path: Path) -> int:
    try:
        about = path.stat()
        if wrong := no_file(about):
            remedy = "name the log files in it" if wrong == "a directory" else "write the log to a file first"
            raise UnreadableLog(path, f"is {wrong}", remedy)
    except FileNotFoundError:
        raise UnreadableLog(path, "not found", "check the path; logs are read on this machine") from None
    except OSError as error:
        raise UnreadableLog(path, f"cannot be read ({error.strerror})", "check its permissions") from None
    return about.st_size


def _blocks(path: Path) -> Iterator[bytes]:
    """Blocks that end at a line end, except inside a line longer than a block."""
    try:
        with path.open("rb") as file:
            rest = b""
            while chunk := file.read(BLOCK):
                if not rest and file.tell() == len(chunk):
                    _refuse_binary(path, chunk[:8192])
                head, newline, tail = (rest + chunk).rpartition(b"\n")
                if newline:
                    yield head + newline
                    rest = tail
                else:
                    rest = tail[:LONGEST_LINE]
            if rest:
                yield rest
    except OSError as error:
        raise UnreadableLog(path, f"cannot be read ({error.strerror})", "check its permissions") from None


def _refuse_binary(path: Path, start: bytes) -> None:
    odd = sum(start.count(byte) for byte in range(9)) + sum(start.count(byte) for byte in range(14, 27))
    if odd > len(start) // 20:
        raise UnreadableLog(path, "not text", "give the log as plain text (unpack or convert it first)")


class _Reader:
    """Collects evidence; holds what is still open: stacks per rank, a dump, the shapes of lines seen."""

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self.failures: list[Failure] = []
        self.printed: list[Printed] = []
        self.versions: list[PrintedVersion] = []
        self.iterations: list[Iteration] = []
        self.memory: list[MemoryUse] = []
        self.root_rank: int | None = None
        self.root_exit: Line | None = None
        self._empty: dict[str, bool] = {}
        self._hits_of: dict[Signature, int] = {}
        self._left = {hash(b""): 0}  # shape of a line -> how often it is still read; `_STEP` for a step
        self._skips_steps = False
        self._read_bytes = 0
        self._frames: dict[int | None, deque[str]] = {}
        self._code: dict[int | None, str] = {}  # of the innermost frame
        self._code_at: dict[int | None, int | None] = {}  # the line where it is expected
        self._last_steps: deque[tuple[int, bytes]] = deque(maxlen=LAST_STEPS)
        self._last_lines: deque[tuple[int, bytes, int]] = deque(maxlen=LAST_LINES)
        self._order = 0
        self._rows: tuple[Signature, ...] = SIGNATURES

    def open(self, file: str) -> None:
        """Start a file: line numbers from 1, no dump or stack open."""
        self.close()
        self._file, self._file_rank = file, rank_of_file(file)
        self._empty[file] = True
        self._number, self._bytes, self._steps = 1, 0, 0
        self._section, self._misses = "", 0
        self._frames.clear()
        self._code.clear()
        self._code_at.clear()

    def close(self) -> None:
        """Read the last steps and lines of a file that has more of them than are read on the way."""
        for number, raw in self._last_steps:
            if step := printed.iteration(self._stripped(raw, number)[0]):
                _keep(self.iterations, step)
        self._rows = SIGNATURES
        for number, raw, shape in self._last_lines:
            self._line(raw, number, shape)
        self._last_steps.clear()
        self._last_lines.clear()

    def read(self, block: bytes, *, whole: bool = False) -> None:
        """Read the next block of the open file."""
        size = len(block)
        self._empty[self._file] &= not block or block.isspace()
        if b"\x1b" in block:
            block = _ANSI.sub(b"", block)
        lines = block.split(b"\n")
        shapes = list(map(hash, block.translate(None, _DIGITS).split(b"\n")))
        if self._skips_steps:
            steps = (index for index, shape in enumerate(shapes) if self._left.get(shape) == _STEP)
            self._last_steps.extend((self._number + index, lines[index]) for index in steps)
        in_head = self._bytes < HEAD and self._read_bytes < READ_BYTES
        if whole or in_head or self._section:
            new = self._new(shapes)
        elif self._read_bytes < READ_BYTES or b"model:" in block:
            new = self._gated(lines, self._new(shapes))
        else:
            new = self._late(lines, shapes)
        self._rows = _rows_in(block) if len(new) > MANY_LINES else SIGNATURES
        for index, shape in new:
            if shape not in self._left and self._read_bytes >= READ_BYTES:
                self._last_lines.append((self._number + index, lines[index], shape))
            elif self._left.get(shape, 1) > 0:
                self._line(lines[index], self._number + index, shape)
        self._bytes += size
        self._number += len(lines) - 1

    def evidence(self) -> Evidence:
        """What was read so far, frozen."""
        self.close()
        return Evidence(
            hits=tuple(self.hits),
            failures=tuple(self.failures),
            printed=tuple(self.printed),
            versions=tuple(self.versions),
            iterations=tuple(self.iterations),
            memory=tuple(self.memory),
            opened=len(self._empty),
            empty=tuple(file for file, empty in self._empty.items() if empty),
            root_rank=self.root_rank,
            root_exit=self.root_exit,
        )

    def _new(self, shapes: list[int]) -> list[tuple[int, int]]:
        """Index and shape of the lines to read: not those of a known shape that is read often enough."""
        left = self._left
        return [(index, shape) for index, shape in enumerate(shapes) if left.get(shape, 1) > 0]

    def _gated(self, lines: list[bytes], new: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those that hold a gate, and what follows the start of a dump; the others are not read again."""
        held = set(suspicious([lines[index] for index, _ in new]))
        kept, last_dump = [], -1000
        for place, (index, shape) in enumerate(new):
            if place in held or place - last_dump < DUMP_LINES:
                kept.append((index, shape))
                if lines[index].rstrip().endswith(b"model:"):
                    last_dump = place
            elif len(self._left) < SHAPES:
                self._left[shape] = 0
        return kept

    def _late(self, lines: list[bytes], shapes: list[int]) -> list[tuple[int, int]]:
        """The gated ones once enough is read, in a block that starts no dump.

        Of lines of new shapes only the last ones are kept, so they are searched from the end until there are enough.
        """
        left = self._left
        again = [(index, shape) for index, shape in enumerate(shapes) if left.get(shape, 0) > 0]
        last: list[tuple[int, int]] = []
        stop = len(shapes)
        while stop > 0 and len(last) < LAST_LINES:
            start = max(0, stop - LAST_LINES)
            fresh = [(index, shapes[index]) for index in range(start, stop) if shapes[index] not in left]
            last, stop = self._gated(lines, fresh) + last, start
        return sorted(self._gated(lines, again) + last)

    def _line(self, raw: bytes, number: int, shape: int) -> None:
        self._read_bytes += 0 if shape in self._left else min(len(raw), LONGEST_LINE)
        line, shown = self._stripped(raw, number)
        stated = self._states(line, shown)
        if stated == "step":
            self._steps += 1
            self._left[shape] = 1 if self._steps < FIRST_STEPS else _STEP
            self._skips_steps |= self._steps >= FIRST_STEPS
        else:
            self._left[shape] = self._left.get(shape, READ_AGAIN) - 1 if stated else 0

    def _stripped(self, raw: bytes, number: int) -> tuple[Line, str]:
        """The line without prefixes, and as it is shown; of a progress bar its last state."""
        shown = raw.rstrip(b"\r").rpartition(b"\r")[2][:LONGEST_LINE].decode("utf-8", "replace")
        text, rank, time = strip_prefixes(shown)
        self._order += 1
        rank = self._file_rank if rank is None else rank
        return Line(self._file, number, text, rank, time, self._order), shown

    def _states(self, line: Line, shown: str) -> str:
        """Record what a line states; the kind of it, empty when it states nothing."""
        if self._section and self._in_dump(line, shown):
            return "dump"
        if section := printed.SECTION.match(line.text):
            self._section, self._misses = section[1], 0
            return "dump"
        if self._frame(line):
            return "frame"
        if step := printed.iteration(line):
            _keep(self.iterations, step)
            return "step"
        if is_of_script(line.text):
            return "facts" if not line.text.startswith("#") and self._facts(line) else ""
        failed = not is_sentence(line.text) and self._failure(line)
        return "facts" if self._facts(line) or failed else ""

    def _in_dump(self, line: Line, shown: str) -> bool:
        """Whether a line belongs to the open YAML dump; three lines that do not end it."""
        if section := printed.SECTION.match(line.text):
            self._section, self._misses = section[1], 0
            return True
        row = printed.yaml_setting(line, self._section)
        if row and re.match(r"[^:\n]{0,40}?\s{2}", shown):
            _keep(self.printed, row)
            self._misses = 0
            return True
        if line.text.startswith("- "):
            return True
        self._misses += 1
        if self._misses >= 3:
            self._section = ""
        return False

    def _frame(self, line: Line) -> bool:
        """Keep the innermost stack frames of a rank until its exception comes."""
        if line.text.startswith("Traceback (most recent call last)"):
            self._frames[line.rank] = deque(maxlen=16)
            return True
        if found := _FRAME.match(line.text):
            frames = self._frames.setdefault(line.rank, deque(maxlen=16))
            frames.append(f"{found[1]}:{found[2]} in {found[4]}")
            self._code.pop(line.rank, None)
            self._code_at[line.rank] = (line.number or 0) + 1 if found[3] else None
            self._match(line, (), passing=True)
            return True
        if self._frames.get(line.rank) and self._is_code(line):
            self._code[line.rank] = line.text
            return True
        return False

    def _is_code(self, line: Line) -> bool:
        """Whether a stack shows this as what its innermost frame ran; other ranks' lines may stand between."""
        if line.number == self._code_at.get(line.rank):
            return not _EXCEPTION.match(line.text)
        return line.text.startswith(_CODE)

    def _failure(self, line: Line) -> bool:
        """Match signatures and note whether the line says that something failed."""
        line, frames = self._with_code(line), tuple(self._frames.get(line.rank, ()))
        rows = self._match(line, frames)
        raised = bool(_EXCEPTION.match(line.text))
        if raised:
            self._frames.pop(line.rank, None)
        if found := _ROOT_RANK.match(line.text):
            self.root_rank = int(found[1])  # the root cause is printed last
        elif _EXIT.match(line.text):
            self.root_exit = replace(line, rank=self.root_rank)
        known = [row for row in rows if row.confirms or row.points_to]
        follows = bool(rows) and not known and any(row.follows for row in rows)
        if raised or _ASSERTION.search(line.text) or any(row.stops for row in rows):
            waits = any(row.waits for row in rows)
            _keep(self.failures, Failure(line, recognised=bool(known), follows=follows, waits=waits, frames=frames))
        return raised or bool(rows) or bool(found)

    def _match(self, line: Line, frames: tuple[str, ...], *, passing: bool = False) -> list[Signature]:
        """Signatures of a line, recorded; of a `passing` stack frame only those that need no failure."""
        rows = [
            row
            for row in self._rows
            if row.literal in line.text and row.matches(line.text, frames) and not (passing and row.stops)
        ]
        if rows and not _EXCEPTION.match(line.text):
            rows = [row for row in rows if not denies(line.text, row.literal)]
        aside = _ASIDE.search(line.text) or (frames and not _EXCEPTION.match(line.text))
        if not (passing or aside or any(row.confirms or row.points_to for row in rows)):
            rows += refused(line.text, frames)
        for row in rows:
            self._hits_of[row] = self._hits_of.get(row, 0) + 1
            if self._hits_of[row] <= KEPT_HITS:
                self.hits.append(Hit(row, line, frames))
        return rows

    def _with_code(self, line: Line) -> Line:
        """The line; of an exception that says nothing with the code that its stack ends with."""
        code = self._code.get(line.rank, "") if _BARE.match(line.text) else ""
        return replace(line, text=f"{line.text.rstrip(':')}: {code}") if code.startswith(_CODE) else line

    def _facts(self, line: Line) -> bool:
        """Settings, versions and memory; True when the line stated any."""
        before = len(self.printed) + len(self.versions) + len(self.memory)
        for setting in printed.settings(line):
            _keep(self.printed, setting)
        for version in printed.versions(line):
            _keep(self.versions, version)
        if use := printed.memory(line):
            _keep(self.memory, use)
        return len(self.printed) + len(self.versions) + len(self.memory) > before


def _rows_in(block: bytes) -> tuple[Signature, ...]:
    """The signatures whose literal stands anywhere in a block: of many lines each is then asked about few."""
    return tuple(row for row in SIGNATURES if row.literal.encode() in block)


def _keep(kept: list[T], item: T) -> None:
    """Append unless the list is full: the first ones tell the story."""
    if len(kept) < KEPT:
        kept.append(item)
