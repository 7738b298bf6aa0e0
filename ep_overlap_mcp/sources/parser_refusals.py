"""What Megatron-LM's own parser refuses though its meaning is plain: other spellings, abbreviations, filled switches.

The parser is argparse with `allow_abbrev=False`; a word that it does not know ends the run with "unrecognized
arguments" (NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:89-90).
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from ep_overlap_mcp.settings.fields import field_table

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.fields import Field

_CLOSE: Final = 0.85
_CLOSE_WORD: Final = 0.75
_LIKE: Final = 0.8
_SHORTEST: Final = 8  # characters of an abbreviation that says which flag is meant
_STAGES: Final = "--num-virtual-stages-per-pipeline-rank"
_INSTEAD: Final = {
    "model.virtual_pipeline_model_parallel_size": (f"write `{_STAGES}`", _STAGES),
    "model.cpu_offloading": ("write `--cpu-offloading-num-layers`", None),  # with a number of the user's choice
    "model.fp8_param": ("write `--fp8-param-gather`", "--fp8-param-gather"),
}
_ELSEWHERE: Final = ("Megatron-LM sets it from its other arguments", None)
_ON: Final = {"true", "yes", "on", "1"}
_OFF: Final = {"false", "no", "off", "0"}


class Refusal(NamedTuple):
    """The setting that was meant, what the parser says, and the flag to write.

    `instead` is empty where the flag goes with its value, and None where the user has a choice. `alone` says that what
    is written is a switch, which takes no value.
    """

    path: str
    why: str
    instead: str | None = None
    alone: bool = False


def refused_value(name: str, value: str) -> Refusal | None:
    """The refusal of a registered switch with a value behind it, which argparse's `store_true` never takes."""
    setting, off = field_table().registered(name) or (None, False)
    if setting is None or not (off or setting.type == "bool"):
        return None
    why = f"Megatron-LM's parser takes no value for the switch `{name}`, got {value!r}"
    if value.strip().lower() in _OFF:
        return Refusal(setting.path, f"{why}; leave it out", "", alone=True)
    if states_on(value):
        return Refusal(setting.path, f"{why}; write `{name}` alone", name, alone=True)
    return Refusal(setting.path, f"{why}; write `{name}` alone to set it, or leave it out")


@lru_cache(maxsize=1024)
def refused_name(name: str) -> Refusal | None:
    """The refusal of a name that the parser does not register but that means a setting of it; None for any other."""
    table = field_table()
    if table.registered(name) is not None:
        return None
    found = table.flag(name)
    if found is not None and not found[0].command_line:
        return _refusal(name, found[0], *_INSTEAD.get(found[0].path, _ELSEWHERE))
    if (on := _switched_on(name)) is not None:
        return on
    meant = _meant(name)
    if meant is None:
        return None
    setting, off = table.parser_flags[meant]
    if not off and name.startswith("--no-") and not meant.startswith("--no-"):
        return _refusal(name, setting, f"leave `{meant}` out to switch it off", "")
    return _refusal(name, setting, f"write `{meant}`", meant)


def states_on(value: str) -> bool:
    """Whether the word behind a switch says that it is on."""
    return value.strip().lower() in _ON


def near_flag(name: str) -> str | None:
    """The registered flag of a judged setting that a name resembles, too little to say that it is meant."""
    return next(iter(difflib.get_close_matches(name.replace("_", "-").lower(), _judged_flags(), 1, _LIKE)), None)


def _switched_on(name: str) -> Refusal | None:
    """The refusal of a name that would switch on what is on unless its `--no-…` or `--disable-…` is given."""
    rest = name.replace("_", "-").lower().removeprefix("--")
    of_name = field_table().bare(rest.replace("-", "_"))
    candidates = (f"--no-{rest}", f"--disable-{rest}", *(of_name.off_flags if of_name and not of_name.flags else ()))
    off = next((flag for flag in candidates if flag in _judged_flags()), None)
    if off is None or f"--{rest}" in field_table().parser_flags:
        return None
    return _refusal(name, field_table().parser_flags[off][0], f"it is on without; write `{off}` to switch it off", "")


def _refusal(name: str, setting: Field, remedy: str, instead: str | None) -> Refusal:
    why = f"Megatron-LM's parser has no `{name}` (unrecognized arguments); {remedy}"
    return Refusal(setting.path, why, instead, alone=setting.type == "bool")


def _meant(name: str) -> str | None:
    """The registered flag that a name differs from by dashes, case, `--no-`, its missing end or a slip."""
    registered = field_table().parser_flags
    plain = "--" + name.replace("_", "-").lower().lstrip("-")
    if plain in registered:
        return plain
    positive = "--" + plain.removeprefix("--no-")
    if plain.startswith("--no-") and positive in registered and registered[positive][0].type == "bool":
        return positive
    return _shortened_or_misspelled(plain)


def _shortened_or_misspelled(name: str) -> str | None:
    """Only for settings that rules judge: a fork adds flags that resemble the many others, such as `--train-data`."""
    judged = _judged_flags()
    longer = [flag for flag in judged if flag.startswith(name)]
    if len(longer) == 1 and len(name) >= _SHORTEST:
        return longer[0]
    close = difflib.get_close_matches(name, judged, n=1, cutoff=_CLOSE) if "." not in name else []
    return next((flag for flag in close if _one_word_differs(flag, name)), None)


def _one_word_differs(flag: str, name: str) -> bool:
    """`com` for `comm` is a slip; another word, or one more, names another thing."""
    theirs, ours = flag.split("-"), name.split("-")
    pairs = [(a, b) for a, b in zip(theirs, ours, strict=False) if a != b]
    if len(theirs) != len(ours) or len(pairs) != 1:
        return False
    return difflib.SequenceMatcher(None, *pairs[0]).ratio() >= _CLOSE_WORD


@lru_cache(maxsize=1)
def _judged_flags() -> list[str]:
    flags = field_table().parser_flags
    return [flag for flag, (setting, _) in flags.items() if not setting.path.startswith("args.")]
