"""Smoke runs: a user's configuration, shrunk, really trained for a few steps with EP overlap off and on.

`plan` says what would run, `start` runs it under a supervisor of its own, `get` follows it and judges its evidence.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ep_overlap_mcp.smoke.errors import SmokeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_overlap_mcp.results.smoke import SmokeList, SmokeReport, SmokeResult
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.smoke.planning import SmokePlan
    from ep_overlap_mcp.smoke.run_folder import RunFolder
    from ep_overlap_mcp.smoke.store import Run
    from ep_overlap_mcp.training_env import TrainingEnvironment


def plan(request: Request, environment: TrainingEnvironment, options: SmokeOptions) -> SmokePlan:
    """What would run, starting nothing; `.shown` is the answer for the caller.

    SmokeError for a configuration that the rules reject (unless options.force), and for one that cannot run here.
    """
    from ep_overlap_mcp.smoke.planning import plan_run

    return plan_run(request, environment, options)


def start(
    plan: SmokePlan,
    *,
    user: str | None = None,
    most: int | None = None,
    command: Callable[[RunFolder], list[str]] | None = None,
) -> SmokeResult:
    """Start the plan and return at once. SmokeError when another run holds the devices, or `user` has `most` open.

    `command` replaces torchrun with smoke_train.py; it gets the folder that holds the request and takes the evidence.
    """
    from ep_overlap_mcp.smoke.runs import start_run

    return _answer(start_run(plan, command, user=user, most=most))


def get(run_id: str, wait_s: float = 0.0) -> SmokeResult:
    """Where the run stands, at its end or after `wait_s` (at most 25). SmokeError for an unknown id."""
    from ep_overlap_mcp.smoke.runs import wait_for

    return _answer(wait_for(run_id, wait_s))


def cancel(run_id: str, *, user: str | None = None) -> SmokeResult:
    """End the run and every process of it, whichever process started it; what has ended stays as it is.

    A `user` ends only what is theirs; SmokeError for another's.
    """
    from ep_overlap_mcp.smoke.runs import cancel_run

    return _answer(cancel_run(run_id, user))


def report(run_id: str) -> SmokeReport:
    """Everything that a run left: answers, rows of every rank, pairs, files, the end of its log."""
    from ep_overlap_mcp.smoke.answering import smoke_report
    from ep_overlap_mcp.smoke.runs import wait_for
    from ep_overlap_mcp.smoke.store import Store

    run = wait_for(run_id, 0.0)
    return smoke_report(run, Store().run_folder(run.id))


def list_runs(most: int = 20) -> SmokeList:
    """The runs of this host, the newest first."""
    from ep_overlap_mcp.results.smoke import RunLine, SmokeList
    from ep_overlap_mcp.smoke.runs import end_lost_runs
    from ep_overlap_mcp.smoke.store import Store

    store = Store()
    end_lost_runs(store)
    lines = []
    for run in store.all(most):
        answer = _answer(run)
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.created))
        lines.append(
            RunLine(
                id=run.id,
                status=answer.status,
                started=started,
                elapsed_s=answer.elapsed_s,
                engine=answer.engine,
                summary=answer.summary,
            )
        )
    kept, running = store.count(), len(store.open_runs())
    shown = f"{kept}" if len(lines) == kept else f"{len(lines)} of {kept}"
    more = "" if len(lines) == kept else f" `smoke list --most {kept}` shows all."
    return SmokeList(summary=f"{shown} smoke runs in {store.folder}, {running} running.{more}", runs=lines)


def end_all_jobs() -> None:
    """Ask for the end of every run that this process started, and return at once: for signal handlers.

    Their supervisors end them within seconds, without this process.
    """
    from ep_overlap_mcp.smoke.runs import end_own_runs

    end_own_runs()


def _answer(run: Run) -> SmokeResult:
    from ep_overlap_mcp.smoke.answering import smoke_result
    from ep_overlap_mcp.smoke.store import Store

    return smoke_result(run, Store().run_folder(run.id))


__all__ = ["SmokeError", "cancel", "end_all_jobs", "get", "list_runs", "plan", "report", "start"]
