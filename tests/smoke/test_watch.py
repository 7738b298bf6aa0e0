"""When a supervisor acts: the state machine alone, without processes."""

from __future__ import annotations

from ep_overlap_mcp.smoke.job import Job
from ep_overlap_mcp.smoke.watch import Decision, Seen, Watch

JOB = Job(
    "id", ["true"], world_size=2, limit_s=100.0, stall_s=10.0, import_stall_s=40.0, log_bytes=100, folder_bytes=1000
)
GO_ON = Decision("go_on")


def looks(*seen):
    """What a fresh watch decides, one look after another."""
    watch = Watch(JOB)
    return [watch.look(one) for one in seen]


def test_a_job_that_moves_goes_on_to_its_end():
    """Signs of life reset the stall; exit status 0 is done."""
    ended = Decision("end", "done", "ended by itself")
    assert looks(Seen(0), Seen(9, life=1), Seen(18, life=2), Seen(27, exit_code=0)) == [GO_ON, GO_ON, GO_ON, ended]


def test_stacks_are_collected_once_a_stall():
    """Again only after something has moved in between; a stall alone ends nothing."""
    collect = [Decision("collect_stacks", cause="nothing moved for 10 s"), GO_ON]
    seen = [Seen(0, life=1), Seen(10, life=1), Seen(20, life=1), Seen(21, life=2), Seen(31, life=2), Seen(32, life=2)]
    assert looks(*seen) == [GO_ON, *collect, GO_ON, *collect]


def test_importing_may_take_longer():
    """No rank shows life while torch is read from a slow disk."""
    quiet = [Seen(at, importing=True) for at in (0, 39, 40)]
    assert [decision.action for decision in looks(*quiet)] == ["go_on", "go_on", "collect_stacks"]


def test_the_limit_ends_a_job_and_says_whether_it_stalled():
    """The cause tells a slow job from one that hung."""
    slow = looks(Seen(99, life=1), Seen(100, life=2))[-1]
    hung = looks(Seen(0, life=1), Seen(50, life=1), Seen(100, life=1))[-1]
    assert slow == Decision("end", "failed", "the wall-clock limit of 100 s was reached: raise limit_s (--limit)")
    assert hung == Decision("end", "failed", "the wall-clock limit of 100 s was reached; nothing had moved for 100 s")


def test_the_end_of_the_job_counts_before_a_cancel_and_a_cancel_before_the_limit():
    """What happened first is what is written down."""
    assert looks(Seen(100, exit_code=3, cancelled=True)) == [
        Decision("end", "failed", "torchrun ended with exit code 3")
    ]
    assert looks(Seen(100, cancelled=True)) == [Decision("end", "cancelled", "cancelled by request")]


def test_a_signal_is_named():
    """Of those that this system knows, and of others the number."""
    causes = [looks(Seen(1, exit_code=code))[0].cause for code in (-9, -200)]
    assert causes == ["torchrun was killed by SIGKILL", "torchrun was killed by signal 200"]


def test_output_is_bounded():
    """The log is cut, a folder that grows past its bound ends the run."""
    cut, ended = looks(Seen(1, log_bytes=101), Seen(2, folder_bytes=1001))
    assert cut == Decision("cut_log")
    assert ended == Decision("end", "failed", "its files passed 1000 bytes")
