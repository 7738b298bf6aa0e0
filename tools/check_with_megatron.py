"""Let the Megatron that is installed in this Python judge a configuration.

    python check_with_megatron.py < request.json        one request, one answer
    python check_with_megatron.py --worker              a request a line, an answer a line, imports once

Request (paths are canonical, values JSON):

    {"framework": "megatron-core" | "megatron-lm" | "bridge",
     "settings": {"model.expert_model_parallel_size": 8, "comm_overlap.delay_wgrad_compute": true},
     "strict_fields": false}

With `"batch": [settings, ...]` in the place of `settings` the answer is `{"answers": [...]}`; `{"hello": true}`
only imports. An `id` comes back as it was sent. A request that is not understood is answered by `{"error": text}`.

Answer:

    {"judged": true, "accepted": false, "exception": "AssertionError: ...",
     "at": "megatron/core/transformer/transformer_config.py:1866", "layers": ["megatron-core"],
     "missing_layers": [{"layer", "why"}], "cannot_judge": null, "versions": {"megatron-core": "0.16.1", ...},
     "unknown_fields": [path], "left_out": [{"path", "why"}], "stand_ins": [{"path", "value"}],
     "emulated": [module], "effective": {path: value}}

Nothing of Megatron's validation is repeated here: the real classes are constructed, the real functions called.
A fault of the library that says nothing about the configuration is `cannot_judge`, never a verdict.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import linecache
import logging
import math
import os
import queue
import sys
import threading
import time
import types
import typing
import warnings
from pathlib import Path
from typing import Any, BinaryIO

REQUEST_LIMIT = 16 * 2**20  # bytes of one request; 10,000 configurations take about 8 MiB
BATCH_LIMIT = 20_000
TEXT_LIMIT = 2_000
DRAIN_S = 30.0  # how long a worker may finish what it was asked after its caller has gone

FRAMEWORKS = ("megatron-core", "megatron-lm", "bridge")
OBJECTS = ("model", "comm_overlap", "ddp", "optimizer", "train", "env", "runtime", "hardware")
REPORTED = (
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "virtual_pipeline_model_parallel_size",
)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
ACTIVATIONS = {
    "gelu": "torch.nn.functional",
    "silu": "torch.nn.functional",
    "relu": "torch.nn.functional",
    "squared_relu": "megatron.core.activations",
    "quick_gelu": "megatron.core.activations",
    "fast_gelu": "megatron.core.activations",
}

Settings = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Answer one request, or with `--worker` one request a line until stdin ends."""
    answers = take_stdout()
    quiet()
    if arguments == ["--worker"]:
        for text in requests_until_eof(sys.stdin.buffer):
            write(answers, answer(text))
        os._exit(0)  # torch takes a second to take itself down
    if arguments:
        sys.stderr.write(f"unknown arguments {arguments}; this program knows `--worker` and nothing else\n")
        return 2
    result = answer(sys.stdin.buffer.read(REQUEST_LIMIT + 1))
    write(answers, result)
    return 2 if "error" in result else 0


def take_stdout() -> BinaryIO:
    """The real stdout for answers alone; whatever libraries print from now on goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def quiet() -> None:
    """Thousands of configurations would repeat Megatron's warnings; only exceptions are a verdict."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def write(answers: BinaryIO, result: dict[str, Any]) -> None:
    """One answer on one line; a caller that has gone ends this program."""
    try:
        answers.write(json.dumps(result).encode() + b"\n")
        answers.flush()
    except BrokenPipeError:
        os._exit(0)


def requests_until_eof(stdin: BinaryIO) -> typing.Iterator[bytes]:
    """Lines of stdin. Read in a thread, so that a caller's end is seen even in the middle of a slow import."""
    lines: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        while line := stdin.readline(REQUEST_LIMIT + 1):
            lines.put(line)
            while len(line) > REQUEST_LIMIT and not line.endswith(b"\n"):
                line = stdin.readline(REQUEST_LIMIT)
                if not line:
                    break
        lines.put(b"")
        time.sleep(DRAIN_S)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while line := lines.get():
        if line.strip():
            yield line


# --- requests ---------------------------------------------------------------------------------------------------


class BadRequest(Exception):  # noqa: N818
    """The request cannot be understood; the text says what to send instead."""


def answer(text: bytes) -> dict[str, Any]:
    """The answer to one request, whatever it holds."""
    identity: dict[str, Any] = {}
    try:
        request = parsed(text)
        identity = {"id": request["id"]} if "id" in request else {}
        return identity | answered(request)
    except BadRequest as problem:
        return identity | {"error": str(problem)}
    except Exception as problem:  # noqa: BLE001, a worker outlives what this program did not foresee
        return identity | {"error": f"check_with_megatron.py failed at line {frames(problem)[-1][2]}: {told(problem)}"}


def parsed(text: bytes) -> dict[str, Any]:
    """The request as an object."""
    if len(text) > REQUEST_LIMIT:
        raise BadRequest(f"the request is larger than {REQUEST_LIMIT} bytes; send a smaller batch")
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadRequest(f"the request is not JSON: {problem}") from None
    if not isinstance(request, dict):
        raise BadRequest(f"the request is a JSON {type(request).__name__}; send an object")
    return request


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """Hello, batch, or one verdict."""
    if request.get("hello"):
        found = installed()
        return {"versions": found.versions, "emulated": found.emulated, "cannot_judge": found.missing}
    framework = request.get("framework", "megatron-core")
    if framework not in FRAMEWORKS:
        raise BadRequest(f"unknown framework {framework!r}; one of {', '.join(FRAMEWORKS)}")
    strict = bool(request.get("strict_fields", False))
    if "batch" not in request:
        return judge(framework, checked(request.get("settings"), "settings"), strict=strict)
    batch = request["batch"]
    if not isinstance(batch, list) or len(batch) > BATCH_LIMIT:
        raise BadRequest(f"`batch` must be a list of at most {BATCH_LIMIT} settings objects")
    several = [checked(one, f"batch[{n}]") for n, one in enumerate(batch)]
    return {"answers": [judge(framework, one, strict=strict) for one in several]}


def checked(settings: Any, where: str) -> Settings:
    """Settings whose every name is a canonical path."""
    if not isinstance(settings, dict):
        raise BadRequest(f"`{where}` must be an object of canonical paths such as model.bf16")
    for path in settings:
        head, dot, field = path.partition(".")
        if head not in OBJECTS or not dot or not field:
            raise BadRequest(f"`{where}` holds {path!r}; a path is object.field, object one of {', '.join(OBJECTS)}")
    return settings


def part(settings: Settings, head: str) -> Settings:
    """The fields of one object, without its name."""
    return {path[len(head) + 1 :]: value for path, value in settings.items() if path.startswith(f"{head}.")}


# --- the installed libraries ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Installed:
    """What this Python can judge with; `missing` says why it cannot."""

    plain: Any = None
    latent: Any = None  # the class for multi-latent attention
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    emulated: list[str] = dataclasses.field(default_factory=list)
    missing: str | None = None


@functools.cache
def installed() -> Installed:
    """Import Megatron-Core, once; with a stand-in for Triton where that alone is missing."""
    versions = installed_versions()
    if not __debug__:
        why = "this Python runs with -O or PYTHONOPTIMIZE, which removes the assertions Megatron validates with"
        return Installed(versions=versions, missing=why)
    emulated: list[str] = []
    try:
        importlib.import_module("torch")
        try:
            module = transformer_config()
        except ModuleNotFoundError as problem:
            if (problem.name or "").partition(".")[0] != "triton":
                raise
            emulated = ["triton"]
            stand_in_for_triton()
            module = transformer_config()
    except Exception as problem:  # noqa: BLE001, any failure of a foreign import is an answer
        why = f"{sys.executable} cannot import torch and megatron.core: {told(problem)}"
        return Installed(versions=versions, missing=why)
    versions["megatron-core"] = importlib.import_module("megatron.core").__version__
    return Installed(module.TransformerConfig, module.MLATransformerConfig, versions, emulated)


def transformer_config() -> Any:
    """Megatron-Core's configuration module, imported as training imports it: with the whole package."""
    importlib.import_module("megatron.core.transformer")
    return importlib.import_module("megatron.core.transformer.transformer_config")


def installed_versions() -> dict[str, str]:
    """Versions from package metadata, without importing anything."""
    names = {"torch": "torch", "transformer-engine": "transformer-engine", "megatron-bridge": "megatron-bridge"}
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name, distribution in names.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(distribution)
    return versions


def stand_in_for_triton() -> None:
    """Megatron-Core 0.18 and later import Triton for kernels that constructing a configuration never runs.

    torch has looked for Triton by now and does not look again, so it does not take the stand-in for real.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]
    for name in ("triton", "triton.language"):
        module = Unusable(name)
        module.__path__ = []
        vars(module)["__version__"] = "0.0.0"  # older than any version that a check asks for
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    sys.modules["triton"].language = sys.modules["triton.language"]  # type: ignore[attr-defined]


class Unusable(types.ModuleType):
    """A module whose every name is a decorator that returns what it decorates."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return decorator


def decorator(*arguments: Any, **options: Any) -> Any:
    """`@jit` and `@jit(...)` alike leave the function as it is."""
    return arguments[0] if len(arguments) == 1 and not options else decorator


# --- judging ----------------------------------------------------------------------------------------------------


class NotJudged(Exception):  # noqa: N818
    """A layer that cannot judge here; the text says why."""


def judge(framework: str, settings: Settings, *, strict: bool) -> dict[str, Any]:
    """One verdict: the layers of the framework in the order in which a run meets them, first exception wins."""
    found = installed()
    result: dict[str, Any] = {
        "judged": False,
        "accepted": None,
        "exception": None,
        "at": None,
        "layers": [],
        "missing_layers": [],
        "cannot_judge": found.missing,
        "versions": found.versions,
        "unknown_fields": [],
        "left_out": [],
        "stand_ins": [],
        "emulated": found.emulated,
        "effective": {},
    }
    if found.missing:
        return result
    layers = {"megatron-lm": [with_arguments, with_core], "bridge": [with_bridge]}.get(framework, [with_core])
    for layer in layers:
        if not run(layer, settings, result, strict=strict):
            break
    return result


def run(layer: Any, settings: Settings, result: dict[str, Any], *, strict: bool) -> bool:
    """Run one layer and note its verdict; True when the next layer should be asked as well."""
    try:
        layer(settings, result, strict)
    except NotJudged as problem:
        return without(layer, str(problem), settings, result, strict=strict)
    except Exception as problem:
        fault = library_fault(problem)
        if fault and layer is not with_core:
            return without(layer, fault, settings, result, strict=strict)
        if not (fault or place(problem) or strict or isinstance(problem, KeyError)):
            raise  # this program's own; Megatron's validation, a strict constructor and an enumeration aside
        result["exception"], result["at"] = told(problem), place(problem)
        result["cannot_judge"] = fault
        result["judged"], result["accepted"] = not fault, None if fault else False
        result["layers"] += [] if fault else [LAYERS[layer]]
        return False
    result["judged"], result["accepted"] = True, True
    result["layers"].append(LAYERS[layer])
    return True


def without(layer: Any, why: str, settings: Settings, result: dict[str, Any], *, strict: bool) -> bool:
    """Note a layer that cannot judge here; what Bridge would have finalized is left to the core."""
    note(result, "missing_layers", {"layer": LAYERS[layer], "why": why})
    return layer is not with_bridge or run(with_core, settings, result, strict=strict)


def with_core(settings: Settings, result: dict[str, Any], strict: bool) -> None:  # noqa: FBT001
    """Construct the real `TransformerConfig`; its `__post_init__` validates."""
    found = installed()
    config_class = found.latent if settings.get("model.multi_latent_attention") is True else found.plain
    config = config_class(**arguments_of(config_class, part(settings, "model"), result, strict=strict))
    result["effective"] = effective("model", config)


def with_bridge(settings: Settings, result: dict[str, Any], strict: bool) -> None:  # noqa: FBT001
    """Megatron-Bridge's order: `CommOverlapConfig.finalize`, `.setup`, then the model's own `finalize`.

    `ConfigContainer.validate`, repository NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py.
    """
    try:
        bridge = importlib.import_module("megatron.bridge.training.comm_overlap")
    except Exception as problem:  # noqa: BLE001
        raise NotJudged(f"megatron.bridge cannot be imported: {told(problem)}") from None
    model = bridge.GPTModelProvider(
        **arguments_of(bridge.GPTModelProvider, part(settings, "model"), result, strict=strict)
    )
    ddp = known_only(bridge.DistributedDataParallelConfig, settings, "ddp", result)
    optimizer = known_only(bridge.OptimizerConfig, settings, "optimizer", result)
    if part(settings, "comm_overlap"):
        overlap = known_only(
            bridge.CommOverlapConfig, {"comm_overlap.tp_comm_overlap": False} | settings, "comm_overlap", result
        )
        set_data_parallel_size(overlap, settings, result)
        getattr(overlap, "finalize", lambda: None)()
        overlap.setup(model, optimizer, ddp)
    getattr(model, "finalize", lambda: None)()
    result["effective"] = effective("model", model) | effective("ddp", ddp)


def set_data_parallel_size(overlap: Any, settings: Settings, result: dict[str, Any]) -> None:
    """What the container derives from the world size; without one, the least that holds the experts."""
    if overlap.data_parallel_size is not None:
        return
    model = part(settings, "model")
    ranks = math.prod(size(model, f"{axis}_parallel_size") for axis in MODEL_AXES)
    world = settings.get("hardware.world_size")
    overlap.data_parallel_size = world // ranks if world else size(model, "expert_model_parallel_size")
    if not world:
        stand_in(result, "comm_overlap.data_parallel_size", overlap.data_parallel_size)


def with_arguments(settings: Settings, result: dict[str, Any], strict: bool) -> None:  # noqa: ARG001, FBT001
    """Megatron-LM's `validate_args` over its own parser's defaults and the settings."""
    try:
        module = importlib.import_module("megatron.training.arguments")
    except Exception as problem:  # noqa: BLE001
        raise NotJudged(f"megatron.training cannot be imported: {told(problem)}") from None
    variables = {name: str(value) for name, value in part(settings, "env").items() if value is not None}
    with environment(variables):
        module.validate_args(parsed_arguments(module, settings, result))


def parsed_arguments(module: Any, settings: Settings, result: dict[str, Any]) -> Any:
    """The namespace that a command line with these settings would give."""
    argv, sys.argv = sys.argv, ["pretrain_gpt.py"]
    try:
        args = module.parse_args(ignore_unknown_args=True)
    finally:
        sys.argv = argv
    given = part(settings, "train") | part(settings, "optimizer") | part(settings, "ddp") | part(settings, "model")
    renamed = {
        "num_moe_experts": "num_experts",
        "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    }
    values = {renamed.get(name, name): value for name, value in given.items()}
    model = part(settings, "model")
    smallest = math.prod(size(model, f"{axis}_parallel_size") for axis in MODEL_AXES)
    needed = {
        "seq_length": 4096,
        "max_position_embeddings": values.get("seq_length", 4096),
        "micro_batch_size": 1,
        "train_iters": 1,
        "lr": 1e-4,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": 32_000,
    }
    for name, value in (core_stand_ins(model) | needed).items():
        if values.get(name) is None and getattr(args, name, None) is None:
            values[name] = value
            stand_in(result, f"{'train' if name in needed else 'model'}.{name}", value)
    args.rank = 0
    args.world_size = settings.get("hardware.world_size") or smallest * size(model, "expert_model_parallel_size")
    if not settings.get("hardware.world_size"):
        stand_in(result, "hardware.world_size", args.world_size)
    types_ = typing.get_type_hints(installed().plain)
    for name, value in values.items():
        if hasattr(args, name):
            with contextlib.suppress(LeftOut):
                setattr(args, name, converted(name, value, types_.get(name, Any), choose_enum=True))
    return args


MODEL_AXES = ("tensor_model", "pipeline_model", "context")
LAYERS = {with_core: "megatron-core", with_bridge: "megatron-bridge", with_arguments: "megatron-lm arguments"}


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> typing.Iterator[None]:
    """The environment that the settings ask for, while a layer judges."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# --- settings to arguments --------------------------------------------------------------------------------------


class LeftOut(Exception):  # noqa: N818
    """A value that text cannot carry; the text says why."""


def arguments_of(config_class: Any, fields: Settings, result: dict[str, Any], *, strict: bool) -> Settings:
    """Keyword arguments for a configuration class; what it does not know, what was left out and added is noted."""
    hints = field_types(config_class)
    arguments: Settings = {}
    for name, value in fields.items():
        if name not in hints:
            note(result, "unknown_fields", f"model.{name}")
            arguments |= {name: value} if strict else {}
            continue
        try:
            arguments[name] = converted(name, value, hints[name])
        except LeftOut as why:
            note(result, "left_out", {"path": f"model.{name}", "why": str(why)})
    for name, value in core_stand_ins(fields).items():
        if arguments.get(name) is None:
            arguments[name] = converted(name, value, hints[name])
            stand_in(result, f"model.{name}", value)
    return arguments


def known_only(config_class: Any, settings: Settings, head: str, result: dict[str, Any]) -> Any:
    """An object of a configuration class from the settings it knows."""
    hints = field_types(config_class)
    fields = part(settings, head)
    for name in fields.keys() - hints.keys():
        note(result, "unknown_fields", f"{head}.{name}")
    return config_class(**{name: value for name, value in fields.items() if name in hints})


@functools.cache
def field_types(config_class: Any) -> dict[str, Any]:
    """Types of the fields that the constructor takes."""
    hints = typing.get_type_hints(config_class)
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(config_class) if field.init}


def core_stand_ins(model: Settings) -> Settings:
    """Small values for what `TransformerConfig` needs, such that they break no rule themselves."""
    tensor, groups = size(model, "tensor_model_parallel_size"), size(model, "num_query_groups")
    heads = size(model, "num_attention_heads", otherwise=math.lcm(tensor, groups, 8))
    needed: Settings = {"num_layers": layers_of(model), "hidden_size": 64 * heads, "num_attention_heads": heads}
    if size(model, "pipeline_model_parallel_size") > 1:
        # Megatron-LM and Bridge derive it from the precision
        needed["pipeline_dtype"] = next((name for name in ("bf16", "fp16") if model.get(name)), "fp32")
    return needed


def size(model: Settings, name: str, *, otherwise: int = 1) -> int:
    """A size that is set to a whole number above zero; Megatron judges what else stands there."""
    value = model.get(name)
    return value if isinstance(value, int) and value > 0 else otherwise


def layers_of(model: Settings) -> int:
    """The number of layers that the layout, the MoE pattern or the pipeline implies."""
    layout, pipeline = model.get("pipeline_model_parallel_layout"), size(model, "pipeline_model_parallel_size")
    if isinstance(layout, str) and not model.get("num_layers"):
        read = importlib.import_module("megatron.core.transformer.pipeline_parallel_layer_layout")
        with contextlib.suppress(Exception):
            stages = read.PipelineParallelLayerLayout.from_str(layout, pipeline)
            return sum(layer.name == "decoder" for layer in stages.flatten_layout)
    if isinstance(model.get("moe_layer_freq"), list):
        return len(model["moe_layer_freq"])
    return 2 * pipeline * size(model, "virtual_pipeline_model_parallel_size")


def stand_in(result: dict[str, Any], path: str, value: Any) -> None:
    """Note a value that the request did not hold."""
    note(result, "stand_ins", {"path": path, "value": value})


def note(result: dict[str, Any], kind: str, remark: Any) -> None:
    """Keep a remark; once, however many layers make it."""
    if remark not in result[kind]:
        result[kind].append(remark)


def converted(name: str, value: Any, hint: Any, *, choose_enum: bool = False) -> Any:
    """A JSON value as the field's type: functions, dtypes and enumerations by name, as Megatron's readers do.

    Where a field takes both names and members, `TransformerConfig` reads the names itself; the command line's
    namespace (`choose_enum`) holds members already.
    """
    if value is None:
        return None
    kinds = alternatives(hint)
    if isinstance(value, dict) and isinstance(value.get("_target_"), str):
        value = value["_target_"]  # how saved Bridge configurations write functions, enumerations and dtypes
    torch = sys.modules["torch"]
    if torch.dtype in kinds:
        return dtype(value)
    if collections.abc.Callable in kinds:
        return function(name, value)
    members = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)), None)
    if members and (choose_enum or str not in kinds):
        return [member(members, one) for one in value] if isinstance(value, list) else member(members, value)
    if tuple in kinds and isinstance(value, list):
        return tuple(value)
    if str not in kinds and any(str(getattr(kind, "__module__", "")).startswith("megatron.") for kind in kinds):
        raise LeftOut("an object that the configuration's text does not hold")
    return value


@functools.cache
def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, also inside lists, with generic ones reduced to their origin."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for one in inner for kind in alternatives(one))
    if origin is list:
        return (list, *(kind for one in inner for kind in alternatives(one)))
    return (origin or hint,)


def dtype(value: Any) -> Any:
    """`bfloat16`, `torch.bfloat16` and `bf16` alike."""
    torch = sys.modules["torch"]
    name = str(value).rpartition(".")[2]
    found = getattr(torch, DTYPES.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise LeftOut(f"{value!r} is not the name of a torch dtype")
    return found


def function(name: str, value: Any) -> Any:
    """The activation function of that name; other functions cannot be written in text."""
    last = str(value).rpartition(".")[2]
    if name != "activation_func" or last not in ACTIVATIONS:
        raise LeftOut(f"{value!r} stands for a function that text does not carry")
    return getattr(importlib.import_module(ACTIVATIONS[last]), last)


def member(members: Any, value: Any) -> Any:
    """`flash`, `AttnBackend.flash` and the member's value alike; Megatron's own KeyError for other names."""
    if isinstance(value, int) and not isinstance(value, bool):
        return members(value)
    return members[str(value).rpartition(".")[2]]


def effective(head: str, config: Any) -> Settings:
    """What the overlap's settings are after Megatron's own changes, where a configuration has them."""
    names = (*REPORTED, "overlap_grad_reduce")
    return {f"{head}.{name}": getattr(config, name) for name in names if hasattr(config, name)}


# --- exceptions -------------------------------------------------------------------------------------------------


def library_fault(problem: BaseException) -> str | None:
    """Why an exception says nothing about the configuration; None when it is Megatron's verdict on it.

    Recognised by type and by the frame that raised. Seen: a missing Transformer Engine's version (None) compared
    in `is_te_min_version` of Megatron-Core 0.14 to 0.16.1; `warnings` used without its import in
    model_parallel_config.py of 0.15; names of fused operations that do not exist without Transformer Engine in
    0.14 to 0.16.1; CUDA asked for its device in a build of torch without it.
    """
    function_name, file = frames(problem)[-1][:2]
    if isinstance(problem, TypeError) and function_name == "is_te_min_version":
        return "Transformer Engine is not installed, and this Megatron compares its missing version"
    if isinstance(problem, NameError):
        return f"Megatron uses the name {problem.name!r} without importing it"
    if isinstance(problem, ImportError):
        return f"Megatron imports what is not installed here: {problem}"
    if file.startswith(str(Path(sys.modules["torch"].__file__ or "").parent) + os.sep):
        return f"torch failed, not Megatron's validation: {told(problem)}"
    return None


def frames(problem: BaseException) -> list[tuple[str, str, int]]:
    """Function, file and line of each frame, outermost first."""
    found = []
    trace = problem.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append((code.co_name, code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found or [("", "", 0)]


def place(problem: BaseException) -> str | None:
    """`megatron/core/...py:line` of the innermost frame that is Megatron's."""
    roots = [str(Path(folder).parent) + os.sep for folder in getattr(sys.modules.get("megatron"), "__path__", [])]
    for _, file, line in reversed(frames(problem)):
        for root in roots:
            if file.startswith(f"{root}megatron{os.sep}"):
                return f"{file[len(root) :]}:{line}"
    return None


def told(problem: BaseException) -> str:
    """Type and text on one line; a bare assertion is told by its source line."""
    text = " ".join(str(problem).split())
    if not text:
        _, file, line = frames(problem)[-1]
        text = linecache.getline(file, line).strip() or "no text"
    return f"{type(problem).__name__}: {text}"[:TEXT_LIMIT]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
