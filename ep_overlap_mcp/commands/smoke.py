"""`smoke run|status|cancel|list|report`: short real runs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from ep_overlap_mcp.commands import smoke_sweep
from ep_overlap_mcp.commands.common import add_question, print_results, question_of, training_environment
from ep_overlap_mcp.commands.interrupts import Interrupts

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs
    from ep_overlap_mcp.results.smoke import SmokeResult
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.smoke.planning import SmokePlan

_POLL_S = 1.0


def add(verbs: Verbs) -> None:
    """Add the verb and its actions."""
    smoke = verbs.add_parser("smoke", help="short real runs: did overlap run, are the numerics unchanged, did it pay")
    actions = smoke.add_subparsers(title="actions", metavar="ACTION", required=True)
    run = actions.add_parser("run", help="plan and run; --dry-run shows the plan alone")
    add_question(run)
    run.add_argument("--python", metavar="PATH", help="Python of the training environment, or @NAME")
    run.add_argument("--engine", choices=("gloo-cpu", "gloo-gpu", "nccl-gpu"), help="default: the best one here")
    run.add_argument("--variant", action="append", dest="variants", choices=("overlap", "overlap_delay_wgrad"))
    run.add_argument("--ranks", type=int, metavar="N")
    run.add_argument("--pairs", type=int, default=8, metavar="N", help="timed pairs, at least 8; 0: no timing")
    run.add_argument("--steps", type=int, default=3, metavar="N", help="steps whose numbers are compared")
    run.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="wall clock (default: %(default)g)")
    run.add_argument("--profile", action="store_true", help="keep a trace of each variant")
    run.add_argument("--dry-run", action="store_true", help="show the plan, start nothing")
    run.add_argument("--force", action="store_true", help="run what the rules reject, to see Megatron fail")
    run.add_argument("--detach", action="store_true", help="return at once; follow with `smoke status ID`")
    _end(run, _run)
    for name, function, text in (
        ("status", _status, "where a run stands"),
        ("cancel", _cancel, "stop a run and every process of it"),
        ("report", _report, "everything that a run left"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("id", metavar="ID")
        _end(action, function)
    smoke_sweep.add(actions)
    runs = actions.add_parser("list", help="the runs of this host, the newest first")
    runs.add_argument("--most", type=int, default=20, metavar="N", help="list so many of them (default: %(default)s)")
    _end(runs, _list)


def _end(parser: argparse.ArgumentParser, function: object) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(run=function)


def _run(options: argparse.Namespace) -> int:
    from ep_overlap_mcp import smoke
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.verbs import plan_smoke_run

    chosen = SmokeOptions(
        variants=tuple(options.variants) if options.variants else None,
        ranks=options.ranks,
        engine=options.engine,
        steps=options.steps,
        pairs=options.pairs,
        limit_s=options.limit,
        profile=options.profile,
        force=options.force,
    )
    with training_environment(options.python or sys.executable) as environment:
        assert environment is not None  # noqa: S101 - a Python was named
        plan = plan_smoke_run(question_of(options), chosen, environment)
    if options.dry_run:
        print_results([plan.shown], options.format)
        return 0
    if options.format == "text":
        print_results([plan.shown.model_copy(update={"next": "it is started now"})], "text")
    if options.detach:
        print_results([_added(smoke.start(plan), plan, options.format)], options.format)
        return 0
    with Interrupts() as interrupts:
        result = smoke.start(plan)
        print(_started(result, chosen), file=sys.stderr)  # noqa: T201
        result = _followed(result, interrupts)
    print_results([_added(result, plan, options.format)], options.format)
    return interrupts.exit_code if interrupts.asked and result.status == "cancelled" else _exit_code(result)


def _started(result: SmokeResult, options: SmokeOptions) -> str:
    """What ends the run: a kill that cannot be caught is not among it."""
    from ep_overlap_mcp.surface import call

    cancel = call("cancel_smoke_run", id=result.id)
    return (
        f"{result.id} started; interrupting this command cancels it. Killed outright, the command leaves the run, which"
        f" ends by {cancel}, or by itself within {options.limit_s:g} s"
    )


def _added(result: SmokeResult, plan: SmokePlan, form: str) -> SmokeResult:
    """For people, who have just read the plan, what the run adds to it; all for programs."""
    from ep_overlap_mcp.smoke.answering import beyond_plan

    return beyond_plan(result, plan.shown.plan) if form == "text" else result


def _followed(result: SmokeResult, interrupts: Interrupts) -> SmokeResult:
    """Wait for the end with a bar; whoever interrupts cancels the run."""
    from rich.console import Console
    from rich.progress import Progress

    from ep_overlap_mcp import smoke

    begun = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("starting", total=None)
        while result.status in ("queued", "running"):
            if interrupts.asked:
                bar.update(task, description="cancelling", total=None)
                return smoke.cancel(result.id)
            result = smoke.get(result.id, _POLL_S)
            done = time.monotonic() - begun
            total = done + result.eta_s if result.eta_s is not None else None
            bar.update(task, description=result.progress, completed=done, total=total)
    return result


def _exit_code(result: SmokeResult) -> int:
    """0 where overlap ran and the numerics are unchanged, 1 where not, 3 where that could not be shown."""
    if result.status in ("queued", "running"):
        return 0
    if result.status != "done":
        return 1
    answers = (result.overlap_ran.verdict, result.numerics.verdict)
    return 1 if "no" in answers or "changed" in answers else 3 if "unknown" in answers else 0


def _status(options: argparse.Namespace) -> int:
    from ep_overlap_mcp import smoke

    result = smoke.get(options.id)
    print_results([result], options.format)
    return _exit_code(result)


def _cancel(options: argparse.Namespace) -> int:
    from ep_overlap_mcp import smoke

    print_results([smoke.cancel(options.id)], options.format)
    return 0


def _report(options: argparse.Namespace) -> int:
    from ep_overlap_mcp import smoke

    print_results([smoke.report(options.id)], options.format)
    return 0


def _list(options: argparse.Namespace) -> int:
    from ep_overlap_mcp import smoke
    from ep_overlap_mcp.verbs import UsageError

    if options.most < 1:
        raise UsageError(f"--most is {options.most}; it takes a positive number")
    print_results([smoke.list_runs(options.most)], options.format)
    return 0
