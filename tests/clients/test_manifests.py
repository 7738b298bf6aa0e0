"""Manifests of registries and plugins: they agree with the package, and what they start exists."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ep_overlap_mcp import __version__
from ep_overlap_mcp.clients.setup import SERVER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomlkit as tomllib

TOP = Path(__file__).parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def manifest(name: str) -> Any:
    return json.loads((TOP / name).read_text(encoding="utf-8"))


def test_the_registry_entry_names_this_package() -> None:
    """Name, version and package are the project's, and the README carries the name as proof of ownership."""
    entry = manifest("server.json")
    package = entry["packages"][0]
    assert (package["identifier"], package["transport"]) == (PROJECT["name"], {"type": "stdio"})
    assert entry["version"] == package["version"] == PROJECT["version"] == __version__
    assert len(entry["description"]) <= 100
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"<!-- mcp-name: (\S+) -->", readme) == [entry["name"]]


@pytest.mark.skipif("EP_OVERLAP_SERVER_SCHEMA" not in os.environ, reason="EP_OVERLAP_SERVER_SCHEMA names no schema")
def test_the_registry_entry_fits_the_registrys_schema() -> None:
    """The schema that the entry names, when a copy of it is at hand."""
    schema = json.loads(Path(os.environ["EP_OVERLAP_SERVER_SCHEMA"]).read_text(encoding="utf-8"))
    entry = manifest("server.json")
    assert entry["$schema"] == schema["$id"]
    jsonschema.validate(entry, schema)


@pytest.mark.parametrize("name", [".mcp.json", "gemini-extension.json"])
def test_a_checkout_starts_its_own_server(name: str) -> None:
    """Plugin and extension start the console script out of their own folder; nothing needs to be published."""
    servers = manifest(name)["mcpServers"]
    assert list(servers) == [SERVER]
    assert servers[SERVER]["command"] == "uvx"
    flag, folder, script = servers[SERVER]["args"]
    assert (flag, folder) in {("--from", "${CLAUDE_PLUGIN_ROOT:-.}"), ("--from", "${extensionPath}")}
    assert script in PROJECT["scripts"]


def test_plugin_marketplace_and_extension_agree() -> None:
    """One name and one version everywhere; the plugin's root is the folder that holds `skills/` and `.mcp.json`."""
    plugin, extension = manifest(".claude-plugin/plugin.json"), manifest("gemini-extension.json")
    (offered,) = manifest(".claude-plugin/marketplace.json")["plugins"]
    assert plugin["name"] == extension["name"] == offered["name"] == SERVER
    assert plugin["version"] == extension["version"] == __version__
    root = TOP / offered["source"]
    assert (root / "skills" / SERVER / "SKILL.md").is_file()
    assert (root / ".mcp.json").is_file()
    assert "_" not in SERVER  # Gemini CLI splits tool names at the first underscore
