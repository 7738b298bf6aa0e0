from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Request = dict[str, Any]


class FakePipe:
    """A pipe without a process: a function answers. For tests of what stands on a training environment.

    `TrainingEnvironment(open_pipe=FakePipe.opener(answer))` asks `answer(program, request)`; an exception raised
    there reaches the caller as one of a real pipe would. `asked` keeps every request.
    """

    def __init__(self, program: str, answer: Callable[[str, Request], Request], asked: list[Request]) -> None:
        self.program = program
        self.alive = True
        self._answer = answer
        self._asked = asked

    @classmethod
    def opener(
        cls, answer: Callable[[str, Request], Request], asked: list[Request] | None = None
    ) -> Callable[[str, tuple[str, ...]], FakePipe]:
        """What `TrainingEnvironment` opens pipes with."""
        kept = asked if asked is not None else []
        return lambda program, _arguments: cls(program, answer, kept)

    def ask(self, request: Request, limit_s: float) -> Request:  # noqa: ARG002
        """The function's answer."""
        self._asked.append(request)
        return self._answer(self.program, request)

    def close(self) -> None:
        """Refuse what is asked afterwards."""
        self.alive = False
