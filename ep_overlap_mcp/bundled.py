"""Where the files that stand at the top of the repository are found, from a checkout or from a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def bundled(folder: str) -> Path:
    """The folder `tools` or `prompts`: package data in a wheel, the repository's own in a checkout."""
    for place in (_PACKAGE / folder, _PACKAGE.parent / folder):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"`{folder}/` is missing from this installation; reinstall ep-overlap-mcp")
