"""The wheel in a clean environment, with its base dependencies and nothing of the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command far from the checkout, without its PYTHONPATH; what it says is shown when it fails."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EP_OVERLAP"))}
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=variables,
        timeout=600,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("ep_overlap_mcp-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Programs of an environment that holds the wheel and what it asks for; they run in an empty folder."""
    folder = tmp_path_factory.mktemp("clean")
    done = run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = run(folder / "venv" / "bin" / "pip", "install", "--quiet", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    work = folder / "work"
    work.mkdir()
    return lambda program, *arguments: run(folder / "venv" / "bin" / program, *arguments, cwd=work)


def test_the_wheel_carries_tools_and_prompts_and_no_tests(wheel: Path) -> None:
    """Everything that stands at the top of the repository and is wanted at run time is package data."""
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert top == {"ep_overlap_mcp", next(name for name in top if name.endswith(".dist-info"))}
    for folder in ("tools", "prompts"):
        wanted = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix in (".py", ".md", ".json")
        }
        assert {f"ep_overlap_mcp/{path}" for path in wanted} <= set(names)
    assert {"ep_overlap_mcp/settings/fields.json", "ep_overlap_mcp/py.typed"} <= set(names)


def test_it_checks_a_configuration(installed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The console script judges the example, and says the same as from the checkout."""
    script = ROOT / "examples" / "qwen3_30b_a3b_16xh100.sh"
    done = installed(
        "ep-overlap-mcp", "check", script, "--stack", "megatron-core==0.16.1", "--gpu", "H100", "--format", "json"
    )
    assert (done.returncode, done.stderr) == (1, "")
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "invalid"
    assert "no-full-recompute" in [finding["name"] for finding in answer["findings"]]


def test_it_explains_a_rule(installed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The pages come along."""
    done = installed("ep-overlap-mcp", "explain", "pipeline-needs-virtual-stages")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("EPO104 pipeline-needs-virtual-stages (error)")


def test_tools_and_prompts_are_found(installed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """From inside the package, not from a checkout; the training environment's programs run from there."""
    program = "from ep_overlap_mcp.bundled import bundled; print(bundled('tools')); print(bundled('prompts'))"
    tools, prompts = map(Path, installed("python", "-c", program).stdout.split())
    assert tools.parent == prompts.parent
    assert (tools.parent.name, tools.parent.parent.name) == ("ep_overlap_mcp", "site-packages")
    assert (tools / "check_with_megatron.py").is_file()
    assert list(prompts.glob("*.md"))
    described = installed("ep-overlap-mcp", "environment", "--format", "json")
    assert described.returncode == 0, described.stderr
    assert json.loads(described.stdout)["components"]["torch"]["version"] is None


def test_it_serves(installed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A client of the same SDK gets the tools and the prompts over stdio."""
    program = """
import asyncio, sys
from mcp import Client, StdioServerParameters

async def main():
    async with Client(StdioServerParameters(command=sys.executable, args=["-m", "ep_overlap_mcp"])) as client:
        print(sorted(tool.name for tool in (await client.list_tools()).tools)[0])
        print(len((await client.list_prompts()).prompts))

asyncio.run(main())
"""
    done = installed("python", "-c", program)
    assert done.returncode == 0, done.stderr
    first, prompts = done.stdout.split()
    assert (first, int(prompts)) == ("analyze_overlap_profile", len(list((ROOT / "prompts").glob("*.md"))))


def test_no_training_library_comes_along(installed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """torch, megatron and Transformer Engine are for the training environment."""
    listed = installed("pip", "list", "--format", "json")
    names = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert names & {"torch", "megatron-core", "transformer-engine", "numpy", "deep-ep", "triton"} == set()
