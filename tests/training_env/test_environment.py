"""TrainingEnvironment over real processes and over the fake pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from ep_overlap_mcp.training_env import FakePipe, TrainingEnvironment, TrainingEnvironmentError
from ep_overlap_mcp.training_env.environment import Limits
from ep_overlap_mcp.training_env.pipe import PipeEnded, command

SETTINGS = {
    "model.num_moe_experts": 8,
    "model.expert_model_parallel_size": 4,
    "model.moe_token_dispatcher_type": "alltoall",
    "model.add_bias_linear": False,
    "model.bf16": True,
    "model.overlap_moe_expert_parallel_comm": True,
}
ANSWER = {
    "judged": True,
    "accepted": True,
    "exception": None,
    "at": None,
    "layers": ["megatron-core"],
    "missing_layers": [{"layer": "megatron-bridge", "why": "absent"}],
    "cannot_judge": None,
    "versions": {"megatron-core": "0.16.1"},
    "unknown_fields": [],
    "left_out": [],
    "stand_ins": [{"path": "model.num_layers", "value": 2}],
    "emulated": [],
    "effective": {},
}


def script(folder, name, text):
    """An executable shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def refusal(environment):
    """The text of the error that a judgement ends with."""
    with pytest.raises(TrainingEnvironmentError) as caught:
        environment.judge("megatron-core", SETTINGS)
    return str(caught.value)


def workers(but=()):
    """Children of this process that run the judge, but those that other tests' environments keep warm."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile, or waits to be reaped
            if "check_with_megatron.py" in one.cmdline() and one not in but:
                found.append(one)
    return found


@pytest.mark.megatron
def test_a_worker_stays_warm_is_replaced_when_killed_and_leaves_nothing():
    """Real Megatron: two verdicts by one process, one by its successor, none left after close."""
    others = workers()
    with TrainingEnvironment() as environment:
        first = environment.judge("megatron-core", SETTINGS)
        (process,) = workers(others)
        rejected = environment.judge("megatron-core", SETTINGS | {"model.bf16": False})
        assert workers(others) == [process]
        process.kill()
        process.wait()
        again = environment.judge_all("megatron-core", [SETTINGS, SETTINGS])
        assert workers(others) != [process]
    assert (first.accepted, first.layers, dict(first.missing_layers)) == (True, ("megatron-core",), {})
    assert (rejected.accepted, rejected.judged) == (False, True)
    assert again == [first, first]
    assert workers(others) == []


@pytest.mark.megatron
def test_the_environment_is_described_over_a_pipe():
    """The program's answer fits the result model; the fast mode needs no import."""
    result = TrainingEnvironment().describe(fast=True)
    assert result.python == sys.executable
    assert result.components["torch"].version
    assert result.can.alltoall.possible is None


def test_a_killed_server_leaves_no_worker(tmp_path):
    """SIGKILL of the owner ends the worker's stdin, and with it the worker."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "megatron/core/transformer").mkdir(parents=True)
    (tmp_path / "megatron/core/transformer/__init__.py").write_text("")
    (tmp_path / "megatron/core/__init__.py").write_text("__version__ = '1'")
    (tmp_path / "megatron/core/transformer/transformer_config.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass TransformerConfig:\n    num_layers: int\n"
        "    hidden_size: int\n    num_attention_heads: int\nMLATransformerConfig = TransformerConfig\n"
    )
    (tmp_path / "torch/__init__.py").write_text("class dtype: ...")
    owner = """
        import psutil, sys, time
        from ep_overlap_mcp.training_env import TrainingEnvironment
        environment = TrainingEnvironment(variables={"PYTHONPATH": sys.argv[1]})
        answer = environment.judge("megatron-core", {})
        print(psutil.Process().children()[0].pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(owner), str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        worker = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
    worker.wait(10)
    assert not worker.is_running()


def test_a_missing_command_is_named():
    """What was started, why not, and what is needed."""
    assert refusal(TrainingEnvironment("/nowhere/python")) == (
        "`/nowhere/python` cannot be started: No such file or directory. Name the Python that has torch and"
        " megatron-core"
    )


def test_a_program_that_is_no_python_is_named(tmp_path):
    """It ends without an answer; its last words are told."""
    text = refusal(TrainingEnvironment(script(tmp_path, "perl", "echo 'Unrecognized switch' >&2; exit 29")))
    assert "perl` ended with exit code 29 before it answered" in text
    assert "Its stderr ends with: Unrecognized switch." in text
    assert "It must be a Python 3.10 or later" in text


def test_a_killed_start_is_told_by_its_signal(tmp_path):
    """As when a container runs out of memory."""
    text = refusal(TrainingEnvironment(script(tmp_path, "python", "kill -9 $$")))
    assert "was killed by SIGKILL before it answered" in text


def test_a_python_without_megatron_says_what_to_do(tmp_path):
    """The reason of the program and the two ways out."""
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron/__init__.py").write_text("")
    text = refusal(TrainingEnvironment(variables={"PYTHONPATH": str(tmp_path)}))
    assert text.startswith(
        f"no Megatron to judge with: {sys.executable} cannot import torch and megatron.core: ModuleNotFound"
    )
    assert text.endswith("or install ep-overlap-mcp[megatron] in this one")


def test_a_slow_start_ends_at_its_limit_and_leaves_nothing(tmp_path):
    """The limit, where, and what may be the reason."""
    python = script(tmp_path, "python", "exec sleep 60")
    started = time.monotonic()
    text = refusal(TrainingEnvironment(python, limits=Limits(start=0.5)))
    assert f"`{python}` did not answer within 0.5 s (check_with_megatron.py)" in text
    assert time.monotonic() - started < 10
    assert not [one for one in psutil.Process().children(recursive=True) if one.name() == "sleep"]


def test_noise_around_the_answers_is_skipped(tmp_path):
    """A wrapper that greets on stdout, also with JSON, does not disturb."""
    quiet = f'exec {sys.executable} "$@"'
    python = script(tmp_path, "python", f'echo "Welcome"; echo "{{}}"; {quiet}')
    assert TrainingEnvironment(python).describe(fast=True).python == sys.executable


def test_endless_noise_ends_at_the_limit(tmp_path):
    """Noise without an answer is shown."""
    text = refusal(TrainingEnvironment(script(tmp_path, "python", "exec yes noise"), limits=Limits(start=0.5)))
    assert "did not answer within 0.5 s" in text
    assert "Its stdout ends with: noise | noise | noise." in text


def test_the_working_directory_is_not_imported_from(tmp_path, monkeypatch):
    """A file beside the configuration must not run because it is named like a library."""
    (tmp_path / "queue.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert TrainingEnvironment().describe(fast=True).python == sys.executable


def test_a_prefix_goes_before_the_python_and_ssh_gets_one_word(tmp_path):
    """A container's client takes words; ssh joins words with spaces and hands them to a shell."""
    docker = script(tmp_path, "docker", 'shift 3; exec "$@"')
    ssh = script(tmp_path, "ssh", 'shift; exec sh -c "$*"')
    for prefix in ((docker, "exec", "-i", "trainer"), (ssh, "node1")):
        result = TrainingEnvironment(sys.executable, prefix).describe(fast=True)
        assert result.python == sys.executable
    assert len(command("python", "p.py", (), ("ssh", "node1"))) == 3


def test_a_failed_start_is_not_repeated_at_once(tmp_path):
    """Every check would pay for it; after the pause it is tried again."""
    log = tmp_path / "log"
    python = script(tmp_path, "python", f"echo start >> {log}; exit 1")
    patient = TrainingEnvironment(python)
    assert refusal(patient) == refusal(patient)
    assert log.read_text() == "start\n"
    eager = TrainingEnvironment(python, limits=Limits(retry=0))
    refusal(eager)
    refusal(eager)
    assert log.read_text() == "start\n" * 3


def test_the_fake_answers_as_a_worker_would():
    """The double for whatever stands on a training environment."""
    asked = []
    environment = TrainingEnvironment(
        open_pipe=FakePipe.opener(
            lambda _program, request: {"cannot_judge": None} if "hello" in request else ANSWER, asked
        )
    )
    judgement = environment.judge("bridge", SETTINGS, strict_fields=True)
    assert (judgement.accepted, judgement.stand_ins) == (True, {"model.num_layers": 2})
    assert judgement.missing_layers == {"megatron-bridge": "absent"}
    assert asked == [{"hello": True}, {"framework": "bridge", "settings": SETTINGS, "strict_fields": True}]


def test_a_worker_that_died_since_it_last_answered_is_replaced_once():
    """A second death is an error, not a loop."""
    deaths = iter([False, True, False, True, True])

    def answer(_program, request):
        if "hello" in request:
            return {"cannot_judge": None}
        if next(deaths):
            raise PipeEnded("gone")
        return ANSWER

    environment = TrainingEnvironment(open_pipe=FakePipe.opener(answer))
    for _ in range(2):
        assert environment.judge("megatron-core", {}).accepted
    with pytest.raises(PipeEnded):
        environment.judge("megatron-core", {})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"error": "unknown framework"}, "the training environment refused the request: unknown framework"),
        ({"judged": True}, "the training environment's answer is incomplete: 'accepted'"),
    ],
)
def test_a_refusal_and_a_half_answer_are_errors(answer, text):
    """Neither is taken for a verdict."""
    pipe = FakePipe.opener(lambda _program, request: {"cannot_judge": None} if "hello" in request else answer)
    assert refusal(TrainingEnvironment(open_pipe=pipe)) == text


def test_another_stand_in_takes_another_worker():
    """What is imported once stays: a worker answers for one version of Transformer Engine."""
    opened = []

    def open_pipe(program, arguments):
        opened.append(arguments)
        return FakePipe(program, lambda _program, request: {"cannot_judge": None} if "hello" in request else ANSWER, [])

    environment = TrainingEnvironment(open_pipe=open_pipe)
    for version in (None, "2.9.0", "2.9.0", None):
        environment.judge("megatron-core", SETTINGS, transformer_engine=version)
    stand_in = ("--worker", "--transformer-engine", "2.9.0")
    assert opened == [("--worker",), stand_in, ("--worker",)]
