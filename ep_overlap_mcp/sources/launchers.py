"""Which program a command starts, on how many GPUs, in which environment, and who reads its arguments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ep_overlap_mcp.settings.fields import Field, field_table
from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.bridge_harness import read_harness, read_recipe_run
from ep_overlap_mcp.sources.entry_points import is_megatron_lm, read_model, read_slime
from ep_overlap_mcp.sources.flags import Flag, add_flags, bare, field_of, is_flag, split_flags
from ep_overlap_mcp.sources.names import SWIFT, vocabulary_of
from ep_overlap_mcp.sources.overrides import add_overrides, is_override, override_name
from ep_overlap_mcp.sources.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ep_overlap_mcp.sources.reading import Reading
    from ep_overlap_mcp.sources.words import Word

Kind = Literal["megatron-lm", "harness", "recipe", "overrides", "swift", "wrapper"]

_RUNNERS: Final = re.compile(r"torch\.distributed\.(run|launch)|torchrun|accelerate\.commands\.launch|deepspeed.*")
_TRAINS: Final = re.compile(r"(pre)?train|finetune|fine_tune|sft|rlhf|grpo|ppo|dpo|run_recipe|setup_experiment")
_DOES_NOT_TRAIN: Final = re.compile(
    r"convert|checkpoint|ckpt|preprocess|prepare|evaluat|(^|_)eval|lm_eval|export|generat|inference|serve|merge|"
    r"download|tokeniz|(^|[/_.])(to|from)_(hf|mcore|megatron|torch)|hf2|2hf|hf_to|plot|pip$|profile_analy"
)
_OPEN: Final = "\ufffc"  # stands for an unresolved part of a JSON text
_SCRIPT: Final = re.compile(r"(?![-\w.]+=).*\.(py|sh)\Z", re.DOTALL)
_BASE_FILE: Final = re.compile(r"--?(yaml[-_]cfg|config|config[-_]file|exp)\Z")
# Arguments of training scripts that use Megatron-Core behind a parser of their own (NeMo, Hugging Face style).
_FOREIGN: Final = {
    "--model-name-or-path", "--output-dir", "--per-device-train-batch-size", "--devices", "--max-steps",
    "--experiment-dir",
}  # fmt: skip
_RECIPE_PROGRAMS: Final = {"run_recipe.py", "launch_with_nemo_run.py"}
_HARNESS_PROGRAMS: Final = {"setup_experiment.py", "run_script.py", "bootstrap.py"}


@dataclass(frozen=True)
class Variable:
    """An environment variable as a command gets it; `word` is None where the text unsets it."""

    word: Word | None
    line: int


@dataclass(frozen=True)
class Launch:
    """A command that starts a program: the words before it, its arguments, the environment it gets."""

    program: str
    arguments: tuple[Word, ...]
    launcher: tuple[Word, ...]
    environment: Mapping[str, Variable]
    line: int


def launch_of(words: Sequence[Word], environment: Mapping[str, Variable], line: int) -> Launch | None:
    """The program that a command starts, behind every launcher; None where it starts none that we know."""
    at = 0
    while at < len(words):
        text = words[at].text
        if text == "-m" and at + 1 < len(words):
            if _RUNNERS.fullmatch(words[at + 1].text):
                at += 2
                continue
            return _launch(words, at + 1, environment, line, skip=at)
        if _SCRIPT.match(text) or (text in ("megatron", "swift") and not _follows_option(words, at)):
            return _launch(words, at, environment, line, skip=at)
        at += 1
    first = next((i for i, word in enumerate(words) if _is_setting(word)), None)
    if first is None or sum(map(_is_setting, words)) < 2:
        return None
    return Launch("", tuple(words[first:]), tuple(words[:first]), environment, line)


def _launch(words: Sequence[Word], at: int, environment: Mapping[str, Variable], line: int, *, skip: int) -> Launch:
    return Launch(words[at].text, tuple(words[at + 1 :]), tuple(words[:skip]), environment, line)


def _follows_option(words: Sequence[Word], at: int) -> bool:
    return at > 0 and words[at - 1].text.startswith("-")


def _is_setting(word: Word) -> bool:
    found = field_of(word.text.partition("=")[0]) if is_flag(word) else None
    return found is not None and not found[0].path.startswith("args.")


def kind_of(launch: Launch) -> Kind | None:
    """Who reads the arguments; None for a program that trains nothing, such as a conversion."""
    name = launch.program.rpartition("/")[2]
    trains = _TRAINS.search(name) is not None
    if _DOES_NOT_TRAIN.search(name) and not name.startswith(("pretrain_", "train_", "finetune_")):
        return None
    if name in _HARNESS_PROGRAMS and _is_performance_harness(launch):
        return "harness"
    if name in _RECIPE_PROGRAMS | _HARNESS_PROGRAMS:
        return "recipe"
    if name in ("megatron", "swift") or "swift/cli" in launch.program or "swift.cli" in launch.program:
        megatron = name == "megatron" or "megatron" in launch.program
        return "swift" if megatron or any(w.text == "megatron" for w in launch.arguments[:1]) else None
    settings = sum(map(_is_setting, launch.arguments))
    if settings == 0 and any(is_override(word.text) for word in launch.arguments):
        return "overrides"
    if name.endswith(".sh"):
        return "wrapper" if settings else None
    return "megatron-lm" if settings >= (1 if trains else 2) or (trains and _loose(launch)) else None


def _is_performance_harness(launch: Launch) -> bool:
    """`setup_experiment.py` is the name of two programs: the one for benchmarks wants a family and a recipe name."""
    names = {word.text.partition("=")[0] for word in launch.arguments}
    options = {"-m", "-mr", "--model_family_name", "--model_recipe_name", "--model_name", "-g", "--gpu"}
    return bool(options & names) or ("performance" in launch.program and "--recipe" not in names)


def _loose(launch: Launch) -> bool:
    return any(word.unresolved and not is_flag(word) for word in launch.arguments)


def read_launch(launch: Launch, kind: Kind, reading: Reading) -> None:
    """Add what a command says: environment first, then the launcher's size, then the program's arguments."""
    _environment(launch, reading)
    if kind == "harness":
        reading.framework = "bridge"
        reading.partial.append("the harness starts from a recipe that is not in the text")
        read_harness(launch.arguments, reading)
        return
    _size(launch, reading)
    if kind == "recipe":
        reading.framework = "bridge"
        reading.partial.append("the options change a recipe that is not in the text")
        _nodes(launch, reading)
        read_recipe_run(launch.arguments, reading)
    elif kind == "overrides":
        _overrides(launch, reading)
    elif kind == "swift":
        reading.framework = SWIFT.framework
        reading.partial.append(SWIFT.partial or "")
        _swift(launch, reading)
    else:
        foreign = any(word.text.partition("=")[0].replace("_", "-") in _FOREIGN for word in launch.arguments)
        reading.framework = "megatron-core" if foreign else "megatron-lm"
        reading.strict = kind == "megatron-lm" and not foreign and is_megatron_lm(launch.program)
        flags, loose = split_flags(launch.arguments, strict=reading.strict)
        if foreign:
            reading.partial.append(f"`{launch.program}` has arguments and defaults of its own")
        if kind == "wrapper":
            reading.partial.append(f"`{launch.program}` adds options of its own; its text is not here")
        if reading.strict and (settings := next((flag for flag in flags if flag.name == "--yaml-cfg"), None)):
            reading.partial.append(f"`{settings.text}` replaces every argument of the command; its text is not here")
            flags, loose = [settings], []
        else:
            for base in _base_files(flags, launch):
                reading.partial.append(f"it starts from `{base}`, whose text is not here")
        add_flags(flags, loose, reading)
        read_model(launch.program, flags, reading, launch.line)
        read_slime(flags, reading, launch.line)
        _world(reading)


def _base_files(flags: Iterable[Flag], launch: Launch) -> list[str]:
    """YAML files that the program merges with its arguments; Primus takes one from the variable EXP."""
    found = [f.values[0].text for f in flags if f.values and _BASE_FILE.match(f.name)]
    exported = launch.environment.get("EXP")
    found += [exported.word.text] if exported is not None and exported.word is not None else []
    return [name for name in found if name.endswith((".yaml", ".yml"))]


def _environment(launch: Launch, reading: Reading) -> None:
    for name, variable in launch.environment.items():
        add_variable(name, variable, reading)
    for flag in split_flags(launch.launcher)[0]:
        if flag.name.replace("_", "-") == "--runtime-env-json" and flag.values:
            read_environment_json(flag.values[0], reading)


def add_variable(name: str, variable: Variable, reading: Reading) -> None:
    """An exported variable. One without a known value is noted only where it stands in the field table."""
    path, word = f"env.{name}", variable.word
    field = field_table().get(path)
    if field is None:
        return
    if word is None:
        reading.add(field, None, line=variable.line, text=f"unset {name}")
    elif not word.unresolved:
        reading.add(field, word.text, line=word.line, text=f"{name}={word.text}", span=word.span)
    elif path in field_table().by_path:
        why = "the text gives " + ", ".join(f"`{n}`" for n in word.unresolved) + " no value"
        reading.unresolved(field, line=word.line, text=f"{name}={word.text}", why=why)


def read_environment_json(word: Word, reading: Reading) -> None:
    """The `env_vars` of a Ray runtime environment; a value that hangs on an unknown variable is unknown.

    Where the text does not settle the JSON itself, every variable that rules judge is unknown.
    """
    text = "".join(_OPEN if p.unresolved else p.text for p in word.pieces) if word.pieces else word.text
    try:
        found = json.loads(text)
    except ValueError:
        why = "the runtime environment is no JSON that the text settles: the variables that it sets are unknown"
        reading.left_out(word.text, word.line, why, kind="not read")
        written = word.text.partition("\n")[0]
        for path in field_table().environment:
            reading.add(path, UNKNOWN, line=word.line, text=written)
        return
    variables = found.get("env_vars") if isinstance(found, dict) else None
    for name, value in (variables if isinstance(variables, dict) else {}).items():
        if str(name).isidentifier() and not isinstance(value, (dict, list)):
            known = UNKNOWN if _OPEN in str(value) else value
            reading.add(f"env.{name}", known, line=word.line, text=f"{name}={value}".replace(_OPEN, "$…"))


def _overrides(launch: Launch, reading: Reading) -> None:
    words = [word for word in launch.arguments if is_override(word.text)]
    vocabulary = vocabulary_of(override_name(word.text) for word in words)
    reading.framework = vocabulary.framework
    reading.partial.append(vocabulary.partial or "the overrides change a configuration that is not in the text")
    add_overrides(reading, words, vocabulary)


def _swift(launch: Launch, reading: Reading) -> None:
    for flag in split_flags(launch.arguments)[0]:
        name = flag.name.lstrip("-").replace("-", "_")
        value: Any = [bare(word.text) for word in flag.values] if len(flag.values) > 1 else True
        if len(flag.values) == 1:
            value = bare(flag.values[0].text)
        if any(word.unresolved for word in (flag.head, *flag.values)):
            value = UNKNOWN
        span = flag.values[0].span if len(flag.values) == 1 else None
        known = {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
        record(reading, SWIFT, _swift_name(flag.name, name), known, line=flag.head.line, text=flag.text, span=span)
    count = launch.environment.get("NPROC_PER_NODE")
    if count is not None and count.word is not None and count.word.text.isdigit():
        text = f"NPROC_PER_NODE={count.word.text}"
        reading.add("hardware.gpus_per_node", count.word.text, line=count.line, text=text)


def _swift_name(flag: str, name: str) -> str:
    """Swift spells most arguments as Megatron-LM's flags, some of which differ from the field they set."""
    found = field_of(flag)
    if (
        found is None
        or found[1]
        or found[0].path.startswith("args.")
        or name in ("loss_scale", "optimizer")
        or isinstance(SWIFT.setting(name), Field)
    ):
        return name
    return found[0].path


def _size(launch: Launch, reading: Reading) -> None:
    """GPUs per node, nodes and ranks, where the launcher's words are all known."""
    options = {flag.name.lstrip("-").replace("_", "-"): flag for flag in split_flags(launch.launcher)[0]}
    texts = [word.text.rpartition("/")[2] for word in launch.launcher]
    if any(_RUNNERS.fullmatch(text) for text in texts):
        per_node, nodes = options.get("nproc-per-node"), options.get("nnodes")
        open_ended = any(word.unresolved and not is_flag(word) for word in split_flags(launch.launcher)[1])
        _number(per_node, "hardware.gpus_per_node", reading)
        _number(nodes, "hardware.nodes", reading)
        if nodes is None and not open_ended and per_node is not None:
            line = per_node.head.line
            reading.add("hardware.nodes", 1, line=line, text="torchrun", derived_from="torchrun without --nnodes")
    elif "srun" in texts:
        per_node = options.get("ntasks-per-node")
        _number(per_node, "hardware.gpus_per_node", reading)
        _number(options.get("nodes") or options.get("N"), "hardware.nodes", reading)
        _number(options.get("ntasks") or options.get("n"), "hardware.world_size", reading)
    elif "deepspeed" in texts:
        _number(options.get("num-gpus"), "hardware.gpus_per_node", reading)
        _number(options.get("num-nodes"), "hardware.nodes", reading)
    elif "mpirun" in texts or "mpiexec" in texts:
        _number(options.get("np") or options.get("n"), "hardware.world_size", reading)
    _world(reading)


def _nodes(launch: Launch, reading: Reading) -> None:
    """`scripts/training/setup_experiment.py --nodes 4 --gpus_per_node 8`."""
    for flag in split_flags(launch.arguments)[0]:
        if flag.name == "--nodes":
            _number(flag, "hardware.nodes", reading)
        elif flag.name.replace("_", "-") == "--gpus-per-node":
            _number(flag, "hardware.gpus_per_node", reading)
    _world(reading)


def _number(flag: Flag | None, path: str, reading: Reading) -> None:
    if flag is None or not flag.values or not re.fullmatch(r"\d{1,6}", flag.values[0].text):
        return
    word = flag.values[0]
    reading.add(path, int(word.text), line=word.line, text=f"{flag.name} {word.text}", span=word.span)


def _world(reading: Reading) -> None:
    """Ranks are nodes times GPUs, when both are known numbers."""
    last = {a.path: a for a in reading.assignments if a.path.startswith("hardware.")}
    nodes, per_node = last.get("hardware.nodes"), last.get("hardware.gpus_per_node")
    if nodes is None or per_node is None or "hardware.world_size" in last:
        return
    if isinstance(nodes.value, int) and isinstance(per_node.value, int):
        total = nodes.value * per_node.value
        text = f"{nodes.text}; {per_node.text}"
        reading.add("hardware.world_size", total, line=per_node.line, text=text, derived_from="nodes x GPUs per node")
