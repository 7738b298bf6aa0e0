"""A text's own edits, made before anything is searched: what a reader names as the only thing that a part can mean.

Each edit is read again and stands only where it takes away what it mends and nothing else becomes another value.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.proposals.patch import Edit, applied, removal
from ep_overlap_mcp.proposals.statements import Place
from ep_overlap_mcp.proposals.verifying import is_as_complete, read_again
from ep_overlap_mcp.results.propose import Mended
from ep_overlap_mcp.rules import all_rules
from ep_overlap_mcp.sources.reading import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ep_overlap_mcp.proposals.verifying import Reread
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.sources.reading import Mend, Omission

_RULES: Final = {"line ends": "EPO812", "not allowed": "EPO810"}  # the errors that omissions of a kind are
_MOST_ROUNDS: Final = 3  # an edit may uncover another: behind mended line ends, or in the value of a renamed flag
_MOST_EDITS: Final = 8
_QUOTES: Final = frozenset("\"'")


@dataclass(frozen=True)
class Case:
    """One configuration of a question, with every edit of its text that leaves no choice.

    `requests` are all configurations as the edited files, `texts`, have them; `index` is the one that is asked about.
    """

    requests: Sequence[Request]
    index: int
    texts: Mapping[str, str]
    mends: tuple[Mended, ...] = ()

    @property
    def request(self) -> Request:
        """The configuration that is asked about, in the edited files."""
        return self.requests[self.index]


def mended(requests: Sequence[Request], index: int, texts: Mapping[str, str], reread: Reread) -> Case:
    """The configuration with its text mended where the text leaves no choice; as it is where nothing is to mend."""
    case = Case(requests, index, texts)
    for _ in range(_MOST_ROUNDS):
        better = _round(case, reread)
        if better is case:
            break
        case = better
    return case


def _round(case: Case, reread: Reread) -> Case:
    """The case with all edits made that its omissions name, those that overlap an earlier one left for later."""
    edits: dict[str, list[Edit]] = {}
    best = case
    for omission, mend in _to_mend(case)[:_MOST_EDITS]:
        file, text = str(omission.file), case.texts[str(omission.file)]
        for uncovers, (start, stop) in product((False, True), _ranges(text, mend)):
            edit = _edit(text, start, stop, mend)
            if any(edit.start < other.stop and other.start < edit.stop for other in edits.get(file, [])):
                break
            attempt = {**edits, file: [*edits.get(file, []), edit]}
            better = _reads_better(case, best, attempt, omission, reread, uncovers=uncovers)
            if better is not None:
                told = _told(omission, mend, text[start:stop])
                edits, best = attempt, replace(better, mends=(*best.mends, told))
                break
    return best


def _to_mend(case: Case) -> list[tuple[Omission, Mend]]:
    """What has a mend, each once; line ends first, as they are those of the whole text."""
    found = {o.mend: o for o in case.request.omissions if o.mend is not None and o.file in case.texts}
    return [(o, mend) for mend, o in sorted(found.items(), key=lambda pair: pair[1].kind != "line ends") if mend]


def _edit(text: str, start: int, stop: int, mend: Mend) -> Edit:
    """The mend at a range; quotes that belong to the value stay."""
    if not mend.text:
        return removal(Place(text, start, stop))
    quoted = start == mend.start and stop > start + 1 and text[start] in _QUOTES and text[start] == text[stop - 1]
    kept = text[start] if quoted else ""
    return Edit(start, stop, f"{kept}{mend.text}{kept}")


def _ranges(text: str, mend: Mend) -> Iterator[tuple[int, int]]:
    """Where a mend may apply: as it stands, then with the quotes around what it replaces."""
    start, stop = mend.start, mend.stop
    before, behind = text[max(start - 1, 0) : start], text[stop : stop + 1]
    if behind in _QUOTES and text.count(behind, start, stop) % 2:
        yield start, stop + 1  # `--swiglu "True"`, whose value ends before its quote
        return
    yield start, stop
    if before in _QUOTES and before == behind:
        yield start - 1, stop + 1


def _reads_better(
    case: Case, best: Case, edits: Mapping[str, list[Edit]], omission: Omission, reread: Reread, *, uncovers: bool
) -> Case | None:
    """The case with the edits made, where reading them again shows that they do what they should.

    An edit that `uncovers` may leave another part to mend, such as the value of a flag that it renames.
    """
    texts = {**case.texts, **applied(case.texts, edits)}
    try:
        again = reread(texts)
    except UnreadableError:
        return None
    if len(again) != len(case.requests):
        return None
    requests = [
        read_again(request, readings, texts, request.assume)
        for request, readings in zip(case.requests, again, strict=True)
    ]
    if not all(_keeps(before, after) for before, after in zip(case.requests, requests, strict=True)):
        return None
    before, after = _errors(best.request), _errors(requests[case.index])
    left = [o for o in requests[case.index].omissions if (o.kind, _words(o.text)) in after - before]
    if (omission.kind, _words(omission.text)) not in before - after:
        return None
    if left and not (uncovers and all(o.mend for o in left)):
        return None
    return replace(best, requests=requests, texts=texts)


def _keeps(before: Request, after: Request) -> bool:
    """Whether what was known has its value still, and what was complete is."""
    same = all(
        path in after.as_written and _same(setting.value, after.as_written[path].value)
        for path, setting in before.as_written.items()
        if setting.known
    )
    return same and is_as_complete(before, after)


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


def _errors(request: Request) -> Counter[tuple[str, str]]:
    return Counter((o.kind, _words(o.text)) for o in request.omissions if o.kind in _RULES)


def _words(text: str) -> str:
    return " ".join(text.split())


def _told(omission: Omission, mend: Mend, old: str) -> Mended:
    """The edit as an answer tells it."""
    rule = all_rules()[_RULES[omission.kind]].name
    if omission.kind == "line ends":
        return Mended(file=str(omission.file), line=None, before="CRLF line ends", to="LF line ends", rule=rule)
    old = re.sub(r"\s*\\\n\s*", " ", old)
    return Mended(file=str(omission.file), line=omission.line, before=old, to=mend.text, path=mend.path, rule=rule)
