"""Readings as short texts that a test compares as a whole."""

from ep_overlap_mcp.settings.setting import UNKNOWN


def settings(reading):
    """The last value of each path."""
    return {a.path: "?" if a.value is UNKNOWN else a.value for a in reading.assignments}


def written(reading, text):
    """Path, line and the characters a patch would replace, for everything that has such a place."""
    return [(a.path, a.line, text[slice(*a.span)]) for a in reading.assignments if a.span]


def omissions(reading):
    """Kind, line and path of each omission."""
    return [(o.kind, o.line, o.path) for o in reading.omissions]
