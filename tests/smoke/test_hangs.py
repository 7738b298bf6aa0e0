"""Who keeps the others waiting."""

from __future__ import annotations

from ep_overlap_mcp.smoke.hangs import name_odd_rank

CALL = {"name": "all_to_all_single", "seq": 7, "group": "EP", "bytes": 512}
DUMP = """\
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007e (most recent call first):
  File "/home/me/run/train.py", line 9 in load_batch
  File "/home/me/run/train.py", line 40 in main
"""


def state(*, waiting, step=1):
    """A rank in a step of the overlap variant."""
    return {"phase": "parity", "variant": "overlap", "step": step, "last": CALL, "in_flight": [CALL] if waiting else []}


def test_the_only_rank_in_no_collective_is_odd():
    """It stands first, with its last collective and where its main thread is; the others follow."""
    states = {0: state(waiting=True), 1: state(waiting=True), 2: state(waiting=False)}
    assert name_odd_rank(states, {2: DUMP.splitlines()}, 3) == (
        2,
        [
            (
                "rank 2: in parity overlap step 1; is in no collective; its last was all_to_all_single #7 of group EP"
                " (512 bytes); main thread at train.py:9 in load_batch"
            ),
            "rank 0: in parity overlap step 1; waits in all_to_all_single #7 of group EP (512 bytes)",
            "rank 1: in parity overlap step 1; waits in all_to_all_single #7 of group EP (512 bytes)",
        ],
    )


def test_a_rank_without_a_state_file_is_odd_when_others_wait():
    """It never came so far."""
    rank, (first, _) = name_odd_rank({0: state(waiting=True)}, {}, 2)
    assert (rank, first) == (1, "rank 1: left no state file, so it never started or was not reached")


def test_a_stopped_rank_is_odd_though_it_waits_like_the_others():
    """It was stopped within the collective: it alone dumps no stack when all are asked."""
    wait = state(waiting=True)
    rank, (first, _) = name_odd_rank({0: wait, 1: wait}, {0: DUMP.splitlines(), 1: []}, 2)
    assert rank == 1
    assert first.endswith("it did not answer when asked for its stack: gone, stopped, or stuck in the kernel")


def test_no_rank_is_named_without_evidence():
    """All wait, none waits, or two are idle: a stall, but nobody's."""
    wait, idle = state(waiting=True), state(waiting=False)
    for states in ({0: wait, 1: wait}, {0: idle, 1: idle}, {0: wait, 1: idle, 2: idle}):
        assert name_odd_rank(states, {}, len(states))[0] is None
