"""The parts of tools/smoke_train.py that decide what the evidence says."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from smoke import intervals, schedule  # noqa: E402
from smoke.collectives import STATE_BYTES, StateFile  # noqa: E402
from smoke.evidence import Report, explain  # noqa: E402
from smoke.request import Fault, RequestError, parse  # noqa: E402

REQUEST = {
    "engine": "gloo-cpu",
    "seed": 1,
    "model": {"num_layers": 2},
    "train": {"micro_batch_size": 1, "num_microbatches": 2, "seq_length": 16, "vocab_size": 64},
    "variants": ["baseline", "overlap"],
}
TIMELINE = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def covered(spans):
    """The integer moments that half-open intervals cover."""
    return {moment for start, end in spans for moment in range(start, end)}


@given(TIMELINE, TIMELINE)
def test_intervals_are_sets_of_moments(some, others):
    """Union, intersection and difference agree with sets, and are disjoint and in order."""
    a, b = covered(some), covered(others)
    for spans, moments in (
        (intervals.union(some), a),
        (intervals.intersection(some, others), a & b),
        (intervals.difference(some, others), a - b),
    ):
        assert covered(spans) == moments
        assert all(end < start for (_, end), (start, _) in pairwise(spans))
    assert intervals.milliseconds(some) == len(a) / 1e6


def test_a_minimal_request_gets_the_documented_defaults():
    """What is optional has the value that the program's documentation gives."""
    request = parse(REQUEST)
    assert (request.parity_steps, request.pairs, request.warmup, request.mode) == (3, 8, 2, "threads")
    assert (request.profile, request.fault, request.wall_limit_s, request.collective_timeout_s) == (
        False,
        None,
        300,
        60,
    )
    assert (request.ddp, request.optimizer, request.train.position_embedding_type) == ({}, {}, "rope")
    assert parse({**REQUEST, "fault": {"kind": "die"}}).fault == Fault("die", rank=0, step=1, variant=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "mpi"}, "engine: `mpi` is none of gloo-cpu, gloo-gpu, nccl-gpu"),
        ({"wheels": 4}, "request: unknown `wheels`"),
        ({"variants": ["overlap"]}, "variants: `baseline` stands first"),
        ({"variants": ["baseline"]}, "variants: baseline alone compares nothing"),
        ({"variants": ["baseline", "faster"]}, "variants: `faster` is none of"),
        ({"model": {"delay_wgrad_compute": True}}, "model: `delay_wgrad_compute` is set by the variant"),
        ({"train": {"micro_batch_size": 1}}, "train: missing 3 required positional arguments"),
        ({"train": {**REQUEST["train"], "seq_length": 0}}, "train.seq_length: must be at least 1, is 0"),
        ({"parity_steps": 0}, "parity_steps: must be at least 1, is 0"),
        ({"fault": {"kind": "gremlin"}}, "fault.kind: `gremlin` is none of drop_wgrad"),
        ({"mode": "magic"}, "mode: `magic` is none of threads, inline"),
    ],
)
def test_a_request_that_cannot_run_is_refused_by_name(change, message):
    """The error names the field, what it is and what it may be."""
    with pytest.raises(RequestError) as error:
        parse({**REQUEST, **change})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("shapes", "moe_nodes", "nodes", "wgrads"),
    [
        ([schedule.Shape(moe=2, dense=0, mtp=0, last_stage=True)], 4, 4 * 21, 4 * 4),
        ([schedule.Shape(moe=2, dense=0, mtp=0, last_stage=True)], 5, 4 * 25, 4 * 4),
        ([schedule.Shape(moe=1, dense=1, mtp=0, last_stage=True)], 4, 4 * 17, 4 * 4),
        ([schedule.Shape(moe=1, dense=0, mtp=1, last_stage=True)], 4, 4 * 23, 4 * 4),
        ([schedule.Shape(moe=1, dense=0, mtp=0, last_stage=False)] * 2, 4, 4 * 20, 4 * 4),
        ([schedule.Shape(moe=0, dense=0, mtp=0, last_stage=False)], 4, 4 * 2, 0),
    ],
)
def test_expected_nodes_follow_the_layers_of_the_rank(shapes, moe_nodes, nodes, wgrads):
    """The counts measured on megatron-core 0.15.3 to 0.19.0, four microbatches."""
    delayed = schedule.expected(shapes, 4, moe_nodes, delayed=True)
    plain = schedule.expected(shapes, 4, moe_nodes, delayed=False)
    assert (delayed.nodes, delayed.wgrads, plain.nodes, plain.wgrads) == (nodes, wgrads, nodes, 0)


def test_a_moe_layer_lost_a_node_with_0_16():
    """post_attn was a node of its own up to 0.15."""
    assert [schedule.moe_nodes(v) for v in ("0.15.3", "0.16.1", "0.19.0", "1.0.0rc1")] == [5, 4, 4, 4]


def failed(rank, t, message, **place):
    """A rank file of a failed rank."""
    return {"rank": rank, "status": "failed", "t": t, "error": {"message": message}, **place}


@pytest.mark.parametrize(
    ("ranks", "waiting", "rank", "odd"),
    [
        pytest.param({0: failed(0, 1.0, "Connection closed by peer"), 1: failed(1, 2.0, "boom")}, {0}, 1, [1],
                     id="its own error comes before a peer's broken connection"),
        pytest.param({0: failed(0, 2.0, "later"), 1: failed(1, 1.0, "first")}, set(), 1, [],
                     id="the earlier of two own errors"),
        pytest.param({0: failed(0, 1.0, "Timed out waiting 6000ms")}, {0}, 1, [1], id="a rank that hangs"),
        pytest.param({1: failed(1, 1.0, "Connection reset by peer")}, {1}, 0, [0], id="a rank that was killed"),
        pytest.param({0: {"rank": 0, "status": "terminated", "t": 0.5}, 1: failed(1, 1.0, "boom")}, set(), 1, [],
                     id="a rank that torchrun closed is not the cause"),
        pytest.param({}, set(), None, [], id="nobody reported"),
    ],
)  # fmt: skip
def test_the_failing_rank_is_named(ranks, waiting, rank, odd):
    """The cause is the rank that failed by itself, or else the one that waited in no collective."""
    states = {k: {"phase": "parity", "in_flight": [{"name": "all_reduce"}] if k in waiting else []} for k in (0, 1)}
    failure = explain(ranks, states, world_size=2)
    assert (failure["rank"], failure["odd_ranks"]) == (rank, odd)


def test_the_state_file_is_always_one_json_object(tmp_path):
    """It keeps its size when rewritten, and drops what does not fit."""
    path = tmp_path / "rank0.state.json"
    state = StateFile(path)
    for row in ({"rank": 0, "in_flight": []}, {"rank": 0, "in_flight": ["x" * 2 * STATE_BYTES]}):
        state.write(row)
        assert path.stat().st_size == STATE_BYTES
        assert json.loads(path.read_text()) == {"rank": 0, "in_flight": []}


def python(program, *arguments):
    """Start a Python process that can import the parts."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(TOOLS)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_rank_dies_with_its_killed_launcher():
    """SIGKILL of the launcher ends the rank, although the rank is a session of its own."""
    rank = (
        "import time; from smoke import lifeline as l; l.tie_to_launcher(); print('tied', flush=True); time.sleep(60)"
    )
    launcher = python(
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); p.wait()",
        rank,
    )
    pid = int(launcher.stdout.readline())
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def alive(pid):
    """The process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_rank_is_gone_once_its_peer_sees_it(tmp_path):
    """Its sockets close before the kernel calls it a zombie; whoever writes the result must not wait for it."""
    report = Report(tmp_path, rank=1, world_size=2)
    busy = (
        "import threading, time\n"
        "memory = bytearray(64 << 20)\n"
        "for _ in range(20): threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)"
    )
    for _ in range(20):
        ours, theirs = socket.socketpair()
        rank = subprocess.Popen([sys.executable, "-c", busy], pass_fds=[theirs.fileno()], stdout=subprocess.PIPE)
        theirs.close()
        rank.stdout.readline()
        (tmp_path / "rank0.state.json").write_text(json.dumps({"pid": rank.pid}))
        assert report.alive(0)
        rank.kill()
        assert ours.recv(1) == b""
        assert not report.alive(0)
        rank.wait()


def test_the_wall_limit_ends_a_stuck_rank_with_its_stacks_and_last_words(tmp_path):
    """Exit 124 after the limit; the stacks show where it was stuck; what `last_words` wrote is there."""
    stuck = python(
        "import sys, pathlib, time; from smoke import lifeline\n"
        "out = pathlib.Path(sys.argv[1])\n"
        "lifeline.end_after(0.2, out / 'stacks.txt', lambda: (out / 'words').write_text('bye'))\n"
        "def waits_for_ever(): time.sleep(60)\n"
        "waits_for_ever()",
        tmp_path,
    )
    assert stuck.wait(timeout=20) == 124
    assert "in waits_for_ever" in (tmp_path / "stacks.txt").read_text()
    assert (tmp_path / "words").read_text() == "bye"


@pytest.mark.megatron
class TestWithTorch:
    """Parts that need torch, not megatron."""

    torch = pytest.importorskip("torch")

    def test_equal_tensors_are_equal_and_one_bit_is_not(self):
        """The first different tensor is named, with the largest and the relative distance."""
        from smoke.compare import compare_tensors

        same = self.torch.tensor([1.0, -2.0])
        moved = self.torch.tensor([1.0, -1.0])
        assert compare_tensors([("a", same, same.clone())])["equal"]
        row = compare_tensors([("a", same, same.clone()), ("b", same, moved), ("c", same, moved)])
        assert (row["equal"], row["tensors"], row["different"], row["first_different"]) == (False, 3, 2, "b")
        assert row["max_abs_diff"] == 1.0
        assert row["max_rel_l2"] == pytest.approx(1 / math.sqrt(5))

    def test_no_tensors_and_nan_are_never_equal(self):
        """Nothing compared is no pass, and neither are equal NaNs."""
        from smoke.compare import compare_numbers, compare_tensors

        nan = self.torch.tensor([math.nan])
        assert not compare_tensors([])["equal"]
        row = compare_tensors([("a", nan, nan)])
        assert (row["equal"], row["finite"], row["max_abs_diff"]) == (False, False, "inf")
        assert compare_numbers([math.nan], [math.nan])["equal"] is False
        assert compare_numbers([1.0], [1.0, 2.0])["equal"] is False

    def test_buffers_of_a_checkpoint_are_compared_with_the_weights_and_others_are_not(self):
        """The router's bias is one: a schedule that updates it otherwise trains another model."""
        from types import SimpleNamespace

        from smoke.compare import compare_parameters

        def variant(bias, counts):
            chunk = self.torch.nn.Linear(2, 2)
            self.torch.nn.init.ones_(chunk.weight)
            self.torch.nn.init.ones_(chunk.bias)
            chunk.register_buffer("expert_bias", self.torch.tensor([bias]))
            chunk.register_buffer("tokens", self.torch.tensor([counts]), persistent=False)
            chunk.ddp_config = SimpleNamespace(overlap_param_gather=False)
            return SimpleNamespace(chunks=[chunk])

        assert compare_parameters(variant(0.1, 3.0), variant(0.1, 4.0))["equal"]
        row = compare_parameters(variant(0.1, 3.0), variant(0.2, 3.0))
        assert (row["equal"], row["tensors"], row["first_different"]) == (False, 3, "chunk0.expert_bias")

    @pytest.mark.parametrize(
        ("gradients_apart", "loss", "near"),
        [(0.0, 5.0, True), (0.0108, 5.0, True), (1.0, 5.0, False), (0.0, 5.1, False)],
    )
    def test_rounding_is_told_from_a_lost_contribution(self, gradients_apart, loss, near):
        """Another order of bf16 sums is near; a dropped gradient or another loss is not."""
        from smoke.compare import Numbers, compare_step

        grads = {"equal": False, "finite": True, "max_rel_l2": gradients_apart}
        row = compare_step(
            Numbers([5.0], 1.0), Numbers([loss], 1.0), grads, {"equal": True, "finite": True}, bitwise=True
        )
        assert (row["equal"], row["within_rounding"], row["within_tolerance"]) == (False, near, False)

    def test_a_stream_runs_its_work_in_order_on_its_own_thread(self):
        """First in, first out; an error reaches whoever takes the result, and later work still runs."""
        from smoke.cpu_streams import CpuStream

        stream, seen = CpuStream(), []
        futures = [stream.submit(lambda i=i: seen.append((i, threading.current_thread().name))) for i in range(20)]
        bad = stream.submit(lambda: 1 / 0)
        after = stream.submit(lambda: "still here")
        stream.close()
        assert [f.result() for f in futures] == [None] * 20
        assert seen == [(i, "comm-stream") for i in range(20)]
        assert isinstance(bad.exception(), ZeroDivisionError)
        assert after.result() == "still here"
