"""Whether edited files, read again, say what a proposal promises, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.proposals.judging import Judge, verdict_of
from ep_overlap_mcp.proposals.rendering import STAGES, VPP
from ep_overlap_mcp.proposals.search import as_changed
from ep_overlap_mcp.settings.effective import Effective
from ep_overlap_mcp.settings.request import assumed, build_request
from ep_overlap_mcp.sources.reading import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ep_overlap_mcp.settings.request import Assume, Request
    from ep_overlap_mcp.sources.reading import Reading

    # Edited texts by file name -> the readings of every configuration in them, in the order of the question's.
    Reread = Callable[[Mapping[str, str]], Sequence[Sequence[Reading]]]

_LINE = re.compile(r"\bline \d+")
_STAGE_PATHS = frozenset({VPP, STAGES, "model.num_layers_per_virtual_pipeline_stage"})


def verified(
    requests: Sequence[Request],
    index: int,
    changes: Mapping[str, Any],
    texts: Mapping[str, str],
    reread: Reread,
    judge: Judge,
) -> bool:
    """Whether one configuration of the edited files has every change and all others nothing but what they had."""
    try:
        again = reread(texts)
    except UnreadableError:
        return False
    if len(again) != len(requests):
        return False
    for number, (request, readings) in enumerate(zip(requests, again, strict=True)):
        wanted = changes if number == index else {}
        if not _says(request, wanted, read_again(request, readings, texts), judge):
            return False
    return True


def read_again(
    request: Request, readings: Sequence[Reading], texts: Mapping[str, str], assume: Assume = "as_written"
) -> Request:
    """The request that the edited files make, with what the caller gave beside them."""
    again = build_request(readings, stack=request.stack, assume="as_written")
    given = {p: s for p, s in request.as_written.items() if s.origin.file not in texts}
    written = {**again.as_written, **given}
    settings = assumed(written, assume, request.framework)
    return replace(again, settings=settings, as_written=written, assume=assume)


def _says(request: Request, changes: Mapping[str, Any], again: Request, judge: Judge) -> bool:
    if not is_as_complete(request, again) or not _rest_is_equal(request, again, changes):
        return False
    if not changes:
        return True
    wanted = as_changed(request, changes)
    release = wanted.releases()[0]
    now, then = Effective(again, release), Effective(wanted, release)
    left_out = [p for p, v in changes.items() if p not in again.as_written and not v]
    if any(now[path].value != then[path].value for path in changes if path not in left_out):
        return False
    if all(now[path].value == then[path].value for path in left_out):
        return True
    without = replace(wanted, settings={p: s for p, s in wanted.settings.items() if p not in left_out})
    return verdict_of(judge.outcomes(without)) == verdict_of(judge.outcomes(wanted))


def is_as_complete(request: Request, again: Request) -> bool:
    """Whether the same parts of the text are open, on whatever lines an edit has left them."""
    before, after = ([_LINE.sub("", why) for why in asked.partial] for asked in (request, again))
    return before == after


def _rest_is_equal(request: Request, again: Request, changes: Mapping[str, Any]) -> bool:
    """Whether every setting that is no part of the changes is stated as before."""
    spared = set(changes) | (_STAGE_PATHS if VPP in changes else frozenset())
    before, after = request.as_written, again.as_written
    return all(
        path in before and path in after and _same(before[path].value, after[path].value)
        for path in (before.keys() | after.keys()) - spared
    )


def _same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and left == right)
