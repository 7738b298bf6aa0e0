"""What the verbs share: arguments of a question, the training environment, printing, progress, exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from ep_overlap_mcp.results.base import Result
    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.training_env import TrainingEnvironment
    from ep_overlap_mcp.verbs import Question

    Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - its only name

# A person at the command line may name any file; agents are held to their roots.
ANYWHERE = (Path("/"),)
EXIT = {"valid": 0, "invalid": 1, "undetermined": 3}


def add_question(parser: argparse.ArgumentParser, files: str = "+") -> None:
    """The arguments that make a question."""
    parser.add_argument(
        "files", nargs=files, metavar="FILE", help="configuration files, later ones win; a last `-` is stdin"
    )
    parser.add_argument("--assume", choices=("as_written", "overlap", "overlap_delay_wgrad"))
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="overrides")
    add_stack(parser, "component versions; ==none is absent")
    parser.add_argument("--gpu", metavar="NAME", help="such as H100, B200, GB200")
    parser.add_argument("--gpus-per-node", type=int, metavar="N")
    parser.add_argument("--nodes", type=int, metavar="N")
    parser.add_argument("--select", metavar="NAME", help="one of several recipe functions or commands in a file")


def add_stack(parser: argparse.ArgumentParser, text: str) -> None:
    """`--stack`, which may be given several times; `",".join` makes them one."""
    parser.add_argument("--stack", action="append", default=[], metavar="NAME==VERSION,…", help=text)


def question_of(options: argparse.Namespace) -> Question:
    """The question that the arguments make."""
    from ep_overlap_mcp.verbs import Question, UsageError

    piped = options.files[-1] == "-"
    names = options.files[:-1] if piped else options.files
    if "-" in names:
        raise UsageError("`-` is stdin and is read last; name it once, after the files")
    return Question(
        files=tuple(map(Path, names)),
        text=_stdin() if piped else None,
        overrides=tuple(options.overrides),
        assume=options.assume,
        stack=",".join(options.stack),
        gpu=options.gpu,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        select=options.select,
        roots=ANYWHERE,
    )


def _stdin() -> str:
    """What is piped in, held to the same bounds as a file."""
    from ep_overlap_mcp.sources.files import LARGEST, decoded

    return decoded(sys.stdin.buffer.read(LARGEST + 1), "stdin")


def training_environment(python: str | None) -> AbstractContextManager[TrainingEnvironment | None]:
    """The environment of a Python or of `@NAME`, closed at the end; nothing where none is named."""
    if python is None:
        return contextlib.nullcontext()
    from ep_overlap_mcp.training_env import open_environment

    return contextlib.closing(open_environment(python))


def exit_code(results: Sequence[CheckResult]) -> int:
    """The worst of several: invalid before undetermined before valid."""
    codes = {EXIT[result.verdict] for result in results}
    return next(code for code in (1, 3, 0) if code in codes)


def print_results(results: Sequence[Result], form: str) -> None:
    """As text, in colour on a terminal, or as JSON."""
    if form == "json":
        from ep_overlap_mcp.reports.json_text import as_json

        write(as_json(results))
        return
    from ep_overlap_mcp.reports.text import as_text

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    write(as_text(results, color=color))


def write(text: str) -> None:
    """To stdout at once; a reader that has left early, such as `head`, takes nothing from the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[float], None]]:
    """A bar on stderr for work beyond two seconds, where someone looks at it."""
    if not sys.stderr.isatty():
        yield lambda _share: None
        return
    import time

    from rich.console import Console
    from rich.progress import Progress

    begun = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=False) as bar:
        task = bar.add_task(what, total=1.0, visible=False)
        yield lambda share: bar.update(task, completed=share, visible=time.monotonic() - begun > 2)
