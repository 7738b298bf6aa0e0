"""What every refusal of bad input has in common."""

from __future__ import annotations


class Refusal(ValueError):  # noqa: N818 - a refusal is an answer, and each kind names what is refused
    """The tool could not do its work; the text says what is wrong, where, and what to do. Exit code 2."""
