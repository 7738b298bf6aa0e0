"""What a supervisor is given: the command of a job and its bounds. Written by the server, read by the supervisor."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.run_folder import read_json, write_json
from ep_overlap_mcp.surface import tool

if TYPE_CHECKING:
    from ep_overlap_mcp.smoke.run_folder import RunFolder

LOG_BYTES = 4 * 2**20  # of the log; then its middle is cut
FOLDER_BYTES = 256 * 2**20  # of all files of a run; then the run is ended
FILE_BYTES = 2**30  # of any file, shared memory included: a backstop of the kernel


@dataclass(frozen=True)
class Job:
    """One command under bounds. Seconds are of the wall clock from the start of the command."""

    run_id: str
    argv: list[str]
    world_size: int
    limit_s: float
    stall_s: float
    import_stall_s: float = 150.0  # importing torch from a slow disk shows no sign of life
    grace_s: float = 3.0
    poll_s: float = 0.2
    log_bytes: int = LOG_BYTES
    folder_bytes: int = FOLDER_BYTES
    variables: dict[str, str] = field(default_factory=dict)
    relayed: bool = False  # the ranks are elsewhere: what is asked of them is asked of the command

    def write(self, folder: RunFolder) -> None:
        """Leave it in the run's folder."""
        write_json(folder.job, asdict(self))

    @classmethod
    def read(cls, folder: RunFolder) -> Job:
        """The job of the folder; SmokeError when there is none."""
        values = read_json(folder.job)
        if not isinstance(values, dict):
            raise SmokeError(f"{folder.job} holds no job; a supervisor is started by {tool('start_smoke_run')} only")
        return cls(**values)
