"""A command line that its parser refused: which flags, and what to write instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.findings import CONFIRMS, Against, Support
from ep_overlap_mcp.diagnosis.signatures.command_line import BAD_ARGUMENT, MISSING_ARGUMENTS, UNKNOWN_ARGUMENTS
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.sources.parser_refusals import near_flag, refused_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.diagnosis.evidence import Evidence

_FLAG = re.compile(r"(?<!\S)--?[A-Za-z][\w-]{0,80}")
_ABOUT = re.compile(r"error: argument (?P<flag>-[^:]{1,160}): (?P<problem>.{1,300})")
_CHOICE = re.compile(r"invalid choice: '([^']{1,100})'")


def refused_arguments(evidence: Evidence) -> Iterator[Support | Against]:
    """Each flag that argparse names, with what it needs, and the rule that a value breaks."""
    for hit in evidence.hits:
        said = hit.line.text.partition("error: ")[2]
        remedy = _REMEDIES.get(hit.signature.literal)
        for fix in remedy(said) if remedy else ():
            yield Support(
                "config-rule-violated", CONFIRMS, (hit.line,), hit.signature.rules or _of_value(said), fix=fix
            )


def _of_value(said: str) -> tuple[str, ...]:
    """Whether no release takes a value, or only others than the one that ran."""
    flag, value = _ABOUT.match(f"error: {said}"), _CHOICE.search(said)
    found = field_table().registered(flag["flag"]) if flag else None
    elsewhere = found and value and value[1] in (found[0].cli_choices or found[0].choices or ())
    return ("value-unknown-to-version",) if elsewhere else ("value-not-allowed",)


def _unknown(said: str) -> Iterator[str]:
    for flag in _FLAG.findall(said):
        yield _instead_of(flag)


def _instead_of(flag: str) -> str:
    """What to do about a flag that this program does not know."""
    if refusal := refused_name(flag):
        return refusal.why
    if found := field_table().registered(flag):
        since, until = found[0].flag_since, found[0].flag_until
        ranges = [f"came with {since}"] * bool(since) + [f"is gone since {until}"] * bool(until)
        known = f" ({' and '.join(ranges)})" if ranges else ""
        return f"`{flag}` is a flag of Megatron-LM{known}: run a release that has it, or leave it out"
    near = near_flag(flag)
    return f"`{flag}` is no flag of Megatron-LM: {f'write `{near}`, or ' if near else ''}leave it out"


def _missing(said: str) -> Iterator[str]:
    for flag in re.findall(r"[\w/-]{2,160}", said.partition(":")[2]):
        yield f"give `{flag}`"


def _bad(said: str) -> Iterator[str]:
    if found := _ABOUT.match(f"error: {said}"):
        yield f"`{found['flag']}`: {found['problem']}"


_REMEDIES = {UNKNOWN_ARGUMENTS: _unknown, MISSING_ARGUMENTS: _missing, BAD_ARGUMENT: _bad}
