"""The command line as whole commands: exit codes, messages, formats."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.cli import main
from ep_overlap_mcp.reports.html_page import opening

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIELDS: dict[str, Any] = {
    "num_layers": 12,
    "num_moe_experts": 16,
    "expert_model_parallel_size": 8,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "bf16": True,
    "overlap_moe_expert_parallel_comm": True,
}
KERNELS: dict[str, Any] = {
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": 0, "dur": 10}
        for name, stream in (("sm90_xmma_gemm_bf16", 7), ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20))
    ]
}
STACK = ("--stack", "megatron-core==0.18.2")
RECIPES = """\
from megatron.bridge.recipes.somewhere import some_moe_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig


def open_config():
    cfg = some_moe_pretrain_config()
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False, overlap_moe_expert_parallel_comm=True)
    return cfg


def broken_config():
    cfg = some_moe_pretrain_config()
    cfg.model.recompute_granularity = "full"
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False, overlap_moe_expert_parallel_comm=True)
    return cfg
"""


class Run:
    """A command in a folder of its own, and what it left."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, name: str, content: str | bytes | dict[str, Any]) -> Path:
        path = self.folder / name
        if isinstance(content, dict):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        try:
            code = main(arguments)
        except SystemExit as exit_of_argparse:
            code = int(exit_of_argparse.code or 0)
        out, err = self._capsys.readouterr()
        return code, out, err


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path, capsys)


@pytest.fixture
def pipe_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Give these bytes on stdin."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


# exit codes


@pytest.mark.parametrize(
    ("changes", "stack", "code", "verdict"),
    [
        ({}, "megatron-core==0.18.2", 0, "valid"),
        ({"expert_model_parallel_size": 1}, "megatron-core==0.18.2", 1, "invalid"),
        ({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, "", 3, "undetermined"),
    ],
)
def test_the_exit_code_is_the_verdict(run: Run, changes: dict[str, Any], stack: str, code: int, verdict: str) -> None:
    """0 valid, 1 invalid, 3 undetermined; nothing on stderr."""
    run.write("fields.json", {**FIELDS, **changes})
    got, out, err = run("check", "fields.json", "--stack", stack, "--format", "json")
    assert (got, json.loads(out)["verdict"], err) == (code, verdict, "")


def test_a_warning_does_not_fail(run: Run) -> None:
    """A legal configuration that loses its benefit is valid."""
    run.write("fields.json", {**FIELDS, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 1})
    code, out, _ = run("check", "fields.json", *STACK)
    assert code == 0
    assert "warning  EPO502 single-virtual-stage" in out


@pytest.mark.parametrize(
    "arguments", [["check"], ["nonsense"], ["check", "f", "--assume", "perhaps"], ["check", "--x"]]
)
def test_bad_usage_exits_2(run: Run, arguments: list[str]) -> None:
    """What the parser of arguments refuses is bad usage, said on stderr."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("ep-overlap-mcp")


def test_version_and_help_exit_0(run: Run) -> None:
    """Help lists every verb."""
    code, out, _ = run("--help")
    assert code == 0
    assert {"serve", "check", "propose", "conflicts", "environment", "profile", "explain", "setup"} <= set(out.split())
    assert run("--version")[1].startswith("ep-overlap-mcp 0.")


# bad input: exit 2 and one line that says what, where and what to do


def nested(opening: str, closing: str, levels: int = 50_000) -> str:
    return opening * levels + closing * levels


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
BAD_INPUT: dict[str, tuple[str, str | bytes, tuple[str, ...]]] = {
    "empty": ("train.sh", "", ("train.sh", "empty", "name the file")),
    "blank": ("train.yaml", " \n\t\n", ("train.yaml", "empty")),
    "binary": ("train.sh", bytes(range(256)) * 8, ("train.sh", "not text", "NUL")),
    "another encoding": (
        "f.yaml",
        'num_layers: 4\nname: "caf\xe9"\n'.encode("latin-1"),
        ("line 2", "save it as UTF-8"),
    ),
    "broken utf-16": ("f.yaml", b"\xff\xfen\x00u\x00m\x00\xd8", ("f.yaml", "not text", "UTF-8")),
    "ten megabytes": ("train.sh", b"--num-layers 4\n" * 700_000, ("train.sh", "too large", "name the configuration")),
    "deep JSON": ("f.json", nested('{"a":', "}"), ("f.json", "nested deeper")),
    "deep YAML": ("f.yaml", nested("[", "]"), ("f.yaml", "nesting")),
    "deep Python": ("f.py", "x = " + nested("(", ")"), ("f.py", "nested")),
    "deep shell": ("f.sh", "torchrun pretrain_gpt.py " + nested("$(", ")", 20_000), ("f.sh", "nested deeper")),
    "alias bomb": ("f.yaml", BOMB + "recompute_modules: *a11\n", ("f.yaml", "alias")),
    "open quote in shell": ("f.sh", 'torchrun pretrain_gpt.py --num-layers "4\n', ("f.sh:1", "never closed")),
    "open quote in YAML": ("f.yaml", 'num_layers: "4\nbf16: true\n', ("f.yaml", "line")),
    "cut JSON": ("f.json", '{"num_layers": 4,\n"num_mo', ("f.json", "line 2")),
    "bad Python": ("f.py", "def f(:\n    cfg.model.num_layers = 4\n", ("f.py", "line 1")),
    "nothing of Megatron": ("notes.yaml", "milk: 2\n", ("notes.yaml", "nothing recognisable", "name the file")),
}


@pytest.mark.parametrize(("name", "content", "told"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_unreadable_input_is_refused_in_a_line(
    run: Run, name: str, content: str | bytes, told: tuple[str, ...]
) -> None:
    """Never a traceback, never a hang: exit 2, nothing on stdout, one line that names the file."""
    run.write(name, content)
    code, out, err = run("check", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ep-overlap-mcp: ")
    assert [text for text in told if text not in err] == [], err


def test_a_missing_file_a_folder_a_pipe_and_a_loop_are_refused(run: Run) -> None:
    """What is no regular file is not opened."""
    (run.folder / "folder").mkdir()
    os.mkfifo(run.folder / "pipe")
    (run.folder / "loop").symlink_to("loop")
    told = {"absent.sh": "not found", "folder": "a directory", "pipe": "not a regular file", "loop": "not found"}
    for name, text in told.items():
        code, out, err = run("check", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"ep-overlap-mcp: {name}: {text}")


def test_recursive_includes_end(run: Run) -> None:
    """A file that includes itself is read once, and what it could set besides stays unknown."""
    run.write("self.yaml", "defaults: [self]\nnum_layers: 4\nnum_moe_experts: 8\n")
    run.write("self.sh", "source self.sh\nbash self.sh\ntorchrun pretrain_gpt.py --num-layers 4 --num-experts 8\n")
    assert run("check", "self.yaml", *STACK)[0] == 3
    assert run("check", "self.sh", *STACK)[0] == 3


def test_a_lone_surrogate_does_not_break_an_answer(run: Run) -> None:
    """JSON can escape what UTF-8 cannot hold; all formats still come out."""
    run.write("f.json", json.dumps({**FIELDS, "pipeline_model_parallel_layout": "\ud800", "fp8": "\udfff"}))
    for form in ("text", "json", "sarif", "junit"):
        code, out, err = run("check", "f.json", *STACK, "--format", form, "--all")
        assert (code, err) == (1, "")
        out.encode()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "model.expert_paralel_size=8"], "did you mean `model.expert_model_parallel_size`"),
        (["--set", "model.num_layers"], "write PATH=VALUE"),
        (["--set", "model.num_layers=many"], "an integer"),
        (["--stack", "megatron-cor==0.16.1"], "known: megatron-core"),
        (["--stack", "megatron-core=0.16.1"], "write NAME==VERSION"),
        (["--stack", "megatron-core==new"], "not a version"),
        (["--gpu", "H10O"], "known: A100, H100"),
        (["--nodes", "0"], "positive"),
        (["--select", "other"], "holds no configuration `other`"),
        (["--python", "/no/such/python"], "cannot be started"),
    ],
)
def test_bad_arguments_are_refused_in_a_line(run: Run, arguments: list[str], told: str) -> None:
    """Each names itself and says what is allowed, or what is near."""
    run.write("fields.json", FIELDS)
    code, out, err = run("check", "fields.json", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


def test_a_page_without_a_folder_is_refused_before_the_profile_is_read(run: Run) -> None:
    """A long analysis must not end in a lost answer."""
    run.write("profile.json", "no profile, which would be told next")
    code, out, err = run("profile", "profile.json", "--html", "missing/page.html")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--html: missing/page.html cannot be written: there is no folder missing" in err


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("folder", "Is a directory"),
        ("n" * 300 + ".html", "File name too long"),
        ("locked/page.html", "Permission denied"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    run: Run, tmp_path: Path, page: str, told: str
) -> None:
    """The folder is there; whether a file can be written in it is tried before profiles are read or runs planned."""
    if told == "Permission denied" and os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").mkdir(mode=0o555)
    run.write("profile.json", "no profile, which would be told next")
    run.write("fields.json", FIELDS)
    for words in (("profile", "profile.json"), ("smoke", "sweep", "fields.json", "--python", "/no/such/python")):
        code, out, err = run(*words, "--html", page)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"--html: {page} cannot be written: {told}; name a file in a folder that you may write to" in err


def test_a_page_is_tried_without_a_trace(run: Run, tmp_path: Path) -> None:
    """Where the work fails, a page that was there is as it was, and no empty one is left."""
    run.write("profile.json", "no profile")
    last = opening("the last one", "", "")
    run.write("page.html", last)
    for page in ("page.html", "new.html"):
        code, _, err = run("profile", "profile.json", "--html", page)
        assert (code, "profile.json: holds no" in err) == (2, True)
    assert (tmp_path / "page.html").read_text() == last
    assert not (tmp_path / "new.html").exists()


def test_a_page_replaces_pages_only(run: Run, tmp_path: Path) -> None:
    """The profile itself, a script, a pipe: each would be lost. An older page and an empty file are none."""
    run.write("profile.json", KERNELS)
    run.write("keep.sh", "echo kept")
    run.write("empty.html", "")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.html").symlink_to("keep.sh")
    for page in ("profile.json", "keep.sh", "link.html", "pipe"):
        code, out, err = run("profile", "profile.json", "--html", page)
        assert (code, out) == (2, "")
        assert f"--html: {page} is there and is no page of ep-overlap-mcp, so it is left as it is; name a new" in err
    assert json.loads((tmp_path / "profile.json").read_text()) == KERNELS
    assert (tmp_path / "keep.sh").read_text() == "echo kept"
    for page in ("new.html", "new.html", "empty.html"):
        assert run("profile", "profile.json", "--html", page)[0] == 0
        assert (tmp_path / page).read_text("utf-8").startswith("<!DOCTYPE html>")


def test_explain_names_near_rules(run: Run) -> None:
    """A misspelled rule is answered with those that look like it."""
    code, out, err = run("explain", "pipeline-needs-virtual-stage")
    assert (code, out) == (2, "")
    assert "did you mean pipeline-needs-virtual-stages" in err


# input


def test_stdin_is_a_configuration(run: Run, pipe_in: Callable[[bytes], None]) -> None:
    """`-` reads it, in any dialect."""
    pipe_in(json.dumps(FIELDS).encode())
    assert run("check", "-", *STACK)[0] == 0


def test_stdin_comes_on_top_of_files(run: Run, pipe_in: Callable[[bytes], None]) -> None:
    """The later one wins."""
    run.write("fields.json", FIELDS)
    pipe_in(b"expert_model_parallel_size: 1\nnum_layers: 12\n")
    code, out, _ = run("check", "fields.json", "-", *STACK, "--format", "json")
    assert code == 1
    shown = json.loads(out)["settings"]["model.expert_model_parallel_size"]
    assert (shown["value"], shown["earlier"][0]["file"]) == (1, "fields.json")


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "empty"), (b"\xff" * 40, "not text"), (b"\0" * 40, "not text"), (b"--bf16\n" * 400_000, "too large")],
)
def test_bad_stdin_is_refused_in_a_line(run: Run, pipe_in: Callable[[bytes], None], content: bytes, told: str) -> None:
    """It is held to the same bounds as a file."""
    pipe_in(content)
    code, out, err = run("check", "-")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


def test_stdin_is_read_last_and_once(run: Run) -> None:
    """Its place among the files is its place in the order."""
    run.write("fields.json", FIELDS)
    assert "read last" in run("check", "-", "fields.json")[2]
    assert "read last" in run("check", "-", "-")[2]


def test_several_recipe_functions_are_a_list_and_the_worst_exit_code(run: Run) -> None:
    """One result a function; invalid is worse than undetermined."""
    run.write("recipes.py", RECIPES)
    code, out, _ = run("check", "recipes.py", "--stack", "megatron-bridge==0.6.0", "--format", "json")
    answers = json.loads(out)
    assert code == 1
    assert [(a["configuration"], a["verdict"]) for a in answers] == [
        ("open_config", "undetermined"),
        ("broken_config", "invalid"),
    ]


def test_select_takes_one_of_several(run: Run) -> None:
    """By the function's name; the exit code is then its own."""
    run.write("recipes.py", RECIPES)
    code, out, _ = run(
        "check", "recipes.py", "--stack", "megatron-bridge==0.6.0", "--select", "open_config", "--format", "json"
    )
    assert (code, json.loads(out)["configuration"]) == (3, "open_config")


def test_all_shows_every_setting_that_was_read(run: Run) -> None:
    """With `--all`, defaults are shown beside what was written."""
    run.write("fields.json", FIELDS)
    short = json.loads(run("check", "fields.json", *STACK, "--format", "json")[1])["settings"]
    everything = json.loads(run("check", "fields.json", *STACK, "--format", "json", "--all")[1])["settings"]
    assert set(short) < set(everything)
    assert everything["model.pipeline_model_parallel_size"]["origin"]["kind"] == "default"


# output


def test_each_format_is_what_it_says(run: Run) -> None:
    """JSON, SARIF and JUnit parse; text starts with the answer."""
    run.write("fields.json", {**FIELDS, "expert_model_parallel_size": 1})
    out = {
        form: run("check", "fields.json", *STACK, "--format", form)[1] for form in ("json", "sarif", "junit", "text")
    }
    assert json.loads(out["json"])["verdict"] == "invalid"
    assert json.loads(out["sarif"])["runs"][0]["invocations"][0]["exitCode"] == 1
    assert int(ET.fromstring(out["junit"].encode())[0].attrib["failures"]) >= 1  # noqa: S314 - our own text
    assert out["text"].startswith("Judged as written. INVALID for megatron-core 0.18.2.")


@pytest.mark.parametrize("arguments", [["propose", "fields.json"], ["conflicts", "fields.json"], ["explain", "EPO104"]])
def test_the_other_verbs_have_json_too(run: Run, arguments: list[str]) -> None:
    """Every answer starts with its summary."""
    run.write("fields.json", FIELDS)
    _, out, err = run(*arguments, "--format", "json")
    assert next(iter(json.loads(out))) == "summary"
    assert err == ""


@pytest.mark.parametrize(("no_color", "colored"), [(None, True), ("1", False), ("", False)])
def test_colour_on_a_terminal_only_where_it_is_wanted(
    run: Run, monkeypatch: pytest.MonkeyPatch, no_color: str | None, *, colored: bool
) -> None:
    """NO_COLOR, even empty, turns it off; so does anything but a terminal."""
    run.write("fields.json", FIELDS)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in run("check", "fields.json", *STACK)[1]
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _self: True)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert ("\x1b[" in run("check", "fields.json", *STACK)[1]) is colored


# as processes


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ep_overlap_mcp", *arguments],
        capture_output=True,
        check=False,
        timeout=60,
        encoding="utf-8",
        **options,
    )


def test_as_a_process(tmp_path: Path) -> None:
    """The exit code and the streams are those of `main`."""
    (tmp_path / "fields.json").write_text(json.dumps({**FIELDS, "bf16": False}))
    done = command("check", "fields.json", *STACK, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "needs-half-precision" in done.stdout


def test_a_locale_without_unicode_does_not_break_it(tmp_path: Path) -> None:
    """Output is UTF-8 whatever the locale says."""
    path = tmp_path / "é.json"
    path.write_text(json.dumps({**FIELDS, "bf16": False}), encoding="utf-8")
    done = command("check", str(path), *STACK, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (1, "")
    assert "é.json:1" in done.stdout


def test_a_reader_that_leaves_early_changes_no_exit_code(tmp_path: Path) -> None:
    """`check … | head -1` keeps the verdict and prints no traceback."""
    (tmp_path / "fields.json").write_text(json.dumps({**FIELDS, "bf16": False}))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "ep_overlap_mcp", "check", "fields.json", *STACK],
            stdout=closed,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, b"")
