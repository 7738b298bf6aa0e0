from __future__ import annotations

import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.training_env.judgement import Judgement
from ep_overlap_mcp.training_env.pipe import Pipe, PipeEnded, ProcessPipe, TrainingEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from ep_overlap_mcp.results.environment import EnvironmentResult
    from ep_overlap_mcp.training_env.named import Cluster

CHECK = "check_with_megatron.py"
DESCRIBE = "describe_environment.py"


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds. A failed start is not tried again for `retry`, so that it does not slow every check."""

    start: float = 120.0
    answer: float = 20.0
    answer_in_batch: float = 0.02  # for each configuration; one takes about 0.1 ms
    describe: float = 180.0
    retry: float = 60.0


class TrainingEnvironment:
    """The Python that has torch and megatron, and a warm worker in it.

    `python` is the interpreter that runs this when not named; `prefix` goes before it, as in
    `("docker", "exec", "-i", "trainer")` or `("ssh", "node1")`; `variables` are set there. Smoke runs put their files
    into `folder` there, and are jobs of `cluster` where there is one. Threads may share one. Every failure is a
    TrainingEnvironmentError.
    """

    def __init__(
        self,
        python: str | None = None,
        prefix: tuple[str, ...] = (),
        *,
        variables: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        folder: str | None = None,
        cluster: Cluster | None = None,
        open_pipe: Callable[[str, tuple[str, ...]], Pipe] | None = None,
    ) -> None:
        self.python = python or sys.executable
        self.prefix = prefix
        self.folder = folder
        self.cluster = cluster
        self.limits = limits or Limits()
        self.variables = variables or {}
        self._open_pipe = open_pipe or self._open_process
        self._lock = threading.Lock()
        self._workers: list[Pipe] = []  # none or one; a list, so that the finalizer holds no reference to self
        self._stand_in: str | None = None  # the version of Transformer Engine that the worker stands in for
        self._failure: tuple[float, str] | None = None
        weakref.finalize(self, _close_all, self._workers)  # also when the interpreter ends

    def judge(
        self,
        framework: str,
        settings: Mapping[str, Any],
        *,
        strict_fields: bool = False,
        transformer_engine: str | None = None,
    ) -> Judgement:
        """The installed Megatron's verdict on settings by canonical path (`model.bf16`).

        `framework` is `megatron-core`, `megatron-lm` or `bridge`. With `strict_fields`, a `model.*` setting that the
        installed version does not have is rejected, as its constructor does; otherwise it is only listed.
        `transformer_engine` is a version that an empty stand-in shows to Megatron where none is installed.
        """
        request = {"framework": framework, "settings": dict(settings), "strict_fields": strict_fields}
        return _judgement(self._asked(request, self.limits.answer, transformer_engine))

    def judge_all(
        self,
        framework: str,
        batch: Sequence[Mapping[str, Any]],
        *,
        strict_fields: bool = False,
        transformer_engine: str | None = None,
    ) -> list[Judgement]:
        """Verdicts on many configurations, in their order."""
        several = [dict(settings) for settings in batch]
        request = {"framework": framework, "batch": several, "strict_fields": strict_fields}
        limit = self.limits.answer + self.limits.answer_in_batch * len(several)
        return [_judgement(answer) for answer in self._asked(request, limit, transformer_engine)["answers"]]

    def describe(self, *, fast: bool = False) -> EnvironmentResult:
        """Components, GPUs and what can run there; `fast` reads versions only and imports nothing."""
        from ep_overlap_mcp.results.environment import EnvironmentResult

        pipe = self._open_pipe(DESCRIBE, ())
        try:
            answer = pipe.ask({"fast": fast}, self.limits.describe)
        finally:
            pipe.close()
        return EnvironmentResult.model_validate(_without_error(answer))

    def close(self) -> None:
        """End the worker; a later question starts another."""
        with self._lock:
            _close_all(self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _asked(self, request: dict[str, Any], limit_s: float, stand_in: str | None) -> dict[str, Any]:
        """Ask the worker; one that died since it last answered is replaced once."""
        with self._lock:
            if stand_in != self._stand_in:  # what is imported once stays: another version takes another worker
                _close_all(self._workers)
                self._stand_in = stand_in
            warm = bool(self._workers) and self._workers[0].alive
            try:
                return _without_error(self._worker().ask(request, limit_s))
            except PipeEnded:
                if not warm:
                    raise
                return _without_error(self._worker().ask(request, limit_s))

    def _worker(self) -> Pipe:
        """The warm worker, started when there is none."""
        if self._workers and self._workers[0].alive:
            return self._workers[0]
        self._workers.clear()
        if self._failure and time.monotonic() - self._failure[0] < self.limits.retry:
            raise TrainingEnvironmentError(self._failure[1])
        try:
            stand_in = ("--transformer-engine", self._stand_in) if self._stand_in else ()
            pipe = self._open_pipe(CHECK, ("--worker", *stand_in))
            self._workers.append(pipe)
            _must_be_able(_without_error(pipe.ask({"hello": True}, self.limits.start)))
        except TrainingEnvironmentError as problem:
            self._failure = (time.monotonic(), str(problem))
            _close_all(self._workers)
            raise
        self._failure = None
        return pipe

    def _open_process(self, program: str, arguments: tuple[str, ...]) -> Pipe:
        return ProcessPipe(self.python, program, arguments, prefix=self.prefix, variables=self.variables)


def _close_all(pipes: list[Pipe]) -> None:
    while pipes:
        pipes.pop().close()


def _without_error(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise TrainingEnvironmentError(f"the training environment refused the request: {answer['error']}")
    return answer


def _must_be_able(hello: Mapping[str, Any]) -> None:
    if hello["cannot_judge"]:
        raise TrainingEnvironmentError(
            f"no Megatron to judge with: {hello['cannot_judge']}. Name the training environment's Python, or install"
            " ep-overlap-mcp[megatron] in this one"
        )


def _judgement(answer: Mapping[str, Any]) -> Judgement:
    try:
        return Judgement.of(answer)
    except (KeyError, TypeError) as problem:
        raise TrainingEnvironmentError(f"the training environment's answer is incomplete: {problem}") from problem
