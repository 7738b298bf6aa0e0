"""The Slurm that tests start: two at once keep apart, and one that cannot start says so at once."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.conftest import LocalSlurm, ports_in_a_row

if TYPE_CHECKING:
    from pathlib import Path


def test_ports_in_a_row_are_free_and_out_of_the_way_of_connections() -> None:
    """All of them, not the first alone; outgoing connections get theirs from 32768 on."""
    first = ports_in_a_row(3)
    assert 10_000 <= first < first + 3 <= 32_768
    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        for offset, each in enumerate((one, two, three)):
            each.bind(("127.0.0.1", first + offset))


def test_a_port_that_somebody_has_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs that draw the same place: the second goes on to the next."""
    first = ports_in_a_row(4)
    draws = iter([first, first + 1])
    monkeypatch.setattr("random.randrange", lambda *_: next(draws))
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        assert ports_in_a_row(3) == first + 1


def test_a_daemon_that_ends_is_told_at_once_with_its_log(tmp_path: Path) -> None:
    """Waiting for it would take twenty seconds and tell less."""
    slurm = LocalSlurm(tmp_path)
    slurm.spawn("slurmctld", "sh", "-c", "echo 'fatal: slurm_init_msg_engine_port: Address already in use'; exit 1")
    begun = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match=r"slurmctld ended at once.*: fatal: .*Address already in use"):
        slurm.wait(lambda: False, "slurmctld")
    assert time.monotonic() - begun < 10
