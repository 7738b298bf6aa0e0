from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ep_overlap_mcp.bundled import bundled
from ep_overlap_mcp.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER_LIMIT = 64 * 2**20  # bytes of one answer with the noise before it; 10,000 verdicts take about 10 MiB
KEPT = 4_000  # bytes kept of stderr, and of noise on stdout
GRACE_S = 2.0  # between the end of stdin and the kill

# Takes a program and its modules from stdin, so that nothing has to be copied to a container or another host first.
# The working directory leaves the search path: a file named like a library must not be imported by reading a
# configuration that lies beside it.
# The line feed ends what a start-up script may have printed without one.
BOOTSTRAP = """
import importlib.abc, importlib.util, json, sys
sys.path[:] = [folder for folder in sys.path if folder]
print(flush=True)
sent = json.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
class Sent(importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in sent else None
    def is_package(self, name):
        return any(one.startswith(name + ".") for one in sent)
    def get_source(self, name):
        return sent[name]
    def get_code(self, name):
        return compile(sent[name], name.replace(".", "/") + ".py", "exec")
sys.meta_path.insert(0, Sent())
exec(compile(sent.pop("__main__"), sys.argv.pop(1), "exec"))
"""
MODULES = {"check_with_megatron.py": "judge"}  # the package in tools/ that a program imports


class TrainingEnvironmentError(Refusal):
    """The training environment could not do its work; the text says what, where, and what to do."""


class PipeEnded(TrainingEnvironmentError):  # noqa: N818
    """The program ended before it answered."""


class Pipe(Protocol):
    """A program of tools/ that runs in a training environment and answers requests."""

    alive: bool

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to a request; TrainingEnvironmentError when there is none within the limit."""

    def close(self) -> None:
        """End the program; never leaves a process behind. Idempotent."""


class ProcessPipe:
    """A program in a process of its own, one JSON object a line in both directions.

    The process ends when this side's end of its stdin closes, so a killed server leaves none behind, also not
    behind a prefix such as `docker exec -i NAME` or `ssh HOST`.
    """

    def __init__(
        self,
        python: str,
        program: str,
        arguments: tuple[str, ...] = (),
        *,
        prefix: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.place = shlex.join([*prefix, python])
        self.prefix = prefix
        self.program = program
        self.alive = True
        self._stderr = b""
        self._received = b""
        self._ids = itertools.count(1)
        text = json.dumps(_texts(program)).encode()
        self._unsent = b"%d\n%b" % (len(text), text)
        self._process = self._started(command(python, program, arguments, prefix, variables), variables or {})
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            os.set_blocking(_number(stream), False)

    def _started(self, argv: list[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **variables},
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as problem:
            self.alive = False
            reason = getattr(problem, "strerror", None) or str(problem)
            raise TrainingEnvironmentError(
                f"`{self.place}` cannot be started: {reason}. Name the Python that has torch and megatron-core"
            ) from problem

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to one request; what else is printed on the way is skipped."""
        number = next(self._ids)
        self._unsent += json.dumps({**request, "id": number}).encode() + b"\n"
        skipped, deadline = b"", time.monotonic() + limit_s
        try:
            while True:
                line = self._line(deadline, limit_s, skipped)
                answer = _object(line)
                if answer is not None and answer.get("id") == number:
                    del answer["id"]
                    return answer
                skipped = (skipped + line + b"\n")[-KEPT:]
        except BaseException:
            self.close()
            raise

    def _line(self, deadline: float, limit_s: float, skipped: bytes) -> bytes:
        while b"\n" not in self._received:
            if time.monotonic() >= deadline:
                raise TrainingEnvironmentError(
                    f"`{self.place}` did not answer within {limit_s:g} s ({self.program}).{self._heard(skipped)}"
                    " Importing torch and Megatron from a slow disk can take long; try again, or give a named"
                    " environment a larger start_limit_s"
                )
            if len(self._received) > ANSWER_LIMIT:
                raise TrainingEnvironmentError(
                    f"`{self.place}` printed more than {ANSWER_LIMIT} bytes without an answer ({self.program})"
                )
            if not self._exchanged(deadline):
                raise PipeEnded(self._ended(skipped))
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _exchanged(self, deadline: float) -> bool:
        """Send and receive what is possible now; False when the program's stdout has ended."""
        process, ended = self._process, False
        with selectors.DefaultSelector() as selector:
            selector.register(_number(process.stdout), selectors.EVENT_READ, "stdout")
            if not _number(process.stderr) < 0:
                selector.register(_number(process.stderr), selectors.EVENT_READ, "stderr")
            if self._unsent:
                selector.register(_number(process.stdin), selectors.EVENT_WRITE, "stdin")
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                ended |= self._moved(key.fd, key.data)
        return not ended

    def _moved(self, descriptor: int, stream: str) -> bool:
        """Move the bytes that one stream is ready for; True when it is stdout and has ended."""
        if stream == "stdin":
            with contextlib.suppress(BrokenPipeError):  # the end of stdout tells it better
                self._unsent = self._unsent[os.write(descriptor, self._unsent[: 2**16]) :]
                return False
            self._unsent = b""
            return False
        data = os.read(descriptor, 2**16)
        if stream == "stdout":
            self._received += data
            return not data
        self._stderr = (self._stderr + data)[-KEPT:]
        if not data and self._process.stderr:
            self._process.stderr.close()
        return False

    def _ended(self, skipped: bytes) -> str:
        try:
            code = self._process.wait(GRACE_S)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            how = "closed its output"
        return (
            f"`{self.place}` {how} before it answered ({self.program}).{self._heard(skipped + self._received)}"
            f" {_remedy(self._process.returncode, self.prefix)}"
        )

    def _heard(self, stdout: bytes) -> str:
        """The last lines of what the program said."""
        for stream, data in (("stderr", self._stderr), ("stdout", stdout)):
            lines = data.decode(errors="replace").strip().splitlines()
            if lines:
                return f" Its {stream} ends with: {' | '.join(line.strip() for line in lines[-3:])[-600:]}."
        return ""

    def close(self) -> None:
        """End the program: by the end of its stdin, else by force."""
        self.alive = False
        process = self._process
        if process.stdin and not process.stdin.closed:
            with contextlib.suppress(OSError):
                process.stdin.close()
        idle = not self._unsent and not self._received and process.stdout and not process.stdout.closed
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S if idle else 0.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


def command(
    python: str,
    program: str,
    arguments: tuple[str, ...],
    prefix: tuple[str, ...],
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """The argument list. Behind a prefix `env` sets the variables, which few prefixes pass on.

    `ssh` hands its words to a shell on the other side, so they are quoted for it.
    """
    words = [python, "-c", BOOTSTRAP, program, *arguments]
    if prefix and variables:
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *words]
    if prefix and Path(prefix[0]).name == "ssh":
        return [*prefix, shlex.join(words)]
    return [*prefix, *words]


def _texts(program: str) -> dict[str, str]:
    """The program as `__main__`, and its modules by name."""
    tools = bundled("tools")
    texts = {"__main__": (tools / program).read_text(encoding="utf-8")}
    package = MODULES.get(program)
    for path in sorted((tools / package).glob("*.py")) if package else ():
        name = package if path.stem == "__init__" else f"{package}.{path.stem}"
        texts[str(name)] = path.read_text(encoding="utf-8")
    return texts


def _remedy(code: int | None, prefix: tuple[str, ...]) -> str:
    """What to do about an early end: the exit codes of shells, `env` and ssh tell who failed."""
    if prefix and code == 255 and Path(prefix[0]).name == "ssh":
        return f"ssh did not get there: try `{shlex.join([*prefix, 'true'])}` by hand; it must not ask for a password"
    if prefix and code in (125, 126, 127):
        return f"The prefix or the Python behind it is not there: try `{shlex.join([*prefix, 'true'])}` by hand"
    return "It must be a Python 3.10 or later that has torch and megatron-core"


def _object(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        return value if isinstance(value, dict) else None
    return None


def _number(stream: Any) -> int:
    """The stream's file descriptor, -1 when it is closed."""
    return -1 if stream is None or stream.closed else int(stream.fileno())
