"""The runs of a host, kept between servers."""

from __future__ import annotations

import multiprocessing
import time

import pytest
from stand_in_runs import plan_of

from ep_overlap_mcp.cli import main
from ep_overlap_mcp.smoke.errors import SmokeError
from ep_overlap_mcp.smoke.store import STATE_DIR, Store

PLAN = plan_of().shown.model_dump()


def ended(store, status="done"):
    """A run that has ended."""
    run = store.add("cpu", PLAN, 10.0)
    store.end(run.id, status, {"cause": status})
    return run.id


def test_an_end_is_written_once():
    """Whoever comes second changes nothing: a cancelled run does not become lost."""
    store = Store()
    run = store.add("cpu", PLAN, 10.0)
    assert [store.end(run.id, status, {"cause": status}) for status in ("cancelled", "lost")] == [True, False]
    assert (store.get(run.id).status, store.get(run.id).ending) == ("cancelled", {"cause": "cancelled"})


def _try_to_take(number: int) -> bool:
    try:
        Store().add("cpu", PLAN, 10.0)
    except SmokeError:
        return False
    return number >= 0


def test_of_processes_that_start_at_once_one_gets_the_device_set():
    """The database decides, not a look before."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert sorted(pool.map(_try_to_take, range(4))) == [False, False, False, True]


def test_old_runs_are_forgotten_with_their_folders():
    """The newest stay, and whatever has not ended."""
    store = Store()
    still = store.add("gpu", PLAN, 10.0)
    names = []
    for _ in range(4):
        names.append(ended(store))
        time.sleep(0.01)
    store.forget_old(2)
    assert [run.id for run in store.all()] == [names[3], names[2], still.id]
    assert [store.run_folder(name).path.exists() for name in names] == [False, False, True, True]


def test_a_list_that_is_cut_says_so_with_the_way_to_all(capsys):
    """How many of how many; the running ones of all."""
    store = Store()
    for _ in range(4):
        ended(store)
    store.add("gpu", PLAN, 10.0)
    ended(store)
    assert main(["smoke", "list", "--most", "1"]) == 0
    cut = capsys.readouterr().out.splitlines()
    assert len(cut) == 2
    assert cut[1] == f"1 of 6 smoke runs in {store.folder}, 1 running. `smoke list --most 6` shows all."
    assert main(["smoke", "list", "--most", "6"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert (len(whole), whole[-1]) == (7, f"6 smoke runs in {store.folder}, 1 running.")
    assert main(["smoke", "list", "--most", "0"]) == 2


def test_a_state_directory_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    """With the variable that names another."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(STATE_DIR, str(tmp_path / "file"))
    with pytest.raises(SmokeError, match=r"runs cannot be kept in .* Set EP_OVERLAP_STATE_DIR"):
        Store()
