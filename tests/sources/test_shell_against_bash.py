"""The reader's expansion against the shell's own, on small scripts of assignments."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.sources.shell_line_ends import line_broken_by_crlf
from ep_overlap_mcp.sources.shell_run import walk
from ep_overlap_mcp.sources.shell_scope import Scope, text_of
from ep_overlap_mcp.sources.shell_syntax import Source
from ep_overlap_mcp.sources.words import Piece

BASH = shutil.which("bash")
NAMES = st.sampled_from(["A", "B", "C"])
LITERALS = st.sampled_from(["1", "--x", "a b", "", "7", "moe_act,mlp", "([0]*3+[1]*2)", "x=y", "it's", "é"])


def quoted(text: str) -> str:
    return '"' + text + '"'


REFERENCES = st.one_of(
    NAMES.map(lambda n: f"${n}"),
    NAMES.map(lambda n: f"${{{n}}}"),
    st.builds(lambda n, o, d: f"${{{n}{o}{d}}}", NAMES, st.sampled_from([":-", "-", ":+", "+"]), st.sampled_from("18")),
    st.builds(lambda n, o: f"${{{n}{o}}}", NAMES, st.sampled_from(["#-", "##*-", "%x", "%%,*", "/a/b", "//m/", "^^"])),
    NAMES.map(lambda n: f"${{#{n}}}"),
    st.builds(lambda a, s, b: f"$(({a} {s} {b}))", st.integers(0, 99), st.sampled_from("+-*/%"), st.integers(1, 9)),
)
VALUES = st.lists(st.one_of(LITERALS.map(quoted), REFERENCES.map(quoted)), max_size=3).map("".join)
WORDS = st.one_of(REFERENCES, REFERENCES.map(quoted), LITERALS.map(quoted), st.sampled_from(["x", r"a\ b", "'$A'"]))
ASSIGNMENTS = st.one_of(
    st.builds(lambda n, v: f"{n}={v}", NAMES, VALUES),
    st.builds(lambda n, v: f"{n}+={v}", NAMES, VALUES),
    st.builds(lambda n, v, w: f"if [ {v} = {w} ]; then {n}=1; fi", NAMES, REFERENCES.map(quoted), LITERALS.map(quoted)),
    st.builds(lambda n, v: f"[[ -z {v} ]] || {n}=2", NAMES, REFERENCES.map(quoted)),
    st.builds(
        lambda n, v: f"for {n} in {v}; do C+=${n}; done", NAMES, st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
    ),
)
ARRAYS = st.lists(WORDS, max_size=4).map(lambda words: f"L=({' '.join(words)})")
USES = st.lists(st.one_of(WORDS, st.sampled_from(['"${L[@]}"', "${L[@]}", '"${L[*]}"', "${#L[@]}", '"${L[0]}"'])))


def by_bash(script: str) -> list[str]:
    """The arguments as bash itself passes them."""
    text = f"show() {{ printf '%s\\0' \"$@\"; }}\n{script.replace('show_these', 'show')}"
    answer = subprocess.run(
        [str(BASH), "-f", "-c", text], capture_output=True, text=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    return answer.stdout.split("\0")[:-1]


def by_reader(script: str) -> list[str]:
    """The arguments as the reader expands them."""
    (command,) = walk(Source.of((Piece(script, 0),)), Scope()).commands
    return [text_of(word) for word in command.words[1:]]


@pytest.mark.skipif(BASH is None, reason="needs bash")
@settings(deadline=None, max_examples=100)
@given(st.lists(ASSIGNMENTS, max_size=5), ARRAYS, USES)
def test_expansion_is_that_of_bash(assignments: list[str], array: str, uses: list[str]) -> None:
    """Splitting, quoting, defaults, edits, arithmetic, arrays and conditions give the words that bash gives."""
    script = "\n".join(["A=1", "B='x y'", "C=", *assignments, array, " ".join(["show_these", "first", *uses])])
    assert by_reader(script) == by_bash(script)


CRLF = [
    # a script whose `|` stands for CRLF, and the line that is named
    ("show_these a \\|  --x 8 \\|  --y|", 1),
    ("# a command|E=8\nshow_these \\|  --x $E|", 3),
    ("E=8|show_these --x $E --y|", 1),
    ("show_these --x|", 1),
    ("L=(|  --x 8|)|show_these ${L[@]}|", 1),
    ("L=(--x 8)|show_these ${L[@]}\n", 1),
    ("S='|  --x 8|'\nshow_these $S\n", 1),
    ('S="--x 8 \\|  --y"\nshow_these $S\n', 1),
    ("if true; then|  show_these --x|fi|", 1),
    ("show_these --x  # a remark|", None),
    ("# a remark \\|  \nshow_these --x\n", None),
    ("cat > /dev/null <<END\na b \\|c|END\nshow_these --x\n", None),
]


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(("script", "line"), CRLF, ids=[script for script, _ in CRLF])
def test_crlf_breaks_a_script_where_bash_says_so(script: str, line: int | None) -> None:
    """A line is named where bash passes other arguments than with LF, or none, and no line elsewhere."""
    mended, text = (script.replace("|", end) for end in ("\n", "\r\n"))
    broken = line_broken_by_crlf(Source.of((Piece(text, 0),)))
    assert (broken.number if broken else None) == line
    try:
        same = by_bash(text) == by_bash(mended)
    except subprocess.CalledProcessError:
        same = False
    assert same is (line is None)


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_a_backslash_before_a_carriage_return_in_quotes_becomes_an_argument() -> None:
    """Both characters stay in the text, which continues no line: the reason says so, and bash does so."""
    text = 'S="--x 8 \\\r\n  --y"\nshow_these $S\n'
    broken = line_broken_by_crlf(Source.of((Piece(text, 0),)))
    assert broken is not None
    assert "reach the program as one more argument" in broken.why
    assert [word.strip() for word in by_bash(text)] == ["--x", "8", "\\", "--y"]


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("shell", ["eval", "bash -c", "srun bash -c"])
def test_a_shell_that_gets_a_quoted_text_ends_the_command_at_a_carriage_return(shell: str) -> None:
    """The inner shell meets the backslash and the carriage return outside quotes."""
    text = f'{shell} "show_these --x 8 \\\r\n  --y"\n'
    broken = line_broken_by_crlf(Source.of((Piece(text, 0),)))
    assert broken is not None
    assert broken.why.startswith("the shell that gets this quoted text ends the command there")


UNQUOTED = [
    # a script, and the expressions in it that lack quotes
    ("python pretrain_gpt.py --moe-layer-freq ([0]*3+[1]*45) --bf16", ["([0]*3+[1]*45)"]),
    ("python pretrain_gpt.py --moe-layer-freq=([0] * 3 + [1] * 45) --bf16", ["([0] * 3 + [1] * 45)"]),
    ("A=(\n  --moe-layer-freq ([0]*3+[1]*45)\n  --bf16\n)\npython pretrain_gpt.py ${A[@]}", ["([0]*3+[1]*45)"]),
    ("A=(\n  --pipeline-model-parallel-layout Et*3|t*4L\n)\npython pretrain_gpt.py ${A[@]}", ["Et*3|t*4L"]),
    ("python pretrain_gpt.py --moe-layer-freq '([0]*3+[1]*45)' --bf16", []),
    ('python pretrain_gpt.py --moe-layer-freq "([0]*3+[1]*45)" --bf16', []),
    ("python pretrain_gpt.py --moe-layer-freq \\([0]*3+[1]*45\\) --bf16", []),
    ("A='--moe-layer-freq ([0]*3+[1]*45)'\npython pretrain_gpt.py $A --bf16", []),
    ("# --moe-layer-freq ([0]*3+[1]*45)\npython pretrain_gpt.py --bf16", []),
    ("cat <<END\n--moe-layer-freq ([0]*3+[1]*45)\nEND\npython pretrain_gpt.py --bf16", []),
    ("python pretrain_gpt.py --moe-layer-freq 2|tee log", []),
]


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(("script", "lacking"), UNQUOTED, ids=[script for script, _ in UNQUOTED])
def test_an_expression_lacks_quotes_where_bash_has_a_syntax_error(script: str, lacking: list[str]) -> None:
    """`bash -n` refuses the very scripts of which the reader says so, and takes each once it is quoted."""
    assert [found.value for found in Source.of((Piece(script, 0),)).unquoted()] == lacking
    assert is_sound(script) is not bool(lacking)
    for value in lacking:
        assert is_sound(script.replace(value, f'"{value}"'))


def is_sound(script: str) -> bool:
    """Whether `bash -n` takes a script."""
    return subprocess.run([str(BASH), "-n"], input=script, text=True, capture_output=True, check=False).returncode == 0
