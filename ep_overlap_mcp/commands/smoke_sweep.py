"""`smoke sweep`: one request, several settings, a table at the end."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.commands.common import add_question, print_results, question_of, training_environment
from ep_overlap_mcp.commands.interrupts import Interrupts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ep_overlap_mcp.results.smoke import SweepResult
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.smoke.planning import SmokePlan


def add(actions: Any) -> None:
    """Add the action."""
    sweep = actions.add_parser("sweep", help="every combination of several settings, resumable, with a table")
    add_question(sweep, files="*")
    sweep.add_argument(
        "--vary", action="append", default=[], metavar="PATH=A,B,…", help="an axis; `variant` is one as well"
    )
    sweep.add_argument("--resume", metavar="ID", help="go on with a sweep")
    sweep.add_argument("--python", metavar="PATH", help="Python of the training environment, or @NAME")
    sweep.add_argument("--pairs", type=int, default=8, metavar="N", help="timed pairs, at least 8; 0: no timing")
    sweep.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="wall clock of each point")
    sweep.add_argument("--ranks", type=int, metavar="N")
    sweep.add_argument("--dry-run", action="store_true", help="plan every point, start nothing")
    sweep.add_argument("--html", metavar="PAGE", help="write a page with the speeds on one axis, anew with every point")
    sweep.add_argument("--format", choices=("text", "json"), default="text")
    sweep.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the action; 0 when every point was sound, 1 when one was not, 3 when one could not show it.

    Interrupted, it cancels what runs here and says as shells do which signal it was; --resume goes on.
    """
    from ep_overlap_mcp.smoke import sweep
    from ep_overlap_mcp.verbs import UsageError

    if bool(options.resume) == bool(options.files):
        raise UsageError("a sweep takes configuration files and --vary, or --resume ID")
    page = Path(options.html) if options.html else None
    _refuse_page(page, options.resume)  # before the plans, which ask the training environment about every point
    sweep_id = options.resume or _created(options)
    found = sweep.result(sweep_id)
    _write_page(found, page)
    if not options.dry_run:
        print(f"sweep {sweep_id}; after an interruption `smoke sweep --resume {sweep_id}` goes on", file=sys.stderr)  # noqa: T201
        with Interrupts() as interrupts:
            found = sweep.go_on(sweep_id, lambda so_far: _show_progress(so_far, page), lambda: interrupts.asked)
        _write_page(found, page)
        print_results([found], options.format)
        return interrupts.exit_code if interrupts.asked else _exit_code(found)
    print_results([found], options.format)
    return 0


def axes_of(statements: list[str]) -> dict[str, list[str]]:
    """`path=a,b` -> the values, each once; commas within brackets belong to a value.

    UsageError for what is no setting and no variant, and for values that the setting refuses: no point could run.
    """
    from ep_overlap_mcp.verbs import UsageError

    axes: dict[str, list[str]] = {}
    for statement in statements:
        path, equals, values = statement.partition("=")
        if not equals or not values or path in axes:
            raise UsageError(f"--vary `{statement}`: give each path once, as PATH=A,B")
        axes[path] = _distinct(path, [value.strip() for value in re.split(r",(?![^\[]*\])", values)])
    return axes


def _distinct(path: str, values: list[str]) -> list[str]:
    """The values that differ in what they mean, as they are written."""
    from ep_overlap_mcp.smoke.options import VARIANTS
    from ep_overlap_mcp.smoke.sweep import VARIANT
    from ep_overlap_mcp.sources import parse_set
    from ep_overlap_mcp.verbs import UsageError

    if path == VARIANT:
        for value in values:
            if value not in VARIANTS:
                raise UsageError(f"--vary {VARIANT}: `{value}` is none of {', '.join(VARIANTS)}")
        return list(dict.fromkeys(values))
    meant: dict[str, str] = {}
    for value in values:
        meant.setdefault(repr(parse_set(f"{path}={value}", "--vary").value), value)
    return list(meant.values())


def _created(options: argparse.Namespace) -> str:
    from ep_overlap_mcp.refusal import Refusal
    from ep_overlap_mcp.smoke import sweep
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.verbs import plan_smoke_run

    axes, question = axes_of(options.vary), question_of(options)
    chosen = SmokeOptions(pairs=options.pairs, limit_s=options.limit, ranks=options.ranks)
    with training_environment(options.python or sys.executable) as environment:
        assert environment is not None  # noqa: S101 - a Python was named
        environment.describe(fast=True)  # an environment that is not there is no row of a table

        def plan(settings: dict[str, str]) -> SmokePlan:
            varied = tuple(f"{path}={value}" for path, value in settings.items() if path != sweep.VARIANT)
            asked = replace(question, overrides=(*question.overrides, *varied))
            return plan_smoke_run(asked, _with_variant(chosen, settings.get(sweep.VARIANT)), environment)

        return sweep.create(axes, plan, Refusal)


def _with_variant(options: SmokeOptions, variant: str | None) -> SmokeOptions:
    return replace(options, variants=(variant,)) if variant else options


def _show_progress(found: SweepResult, page: Path | None) -> None:
    print(found.summary, file=sys.stderr)  # noqa: T201
    _write_page(found, page)


def _refuse_page(page: Path | None, sweep_id: str | None) -> None:
    from ep_overlap_mcp.verbs import refuse_unwritable_page

    if page is not None:
        with _way_on(sweep_id):
            refuse_unwritable_page(page)


def _write_page(found: SweepResult, page: Path | None) -> None:
    from ep_overlap_mcp.reports.sweep_page import sweep_page
    from ep_overlap_mcp.verbs import write_page

    if page is not None:
        with _way_on(found.id):
            write_page(page, sweep_page(found))


@contextlib.contextmanager
def _way_on(sweep_id: str | None) -> Iterator[None]:
    """What is refused of a sweep that is there says how to go on with it."""
    from ep_overlap_mcp.verbs import UsageError

    try:
        yield
    except UsageError as problem:
        if sweep_id is None:
            raise
        raise UsageError(f"{problem}, and --resume {sweep_id}") from problem


def _exit_code(found: SweepResult) -> int:
    answers = {(row.status, row.overlap_ran, row.numerics) for row in found.points}
    if answers == {("done", "yes", "unchanged")}:
        return 0
    bad = any(status != "done" or ran == "no" or same == "changed" for status, ran, same in answers)
    return 1 if bad else 3
