"""Named environments: the file, and the other side of real prefixes."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig

import pytest

from ep_overlap_mcp.training_env import TrainingEnvironment, TrainingEnvironmentError, open_environment
from ep_overlap_mcp.training_env.named import CONFIG

SETTINGS = {"model.num_moe_experts": 8, "model.expert_model_parallel_size": 4, "model.bf16": True}


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Write the file of names."""

    def write(text):
        (tmp_path / "environments.toml").write_text(text)
        monkeypatch.setenv(CONFIG, str(tmp_path / "environments.toml"))
        return tmp_path / "environments.toml"

    return write


@pytest.fixture
def bare_python(tmp_path):
    """The Python of a virtual environment with nothing in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


def refusal(name):
    """The text of the error that opening a name ends with."""
    with pytest.raises(TrainingEnvironmentError) as caught:
        open_environment(name)
    return str(caught.value)


def test_a_name_stands_for_prefix_python_variables_and_folder(named):
    """Everything of the table is taken; a path is still a path."""
    named(
        '[environment.nemo]\npython = "python3"\nprefix = ["docker", "exec", "-i", "nemo"]\nfolder = "/scratch"\n'
        'variables = { A = "1" }\nstart_limit_s = 300\n'
    )
    environment = open_environment("@nemo")
    place = (environment.python, environment.prefix, environment.variables, environment.folder)
    assert place == ("python3", ("docker", "exec", "-i", "nemo"), {"A": "1"}, "/scratch")
    assert (environment.limits.start, environment.limits.describe, environment.cluster) == (300, 300, None)
    assert open_environment("/opt/python").python == "/opt/python"


def test_a_cluster_takes_the_python_of_its_environment(named):
    """A Slurm name is a training environment with a cluster around it."""
    named(
        '[environment.image]\npython = "python3"\nprefix = ["srun", "--container-image=a.sqsh"]\n'
        '[slurm.h100]\nenvironment = "image"\nfolder = "/shared"\nnodes = 2\ngpus_per_node = 8\npartition = "batch"\n'
        'sbatch = ["--exclusive"]\n'
    )
    environment = open_environment("@h100")
    cluster = environment.cluster
    assert (environment.python, environment.prefix) == ("python3", ("srun", "--container-image=a.sqsh"))
    assert (cluster.name, cluster.nodes, cluster.gpus_per_node, cluster.partition) == ("h100", 2, 8, "batch")
    assert cluster.sbatch == ("--exclusive",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "`@a` is not in {file}; known there: none"),
        ('[environment.b]\npython = "p"', "`@a` is not in {file}; known there: @b"),
        ("[environment.a]\n", "{file}: [environment.a] needs `python`"),
        ('[environment.a]\npython = "p"\nfoo = 1', "{file}: [environment.a] has unknown `foo`; known: python, prefix,"),
        ("[environment.a]\npython = 3", "{file}: [environment.a] python is 3; it takes str"),
        ('[environment.a]\npython = "p"\nprefix = "ssh n"', "prefix is 'ssh n'; it takes a list of texts"),
        ('[environment.a]\npython = "p"\nstart_limit_s = true', "start_limit_s is True; it takes float"),
        ('[env.a]\npython = "p"', "{file}: unknown table [env]; known: [environment.NAME], [slurm.NAME]"),
        ("[environment]\na = 1", "{file}: [environment] holds tables with names"),
        ("[environment.a", "{file} cannot be read: "),
        ('[slurm.a]\nfolder = "/x"\nenvironment = "b"', "[slurm.a] takes environment `b`, and there is no"),
        (
            '[environment.a]\npython = "p"\n[slurm.a]\nfolder = "/x"',
            "`a` is both an environment and a Slurm cluster; rename one",
        ),
        (
            '[environment.a]\npython = "p"\nprefix = ["/usr/bin/docker", "exec", "-it", "nemo"]',
            "asks `docker` for a terminal with `-it`; a terminal changes what passes through it: leave it out and keep",
        ),
        ('[environment.a]\npython = "p"\nprefix = ["ssh", "-tt", "node1"]', "asks `ssh` for a terminal with `-tt`"),
    ],
)
def test_a_wrong_file_says_where_and_what_it_takes(named, text, said):
    """File, table and key are named."""
    file = named(text)
    assert said.format(file=file) in refusal("@a")


def test_without_a_file_no_name_is_known(tmp_path, monkeypatch):
    """The place where it is looked for is told."""
    monkeypatch.setenv(CONFIG, str(tmp_path / "none.toml"))
    assert refusal("@a") == f"`@a` is not in {tmp_path / 'none.toml'}; known there: none"


def test_variables_are_set_behind_a_prefix_that_drops_them():
    """`env -i` passes nothing on; the names of the table are there all the same."""
    environment = TrainingEnvironment(
        sys.executable, ("env", "-i"), variables={"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "/none"}
    )
    assert environment.describe(fast=True).python == sys.executable


@pytest.mark.megatron
@pytest.mark.parametrize("prefix", ["ssh_prefix", "namespace_prefix"])
def test_describe_and_judge_work_through_a_prefix(prefix, request):
    """The same answers as here, from the other side."""
    there = TrainingEnvironment(sys.executable, request.getfixturevalue(prefix))
    with there, TrainingEnvironment() as here:
        assert there.describe(fast=True).components == here.describe(fast=True).components
        assert there.judge("megatron-core", SETTINGS) == here.judge("megatron-core", SETTINGS)


@pytest.mark.megatron
def test_a_second_virtual_environment_is_described_as_what_it_is(bare_python):
    """Without torch it says so; with the libraries on its path it is a training environment."""
    bare = TrainingEnvironment(str(bare_python))
    assert bare.describe(fast=True).components["torch"].version is None
    with pytest.raises(TrainingEnvironmentError, match=r"no Megatron to judge with: .* cannot import torch"):
        bare.judge("megatron-core", SETTINGS)
    (library,) = bare_python.parents[1].glob("lib/python*/site-packages")
    (library / "training.pth").write_text(sysconfig.get_paths()["purelib"])
    assert TrainingEnvironment(str(bare_python)).judge("megatron-core", SETTINGS).judged


def test_start_up_text_without_a_line_feed_does_not_hide_the_answer(tmp_path):
    """A login script that prints a prompt stands on a line of its own."""
    greeting = tmp_path / "greet"
    greeting.write_text('#!/bin/sh\nprintf "Loading modules: "\nexec "$@"\n')
    greeting.chmod(0o755)
    assert TrainingEnvironment(sys.executable, (str(greeting),)).describe(fast=True).python == sys.executable


@pytest.mark.parametrize(
    ("prefix", "python", "said"),
    [
        (
            ("env", "-i"),
            "/nowhere/python",
            "The prefix or the Python behind it is not there: try `env -i true` by hand",
        ),
        (("no-such-client",), "python3", "`no-such-client python3` cannot be started: No such file or directory"),
        (("sh", "-c", "exit 1"), "python3", "ended with exit code 1 before it answered (describe_environment.py)."),
    ],
)
def test_a_prefix_that_leads_nowhere_says_what_to_try(prefix, python, said):
    """The command to try by hand is in the text."""
    with pytest.raises(TrainingEnvironmentError) as caught:
        TrainingEnvironment(python, prefix).describe(fast=True)
    assert said in str(caught.value)


def test_a_host_that_is_not_reached_is_told_from_a_python_that_fails(ssh_prefix):
    """ssh answers 255 itself; the Python behind it answers what it likes."""
    elsewhere = ("ssh", "-p", "1", *ssh_prefix[3:])
    with pytest.raises(TrainingEnvironmentError) as caught:
        TrainingEnvironment("python3", elsewhere).describe(fast=True)
    assert f"ssh did not get there: try `{shlex.join([*elsewhere, 'true'])}` by hand" in str(caught.value)
    with pytest.raises(TrainingEnvironmentError, match="The prefix or the Python behind it is not there"):
        TrainingEnvironment("/nowhere/python", ssh_prefix).describe(fast=True)
