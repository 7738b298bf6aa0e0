"""The rooms of the package and the arrows between them, on the graph of imports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "ep_overlap_mcp"

# Each room and the rooms that it may import from; arrows run one way, from what is asked to what is known.
BASIS = {"refusal", "surface", "stack", "hardware", "bundled", "__init__"}
KNOWLEDGE = {"settings", "sources", "evidence"} | BASIS
JUDGEMENT = {"rules", "results"} | KNOWLEDGE
WORK = {"proposals", "smoke", "diagnosis", "profiles", "training_env"}
MAY_IMPORT = {
    "__init__": set(),
    "refusal": set(),
    "surface": set(),
    "arguments": set(),
    "bundled": set(),
    "stack": {"refusal"},
    "hardware": {"refusal", "surface"},
    "evidence": BASIS,
    "settings": BASIS | {"sources"},
    "sources": BASIS | {"settings"},
    "results": {"results"},
    "rules": JUDGEMENT,
    "training_env": {"rules", "results"} | KNOWLEDGE,
    "proposals": JUDGEMENT,
    "profiles": JUDGEMENT,
    "diagnosis": JUDGEMENT,
    "smoke": JUDGEMENT | {"training_env", "profiles"},
    "reports": {"results", "surface", "__init__"},
    "clients": BASIS | {"results"},
    "verbs": JUDGEMENT | WORK | {"reports"},
    "resources": JUDGEMENT | WORK,
    "prompt_files": BASIS,
    "completion": JUDGEMENT | WORK,
    "commands": JUDGEMENT | WORK | {"verbs", "reports", "clients", "server"},
    "cli": {"__init__", "refusal", "commands", "surface"},
    "access": BASIS,
    "mcp_tool": BASIS | {"results", "reports", "arguments"},
    "server": JUDGEMENT | WORK | {"access", "verbs", "resources", "prompt_files", "completion", "mcp_tool"},
    "__main__": {"cli"},
}
# What a room may know of another for its types alone, or of a table of the other.
EXCEPTIONS = {
    ("reports", "profiles"): {"reports.profile_page"},  # draws the picture that `profiles` made
    ("settings", "sources"): {"settings.request"},  # the type of what readers hand over
}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """The dotted names that a module imports anywhere, also inside functions and for types alone."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def room(dotted: str) -> str:
    """The room that an import of the package leads to: `ep_overlap_mcp.rules.engine.Rule` -> `rules`."""
    first = dotted.removeprefix(PACKAGE).removeprefix(".").partition(".")[0]
    known = (ROOT / PACKAGE / first).is_dir() or (ROOT / PACKAGE / f"{first}.py").is_file()
    return first if known and first else "__init__"


MODULES = modules()


def test_every_room_is_known() -> None:
    """A new room says what it may import."""
    assert {name.partition(".")[0] for name in MODULES} == set(MAY_IMPORT)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_arrows_run_one_way(name: str) -> None:
    """No module imports from a room that its own may not know."""
    own = name.partition(".")[0]
    allowed = MAY_IMPORT[own] | {own} | {to for (of, to), where in EXCEPTIONS.items() if of == own and name in where}
    assert [dotted for dotted in imports(MODULES[name]) if dotted.startswith(".")] == [], "relative imports hide rooms"
    used = {room(dotted) for dotted in imports(MODULES[name]) if dotted.partition(".")[0] == PACKAGE}
    assert used - allowed == set()


def test_the_rooms_have_no_circle() -> None:
    """Apart from the types of readings, the arrows between the rooms can be put in one order."""
    arrows = {of: to - {of} for of, to in MAY_IMPORT.items()}
    arrows["settings"] = arrows["settings"] - {"sources"}
    while arrows:
        free = [of for of, to in arrows.items() if not to & set(arrows)]
        assert free, f"a circle among {sorted(arrows)}"
        for of in free:
            del arrows[of]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_server_never_imports_a_training_library(name: str) -> None:
    """torch, megatron, Transformer Engine and deep_ep live in the training environment."""
    roots = {dotted.partition(".")[0] for dotted in imports(MODULES[name])}
    assert roots & {"torch", "megatron", "transformer_engine", "deep_ep", "triton", "tools"} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "tools").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_tools_never_import_the_server(path: Path) -> None:
    """They run alone in another Python, and talk JSON."""
    assert [dotted for dotted in imports(path) if dotted.partition(".")[0] == PACKAGE] == []


def loaded_by(*arguments: str) -> set[str]:
    """The top-level modules that a command has loaded at its end."""
    program = (
        "import io, json, sys\n"
        "from ep_overlap_mcp.cli import main\n"
        f"arguments = {list(arguments)!r}\n"
        "stdout, sys.stdout = sys.stdout, io.StringIO()\n"
        "try:\n    main(arguments)\nexcept SystemExit:\n    pass\n"
        "json.dump(sorted(sys.modules), stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout))


COSTLY = {"mcp", "mcp_types", "rich", "torch", "megatron", "numpy", "hydra", "omegaconf", "psutil", "msgspec", "anyio"}


def test_the_command_line_loads_little() -> None:
    """Help and errors need no model, no reader and no rule."""
    loaded = loaded_by("--help")
    assert loaded & (COSTLY | {"pydantic", "yaml", "tree_sitter"}) == set()
    rooms = {name.split(".")[1] for name in loaded if name.startswith("ep_overlap_mcp.")}
    assert rooms <= {"cli", "commands", "refusal", "surface"}


@pytest.mark.parametrize("form", ["text", "json", "sarif", "junit"])
def test_a_check_loads_no_server_and_no_terminal_library(form: str) -> None:
    """A script's check starts without the SDK, without rich and without any training library."""
    script = "examples/qwen3_30b_a3b_16xh100.sh"
    loaded = loaded_by("check", script, "--stack", "megatron-core==0.16.1", "--format", form)
    assert "ep_overlap_mcp.rules.checking" in loaded
    assert loaded & COSTLY == set()
