"""Megatron-LM command-line flags, as a shell, a rendered argument list or the `MODEL_ARGS:` of a YAML file gives them.

The names stand in the field table. What argparse does with them (`nargs`, `store_true`, expressions that
`--moe-layer-freq` evaluates) is NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.moe_layers import layer_pattern
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.parser_refusals import near_flag, refused_name, refused_value, states_on
from ep_overlap_mcp.sources.reading import Mend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ep_overlap_mcp.settings.fields import Field
    from ep_overlap_mcp.sources.parser_refusals import Refusal
    from ep_overlap_mcp.sources.reading import Reading
    from ep_overlap_mcp.sources.words import Word

_FLAG: Final = re.compile(r"--?[A-Za-z_]")
_ARRAY: Final = re.compile(r"\$\{\w+\[[@*]\]\}\Z")
_NO_PATTERN: Final = re.compile(r"\[.*\s|\s.*\]")  # Megatron-LM's own parser evaluates a pattern without spaces only
_TRUE: Final = {"true", "yes", "on"}
_FALSE: Final = {"false", "no", "off"}
_ONE_OR_SEVERAL: Final = {"model.cp_comm_type"}  # one for all layers, or one a layer
_FARTHEST: Final = 40  # blanks, quotes and a line's end between a flag and its value

# Spellings of wrappers and frameworks around Megatron-LM, as public scripts use them.
ALIASES: Final = {
    "--actor-num-nodes": "hardware.nodes",  # THUDM/slime, radixark/miles: ranks that train
    "--actor-num-gpus-per-node": "hardware.gpus_per_node",
    "--llm-ep": "model.expert_model_parallel_size",  # Megatron-LM examples/mimo
}

# Programs that run beside Megatron in one command and take flags that read like its own.
_OTHER_PROGRAMS: Final = (
    "sglang", "vllm", "rollout", "eval", "ref", "critic", "reward", "teacher", "draft", "infer", "router",
)  # fmt: skip
_TELLING: Final = {
    "a2a", "cp", "cuda", "deepep", "dispatcher", "dp", "ep", "expert", "experts", "graph", "megatron", "moe",
    "overlap", "parallel", "pipeline", "pp", "recompute", "tp", "wgrad",
}  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """One flag with the words behind it."""

    name: str
    head: Word
    values: tuple[Word, ...]

    @property
    def text(self) -> str:
        """As it was written, after expansion."""
        return " ".join([self.name, *(word.text for word in self.values)])


def read_flags(words: Sequence[Word], reading: Reading) -> None:
    """Add the settings of one command's arguments to a reading, in their order: a later duplicate overwrites."""
    add_flags(*split_flags(words, strict=reading.strict), reading)


def add_flags(flags: Iterable[Flag], loose: Iterable[Word], reading: Reading) -> None:
    """The same for arguments that are split already: flags with their values, and words that belong to none."""
    for flag in flags:
        if not (reading.strict and _refused_value(flag, reading)):
            add_flag(flag, reading)
    for word in loose:
        if word.may_hold_options:
            _may_hold_more(word, reading)
        elif reading.strict and not word.unresolved and word.text != "--":
            why = "it belongs to no flag, and Megatron-LM's parser takes no word alone (unrecognized arguments)"
            reading.left_out(word.text, word.line, why, kind="not allowed")


def split_flags(words: Sequence[Word], *, strict: bool = False) -> tuple[list[Flag], list[Word]]:
    """Flags with their values, and the words that belong to no flag or may hold further ones.

    `strict` is for Megatron-LM's own parser, whose switches take no value.
    """
    flags: list[Flag] = []
    loose: list[Word] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not is_flag(word):
            loose.append(word)
            continue
        name, equals, _ = word.text.partition("=")
        values = [word.tail(len(name) + 1)] if equals else []
        room = 0 if equals else _room(name)
        while len(values) < room and at < len(words) and not is_flag(words[at]):
            if _holds_options(words[at], name, first=not values, strict=strict):
                break
            if values and words[at].may_hold_options and _is_judged_list(name):
                loose.append(words[at])  # the list may go on in it, and options may follow
            values.append(words[at])
            at += 1
        flags.append(Flag(name, word, tuple(values)))
    return flags, loose


def is_flag(word: Word) -> bool:
    """Whether a word is an option: two dashes, or one and a letter; `-1` is a value."""
    return word.text[:1] == "-" and _FLAG.match(word.text) is not None


@lru_cache(maxsize=4096)
def field_of(name: str) -> tuple[Field, bool] | None:
    """The setting of a flag, and whether the flag switches it off."""
    table = field_table()
    if path := ALIASES.get(name.replace("_", "-").lower()):
        return table[path], False
    return table.flag(name)


def add_flag(flag: Flag, reading: Reading) -> None:
    """Add one flag: its setting, or the reason why it sets none."""
    if reading.strict and (_one_word(flag, reading) or _refused_name(flag, reading)):
        return
    found = field_of(flag.name)
    if found is None:
        _unknown(flag, reading)
        return
    setting, off = found
    names = tuple(name for word in (flag.head, *flag.values) for name in word.unresolved)
    if names:
        _unresolved(flag, setting, names, reading)
    elif off or (setting.type in ("bool", "any") and _is_switch(flag)):
        span = flag.values[0].span if flag.values else flag.head.span
        given = not flag.values or flag.values[0].text.strip().lower() not in _FALSE
        _add(flag, setting, given is not off, span, reading)
    elif not flag.values:
        reading.left_out(flag.text, flag.head.line, "no value follows", kind="not allowed", path=setting.path)
        reading.add(setting, UNKNOWN, line=flag.head.line, text=flag.text)
    else:
        _add(flag, setting, _value(setting, flag.values, strict=reading.strict), _span(flag.values), reading)


def _one_word(flag: Flag, reading: Reading) -> bool:
    """Note options that quotes make one word: argparse takes an argument with a blank in it for no option."""
    if flag.head.unresolved or not re.search(r"\s", flag.name):
        return False
    why = "one word because of its quotes, and no flag (unrecognized arguments); leave the quotes out, or use an array"
    reading.left_out(flag.head.text, flag.head.line, why, kind="not allowed")
    return True


def _refused_name(flag: Flag, reading: Reading) -> bool:
    """Note a name that Megatron-LM's own parser does not know although it means a setting."""
    known = flag.head.unresolved or flag.name in ALIASES
    refusal = None if known else refused_name(flag.name)
    if refusal and refusal.alone and flag.values and not states_on(flag.values[0].text):
        refusal = refusal._replace(instead=None)  # a switch, and a value that may mean another one
    return _refused(flag, refusal, reading)


def _refused_value(flag: Flag, reading: Reading) -> bool:
    """Note a switch with a value, as in `--sequence-parallel true`."""
    return bool(flag.values) and _refused(flag, refused_value(flag.name, flag.values[0].text), reading)


def _refused(flag: Flag, refusal: Refusal | None, reading: Reading) -> bool:
    """What the parser refuses leaves the setting that was meant unknown; no later value keeps the run from ending."""
    if refusal is None:
        return False
    reading.left_out(flag.text, flag.head.line, refusal.why, kind="not allowed", mend=_mend(flag, refusal))
    reading.add(refusal.path, UNKNOWN, line=flag.head.line, text=flag.text)
    return True


def _mend(flag: Flag, refusal: Refusal) -> Mend | None:
    """The flag to write in place of the one that is refused, with its value unless it is a switch."""
    if refusal.instead is None or flag.head.span is None:
        return None
    start, stop = flag.head.span
    if not (refusal.alone or refusal.instead == ""):
        return Mend(start, start + len(flag.name), refusal.instead, refusal.path)
    value = flag.values[-1].span if flag.values else (stop, stop)
    near = value is not None and 0 <= value[1] - start <= _FARTHEST + len(flag.text)
    return Mend(start, max(stop, value[1]), refusal.instead, refusal.path) if near and value is not None else None


def _add(flag: Flag, setting: Field, value: Any, span: tuple[int, int] | None, reading: Reading) -> None:
    reading.add(setting, value, line=flag.head.line, text=flag.text, span=span)


def _is_switch(flag: Flag) -> bool:
    return not flag.values or flag.values[0].text.strip().lower() in _TRUE | _FALSE


def _room(name: str) -> int:
    """How many words a flag can take: a switch one `true` at most, a list as many as there are."""
    found = field_of(name)
    several = found is None or found[0].type == "list" or found[0].path in _ONE_OR_SEVERAL
    return 10_000 if several else 1


def _is_judged_list(name: str) -> bool:
    found = field_of(name)
    return found is not None and found[0].type == "list" and not found[0].path.startswith("args.")


def _holds_options(word: Word, name: str, *, first: bool, strict: bool) -> bool:
    """Whether a word behind a flag is no value of it but options without a value in the text, such as `${ARGS[@]}`."""
    found = field_of(name)
    if found is not None and (found[1] or found[0].type == "bool"):
        states = word.text.strip().lower() in _TRUE | _FALSE
        may_state = word.unresolved and word.quoted and not _ARRAY.match(word.text) and not strict
        return not states and not may_state
    if not word.may_hold_options:
        return False
    return word.text.startswith("--") or _ARRAY.match(word.text) is not None or not (first or found)


def _unresolved(flag: Flag, setting: Field, names: Sequence[str], reading: Reading) -> None:
    """A value that hangs on a variable: noted aloud only where some rule could want it."""
    if setting.path.startswith("args."):
        reading.add(setting, UNKNOWN, line=flag.head.line, text=flag.text)
        return
    reading.unresolved(setting, line=flag.head.line, text=flag.text, why=_missing(names))


def _may_hold_more(word: Word, reading: Reading) -> None:
    why = f"`{word.text}` may hold further options; {_missing(word.unresolved)}"
    reading.left_out(word.text, word.line, why, kind="not resolved")
    reading.waits_for(why, *word.unresolved)


def _unknown(flag: Flag, reading: Reading) -> None:
    if flag.head.unresolved and "$" in flag.name:
        _may_hold_more(flag.head, reading)
        return
    words = flag.name.lstrip("-").replace("_", "-").lower().split("-")
    if words[0] in _OTHER_PROGRAMS and _TELLING.intersection(words[1:]):
        why = f"`{flag.name}` belongs to {words[0]}, not to the training model"
        reading.left_out(flag.text, flag.head.line, why, kind="look-alike")
    else:
        reading.left_out(flag.text, flag.head.line, _why_unknown(flag.name, reading), kind="unknown name")


def _why_unknown(name: str, reading: Reading) -> str:
    """That no release has the flag; of Megatron-LM's own parser also what that means, and what may be meant."""
    why = "no known Megatron-LM flag"
    if not reading.strict:
        return why
    near = near_flag(name)
    meant = f"; did you mean `{near}`?" if near else ""
    return f"{why}, which ends the run (unrecognized arguments) unless your fork registers it{meant}"


def _value(setting: Field, words: Sequence[Word], *, strict: bool) -> Any:
    texts = [bare(word.text) for word in words]
    if setting.name.endswith("_freq"):
        text = " ".join(texts)
        return text if strict and _NO_PATTERN.search(text) else pattern_or_text(text)
    if setting.name == "pipeline_model_parallel_layout":
        return re.sub(r"\\([|()*])", r"\1", texts[0])
    if setting.type == "list" and strict:
        return texts
    if setting.type == "list":
        return [part for text in texts for part in _parts(text)]
    return texts[0] if setting.type != "any" or len(texts) == 1 else texts


def _parts(text: str) -> list[str]:
    """`[a b]`, `a,b` and `a b` inside one word."""
    words = re.split(r"[\s,]+", text.strip().strip("[](){}").strip())
    return [part for word in words if (part := bare(word))]


def bare(text: str) -> str:
    """Without quotes that the shell left around the whole value, as in `"'Et|t'"`."""
    text = text.strip()
    while len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    return text


def pattern_or_text(text: str) -> Any:
    """A frequency of layers as Megatron-LM evaluates it, `2` or `([0]*3+[1]*58)`; text that is neither stays text."""
    pattern = layer_pattern(text)
    return text if pattern is None else pattern


def _span(words: Sequence[Word]) -> tuple[int, int] | None:
    """From the first to the last value, when they follow one another in the file or stand in one place."""
    spans = [word.span for word in words if word.span is not None]
    if len(spans) == len(words) and len(set(spans)) == 1:
        return spans[0]
    if len(spans) != len(words) or any(b[0] < a[1] or b[0] - a[1] > 200 for a, b in pairwise(spans)):
        return None
    return spans[0][0], spans[-1][1]


def _missing(names: Sequence[str]) -> str:
    """Why a word is unknown: a variable that nothing sets, or the output of a command."""
    printed = all(name.startswith(("$(", "`")) for name in names)
    if printed:
        return "what the command prints is not in the text"
    return "the text gives " + ", ".join(dict.fromkeys(f"`{name}`" for name in names)) + " no value"
