"""How argparse, and Hydra for Megatron-Bridge, refuse a command line."""

from __future__ import annotations

import re

from ep_overlap_mcp.diagnosis.signatures.row import Signature

_CAUSE = ("config-rule-violated",)
_ARGPARSE = "CPython Lib/argparse.py"
UNKNOWN_ARGUMENTS = "error: unrecognized arguments"
MISSING_ARGUMENTS = "error: the following arguments are required"
BAD_ARGUMENT = "error: argument -"

COMMAND_LINE = (
    Signature(UNKNOWN_ARGUMENTS, _ARGPARSE, confirms=_CAUSE, rules=("setting-unknown-to-version",)),
    Signature("error: ambiguous option", _ARGPARSE, confirms=_CAUSE, rules=("setting-unknown-to-version",)),
    Signature(
        BAD_ARGUMENT,
        _ARGPARSE,
        confirms=_CAUSE,
        pattern=re.compile(r": (?:invalid|expected|ignored explicit|not allowed)"),
    ),
    Signature(MISSING_ARGUMENTS, _ARGPARSE, confirms=_CAUSE, rules=("required-arguments-stated",)),
    Signature(
        "argument is None",
        "megatron/training/arguments.py (0.16.1:796-799)",
        confirms=_CAUSE,
        pattern=re.compile(r"^AssertionError: \w{1,60} argument is None"),
        rules=("required-arguments-stated",),
    ),
    Signature(
        "OverridesError",
        "Bridge training/utils/omegaconf_utils.py@067f987df:186",
        confirms=_CAUSE,
        pattern=re.compile(r"Could not override|is not in struct"),
        rules=("setting-unknown-to-version",),
    ),
)
