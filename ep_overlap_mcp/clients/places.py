"""Where each client keeps servers and skills, and how it writes a server down.

Sources, read in 2026: code.claude.com/docs (mcp, skills), cursor.com/docs (mcp, context/skills),
developers.openai.com/codex (mcp, skills), code.visualstudio.com/docs/copilot (mcp servers),
docs.github.com/copilot (agent skills), geminicli.com/docs (mcp-server, using-agent-skills),
docs.windsurf.com (cascade/mcp, cascade/skills), opencode.ai/docs (mcp-servers, skills, migrate-v1).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Scope = Literal["project", "user"]


@dataclass(frozen=True)
class Launch:
    """How a client starts the server: a program with arguments, and variables it sets."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """A client: `servers` and `skills` are paths by scope, `table` names the object that holds its servers.

    In a path `{project}`, `{home}` and the folders of `folders` stand for themselves.
    """

    name: str
    title: str
    servers: Mapping[Scope, str]
    skills: Mapping[Scope, str]
    entry: Callable[[Launch], dict[str, Any]]
    table: Sequence[str] = ("mcpServers",)
    then: str = ""


def folders(project: Path, home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The folders that paths begin with, honouring the variables with which clients move theirs."""
    claude = Path(environment.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        "project": project,
        "home": home,
        "claude": claude,
        "claude_state": claude if environment.get("CLAUDE_CONFIG_DIR") else home,
        "codex": Path(environment.get("CODEX_HOME") or home / ".codex"),
        "config": config,
        "vscode": _vscode_user(home, config, environment),
    }


def _vscode_user(home: Path, config: Path, environment: Mapping[str, str]) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "Code" / "User"
    if sys.platform == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming") / "Code" / "User"
    return config / "Code" / "User"


def _plain(launch: Launch) -> dict[str, Any]:
    return {"command": launch.command, "args": list(launch.args), **_env("env", launch)}


def _typed(launch: Launch) -> dict[str, Any]:
    return {"type": "stdio", **_plain(launch)}


def _copilot(launch: Launch) -> dict[str, Any]:
    return {"type": "local", **_plain(launch), "tools": ["*"]}


def _gemini(launch: Launch) -> dict[str, Any]:
    return {**_plain(launch), "timeout": 120_000}


def _codex(launch: Launch) -> dict[str, Any]:
    return {**_plain(launch), "startup_timeout_sec": 60, "tool_timeout_sec": 120}


def _opencode(launch: Launch) -> dict[str, Any]:
    command = [launch.command, *launch.args]
    return {"type": "local", "command": command, "enabled": True, **_env("environment", launch)}


def _env(key: str, launch: Launch) -> dict[str, Any]:
    return {key: dict(launch.env)} if launch.env else {}


CLIENTS = {
    client.name: client
    for client in (
        Client(
            "claude-code",
            "Claude Code",
            {"project": "{project}/.mcp.json", "user": "{claude_state}/.claude.json"},
            {"project": "{project}/.claude/skills", "user": "{claude}/skills"},
            _typed,
            then="start a new session and approve the server; `/mcp` shows it",
        ),
        Client(
            "cursor",
            "Cursor",
            {"project": "{project}/.cursor/mcp.json", "user": "{home}/.cursor/mcp.json"},
            {"project": "{project}/.cursor/skills", "user": "{home}/.cursor/skills"},
            _plain,
            then="switch the server on under Settings, MCP",
        ),
        Client(
            "codex",
            "Codex",
            {"project": "{project}/.codex/config.toml", "user": "{codex}/config.toml"},
            {"project": "{project}/.agents/skills", "user": "{home}/.agents/skills"},
            _codex,
            table=("mcp_servers",),
            then="start a new session; a project's own configuration is read in trusted projects only",
        ),
        Client(
            "vscode",
            "VS Code with GitHub Copilot",
            {"project": "{project}/.vscode/mcp.json", "user": "{vscode}/mcp.json"},
            {"project": "{project}/.github/skills", "user": "{home}/.copilot/skills"},
            _typed,
            table=("servers",),
            then="start the server with the command `MCP: List Servers`",
        ),
        Client(
            "copilot",
            "GitHub Copilot CLI",
            {"user": "{home}/.copilot/mcp-config.json"},
            {"user": "{home}/.copilot/skills"},
            _copilot,
            then="start a new session; `/mcp show` lists it",
        ),
        Client(
            "gemini",
            "Gemini CLI",
            {"project": "{project}/.gemini/settings.json", "user": "{home}/.gemini/settings.json"},
            {"project": "{project}/.gemini/skills", "user": "{home}/.gemini/skills"},
            _gemini,
            then="start a new session; `/mcp` and `/skills list` show them",
        ),
        Client(
            "windsurf",
            "Windsurf",
            {"user": "{home}/.codeium/windsurf/mcp_config.json"},
            {"user": "{home}/.codeium/windsurf/skills"},
            _plain,
            then="refresh the servers in Cascade",
        ),
        Client(
            "opencode",
            "OpenCode",
            {"project": "{project}/opencode.json", "user": "{config}/opencode/opencode.json"},
            {"project": "{project}/.opencode/skills", "user": "{config}/opencode/skills"},
            _opencode,
            table=("mcp",),
            then="start a new session",
        ),
    )
}
