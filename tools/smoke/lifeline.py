"""What keeps a rank from outliving its launcher, and what explains it when it stalls."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WALL_LIMIT_EXIT = 124  # what timeout(1) answers


class Terminated(BaseException):
    """SIGTERM arrived: torchrun closes the ranks that outlive a failed one. An order, not an error."""


def tie_to_launcher() -> None:
    """Die with the launcher: torchrun's workers are sessions of their own and would survive its SIGKILL."""
    if sys.platform != "linux":
        return
    launcher = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the kernel knew of our wish
        os.kill(os.getpid(), signal.SIGKILL)


def dump_stacks_to(path: Path) -> None:
    """Let SIGUSR1 append the stacks of all threads to the file; the rank goes on."""
    stacks = path.open("a")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)


def raise_on_sigterm() -> None:
    """Turn SIGTERM into Terminated, so that a closed rank still writes down where it was."""

    def raise_terminated(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, raise_terminated)


def end_after(seconds: float, stacks: Path, last_words: Callable[[], None]) -> None:
    """End the process when the wall limit strikes: stacks, then `last_words`, then exit 124.

    A daemon thread does it; should the interpreter itself be stuck, faulthandler's own thread ends
    the process five seconds later.
    """

    def strike() -> None:
        with stacks.open("a") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
        last_words()
        os._exit(WALL_LIMIT_EXIT)

    timer = threading.Timer(seconds, strike)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds + 5, exit=True, file=stacks.open("a"))
