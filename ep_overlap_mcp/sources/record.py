"""One statement `name = value` of a text -> the settings it sets, in the words of the program that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.fields import Field, ValueNotAllowedError
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.flags import pattern_or_text
from ep_overlap_mcp.sources.names import DISTINCTIVE

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.names import NoSetting, Vocabulary
    from ep_overlap_mcp.sources.reading import Reading

_WHY = {
    "look-alike": "`{part}…` is another role or engine of {program}, not the training with Megatron",
    "unknown name": "not a known setting of Megatron",
    "dead": "nothing reads this attribute; the switch is comm_overlap.overlap_moe_expert_parallel_comm",
}


_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "float64": "fp64"}


def record(
    reading: Reading,
    vocabulary: Vocabulary,
    name: str,
    value: Any,
    *,
    line: int | None,
    text: str,
    span: tuple[int, int] | None = None,
    why: str = "the value needs running or a variable that the text does not set",
    derived_from: str | None = None,
) -> None:
    """Record what a statement sets; `value` is UNKNOWN, for the reason `why`, where the text does not settle it."""
    meaning = implied(vocabulary.canonical(name) or "", value)
    if meaning is not None:
        for path, known in meaning.items():
            reading.add(path, known, line=line, text=text, derived_from=derived_from or text)
    setting = vocabulary.setting(name)
    if setting is None or (meaning is not None and not isinstance(setting, Field)):
        return
    if not isinstance(setting, Field):
        _no_setting(reading, vocabulary, name, setting, line=line, text=text)
    elif value is UNKNOWN:
        reading.unresolved(setting, line=line, text=text, why=why)
    elif vocabulary.own_names and not DISTINCTIVE.search(setting.path) and not takes(setting, value):
        return  # the program has a meaning of its own for the name
    elif value is None and not takes(setting, None):
        if not vocabulary.arguments:  # where names are arguments, null leaves the default of a base file
            why = f"`{setting.path}` is no value when it is null"
            reading.unresolved(setting, line=line, text=text, why=why)
    else:
        reading.add(setting, _spelled(setting, value), line=line, text=text, span=span, derived_from=derived_from)


def _no_setting(
    reading: Reading, vocabulary: Vocabulary, name: str, kind: NoSetting, *, line: int | None, text: str
) -> None:
    """One omission a name, and one a look-alike part: its dozens of names would hide the rest."""
    part = next((p for p in vocabulary.look_alikes if name.startswith(p)), "")
    why = _WHY[kind].format(part=part, program=vocabulary.program)
    if not (part and any(o.why == why for o in reading.omissions)):
        reading.left_out(text, line, why, kind=kind)


def concerns(vocabulary: Vocabulary, name: str) -> bool:
    """Whether a statement about this name can matter, so that its value is worth working out."""
    return vocabulary.setting(name) is not None or implied(vocabulary.canonical(name) or "", UNKNOWN) is not None


def implied(name: str, value: Any) -> dict[str, Any] | None:
    """The settings that follow from a statement, which may be one itself; None where none do, or it is none of ours."""
    top, _, rest = name.partition(".")
    if top == "mixed_precision":
        return _precision_field(rest, value) if rest else mixed_precision(value)
    if name == "comm_overlap":
        return {"comm_overlap.present": UNKNOWN if value is UNKNOWN else value is not None}
    if name in ("peft", "lora"):
        return {"peft.scheme": _scheme(value)}
    if top == "peft":
        return {}
    if name == "packs":
        return {} if value is False else {"dataset.packed_sequences": UNKNOWN if value is UNKNOWN else True}
    if name in ("dataset.packed_sequence_specs", "dataset.offline_packing_specs"):
        return {"dataset.packed_sequences": value is not None}  # an object, whatever it says
    if name in ("dataset.enable_in_batch_packing", "dataset.pack_sequences_in_batch"):
        return {"dataset.packed_sequences": value} if value is True or value is UNKNOWN else None
    if name == "precision":
        return _precision_word(value)
    return None


def mixed_precision(value: Any) -> dict[str, Any]:
    """What a named precision recipe writes over the model, such as `bf16_with_fp8_current_scaling_mixed`.

    Source: NVIDIA-NeMo/Megatron-Bridge@067f987df src/megatron/bridge/training/mixed_precision.py:150-425.
    """
    if value is None:
        return {}
    if not isinstance(value, str):
        return {"model.bf16": UNKNOWN, "model.fp16": UNKNOWN, "model.fp8": UNKNOWN, "model.fp4": UNKNOWN}
    name = value.replace("-", "_")
    half = "fp16" in name and "bf16" not in name
    known = "bf16" in name or half
    fp8, recipe = next((found for part, found in _FP8 if part in name), (None, None))
    written: dict[str, Any] = {
        "model.bf16": not half if known else UNKNOWN,
        "model.fp16": half if known else UNKNOWN,
        "model.fp8": fp8,
        "model.fp4": "e2m1" if "nvfp4" in name else None,
    }
    return {**written, "model.fp8_recipe": recipe} if recipe else written


_FP8 = (
    ("fp8_delayed_scaling", ("hybrid", "delayed")),
    ("fp8_current_scaling", ("hybrid", "tensorwise")),
    ("fp8_subchannel_scaling", ("hybrid", "blockwise")),
    ("mxfp8", ("e4m3", "mxfp8")),
)


def _spelled(setting: Field, value: Any) -> Any:
    """The value as the setting's own parser spells it: layer patterns, and torch's names of number formats."""
    if isinstance(value, str) and setting.name.endswith("_freq"):
        return pattern_or_text(value)
    if isinstance(value, str) and _DTYPES.get(value) in setting.choices:
        return _DTYPES[value]
    return value


def takes(setting: Field, value: Any) -> bool:
    """Whether the stack's parser takes a value; a value that is interpolated later may be anything."""
    if value is UNKNOWN or (isinstance(value, str) and ("${" in value or "{{" in value)):
        return True
    try:
        setting.parse(value)
    except ValueNotAllowedError:
        return False
    return True


def _precision_field(name: str, value: Any) -> dict[str, Any]:
    return {f"model.{name}": value} if name in ("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp8_param") else {}


def _precision_word(value: Any) -> dict[str, Any]:
    if value is UNKNOWN:
        return {"model.bf16": UNKNOWN}
    return {
        "model.bf16": value in ("bfloat16", "bf16", "bf16-mixed"),
        "model.fp16": value in ("float16", "fp16"),
    }


def _scheme(value: Any) -> Any:
    if value is UNKNOWN or value is None:
        return value
    if isinstance(value, bool):
        return "lora" if value else None
    word = str(value).lower()
    return None if word in ("full", "none", "null", "false") else word
