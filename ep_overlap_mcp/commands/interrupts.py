"""Signals to a command that waits for what it started: the first is noted and ends that, the second leaves at once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # a terminal, a scheduler or CI, a terminal that is closed


class Interrupts:
    """While it is entered, signals that would end this process are noted instead; `number` is the first one's.

    Noting, not raising, so that no run is started whose number nobody knows. A second signal asks the supervisors of
    what runs to end it without this process, and raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for name in NAMES:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def asked(self) -> bool:
        """Someone wants it to end."""
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """As shells say that a signal ended a command."""
        return 128 + (self.number or signal.SIGINT)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            return
        from ep_overlap_mcp import smoke

        smoke.end_all_jobs()
        raise KeyboardInterrupt("interrupted again: what still runs is ended without this command")
