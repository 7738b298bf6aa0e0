"""The command line as a process that is told to end: what it started ends with it, and nobody reads a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in_runs import processes_left, stand_in_torch, until

from ep_overlap_mcp import smoke
from ep_overlap_mcp.cli import main
from ep_overlap_mcp.smoke.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")
PROJECT = Path(__file__).parents[2]
COMMAND = """
import sys, time
sys.path.insert(0, "tests/smoke")
from dataclasses import replace
from stand_in_runs import plan_of
from ep_overlap_mcp import cli, training_env, verbs
behaviour, search, *words = sys.argv[1:]
def plan(*_):
    if behaviour == "planning":
        print("planning", file=sys.stderr, flush=True)
        time.sleep(60)
    return replace(plan_of(limit_s=60, stall_s=60), request={"behaviour": behaviour}, variables={"PYTHONPATH": search})
class Nowhere:
    def describe(self, **_): pass
    def close(self): pass
verbs.plan_smoke_run = plan
training_env.open_environment = lambda _: Nowhere()
sys.exit(cli.main(words))
"""


@pytest.fixture
def command(tmp_path):
    """Starts the command line with a stand-in for torchrun; killed at the end if the test has not ended it."""
    search, started = stand_in_torch(tmp_path), []

    def start(behaviour, *words):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, behaviour, search, *words],
            cwd=PROJECT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def first_id(process):
    """The run's id from the first line on stderr, once its ranks show signs of life."""
    said = process.stderr.readline()
    run_id = re.search(r"smoke-\d{4}-\d{6}-[0-9a-f]{6}", said)[0]
    until(lambda: len(Store().run_folder(run_id).states(2)) == 2)
    return run_id


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_cancels_the_run_that_the_command_waits_for(command, number):
    """Its id is known from the start; nothing is left, the run is cancelled, and the answer is complete."""
    process = command("run", "smoke", "run", "FILE", "--format", "json")
    run_id = first_id(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (128 + number, "")
    assert (json.loads(out)["id"], json.loads(out)["status"]) == (run_id, "cancelled")
    assert processes_left() == []
    assert smoke.get(run_id).status == "cancelled"


def test_a_second_signal_leaves_at_once_and_still_nothing_runs_on(command):
    """One line; the supervisor ends ranks that ignore SIGTERM without the command."""
    process = command("ignore_term", "smoke", "run", "FILE")
    run_id = first_id(process)
    process.send_signal(signal.SIGINT)
    until(Store().run_folder(run_id).cancel.exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err == "ep-overlap-mcp: interrupted again: what still runs is ended without this command\n"
    until(lambda: not processes_left())
    assert smoke.get(run_id).status == "cancelled"


def test_a_command_that_is_killed_outright_leaves_its_run_as_it_said(command, capsys):
    """SIGKILL cannot be caught: what ends the run then is told when it starts."""
    process = command("run", "smoke", "run", "FILE", "--limit", "60")
    said = process.stderr.readline()
    run_id = said.partition(" started; ")[0]
    until(lambda: len(Store().run_folder(run_id).states(2)) == 2)
    process.kill()
    process.wait()
    assert f"ends by `ep-overlap-mcp smoke cancel {run_id}`, or by itself within 60 s" in said
    assert smoke.get(run_id).status == "running"
    assert main(["smoke", "cancel", run_id]) == 0
    assert f"{run_id} cancelled" in capsys.readouterr().out


def test_an_interrupt_while_it_plans_is_one_line(command):
    """No run was started."""
    process = command("planning", "smoke", "run", "FILE")
    assert process.stderr.readline() == "planning\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, "", "ep-overlap-mcp: interrupted\n")
    assert Store().all() == []


def test_an_error_is_a_line_on_stderr_in_every_format(capsys):
    """As with all other verbs: exit code 2, nothing on stdout, the command line's own words."""
    for words in (["status", "nope"], ["cancel", "nope"], ["report", "nope"], ["list", "--most", "0"]):
        assert main(["smoke", *words, "--format", "json"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("ep-overlap-mcp: ")


def test_a_busy_machine_is_told_in_commands(command, capsys):
    """Who comes second can follow or end the first as it is told."""
    run_id = first_id(command("run", "smoke", "run", "FILE"))
    _, err = command("run", "smoke", "run", "FILE").communicate(timeout=20)
    assert f"Follow it with `ep-overlap-mcp smoke status {run_id}`, end it with `ep-overlap-mcp smoke cancel" in err
    assert main(["smoke", "cancel", run_id]) == 0
    assert f"{run_id} cancelled" in capsys.readouterr().out


def test_a_detached_run_outlives_its_command(command):
    """It says the id and how to follow it in commands that exist."""
    process = command("finish", "smoke", "run", "FILE", "--detach")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    (run,) = Store().all()
    assert f"next: call `ep-overlap-mcp smoke status {run.id}` until it has ended" in out
    assert "get_smoke_run" not in out
    assert smoke.get(run.id, 20).status == "done"


def test_the_plan_is_printed_once(command):
    """Before the start; the answer adds what the run adds."""
    out, _ = command("finish", "smoke", "run", "FILE").communicate(timeout=30)
    assert out.count("planned\n") == 1
    assert "  next: it is started now\n" in out
    assert len(re.findall(r"^smoke-\S+ done: ", out, re.MULTILINE)) == 1
    assert out.count("  kept:") <= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_a_sweep_with_its_point(command, number):
    """What ran is cancelled and runs again with --resume; what waits goes on waiting."""
    process = command("run", "smoke", "sweep", "FILE", "--vary", "variant=overlap,overlap_delay_wgrad")
    sweep_id = re.search(r"sweep-\S+(?=;)", process.stderr.readline())[0]
    until(processes_left)
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert processes_left() == []
    assert re.findall(r"^  overlap\w*\s+(\w+)", out, re.MULTILINE) == ["cancelled", "waiting"]
    assert f"Go on with `smoke sweep --resume {sweep_id}`." in out
