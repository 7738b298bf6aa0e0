"""What every page of HTML begins with: its policy, its title, and the mark by which a page of ours is known again."""

from __future__ import annotations

from html import escape

_MARK = '<meta name="generator" content="ep-overlap-mcp">'


def opening(title: str, policy: str, style: str) -> str:
    """A page up to and with its heading."""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">{_MARK}<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title><style>{style}</style></head><body>
<h1>{escape(title)}</h1>"""


def is_ours(start: bytes) -> bool:
    """Whether a file that begins so is such a page, which a newer one may replace."""
    return start.startswith(b"<!DOCTYPE html>") and _MARK.encode() in start
