"""The reader's expansion against the shell's own, on small scripts of assignments."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ep_overlap_mcp.sources.shell_line_ends import line_broken_by_crlf
from ep_overlap_mcp.sources.shell_run import walk
from ep_overlap_mcp.sources.shell_scope import Scope, text_of, unresolved_in
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
    text = f"show() {{ printf '%s\\0' \"$@\"; }}; export -f show\n{script.replace('show_these', 'show')}"
    answer = subprocess.run(
        [str(BASH), "-f", "-c", text], capture_output=True, text=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    return answer.stdout.split("\0")[:-1]


def by_reader(script: str) -> list[str]:
    """The arguments as the reader expands them, of all commands of that name."""
    commands = walk(Source.of((Piece(script, 0),)), Scope()).commands
    shown = [words[1:] for words in (command.words for command in commands) if text_of(words[0]) == "show_these"]
    assert shown
    return [text_of(word) for words in shown for word in words]


@pytest.mark.skipif(BASH is None, reason="needs bash")
@settings(deadline=None, max_examples=100)
@given(st.lists(ASSIGNMENTS, max_size=5), ARRAYS, USES)
def test_expansion_is_that_of_bash(assignments: list[str], array: str, uses: list[str]) -> None:
    """Splitting, quoting, defaults, edits, arithmetic, arrays and conditions give the words that bash gives."""
    script = "\n".join(["A=1", "B='x y'", "C=", *assignments, array, " ".join(["show_these", "first", *uses])])
    assert by_reader(script) == by_bash(script)


FOLLOWED = [
    # locals: restored when the function returns, seen by what it calls
    "X=a; f() { local X=b; }; f; show_these $X",
    "X=a; f() { local X; X=b; }; f; show_these $X",
    "X=a; Y=a; f() { declare X=b; typeset Y=c; }; f; show_these $X $Y",
    "X=a; f() { declare -g X=b; }; f; show_these $X",
    "X=a; f() { local X=b; g; }; g() { declare -g X=c; }; f; show_these $X",
    "X=a; f() { local X=b; g; show_these $X; }; g() { X=c$X; }; f; show_these $X",
    "X=a; f() { local X=b Y=$X; show_these $X $Y; }; f",
    "X=a; f() { local X=b; unset X; X=c; }; f; show_these $X",
    "A=(1 2); f() { local A=(3); }; f; show_these ${A[@]}",
    "X=a; f() { local X=b; return 0; }; f || exit 1; show_these $X",
    "f() { show_these $X; }; X=a; X=b f; show_these $X",
    "f() { local -n out=$1; out=b; }; X=a; f X; show_these $X",
    "f() { local n=$1; if [ $n -gt 0 ]; then f $((n - 1)); fi; show_these $n; }; f 2",
    # positional parameters
    'set -- a "b c"; show_these "$@" $# "$1"',
    'set -- a b; set -- "$@" c; show_these "$@"',
    'set -- a b c; shift 2; show_these "$@"',
    'set -- a b; shift 3; show_these "$@"',
    'set -euo pipefail -- a b; show_these "$@"; set -x c; show_these "$@"',
    'f() { local n=$1; shift; show_these $n "$@"; }; f first --flag "a b"; f second',
    'f() { shift; set -- x "$@"; show_these "$@"; }; set -- own; f a b; show_these "$@"',
    'f() { while [ $# -gt 0 ]; do [ $1 = --x ] && X=$2; R+=($1); shift; done; }; f a --x 8; show_these $X "${R[@]}"',
    'f() { for a; do R+=("<$a>"); done; }; f a "b c"; show_these "${R[@]}"',
    'f() { show_these ${1:-none} ${2:-none} $# ${#} "${@:2}"; }; f a b c; f a; f',
    'f() { show_these "${1}x" $3; }; f a b',
    # loops
    "for X in a b c; do [[ $X == b ]] && break; done; show_these $X",
    "Y=; for X in a b c; do if [ $X = b ]; then continue; fi; Y+=$X; done; show_these $X $Y",
    "Z=; for X in a b; do for Y in c d; do [ $Y = d ] && continue 2; Z+=$X$Y; done; Z+=-; done; show_these $Z",
    "for X in a b; do for Y in c d; do break 2; done; done; show_these $X $Y",
    "N=1; until (( N >= 5 )); do N=$((N * 2)); done; show_these $N",
    "N=1; while [ $N -lt 40 ]; do ((N++)); done; show_these $N",
    "N=0; while true; do ((N++)); if (( N == 3 )); then break; fi; done; show_these $N",
    "X=; for ((i = 0, j = 9; i < 3; i++)); do ((i == 1)) && continue; X+=$i$j; done; show_these $X $i",
    "X=; for ((;;)); do X+=a; [ $X = aaa ] && break; done; show_these $X",
    "X=a; while false; do X=b; done; show_these $X",
    "Y=a; f() { for X in a b; do return; done; Y=c; }; f; show_these $X $Y",
    "for X in a b; do f() { Y=$X; }; f; done; show_these $Y",
    "X=; for i in {1..40}; do X+=$i; done; show_these $X",
    # processes of their own
    "X=a; f() { X=b; echo; }; f | cat > /dev/null; show_these $X",
    "X=a; f() { X=b; }; f & wait; show_these $X",
    "X=a; { X=b; } | cat; show_these $X",
    "X=a; X=b & wait; show_these $X",
    "X=a; (X=b; exit 1); show_these $X",
    "X=a; for i in 1 2; do X=b; break; done | cat; show_these $X",
    "X=a; echo b | while read -r line; do X=$line; done; show_these $X",
    "X=a; true && X=b & wait; show_these $X",
    "X=a; { exit 0; } | cat; show_these $X",
    # numbers
    "declare -i X=1+1; X+=3; show_these $X; X=010; show_these $X; Y=1+1; show_these $Y",
    "f() { local -i X=2*3; show_these $X; }; f; X=1+1; show_these $X",
    "declare -l X=AbC; show_these $X; declare -u Y=AbC; show_these $Y",
    "[[ 010 -eq 8 ]] && show_these a; [ 010 -eq 10 ] && show_these b; [[ 2+2 -eq 4 ]] && show_these c",
    # what a child process sees
    "X=a; bash -c 'show_these ${X:-none}'",
    "X=a; bash -c 'show_these first$X'",
    "export X=a; bash -c 'show_these $X'; X=b; bash -c 'show_these $X'",
    "X=a bash -c 'show_these $X'",
    "set -a; X=a; set +a; Y=b; bash -c 'show_these $X first$Y'",
    "set -o allexport; X=a; set +o allexport; bash -c 'show_these $X'",
    'X=a; bash -c "show_these $X"',
    "bash -c 'show_these $1 \"$@\" $#' name a 'b c'",
    "export X=a; f() { local X=b; bash -c 'show_these $X'; }; f; bash -c 'show_these $X'",
    "X=a; bash <<< ''; bash <<'END'\nshow_these ${X:-none}\nEND\n",
    "X=a; export X; bash <<'END'\nshow_these ${X:-none}\nEND\n",
    "X=a; bash -c 'X=b'; show_these $X",
    # the ends of a branch
    "case x in x) X=a;;& y) X=b;; *) Y=c;; esac; show_these $X $Y",
    "case x in x) X=a;& y) X=b;& z) Y=c;; *) X=d;; esac; show_these $X $Y",
    "X=a; case x in x) ;;& z) X=b;; esac; show_these $X",
]


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("script", FOLLOWED)
def test_a_script_ends_as_bash_ends_it(script: str) -> None:
    """Locals, positional parameters, loops and processes leave the variables that bash leaves."""
    assert by_reader(script) == by_bash(script)


CONDITIONS = [
    '[[ $X == "h100*" ]]', "[[ $X == h100* ]]", '[ "$X" == h100* ]', '[ "$X" = "h100*" ]', 'test "$X" = h10*',
    '[[ $X == h"1"* ]]', "[[ $X == h\\* ]]", '[[ $X != *"0*" ]]', "[[ $X == h?0[0-9]x ]]", "[[ $X == [!h]* ]]",
    '[[ $X =~ "h.0" ]]', "[[ $X =~ h.0 ]]", '[[ $X =~ ^h"1"00 ]]', "[[ $X =~ ^(h100|8)$ ]]", "[[ $X == $P ]]",
    '[[ $X == "$P" ]]', "[[ $X == *$Q* ]]", '[[ $X == "$Q"* ]]', '[[ $X == ""*x ]]', "[[ $X == --x ]]",
    '[ "$X" = --x ]',
]  # fmt: skip


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("value", ["h100x", "'h100*'", "8", "''", "--x"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_holds_where_bash_says_so(condition: str, value: str) -> None:
    """A pattern is one only in `[[`, and what is quoted in it means itself."""
    script = f"P='h100*'; Q=h1; X={value}; if {condition}; then show_these yes; else show_these no; fi"
    assert by_reader(script) == by_bash(script)


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("value", ["xy", "'x*'", "yes", "apb", "p8", "a"])
def test_a_case_takes_the_branch_that_bash_takes(value: str) -> None:
    """Patterns with and without quotes, of several parts, sets and alternatives."""
    script = f"P=p; X={value}; case $X in "
    script += "*'*') Y=0;; a*\"$P\"*) Y=1;; 'x*') Y=2;; x?|[yz]*) Y=3;; $P*) Y=4;; *) Y=5;; esac; show_these $Y"
    assert by_reader(script) == by_bash(script)


EXPRESSIONS = [
    "010", "0x1F", "2#101", "10#08", "-2 ** 2", "2 ** 3 ** 2", "1 + 2 * 3", "(1 + 2) * 3", "-7 / 2", "-7 % 3",
    "6 & 3 == 3", "1 | 2 ^ 3", "!0 == 1", "!N", "1 << 2 + 1", "N > 2 ? 10 : 20", "0 && Z / 0", "1 || 1 / 0",
    "N * S", "S", "~5", "5 - -3", "N%2==0?N/2:3*N+1", "O + 1", "$N * 2", "3 < 2 < 1", "1 ? 0 ? 2 : 3 : 4",
]  # fmt: skip


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_arithmetic_is_that_of_bash(expression: str) -> None:
    """Precedence, octal and other bases, and variables whose text is an expression."""
    script = f"N=8; S=1+1; O=010; Z=0; show_these $(({expression}))"
    assert by_reader(script) == by_bash(script)


@pytest.mark.parametrize("expression", ["08", "1 / 0", "2 ** -1", "1_000", "0b1", "N = 3", "N++"])
def test_arithmetic_that_bash_refuses_or_that_assigns_is_unknown(expression: str) -> None:
    """It never becomes a number that bash would not give."""
    (command,) = walk(Source.of((Piece(f"N=8; show_these $(({expression}))", 0),)), Scope()).commands
    assert unresolved_in(command.words[1])


UNDECIDED = [
    # scripts in which a variable that they set nowhere decides, or what a function returns
    'f() { if [ -n "$UNSET" ]; then return; fi; X=b; }; X=a; f; show_these $X',
    'X=a; for i in 1 2; do [ -n "$UNSET" ] && break; X=b; done; show_these $X',
    'X=a; while [ -n "$UNSET" ]; do X=b; done; show_these $X',
    'Y=a; X=a; while [ -n "$UNSET" ]; do X=$Y; Y=b; done; show_these $X',
    "X=a; for i in $UNSET; do X=b; done; show_these $X",
    "X=a; for ((i = 0; i < UNSET; i++)); do X=b; done; show_these $i",
    "X=a; f() { grep -q a b; }; f && X=b; show_these $X",
    'X=a; f() { if [ -n "$UNSET" ]; then local X=b; fi; X=c; }; f; show_these $X',
    'if [ -n "$UNSET" ]; then set -- a b; else set -- c; fi; show_these $1',
    'set -- a b; if [ -n "$UNSET" ]; then shift; fi; show_these $2',
    "X=a; f() { return 1; }; f || X=b; show_these $X",
]


@pytest.mark.parametrize("script", UNDECIDED)
def test_what_a_variable_from_outside_decides_is_unknown(script: str) -> None:
    """The word that either way gives another value of is no known value."""
    (command,) = [c for c in walk(Source.of((Piece(script, 0),)), Scope()).commands if len(c.words) == 2]
    assert unresolved_in(command.words[1])


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
