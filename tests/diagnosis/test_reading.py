"""Logs as launchers leave them: prefixes, colours, interleaved ranks, dumps, metrics of four frameworks."""

from __future__ import annotations

import random
import string
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ep_overlap_mcp.diagnosis import NothingToDiagnose, UnreadableLog, diagnose, reading
from ep_overlap_mcp.diagnosis.prefixes import rank_of_file, strip_prefixes
from ep_overlap_mcp.diagnosis.reading import BLOCK, HEAD, read_logs

if TYPE_CHECKING:
    from pathlib import Path

    from ep_overlap_mcp.diagnosis.evidence import Evidence


def read(text: str) -> Evidence:
    """Evidence of a text."""
    return read_logs([], {"text": text})


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        ("[rank3]: RuntimeError: x", 3, "RuntimeError: x"),
        ("[default3]:[rank11]: RuntimeError: x", 11, "RuntimeError: x"),
        ("[default3]: RuntimeError: x", 3, "RuntimeError: x"),
        ("  3: RuntimeError: x", 3, "RuntimeError: x"),
        (" 3: [rank3]:   File", 3, "File"),
        ("2025-06-19 16:18 [rank5]:   File", 5, "File"),
        ("[2026-08-01 10:00:00.123] iteration 5/ 10", None, "iteration 5/ 10"),
        ("[rank8]:[E218 04:54:22.73 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog", 8, "Watchdog"),
        ("[Rank 2] (after 1 iterations) memory", 2, "(after 1 iterations) memory"),
        ("(WorkerDict pid=4711, ip=10.0.0.1) step:3", None, "step:3"),
        ("plain", None, "plain"),
    ],
)
def test_prefixes_are_taken_off(line: str, rank: int | None, text: str) -> None:
    """torchrun, srun --label, Ray, glog and ISO times; the global rank beats a group's or a node's."""
    assert strip_prefixes(line)[:2] == (text, rank)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("logs/rank_3.log", 3), ("rank12.txt", 12), ("attempt_0/5/stderr.log", 5), ("run.log", None)],
)
def test_the_rank_of_a_file(name: str, rank: int | None) -> None:
    """From its name, or from torchrun's folder per rank."""
    assert rank_of_file(name) == rank


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_a_rank_prefix_is_read_before_any_text(text: str) -> None:
    """Whatever follows, `[rank7]: ` gives rank 7 and nothing is added to the line."""
    stripped, rank, _ = strip_prefixes(f"[rank7]: {text}")
    assert rank == 7 or "ank" in text
    assert len(stripped) <= len(text)


def test_stacks_of_interleaved_ranks_are_kept_apart() -> None:
    """The frame of rank 1 belongs to rank 1's exception, though rank 0 speaks in between."""
    evidence = read(
        '[rank0]:   File "a.py", line 1, in f\n'
        '[rank1]:   File "te/module/base.py", line 2, in backward_dw\n'
        "[rank0]: KeyError: 'x'\n"
        "[rank1]: AttributeError: 'NoneType' object has no attribute 'to'\n"
    )
    assert [(f.line.rank, f.frames, f.recognised) for f in evidence.failures] == [
        (0, ("a.py:1 in f",), False),
        (1, ("te/module/base.py:2 in backward_dw",), True),
    ]


def test_colours_and_progress_bars_are_taken_off() -> None:
    """ANSI codes go; of a line rewritten with carriage returns the last state counts."""
    evidence = read("\x1b[31mValueError\x1b[0m: red\n 10%|#\r 20%|##\rKeyError: 'after the bar'\n")
    assert [f.line.text for f in evidence.failures] == ["ValueError: red", "KeyError: 'after the bar'"]


def test_versions_are_read() -> None:
    """Components as start-up lines, pip and NVSHMEM print them; the device side apart."""
    evidence = read(
        "[start] torch=2.9.0 megatron-core=0.16.1 transformer-engine=2.10.0 triton=3.5.0\n"
        "NCCL version 2.27.3+cuda12.9\n"
        "deep_ep 1.2.1+4214430 (device code built with NVSHMEM 3.4.5)\n"
        "libnvshmem_host.so.3: NVSHMEM v3.6.5\n"
        "Current GPU: NVIDIA GB200\n"
    )
    assert [(v.component, v.version, v.role) for v in evidence.versions] == [
        ("torch", "2.9.0", "host"),
        ("megatron-core", "0.16.1", "host"),
        ("transformer-engine", "2.10.0", "host"),
        ("triton", "3.5.0", "host"),
        ("nccl", "2.27.3+cuda12.9", "host"),
        ("deep_ep", "1.2.1+4214430", "host"),
        ("nvshmem", "3.4.5", "device"),
        ("nvshmem", "3.6.5", "host"),
        ("gpu", "NVIDIA GB200", "host"),
    ]


def test_settings_are_read_from_tables_dumps_overrides_and_flags() -> None:
    """Megatron-LM's argument table, Bridge's YAML, `name=value` and `--name value`, with canonical paths."""
    evidence = read(
        "--moe-token-dispatcher-type flex --overlap-moe-expert-parallel-comm\n"
        "comm_overlap.delay_wgrad_compute=true CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "  cuda_graph_modules .............................. ['attn', 'moe_router']\n"
        "model:\n"
        "  expert_model_parallel_size: 8\n"
        "  nested:\n"
        "    activation: silu\n"
        "ddp:\n"
        "  overlap_grad_reduce: true\n"
    )
    assert {p.path: (p.value, p.form) for p in evidence.printed} == {
        "model.moe_token_dispatcher_type": ("flex", "flag"),
        "model.overlap_moe_expert_parallel_comm": (True, "flag"),
        "comm_overlap.delay_wgrad_compute": (True, "override"),
        "env.CUDA_DEVICE_MAX_CONNECTIONS": (1, "override"),
        "model.cuda_graph_modules": (["attn", "moe_router"], "table"),
        "model.expert_model_parallel_size": (8, "yaml"),
        "model.nested": (None, "yaml"),
        "model.activation": ("silu", "yaml"),
        "ddp.overlap_grad_reduce": (True, "yaml"),
    }


def test_a_dump_beats_what_was_asked_for() -> None:
    """The effective value is the dumped one."""
    text = "moe_token_dispatcher_type=flex\nmodel:\n  moe_token_dispatcher_type: alltoall\n"
    assert read(text).setting("moe_token_dispatcher_type") == "alltoall"


@pytest.mark.parametrize(
    ("line", "step", "ms", "loss", "grad_norm"),
    [
        (
            (
                " iteration       10/     100 | elapsed time per iteration (ms): 14120.7 | lm loss: 9.120E+00 |"
                " grad norm: 1.932 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            ),
            10,
            14120.7,
            9.12,
            1.932,
        ),
        ("Step Time : 12.50s GPU utilization: 400.1MODEL_TFLOP/s/GPU", None, 12500.0, None, None),
        (
            "Training epoch 0, iteration 5/99 | lr: 1e-06 | reduced_train_loss: 11.03 | train_step_timing in s: 7.5",
            5,
            7500.0,
            11.03,
            None,
        ),
        ("step:3 - actor/pg_loss:-0.01 - actor/grad_norm:0.5 - timing_s/step:61.5", 3, 61500.0, -0.01, 0.5),
        ("Total step time: 65.25s", None, 65250.0, None, None),
    ],
)
def test_steps_of_the_frameworks(
    line: str, step: int | None, ms: float, loss: float | None, grad_norm: float | None
) -> None:
    """Megatron-LM, Bridge, NeMo, verl and NeMo-RL."""
    (found,) = read(line).iterations
    assert (found.step, found.ms, found.loss, found.grad_norm) == (step, ms, loss, grad_norm)


def test_nan_and_skipped_iterations_are_counted() -> None:
    """Megatron's own counters."""
    (found,) = read(
        " iteration 7/ 9 | elapsed time per iteration (ms): 1.0 | number of skipped iterations:   2 |"
        " number of nan iterations:   1 |"
    ).iterations
    assert (found.skipped, found.nan) == (2, 1)


def test_memory_in_use() -> None:
    """nvidia-smi's table and torch's out-of-memory text, as a share of the device."""
    evidence = read(
        "|  40000MiB / 80000MiB |\n"
        "CUDA out of memory. GPU 0 has a total capacity of 80.00 GiB of which 8.00 GiB is free.\n"
    )
    assert [round(use.share, 3) for use in evidence.memory] == [0.5, 0.9]


def test_line_numbers_count_from_one_across_blocks(tmp_path: Path) -> None:
    """A failure far behind the head is found, with its line; a healthy body is not kept."""
    log, filler = tmp_path / "run.log", "healthy line\n"
    count = (BLOCK + HEAD) // len(filler) + 10
    log.write_text(filler * count + "[rank5]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n")
    first = diagnose([log]).first_failure
    assert first is not None
    assert (first.rank, first.line) == (5, count + 1)


def test_a_late_configuration_dump_is_read(tmp_path: Path) -> None:
    """A YAML dump behind the head, between other lines."""
    log = tmp_path / "run.log"
    body = "".join(f"{'abcdefghij'[i % 10] * (i % 90 + 3)} {i}\n" for i in range(40_000))
    log.write_text(body + "model:\n  moe_token_dispatcher_type: flex\nddp:\n  overlap_grad_reduce: true\n" + body)
    evidence = read_logs([log], {})
    assert {p.path: p.value for p in evidence.printed} == {
        "model.moe_token_dispatcher_type": "flex",
        "ddp.overlap_grad_reduce": True,
    }


def test_progress_is_reported(tmp_path: Path) -> None:
    """Bytes read so far and in all, the last call with everything."""
    log, calls = tmp_path / "run.log", []
    log.write_text("x\n" * 1000)
    diagnose([log], on_progress=lambda read, total: calls.append((read, total)))
    assert calls == [(2000, 2000)]


@pytest.mark.parametrize("what", ["missing", "folder", "binary", "pipe"])
def test_what_is_no_log_is_refused_with_a_remedy(tmp_path: Path, what: str) -> None:
    """Named in the message: the path, the problem and what to do."""
    import os

    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    if what == "binary":
        path.write_bytes(bytes(range(256)) * 64)
    if what == "pipe":
        os.mkfifo(path)
    expected = {
        "missing": "not found; check the path; logs are read on this machine",
        "folder": "is a directory; name the log files in it",
        "binary": "not text; give the log as plain text (unpack or convert it first)",
        "pipe": "is not a regular file; write the log to a file first",
    }
    with pytest.raises(UnreadableLog) as refused:
        diagnose([path])
    assert str(refused.value) == f"{path}: {expected[what]}"


def test_nothing_to_diagnose_is_said() -> None:
    """Without any input the message lists what can be given."""
    with pytest.raises(NothingToDiagnose, match="give log files, an error text, a symptom"):
        diagnose()


def test_an_empty_log_is_unknown(tmp_path: Path) -> None:
    """Readable, and it says nothing."""
    log = tmp_path / "empty.log"
    log.touch()
    assert [cause.cause for cause in diagnose([log]).causes] == ["unknown"]


@given(st.binary(max_size=3000))
def test_any_bytes_are_read_without_a_crash(data: bytes) -> None:
    """Broken encodings, stray control characters, half prefixes."""
    assert diagnose(text=data.decode("latin-1") + "x").causes


HOSTILE = [
    "iteration " * 400,
    "a" * 4000 + "Error: x",
    "Error" * 800,
    "[rank1]" * 600,
    "(((" * 1300,
    " ." * 2000,
    "--a" * 1300,
    "NVSHMEM " + " " * 4000 + "3.4",
    "torch " + "=" * 4000,
    "moe_token_dispatcher_type=" + "[" * 4000,
    "\x1b[" + "1;" * 3000 + "m",
    "Watchdog caught collective operation timeout" + "SeqNum=1, OpType=" * 200,
    "DeepEP combine" + " " * 3900,
    "total capacity of " + "1" * 4000,
    "2026-01-01 10:00:00 " * 200,
    "KL Error: " + " " * 4000 + "1",
    "A" * 60 + ".a" * 2000 + "Error",
    "Assertion " + "failed " * 500,
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:12])
def test_no_line_makes_a_pattern_hang(line: str) -> None:
    """Sixty copies of a hostile line of 4 KB, each a shape of its own, stay under ten milliseconds a line."""
    text = "\n".join(line + chr(97 + i % 26) * (i // 26 + 1) for i in range(60))
    start = time.process_time()
    diagnose(text=text)
    assert time.process_time() - start < 60 * 0.01


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    """Eight megabytes without a line end are read in bounded time and memory."""
    log = tmp_path / "run.log"
    log.write_bytes(b"x" * (8 << 20) + b"\nKeyError: 'y'\n")
    start = time.process_time()
    assert diagnose([log]).causes[0].cause == "unknown"
    assert time.process_time() - start < 2


def test_once_enough_is_read_the_rest_is_searched_from_its_end_with_the_same_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that never come twice, prose between them, lines that are read again: as when all is searched."""
    chance = random.Random(1)
    names = ["".join(chance.choices(string.ascii_letters, k=12)) for _ in range(4000)]
    kinds = (
        "[rank{0}]: {1}Error: no {1}\n",
        "a line about {1}\n",
        "a line about {1} that says Failed to {1}\n",
        "[rank{0}]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n",
        "CUDA_DEVICE_MAX_CONNECTIONS={0}\n",
        " iteration {0}/ 9999 | elapsed time per iteration (ms): 9{0}.1 | lm loss: 8.1 |\n",
    )
    log = tmp_path / "run.log"
    log.write_text("".join(chance.choice(kinds).format(n % 64, name) for n, name in enumerate(names)))
    for name, value in (("BLOCK", 8192), ("HEAD", 4096), ("READ_BYTES", 20_000), ("LAST_LINES", 20)):
        monkeypatch.setattr(reading, name, value)
    monkeypatch.setattr(reading, "MANY_LINES", 10)
    quick = reading.read_logs([log], {})
    monkeypatch.setattr(reading, "MANY_LINES", 10**9)
    monkeypatch.setattr(reading._Reader, "_late", lambda self, lines, shapes: self._gated(lines, self._new(shapes)))
    assert reading.read_logs([log], {}) == quick
    assert len(quick.failures) > 40
