"""What is said of a run that did not end well: its cause, not what followed from it."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.smoke.failure import failure_of
from ep_overlap_mcp.smoke.run_folder import RunFolder, write_json
from ep_overlap_mcp.smoke.store import Run

TORCHRUN = "torchrun ended with exit code 1"
CALL = {"name": "all_to_all_single", "seq": 7, "group": "EP", "bytes": 64}
PEER = {"type": "RuntimeError", "message": "Timed out waiting 60000ms for send operation to complete", "at": "a.py:1"}
KILLED = """\
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 26137)  (SIGABRT)
  error_file: <N/A>
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_13:16:36
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 26138)  (SIGKILL)
  error_file: <N/A>
"""


def explained(*, ranks, rank=None, error=None, odd=(), phase="timing", variant="overlap", step=22):
    """The failure of a result.json."""
    where = {"phase": phase, "variant": variant, "step": step}
    return {"rank": rank, **where, "error": error, "odd_ranks": list(odd), "ranks": dict(zip("01", ranks, strict=True))}


def state(*, waiting):
    """A rank in a timed step."""
    return {"phase": "timing", "variant": "overlap", "step": 22, "last": CALL, "in_flight": [CALL] if waiting else []}


@pytest.fixture
def failed(tmp_path):
    """What is said of a failed run with a limit of 30 s that left these files."""

    def said(status, failure, *, log="", stall=None, states=None):
        folder = RunFolder(tmp_path)
        if status is not None:
            write_json(folder.result, {"status": status, "failure": failure})
        folder.log.write_text(log)
        for rank, row in (states or {}).items():
            write_json(folder.state(rank), row)
        if stall is not None:
            write_json(folder.stall, stall)
        ending, plan = {"cause": TORCHRUN}, {"world_size": 2}
        run = Run("smoke-1", "failed", "cpu", 0.0, 0.0, 40.0, None, None, 30.0, plan, ending)
        return failure_of(run, folder)

    return said


@pytest.mark.parametrize(
    ("status", "failure", "place"),
    [
        ("timed_out", explained(ranks=("timed_out",) * 2, rank=1, odd=[1]), "timing overlap 22"),
        ("timed_out", explained(ranks=("timed_out",) * 2, rank=1, phase="build", variant=None, step=None), "build"),
        (
            "failed",  # rank 0 was closed by torchrun just before its own limit, and wrote the result
            explained(ranks=("terminated", "timed_out"), rank=1, phase="import", variant=None, step=None),
            "import",
        ),
    ],
    ids=["in a step", "while building", "torchrun was quicker"],
)
def test_the_tools_own_limit_is_no_ranks_fault(failed, status, failure, place):
    """No rank is named, whichever was in no collective when the limit struck."""
    said = failed(status, failure, states={0: state(waiting=True), 1: state(waiting=False)})
    assert (said.cause, said.rank) == (
        f"the limit of 30 s was reached in phase {place}; raise limit_s (--limit)",
        None,
    )


def test_a_rank_killed_while_importing_is_named_from_torchruns_log(failed):
    """No rank wrote an error of its own; torchrun knows which was killed and how."""
    failure = explained(ranks=("terminated", "no report"), phase=None, variant=None, step=None)
    said = failed("failed", failure, log=KILLED)
    assert (said.cause, said.rank) == (f"rank 1 was killed by SIGKILL; {TORCHRUN}", 1)


def test_a_rank_killed_before_any_could_explain_is_named_from_torchruns_log(failed):
    """While torch is being imported nobody writes a result."""
    said = failed(None, None, log=KILLED)
    assert (said.cause, said.rank) == (f"rank 1 was killed by SIGKILL; {TORCHRUN}", 1)


def test_a_peer_that_noticed_is_not_blamed_for_a_killed_rank(failed):
    """Rank 0 raised a closed connection, and the log says that rank 1 was killed."""
    closed = {"type": "RuntimeError", "message": "Connection closed by peer", "at": "gloo.py:1"}
    said = failed("failed", explained(ranks=("failed", "no report"), rank=0, error=closed), log=KILLED)
    assert (said.rank, any("raised at" in line for line in said.evidence)) == (1, False)


def test_ranks_that_torchrun_closed_are_not_the_cause(failed):
    """SIGTERM is what torchrun sends to the rest."""
    log = KILLED.replace("-9", "-15").replace("SIGKILL", "SIGTERM")
    said = failed("failed", explained(ranks=("terminated", "no report"), phase="import"), log=log)
    assert said.rank is None
    assert said.cause.startswith(TORCHRUN)


def test_a_stall_stays_the_cause_when_the_run_ends(failed):
    """Rank 1 was stopped: rank 0 gave up waiting. What was said while it ran is said at the end."""
    states = {0: state(waiting=True), 1: state(waiting=False)}
    stall = {"rank": 1, "cause": "nothing moved for 30 s", "evidence": ["rank 1: …"], "states": states}
    said = failed(
        "failed",
        explained(ranks=("failed", "no report"), rank=1, error=PEER, odd=[1]),
        stall=stall,
        states=states,
        log=KILLED,  # torchrun's, when it closed a rank that SIGTERM does not reach
    )
    assert (said.cause, said.rank) == (
        f"rank 1 keeps the others waiting: nothing moved for 30 s; {TORCHRUN}",
        1,
    )


def test_a_stall_that_passed_is_not_the_cause_of_what_came_later(failed):
    """Rank 1 moved on and failed with an error of its own."""
    stall = {"rank": 1, "cause": "nothing moved for 30 s", "evidence": [], "states": {1: state(waiting=True)}}
    error = {"type": "ValueError", "message": "no", "at": "a.py:1"}
    failure = explained(ranks=("terminated", "failed"), rank=1, error=error)
    said = failed("failed", failure, stall=stall, states={1: state(waiting=False)})
    assert said.cause == "rank 1 failed: ValueError: no"


def test_a_rank_that_does_not_answer_at_the_limit_is_named(failed):
    """Every rank ends itself at the limit; one that was stopped cannot."""
    said = failed("timed_out", explained(ranks=("timed_out", "no report"), rank=1, odd=[1]))
    assert said.rank == 1
    assert "Rank 1 did not answer at the limit" in said.cause


def test_a_stall_of_no_single_rank_is_said_with_the_limit(failed):
    """All waited, none stands out, and nothing moved until the end."""
    states = {0: state(waiting=True), 1: state(waiting=True)}
    stall = {"rank": None, "cause": "nothing moved for 30 s", "evidence": [], "states": states}
    said = failed("timed_out", explained(ranks=("timed_out",) * 2), stall=stall, states=states)
    assert (said.rank, "22; nothing moved for 30 s; raise limit_s" in said.cause) == (None, True)
