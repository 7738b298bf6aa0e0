"""The command line: the same verbs as the tools, for people and CI.

Exit codes: 0 valid, 1 invalid, 2 bad usage or unreadable input, 3 undetermined.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ep_overlap_mcp import __version__
from ep_overlap_mcp.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from ep_overlap_mcp.results.base import Result
    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.training_env import TrainingEnvironment
    from ep_overlap_mcp.verbs import Question

    Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - its only name

BAD_INPUT = 2
# A person at the command line may name any file; agents are held to their roots.
_ANYWHERE = (Path("/"),)
_EXIT = {"valid": 0, "invalid": 1, "undetermined": 3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; without one, serve on stdio."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _speak_utf8()
    try:
        return int(options.run(options))
    except Refusal as problem:
        print(f"ep-overlap-mcp: {problem}", file=sys.stderr)  # noqa: T201
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ep-overlap-mcp",
        description="Machine-checked answers about expert-parallel communication overlap in the Megatron stack.",
        epilog="Without a verb it serves the Model Context Protocol on stdio.",
    )
    parser.add_argument("--version", action="version", version=f"ep-overlap-mcp {__version__}")
    parser.set_defaults(run=_serve, http=False, host="127.0.0.1", port=8765)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    _add_serve(verbs)
    _add_check(verbs)
    _add_propose(verbs)
    _add_conflicts(verbs)
    _add_diagnose(verbs)
    _add_profile(verbs)
    _add_estimate(verbs)
    _add_explain(verbs)
    _add_environment(verbs)
    _add_setup(verbs)
    return parser


def _add_serve(verbs: Verbs) -> None:
    serve = verbs.add_parser("serve", help="serve the Model Context Protocol, on stdio by default")
    serve.add_argument("--http", action="store_true", help="serve streamable HTTP on loopback instead")
    serve.add_argument("--host", default="127.0.0.1", help="loopback address to bind (default: %(default)s)")
    serve.add_argument("--port", type=int, default=8765, help="port to bind (default: %(default)s)")
    serve.set_defaults(run=_serve)


def _add_check(verbs: Verbs) -> None:
    check = verbs.add_parser("check", help="judge a configuration: every violation at once")
    _add_question(check)
    check.add_argument("--all", action="store_true", dest="everything", help="show every setting that a rule read")
    check.add_argument("--python", metavar="PATH", help="Python of the training environment, to judge as well")
    check.add_argument("--format", choices=("text", "json", "sarif", "junit"), default="text")
    check.set_defaults(run=_check)


def _add_propose(verbs: Verbs) -> None:
    propose = verbs.add_parser("propose", help="the smallest change that makes EP overlap legal, as a patch")
    _add_question(propose)
    propose.add_argument("--python", metavar="PATH", help="Python of the training environment, for its versions")
    propose.add_argument("--format", choices=("text", "json"), default="text")
    propose.set_defaults(run=_propose)


def _add_conflicts(verbs: Verbs) -> None:
    conflicts = verbs.add_parser("conflicts", help="delayed weight gradients against this stack")
    _add_question(conflicts)
    conflicts.add_argument("--python", metavar="PATH", help="Python of the training environment, for its versions")
    conflicts.add_argument("--format", choices=("text", "json"), default="text")
    conflicts.set_defaults(run=_conflicts)


def _add_question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="configuration files, later ones win; a last `-` is stdin"
    )
    parser.add_argument("--assume", choices=("as_written", "overlap", "overlap_delay_wgrad"))
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="overrides")
    parser.add_argument("--stack", default="", metavar="NAME==VERSION,…", help="component versions; ==none is absent")
    parser.add_argument("--gpu", metavar="NAME", help="such as H100, B200, GB200")
    parser.add_argument("--gpus-per-node", type=int, metavar="N")
    parser.add_argument("--nodes", type=int, metavar="N")
    parser.add_argument("--select", metavar="NAME", help="one of several recipe functions or commands in a file")


def _add_diagnose(verbs: Verbs) -> None:
    diagnose = verbs.add_parser("diagnose", help="causes of a failed, hung, wrong or slower run")
    diagnose.add_argument("logs", nargs="*", metavar="LOG", help="log files, one or one a rank")
    diagnose.add_argument("--text", help="an error text instead of a file")
    diagnose.add_argument("--symptom", help="in words, such as `slower after delay_wgrad_compute`, hang, nan")
    diagnose.add_argument("--before", metavar="FILE", help="the configuration that was fine")
    diagnose.add_argument("--after", metavar="FILE", help="the configuration that is not")
    diagnose.add_argument("--stack", default="", metavar="NAME==VERSION,…", help="versions that the logs do not print")
    diagnose.add_argument("--format", choices=("text", "json"), default="text")
    diagnose.set_defaults(run=_diagnose)


def _add_profile(verbs: Verbs) -> None:
    profile = verbs.add_parser("profile", help="hidden and exposed communication from a profile")
    profile.add_argument("files", nargs="+", metavar="FILE", help="Kineto JSON or nsys SQLite, or a folder of ranks")
    profile.add_argument("--before", metavar="FILE", help="the profile to compare with")
    profile.add_argument("--compat", choices=("none", "hta"), default="none", help="whose definition of overlap")
    profile.add_argument("--html", metavar="PAGE", help="write a page with lanes of compute and communication")
    profile.add_argument("--format", choices=("text", "json"), default="text")
    profile.set_defaults(run=_profile)


_ESTIMATE_NUMBERS = (
    ("tokens-per-rank", int, True, "tokens of one microbatch on one rank: sequence x micro batch / (TP x CP)"),
    ("hidden-size", int, True, ""),
    ("topk", int, True, "experts a token goes to"),
    ("expert-parallel", int, True, "EP"),
    ("moe-layers", float, True, "MoE layers of one rank"),
    ("microbatches", int, True, "of one step"),
    ("gpus-per-node", int, False, "GPUs that NVLink joins"),
    ("bandwidth-gb-s", float, False, "what the dispatcher reaches"),
    ("step-ms", float, False, "measured step with overlap off"),
    ("exposed-ms", float, False, "measured exposed communication a step"),
    ("pipeline-parallel", int, False, "PP"),
    ("virtual-pipeline", int, False, "VPP"),
)


def _add_estimate(verbs: Verbs) -> None:
    estimate = verbs.add_parser("estimate", help="a ceiling and a band for the gain, before a run")
    for name, kind, required, text in _ESTIMATE_NUMBERS:
        estimate.add_argument(f"--{name}", type=kind, required=required, metavar="N", help=text)
    estimate.add_argument("--dispatcher", choices=("alltoall", "deepep", "hybridep"), default="alltoall")
    estimate.add_argument("--gpu", metavar="NAME")
    estimate.add_argument("--full-recompute", action="store_true")
    estimate.add_argument("--format", choices=("text", "json"), default="text")
    estimate.set_defaults(run=_estimate)


def _add_explain(verbs: Verbs) -> None:
    explain = verbs.add_parser("explain", help="print a rule's page: what, why, example, fix, source")
    explain.add_argument("rule", nargs="?", help="code or name; without one, all rules are listed")
    explain.add_argument("--format", choices=("text", "json"), default="text")
    explain.set_defaults(run=_explain)


def _add_environment(verbs: Verbs) -> None:
    environment = verbs.add_parser("environment", help="what the training environment has and can do")
    environment.add_argument("--python", metavar="PATH", help="its Python (default: the one running this)")
    environment.add_argument("--format", choices=("text", "json"), default="text")
    environment.set_defaults(run=_environment)


def _add_setup(verbs: Verbs) -> None:
    setup = verbs.add_parser("setup", help="register the server and the skill with a coding agent")
    setup.add_argument("client", metavar="CLIENT", help="claude-code, cursor, codex, vscode, copilot, gemini, …")
    setup.add_argument("--scope", choices=("project", "user"), help="default: project where the client has one")
    setup.add_argument("--command", metavar="TEXT", default="", help='what it shall start, "uvx ep-overlap-mcp" say')
    setup.add_argument("--python", metavar="PATH", help="Python of the training environment, for the server to use")
    setup.add_argument("--dry-run", action="store_true", help="show the change, write nothing")
    setup.add_argument("--remove", action="store_true", help="take server and skill out again")
    setup.add_argument("--format", choices=("text", "json"), default="text")
    setup.set_defaults(run=_setup)


def _speak_utf8() -> None:
    """Machine formats are UTF-8 in any locale; what a text holds besides characters is escaped, never fatal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def _serve(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.server import serve

    return serve(http=options.http, host=options.host, port=options.port)


def _check(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.verbs import check_configuration

    with _training_environment(options.python) as environment:
        results = check_configuration(_question(options), environment=environment, everything=options.everything)
    code = _exit_code(results)
    _print_check(results, options.format, code)
    return code


def _question(options: argparse.Namespace) -> Question:
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
        stack=options.stack,
        gpu=options.gpu,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        select=options.select,
        roots=_ANYWHERE,
    )


def _stdin() -> str:
    """What is piped in, held to the same bounds as a file."""
    from ep_overlap_mcp.sources.files import LARGEST, decoded

    return decoded(sys.stdin.buffer.read(LARGEST + 1), "stdin")


def _exit_code(results: Sequence[CheckResult]) -> int:
    """The worst of several: invalid before undetermined before valid."""
    codes = {_EXIT[result.verdict] for result in results}
    return next(code for code in (1, 3, 0) if code in codes)


def _print_check(results: Sequence[CheckResult], form: str, code: int) -> None:
    if form == "sarif":
        from ep_overlap_mcp.reports.sarif import as_sarif

        _write(as_sarif(results, code))
    elif form == "junit":
        from ep_overlap_mcp.reports.junit import as_junit

        _write(as_junit(results))
    else:
        _print(results, form)


def _print(results: Sequence[Result], form: str) -> None:
    if form == "json":
        from ep_overlap_mcp.reports.json_text import as_json

        _write(as_json(results))
        return
    from ep_overlap_mcp.reports.text import as_text

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    _write(as_text(results, color=color))


def _write(text: str) -> None:
    """To stdout at once; a reader that has left early, such as `head`, takes nothing from the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _propose(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.verbs import propose_configuration

    with _training_environment(options.python) as environment:
        results = propose_configuration(_question(options), environment=environment)
    _print(results, options.format)
    codes = {1 if r.blocked_by else _EXIT[r.verdict_after] for r in results}
    return next(code for code in (1, 3, 0) if code in codes)


def _conflicts(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.verbs import wgrad_conflicts

    with _training_environment(options.python) as environment:
        results = wgrad_conflicts(_question(options), environment=environment)
    _print(results, options.format)
    codes = {_EXIT[result.verdict] for result in results}
    return next(code for code in (1, 3, 0) if code in codes)


def _diagnose(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.verbs import Question, diagnose_run

    sides = {
        side: Question(files=(Path(name),), stack=options.stack, roots=_ANYWHERE)
        for side in ("before", "after")
        if (name := getattr(options, side))
    }
    with _progress("reading logs") as advance:
        result = diagnose_run(
            [Path(name) for name in options.logs],
            text=options.text,
            symptom=options.symptom,
            stack=options.stack,
            roots=_ANYWHERE,
            on_progress=lambda done, total: advance(done / max(total, 1)),
            **sides,
        )
    _print([result], options.format)
    return 0


def _profile(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.verbs import analyze_profile

    with _progress("reading profiles") as advance:
        result = analyze_profile(
            [Path(name) for name in options.files],
            before=Path(options.before) if options.before else None,
            compat=options.compat,
            page=Path(options.html) if options.html else None,
            roots=_ANYWHERE,
            on_progress=advance,
        )
    _print([result], options.format)
    return 0


def _estimate(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.profiles import estimate

    names = [name.replace("-", "_") for name, *_ in _ESTIMATE_NUMBERS]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    _print(
        [estimate(**given, dispatcher=options.dispatcher, gpu=options.gpu, full_recompute=options.full_recompute)],
        options.format,
    )
    return 0


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[float], None]]:
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


def _explain(options: argparse.Namespace) -> int:
    from ep_overlap_mcp.rules.explain import explain_rule, list_rules

    _print([explain_rule(options.rule) if options.rule else list_rules()], options.format)
    return 0


def _environment(options: argparse.Namespace) -> int:
    with _training_environment(options.python or sys.executable) as environment:
        assert environment is not None  # noqa: S101 - a Python was named
        _print([environment.describe()], options.format)
    return 0


def _setup(options: argparse.Namespace) -> int:
    import shlex

    from ep_overlap_mcp.clients.setup import setup

    result = setup(
        options.client,
        scope=options.scope,
        command=shlex.split(options.command),
        python=options.python,
        dry_run=options.dry_run,
        remove=options.remove,
    )
    _print([result], options.format)
    return 0


def _training_environment(python: str | None) -> AbstractContextManager[TrainingEnvironment | None]:
    if python is None:
        return contextlib.nullcontext()
    from ep_overlap_mcp.training_env import TrainingEnvironment

    return contextlib.closing(TrainingEnvironment(python))


if __name__ == "__main__":
    sys.exit(main())
