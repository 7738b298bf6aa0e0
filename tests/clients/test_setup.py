"""Setting up a client: the right file and form for each, nothing else touched, and back again."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomlkit

from ep_overlap_mcp.cli import main
from ep_overlap_mcp.clients.places import CLIENTS
from ep_overlap_mcp.clients.setup import NAMES, SetupError, setup
from ep_overlap_mcp.reports.text import as_text

SKILL = Path(__file__).parents[2] / "skills" / "ep-overlap" / "SKILL.md"
COMMAND = ["uvx", "ep-overlap-mcp==0.1.0"]


@pytest.fixture(autouse=True)
def _no_moved_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


PLAIN = {"command": "uvx", "args": ["ep-overlap-mcp==0.1.0"]}
TYPED = {"type": "stdio", **PLAIN}
PATIENT = {**PLAIN, "timeout": 120_000}
LOCAL = {"type": "local", **PLAIN, "tools": ["*"]}
LISTED = {"type": "local", "command": ["uvx", "ep-overlap-mcp==0.1.0"], "enabled": True}
TOML = {**PLAIN, "startup_timeout_sec": 60, "tool_timeout_sec": 120}
# client, scope: file of the server, table, what it holds, folder of the skill
WRITTEN = [
    ("claude-code", "project", "project/.mcp.json", "mcpServers", TYPED, "project/.claude/skills"),
    ("claude-code", "user", "home/.claude.json", "mcpServers", TYPED, "home/.claude/skills"),
    ("cursor", "project", "project/.cursor/mcp.json", "mcpServers", PLAIN, "project/.cursor/skills"),
    ("cursor", "user", "home/.cursor/mcp.json", "mcpServers", PLAIN, "home/.cursor/skills"),
    ("vscode", "project", "project/.vscode/mcp.json", "servers", TYPED, "project/.github/skills"),
    ("copilot", "user", "home/.copilot/mcp-config.json", "mcpServers", LOCAL, "home/.copilot/skills"),
    ("gemini", "project", "project/.gemini/settings.json", "mcpServers", PATIENT, "project/.gemini/skills"),
    ("gemini", "user", "home/.gemini/settings.json", "mcpServers", PATIENT, "home/.gemini/skills"),
    (
        "windsurf",
        "user",
        "home/.codeium/windsurf/mcp_config.json",
        "mcpServers",
        PLAIN,
        "home/.codeium/windsurf/skills",
    ),
    ("opencode", "project", "project/opencode.json", "mcp", LISTED, "project/.opencode/skills"),
    ("opencode", "user", "home/.config/opencode/opencode.json", "mcp", LISTED, "home/.config/opencode/skills"),
    ("codex", "project", "project/.codex/config.toml", "mcp_servers", TOML, "project/.agents/skills"),
    ("codex", "user", "home/.codex/config.toml", "mcp_servers", TOML, "home/.agents/skills"),
]


@pytest.mark.parametrize(("client", "scope", "file", "table", "entry", "skills"), WRITTEN)
def test_each_client_gets_its_own_form(
    client: str, scope: str, file: str, table: str, entry: dict[str, object], skills: str, project: Path, home: Path
) -> None:
    """Server and skill stand where the client looks for them, in the form it reads, and nothing else is written."""
    setup(client, scope=scope, command=COMMAND, project=project, home=home)
    written = files(project.parent)
    text = written.pop(file).decode()
    held = tomlkit.parse(text).unwrap() if file.endswith(".toml") else json.loads(text)
    assert held == {table: {"ep-overlap": entry}}
    assert written == {f"{skills}/ep-overlap/SKILL.md": SKILL.read_bytes()}


def test_every_client_and_scope_is_tested() -> None:
    """A client that is added to the table is added above; VS Code's user folder differs by platform."""
    known = {(client.name, scope) for client in CLIENTS.values() for scope in client.servers}
    assert known == {(row[0], row[1]) for row in WRITTEN} | {("vscode", "user")}
    assert all(client.servers.keys() == client.skills.keys() for client in CLIENTS.values())


@pytest.mark.parametrize("client", [*CLIENTS, "claude-ai"])
def test_remove_undoes_setup_and_a_second_time_changes_nothing(client: str, project: Path, home: Path) -> None:
    """Setting up is idempotent, and removing leaves exactly the files that were there."""
    (project / "train.sh").write_text("torchrun pretrain_gpt.py\n")
    before = files(project.parent)
    first = setup(client, project=project, home=home)
    once = files(project.parent)
    second = setup(client, project=project, home=home)
    assert files(project.parent) == once != before
    assert {change.action for change in first.files} == {"created"}
    assert {change.action for change in second.files} == {"unchanged"}
    removed = setup(client, project=project, home=home, remove=True)
    assert {change.action for change in removed.files} == {"removed"}
    assert files(project.parent) == before
    assert setup(client, project=project, home=home, remove=True).summary == f"{client}: nothing to remove."


CURSOR = """\
{
\t"mcpServers": {
\t\t// the tracker
\t\t"tracker": {"url": "https://example.org/mcp"},
\t}
}
"""
CODEX = 'model = "o"  # mine\n\n[mcp_servers.tracker]\ncommand = "tracker" # here\n'


@pytest.mark.parametrize(
    ("client", "file", "text"),
    [
        ("cursor", ".cursor/mcp.json", CURSOR),
        ("codex", ".codex/config.toml", CODEX),
        ("vscode", ".vscode/mcp.json", "{}"),
    ],
)
def test_a_file_in_use_keeps_all_it_holds(client: str, file: str, text: str, project: Path, home: Path) -> None:
    """Every line of the file is still there, with its comments, and removing gives the file back byte for byte."""
    path = project / file
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    result = setup(client, project=project, home=home)
    if text != "{}":
        assert set(text.splitlines()) <= set(path.read_text().splitlines())
        assert not [line for line in result.files[0].diff.splitlines()[2:] if line.startswith("-")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    setup(client, project=project, home=home, remove=True)
    assert path.read_text() == text


def test_a_dry_run_shows_the_change_and_writes_nothing(project: Path, home: Path) -> None:
    """The diff is the one a real run makes; the folder stays empty."""
    shown = setup("cursor", project=project, home=home, dry_run=True)
    assert files(project.parent) == {}
    done = setup("cursor", project=project, home=home)
    assert shown.files == done.files
    assert '+    "ep-overlap": {' in shown.files[0].diff
    assert shown.summary.startswith("cursor: would be ")


@pytest.mark.parametrize(
    ("client", "file", "text"),
    [
        ("claude-code", ".mcp.json", '{"mcpServers": {'),
        ("codex", ".codex/config.toml", "[mcp_servers\n"),
        ("cursor", ".cursor/mcp.json", ""),
        ("vscode", ".vscode/mcp.json", '{"servers": {"ep-overlap": {}} "a": 1}'),
        ("gemini", ".gemini/settings.json", "\xff"),
    ],
)
def test_a_malformed_file_is_refused_untouched(client: str, file: str, text: str, project: Path, home: Path) -> None:
    """Neither the file nor the skill is written, in and out alike; the refusal names the file."""
    path = project / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    for remove in (False, True):
        with pytest.raises(SetupError, match=path.name):
            setup(client, project=project, home=home, remove=remove)
    assert files(project) == {file: text.encode("latin-1")}


@pytest.mark.parametrize(
    ("client", "scope", "told"),
    [("emacs", None, "known: claude-code, cursor"), ("windsurf", "project", "--scope user")],
)
def test_what_a_client_does_not_have_is_refused(client: str, scope: str | None, told: str, project: Path) -> None:
    """The refusal says what there is instead."""
    with pytest.raises(SetupError, match=told):
        setup(client, scope=scope, project=project, home=project)


def test_moved_folders_are_honoured(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients read their variables, so does the set-up."""
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "claude"))
    for client in ("codex", "claude-code"):
        setup(client, scope="user", project=project, home=home)
    assert {"elsewhere/config.toml", "claude/.claude.json", "claude/skills/ep-overlap/SKILL.md"} <= files(home).keys()


def test_links_are_written_through(project: Path, home: Path) -> None:
    """A configuration kept in a dotfiles folder stays a link."""
    (home / "dotfiles.json").write_text("{}\n")
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").symlink_to(home / "dotfiles.json")
    setup("cursor", scope="user", command=COMMAND, project=project, home=home)
    assert (home / ".cursor" / "mcp.json").is_symlink()
    assert json.loads((home / "dotfiles.json").read_text()) == {"mcpServers": {"ep-overlap": PLAIN}}


def test_opencode_2_and_its_comments_file(project: Path, home: Path) -> None:
    """`mcp.servers` is used where the file has it, and `opencode.jsonc` where the user has that one."""
    path = project / "opencode.jsonc"
    path.write_text('{"mcp": {"servers": {}}} // mine\n')
    setup("opencode", command=["ep"], project=project, home=home)
    entry = {"type": "local", "command": ["ep"], "enabled": True}
    assert path.read_text() == f'{{"mcp": {{"servers": {{ "ep-overlap": {json.dumps(entry)} }}}}}} // mine\n'


def test_the_training_environment_is_handed_over(project: Path, home: Path) -> None:
    """`--python` becomes the variable that the server reads."""
    setup("codex", python="/opt/train/bin/python", project=project, home=home)
    held = tomlkit.parse((project / ".codex/config.toml").read_text()).unwrap()
    assert held["mcp_servers"]["ep-overlap"]["env"] == {"EP_OVERLAP_PYTHON": "/opt/train/bin/python"}


def test_the_zip_for_claude_ai_holds_the_skill_in_its_folder(project: Path, home: Path) -> None:
    """Claude.ai takes a zip whose top folder has the skill's name."""
    setup("claude-ai", project=project, home=home)
    with zipfile.ZipFile(io.BytesIO((project / "ep-overlap-skill.zip").read_bytes())) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"ep-overlap/SKILL.md": SKILL.read_bytes()}


def test_the_command_line_registers_a_server_that_starts(project: Path, home: Path) -> None:
    """What `setup --scope user` writes answers the first message of a client."""
    environment = {**os.environ, "HOME": str(home)}
    command = [sys.executable, "-m", "ep_overlap_mcp", "setup", "claude-code", "--scope", "user", "--format", "json"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["files"][0]["action"] == "created"
    entry = json.loads((home / ".claude.json").read_text())["mcpServers"]["ep-overlap"]
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
    started = [entry["command"], *entry["args"]]
    answer = subprocess.run(started, input=message, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(answer.stdout)["result"]["serverInfo"]["name"] == "ep-overlap"


def test_people_see_the_change_and_what_comes_next(project: Path, home: Path) -> None:
    """The text shows the file's diff, and of the skill its place alone."""
    text = as_text([setup("cursor", command=[sys.executable, "-m", "ep"], project=project, home=home, dry_run=True)])
    path = project / ".cursor" / "mcp.json"
    assert text.startswith(f"cursor: would be {path} created, ")
    assert f'  server: {path}: created\n--- {path}\n+++ {path}\n@@ -0,0 +1,11 @@\n+{{\n+  "mcpServers": {{\n' in text
    assert text.endswith(
        f"  starts: {sys.executable} -m ep\n  next: nothing was written; run it again without --dry-run\n"
    )
    assert "# EP overlap for Megatron" not in text


def test_a_command_that_is_not_there_is_said(project: Path, home: Path) -> None:
    """The files are written all the same: the project may be meant for other machines."""
    result = setup("vscode", command=["no-such-program"], project=project, home=home)
    assert result.next.startswith("`no-such-program` is not on PATH here")


def test_the_help_names_every_client(capsys: pytest.CaptureFixture[str]) -> None:
    """What the command line offers is what there is."""
    with pytest.raises(SystemExit):
        main(["setup", "--help"])
    shown = capsys.readouterr().out
    assert [name for name in NAMES if name not in shown] == []


def test_the_command_line_refuses_with_status_2(project: Path) -> None:
    """An unknown client is bad usage."""
    command = [sys.executable, "-m", "ep_overlap_mcp", "setup", "vim"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, "`vim` is not a client" in done.stderr) == (2, True)


USERS_JSON = """\
{
  "mcpServers": {
    "ep-overlap": {
      "command": "old",
      "args": ["-v"], // verbose
      "env": {"EP_OVERLAP_ROOTS": "/data"}, // the data
      "disabled": true
    }
  }
}
"""
USERS_TOML = """\
[mcp_servers.ep-overlap]
command = "old" # mine
startup_timeout_sec = 5
[mcp_servers.ep-overlap.env]
EP_OVERLAP_ROOTS = "/data" # here
[other]
a = 1
"""


def test_what_a_user_added_to_the_entry_stays(project: Path, home: Path) -> None:
    """Variables, switches, limits and comments of the user's stay; what it starts and our variable are set."""
    for client, file, text in (
        ("cursor", ".cursor/mcp.json", USERS_JSON),
        ("codex", ".codex/config.toml", USERS_TOML),
    ):
        (project / file).parent.mkdir()
        (project / file).write_text(text)
        setup(client, command=COMMAND, python=sys.executable, project=project, home=home)
    json_text, toml_text = (project / ".cursor/mcp.json").read_text(), (project / ".codex/config.toml").read_text()
    ours = {"env": {"EP_OVERLAP_PYTHON": sys.executable, "EP_OVERLAP_ROOTS": "/data"}}
    assert "], // verbose\n" in json_text
    assert "}, // the data\n" in json_text
    plain = json_text.replace(" // verbose", "").replace(" // the data", "")
    assert json.loads(plain)["mcpServers"]["ep-overlap"] == {**PLAIN, **ours, "disabled": True}
    assert 'EP_OVERLAP_ROOTS = "/data" # here\n' in toml_text
    held = tomlkit.parse(toml_text).unwrap()
    assert held == {
        "mcp_servers": {"ep-overlap": {**TOML, **ours, "startup_timeout_sec": 5}},
        "other": {"a": 1},
    }
    again = setup("codex", command=COMMAND, project=project, home=home)
    assert again.files[0].action == "unchanged"


@pytest.mark.parametrize("entry", ['{"url": "https://example.org/mcp"}', '"ep-overlap-mcp"'])
def test_an_entry_of_another_kind_is_refused(entry: str, project: Path, home: Path) -> None:
    """A remote server under our name, or what is no server, is for the user to decide about."""
    text = f'{{"mcpServers": {{"ep-overlap": {entry}}}}}'
    (project / ".mcp.json").write_text(text)
    with pytest.raises(SetupError, match="`ep-overlap` is "):
        setup("claude-code", project=project, home=home)
    assert files(project) == {".mcp.json": text.encode()}


@pytest.mark.parametrize(
    ("client", "file"), [("claude-code", ".claude/skills/ep-overlap/SKILL.md"), ("claude-ai", "ep-overlap-skill.zip")]
)
def test_a_skill_that_is_not_ours_is_never_lost(client: str, file: str, project: Path, home: Path) -> None:
    """It is kept under another name when ours comes, and stays when ours would go; the answer says both."""
    path = project / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"mine")
    came = setup(client, project=project, home=home)
    backup = path.with_name(f"{path.name}.bak")
    assert backup.read_bytes() == b"mine"
    assert came.files[-1].backup == str(backup)
    assert f"kept as {backup}" in came.summary
    path.write_bytes(b"mine again")
    gone = setup(client, project=project, home=home, remove=True)
    assert (path.read_bytes(), gone.files[-1].action) == (b"mine again", "kept")
    assert f"{path} is not what this wrote, and stays" in gone.summary
    setup(client, project=project, home=home)
    assert path.with_name(f"{path.name}.bak1").read_bytes() == b"mine again"
    assert backup.read_bytes() == b"mine"


def test_of_a_link_only_the_link_goes(project: Path, home: Path) -> None:
    """A skill that is linked from elsewhere is not deleted there."""
    skill = project / ".claude/skills/ep-overlap/SKILL.md"
    skill.parent.mkdir(parents=True)
    (home / "SKILL.md").write_bytes(SKILL.read_bytes())
    skill.symlink_to(home / "SKILL.md")
    setup("claude-code", project=project, home=home, remove=True)
    assert not skill.is_symlink()
    assert (home / "SKILL.md").read_bytes() == SKILL.read_bytes()


@pytest.mark.parametrize("link", [".mcp.json", ".claude"])
def test_a_link_that_leads_nowhere_is_refused(link: str, project: Path, home: Path) -> None:
    """No folder is made for what should be there."""
    (project / link).symlink_to(home / "missing" / "there")
    with pytest.raises(SetupError, match=f"{link} is a link to .*, which does not exist"):
        setup("claude-code", project=project, home=home)
    assert list(home.iterdir()) == []
    assert files(project) == {}


def test_a_python_that_is_not_there(project: Path, home: Path) -> None:
    """Refused in a user's own file; said of a project's, which may be meant for other machines."""
    with pytest.raises(SetupError, match="`/no/python` is no program on this machine"):
        setup("cursor", scope="user", python="/no/python", project=project, home=home)
    assert files(home) == {}
    shared = setup("cursor", command=[sys.executable], python="/no/python", project=project, home=home)
    assert shared.next.startswith("`/no/python` is no program on this machine")
    named = setup("cursor", scope="user", command=[sys.executable], python="@cluster", project=project, home=home)
    assert named.next == CLIENTS["cursor"].then


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["setup", "cursor", "--command", '"unbalanced'], '--command `"unbalanced` cannot be read: No closing'),
        (["setup", "cursor", "--command", '""'], '--command `""` names no program'),
        (["setup", "codex"], "`mcp_servers` is not written as tables"),
    ],
)  # fmt: skip
def test_the_command_line_refuses_in_a_line(
    arguments: list[str], told: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be done is said, with exit code 2, and nothing is written."""
    (project / ".codex").mkdir()
    (project / ".codex/config.toml").write_text('[[mcp_servers]]\nname = "x"\n')
    monkeypatch.chdir(project)
    assert main(arguments) == 2
    assert told in capsys.readouterr().err
    assert list(files(project)) == [".codex/config.toml"]
