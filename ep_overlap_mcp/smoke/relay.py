"""Stands for torchrun where that runs behind a prefix: `python -m … RUN_DIR`, started and ended by the supervisor.

It sends the training program and the request through the pipe to host_smoke_run.py, mirrors the files of the run into
the run's folder, prints its log, and ends with its exit code: the supervisor sees what it sees of a local job.
"""

from __future__ import annotations

import base64
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.bundled import bundled
from ep_overlap_mcp.smoke.run_folder import RunFolder, read_json, write_json
from ep_overlap_mcp.training_env.pipe import Pipe, ProcessPipe, TrainingEnvironmentError

if TYPE_CHECKING:
    from ep_overlap_mcp.training_env import TrainingEnvironment

PROGRAM = "host_smoke_run.py"
LOOK_S = 0.3  # between two looks
ANSWER_S = 30.0  # for an answer; longer than a network takes to recover from a lost packet
GRACE_S = 2.0  # below the supervisor's own
BROKEN = 70  # exit code when the pipe, not the job, has failed


@dataclass(frozen=True)
class Far:
    """Where the job runs, and what of it is not in the request."""

    python: str
    prefix: list[str]
    variables: dict[str, str]
    folder: str | None
    start_limit_s: float
    ranks: int
    run_id: str
    limit_s: float

    @classmethod
    def of(cls, environment: TrainingEnvironment, variables: dict[str, str], ranks: int, limit_s: float) -> Far:
        """Of a planned run; `run_id` is known when it starts."""
        place = (environment.python, list(environment.prefix), variables, environment.folder)
        return cls(*place, environment.limits.start, ranks, "", limit_s)


class Relay:
    """One job behind a prefix. `asked_to_end` and `stacks_wanted` are set by signals."""

    def __init__(self, folder: RunFolder, far: Far, pipe: Pipe) -> None:
        self.folder = folder
        self.far = far
        self.pipe = pipe
        self.asked_to_end = False
        self.stacks_wanted = False

    def run(self) -> int:
        """Start, mirror until the end; the exit code of the job."""
        try:
            _checked(self.pipe.ask({"start": self._start()}, self.far.start_limit_s))
            while True:
                answer = _checked(self.pipe.ask({"look": True}, ANSWER_S))
                self._mirror(answer["parts"])
                if answer["exit_code"] is not None and not answer["more"]:
                    return self._ended(answer)
                if self.asked_to_end:
                    self.pipe.ask({"end": True}, ANSWER_S)
                elif self.stacks_wanted:
                    self.stacks_wanted = False
                    self.pipe.ask({"stacks": True}, ANSWER_S)
                elif not answer["more"]:
                    time.sleep(LOOK_S)
        finally:
            self.pipe.close()

    def _start(self) -> dict[str, Any]:
        tools = bundled("tools")
        programs = [tools / "smoke_train.py", *sorted((tools / "smoke").glob("*.py"))]
        return {
            "files": {str(path.relative_to(tools)): path.read_text(encoding="utf-8") for path in programs},
            "request": read_json(self.folder.request),
            "ranks": self.far.ranks,
            "run_id": self.far.run_id,
            "variables": self.far.variables,
            "folder": self.far.folder,
            "limit_s": self.far.limit_s,
            "grace_s": GRACE_S,
        }

    def _mirror(self, parts: list[dict[str, Any]]) -> None:
        """Write what is new; names that lead out of the folder, or to files of ours, are not taken."""
        for part in parts:
            data, name = base64.b64decode(part["data"]), Path(part["file"]).name
            if name == self.folder.log.name:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            elif name.startswith(("rank", "progress", "result", "trace-")):
                _write(self.folder.path / name, data, append=part["append"])

    def _ended(self, answer: dict[str, Any]) -> int:
        if answer["limit"]:
            write_json(self.folder.far_end, {"cause": f"the wall-clock limit of {self.far.limit_s:g} s was reached"})
        code = int(answer["exit_code"])
        return code if code >= 0 else 128 - code


def main() -> int:
    """Relay the run of the folder."""
    folder = RunFolder(Path(sys.argv[1]))
    far = Far(**read_json(folder.far))
    try:
        pipe = ProcessPipe(far.python, PROGRAM, prefix=tuple(far.prefix), variables=far.variables)
        relay = Relay(folder, far, pipe)
        signal.signal(signal.SIGTERM, lambda *_: setattr(relay, "asked_to_end", True))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(relay, "stacks_wanted", True))
        return relay.run()
    except TrainingEnvironmentError as problem:
        write_json(folder.far_end, {"cause": str(problem)})
        return BROKEN


def command(folder: RunFolder, far: Far) -> list[str]:
    """What the supervisor starts instead of torchrun; the far side is written down for it."""
    write_json(folder.far, {**asdict(far), "run_id": folder.path.name})
    return [sys.executable, "-m", "ep_overlap_mcp.smoke.relay", str(folder.path)]


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise TrainingEnvironmentError(f"the job could not be started there: {answer['error']}")
    return answer


def _write(path: Path, data: bytes, *, append: bool) -> None:
    if append:
        with path.open("ab") as file:
            file.write(data)
        return
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(data)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
