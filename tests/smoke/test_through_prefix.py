"""Smoke runs behind a prefix: the supervisor sees what it sees of a local job, and nothing is left there."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import psutil
import pytest
from planted import CASES, run
from stand_in_runs import plan_of, processes_left, stand_in_torch, until

from ep_overlap_mcp import smoke
from ep_overlap_mcp.smoke.relay import Far
from ep_overlap_mcp.smoke.store import Store
from ep_overlap_mcp.training_env import TrainingEnvironment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")
HAS_MEGATRON = importlib.util.find_spec("megatron") is not None
PREFIXES = ["ssh_prefix", "namespace_prefix", "env_prefix"]


@pytest.fixture
def env_prefix():
    """The same host, without any of its variables."""
    return ("env", "-i")


@pytest.fixture
def there(tmp_path):
    """A folder that a run's files are put into there; beside it a torchrun that starts the stand-in."""
    stand_in_torch(tmp_path)
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def start(behaviour, prefix, there, *, limit_s=20.0, start_limit_s=10.0, python=sys.executable):
    """Start the stand-in behind the prefix."""
    variables = {"PYTHONPATH": str(there.parent / "libraries")}
    far = Far(python, list(prefix), variables, str(there), start_limit_s, 2, "", limit_s)
    plan = plan_of(limit_s=limit_s, stall_s=2.0)
    return smoke.start(type(plan)(**{**vars(plan), "request": {"behaviour": behaviour}, "far": far}))


def running(run_id):
    """Wait until both ranks have shown a sign of life here."""
    folder = Store().run_folder(run_id)
    until(lambda: len(folder.states(2)) == 2)


def ranks_there(there):
    """Living processes of the stand-in that write into the folder there."""
    found = [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["status"] != psutil.STATUS_ZOMBIE]
    return [p for p in found if any(word.startswith(str(there)) for word in p.info["cmdline"] or ())]


def nothing_left(there):
    """No process and no file."""
    until(lambda: not processes_left() and not ranks_there(there) and not list(there.iterdir()), 10)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_run_behind_a_prefix_ends_with_its_evidence_here(prefix, request, there):
    """Result, progress and log come back; the folder there is gone."""
    result = smoke.get(start("spew", request.getfixturevalue(prefix), there).id, 25)
    folder = Store().run_folder(result.id)
    assert (result.status, result.failure) == ("done", None)
    assert 2 * 2**20 <= folder.log.stat().st_size <= 5 * 2**20  # six came, the middle was cut
    assert {"result.json", "progress.jsonl", "rank0.state.json", "rank1.state.json"} <= {
        path.name for path in folder.path.iterdir()
    }
    nothing_left(there)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_cancel_ends_what_runs_behind_a_prefix(prefix, request, there):
    """Ranks that ignore SIGTERM and an orphan without any mark are gone, as locally."""
    run_ = start("ignore_term", request.getfixturevalue(prefix), there)
    running(run_.id)
    assert len(ranks_there(there)) >= 3
    assert smoke.cancel(run_.id).status == "cancelled"
    nothing_left(there)


def test_a_lost_connection_ends_the_job_there(ssh_prefix, there):
    """SIGKILL of the client closes the pipe; the other side ends by itself, and the text says what happened."""
    run_ = start("ignore_term", ssh_prefix, there)
    running(run_.id)
    (client,) = [p for p in processes_left() if p.name() == "ssh"]
    client.kill()
    result = smoke.get(run_.id, 25)
    assert result.status == "failed"
    assert "was killed by SIGKILL before it answered (host_smoke_run.py)" in result.failure.cause
    nothing_left(there)


def test_a_hang_there_is_explained_by_its_stacks(ssh_prefix, there):
    """The supervisor asks through the pipe; the odd rank is named here."""
    run_ = start("hang", ssh_prefix, there, limit_s=6)
    result = smoke.get(run_.id, 25)
    assert (result.status, result.failure.rank) == ("failed", 1)
    assert "the wall-clock limit of 6 s was reached" in result.failure.cause
    assert any("stand_in.py" in line for line in result.failure.evidence)
    nothing_left(there)


def test_a_job_that_cannot_start_there_says_why(there):
    """A folder that cannot be written, a Python that is not there: the cause names it."""
    there.rmdir()
    there.write_text("a file")
    first = smoke.get(start("finish", ("env", "-i"), there).id, 20)
    assert first.failure.cause.startswith("the job could not be started there: ")
    assert str(there) in first.failure.cause
    second = smoke.get(start("finish", ("env", "-i"), there, python="/nowhere/python").id, 20)
    assert "The prefix or the Python behind it is not there: try `env -i true` by hand" in second.failure.cause


def test_a_slow_start_ends_at_its_own_limit(there):
    """As an allocation that is not granted; the run's own limit has not begun."""
    begun = time.monotonic()
    run_ = start("finish", ("sh", "-c", "exec sleep 60"), there, start_limit_s=1.5)
    result = smoke.get(run_.id, 20)
    assert "did not answer within 1.5 s (host_smoke_run.py)" in result.failure.cause
    assert time.monotonic() - begun < 15


@pytest.mark.skipif(not HAS_MEGATRON, reason="megatron-core is not installed in this Python")
@pytest.mark.megatron
@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["ssh_prefix", "namespace_prefix"])
def test_a_real_run_behind_a_prefix_answers_the_questions(prefix, request, tmp_path):
    """The installed megatron-core, planned, sent, run and judged from the other side of the prefix."""
    environment = TrainingEnvironment(sys.executable, request.getfixturevalue(prefix), folder=str(tmp_path / "there"))
    result = run(CASES["sound"], environment, pairs=0)
    assert (result.status, result.overlap_ran.verdict, result.numerics.verdict) == ("done", "yes", "unchanged")
    assert list(Path(tmp_path / "there").iterdir()) == []
