"""A state directory for every test of smoke runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stand_in_runs import processes_left, until

from ep_overlap_mcp.smoke.store import STATE_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def state_folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """Nothing may be running from it at the end."""
    monkeypatch.setenv(STATE_DIR, str(tmp_path / "state"))
    yield tmp_path / "state"
    try:
        until(lambda: not processes_left(), 3)
    finally:
        for process in processes_left():
            process.kill()
