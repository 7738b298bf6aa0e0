"""Let the Megatron that is installed in this Python judge a configuration.

    python check_with_megatron.py < request.json        one request, one answer
    python check_with_megatron.py --worker              a request a line, an answer a line, imports once

`--transformer-engine VERSION` last: where Transformer Engine is not installed, an empty stand-in of that version takes
its place, so that what Megatron asks about it can be answered; the answers name it in `emulated`.

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

import json
import logging
import os
import queue
import sys
import threading
import time
import typing
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from judge.exceptions import frames, told
from judge.installed import installed
from judge.stand_ins import stand_in_for_transformer_engine
from judge.verdict import judge

if typing.TYPE_CHECKING:
    from judge.arguments import Settings

REQUEST_LIMIT = 16 * 2**20  # bytes of one request; 10,000 configurations take about 8 MiB
BATCH_LIMIT = 20_000
DRAIN_S = 30.0  # how long a worker may finish what it was asked after its caller has gone

FRAMEWORKS = ("megatron-core", "megatron-lm", "bridge")
OBJECTS = ("model", "comm_overlap", "ddp", "optimizer", "train", "env", "runtime", "hardware")


def main(arguments: list[str]) -> int:
    """Answer one request, or with `--worker` one request a line until stdin ends."""
    answers = take_stdout()
    quiet()
    if arguments[-2:-1] == ["--transformer-engine"]:
        stand_in_for_transformer_engine(arguments[-1])
        arguments = arguments[:-2]
    if arguments == ["--worker"]:
        for text in requests_until_eof(sys.stdin.buffer):
            write(answers, answer(text))
        os._exit(0)  # torch takes a second to take itself down
    if arguments:
        known = "`--worker` and `--transformer-engine VERSION`"
        sys.stderr.write(f"unknown arguments {arguments}; this program knows {known} and nothing else\n")
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
        _, file, line = frames(problem)[-1]
        return identity | {"error": f"check_with_megatron.py failed at {Path(file).name}:{line}: {told(problem)}"}


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
