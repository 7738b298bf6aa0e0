"""What every refusal of bad input has in common."""

from __future__ import annotations

_LONGEST = 2000  # characters: a refusal may quote what it was given, which has no end


class Refusal(ValueError):  # noqa: N818 - a refusal is an answer, and each kind names what is refused
    """The tool could not do its work; the text says what is wrong, where, and what to do. Exit code 2.

    Of a long text the middle is left out: what is refused stands first, the remedy last.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
