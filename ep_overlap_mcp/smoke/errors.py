"""Refusals of this room."""

from __future__ import annotations


class SmokeError(ValueError):
    """A smoke run that cannot be planned, started or found; the text says what, where and what to do."""
