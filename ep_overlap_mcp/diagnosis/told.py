"""Lines in which people speak of errors: comments and traced commands of a script, sentences about a run.

They hold the words of an error that did not happen here, or not in this line; what a program prints begins otherwise.
"""

from __future__ import annotations

import re

from ep_overlap_mcp.diagnosis.symptoms import named

_SCRIPT = re.compile(r"#(?!\d)|\+{1,8} ")  # a comment, a command under `set -x`; `#0` is a frame of a native stack
_SENTENCE = re.compile(
    r"(?:[Ww]e|I|[Mm]y|[Oo]ur|[Tt]here (?:is|was|were)|[Tt]he (?:job|run|training)|[Ii]t) [a-z]+ (?![^ ]{0,80}Error:)"
)
_DENIES = re.compile(r"\b(?:[Nn]o|[Nn]ever|[Ww]ithout)(?: \w{1,20}){0,2} $")
_DENIAL = re.compile(r"\b(?:no|not|never|without)\b", re.IGNORECASE)


def is_of_script(text: str) -> bool:
    """Whether a line is a comment or a traced command."""
    return bool(_SCRIPT.match(text))


def is_sentence(text: str) -> bool:
    """Whether a line is what somebody says of a run."""
    return bool(_SENTENCE.match(text))


def denies(text: str, literal: str) -> bool:
    """Whether a line says that there was none: `no CUDA out of memory`."""
    return bool(_DENIES.search(text[: text.find(literal)][-80:]))


def symptom_of(text: str) -> str:
    """What the sentences of a text say, without clauses that deny something; empty where a line is no sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not all(map(is_sentence, lines)):
        return ""
    clauses = (clause.strip() for line in lines for clause in re.split(r"[.,;]", line))
    return ", ".join(clause for clause in clauses if not _DENIAL.search(clause) or "no gain" in named(clause))
