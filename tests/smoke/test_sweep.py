"""Sweeps: every point gets its row, whatever becomes of the others or of whoever asked."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in_runs import plan_of, stand_in_torch

from ep_overlap_mcp import smoke
from ep_overlap_mcp.cli import main
from ep_overlap_mcp.commands import smoke_sweep
from ep_overlap_mcp.commands.smoke_sweep import axes_of
from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.reports.text import as_text
from ep_overlap_mcp.results.smoke import SweepPoint, SweepResult
from ep_overlap_mcp.smoke import sweep
from ep_overlap_mcp.smoke.run_folder import read_json
from ep_overlap_mcp.smoke.store import Store
from ep_overlap_mcp.training_env import Cluster
from ep_overlap_mcp.verbs import UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3_30b_a3b_16xh100.sh"
HAS_MEGATRON = importlib.util.find_spec("megatron") is not None


@pytest.fixture
def create(tmp_path):
    """A sweep of the stand-in over its behaviours; `refuse` is refused."""
    search = stand_in_torch(tmp_path)

    def create_it(*behaviours, **changes):
        def plan(settings):
            if settings["behaviour"] == "refuse":
                raise Refusal("the rules say no")
            planned = replace(plan_of(limit_s=20), request=settings, variables={"PYTHONPATH": search})
            return replace(planned, **changes)

        return sweep.create({"behaviour": behaviours}, plan, Refusal)

    return create_it


def statuses(result):
    """Behaviour and status of each row."""
    return [(row.settings["behaviour"], row.status) for row in result.points]


def test_a_failing_point_does_not_end_the_rest(create):
    """Each has its row in the order of the request; what failed or was refused says why."""
    result = sweep.go_on(create("finish", "fail", "refuse", "no_result"))
    assert statuses(result) == [("finish", "done"), ("fail", "failed"), ("refuse", "refused"), ("no_result", "failed")]
    notes = [row.note.split(";")[0] for row in result.points]
    assert notes == ["", "torchrun ended with exit code 3", "the rules say no", "ended by itself"]
    assert result.summary.endswith("4 of 4 points have ended; in 0 overlap ran with unchanged numerics.")


def test_an_interrupted_sweep_goes_on_where_it_was(create):
    """What has ended is not run again; what was running is followed."""
    sweep_id = create("finish", "fail", "finish")

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.go_on(sweep_id, interrupt)
    half = sweep.result(sweep_id)
    assert statuses(half) == [("finish", "done"), ("fail", "waiting"), ("finish", "waiting")]
    assert half.summary.endswith(f"Go on with `smoke sweep --resume {sweep_id}`.")
    whole = sweep.go_on(sweep_id)
    assert statuses(whole) == [("finish", "done"), ("fail", "failed"), ("finish", "done")]
    assert whole.points[0] == half.points[0]


def test_a_cancelled_point_runs_again_a_failed_one_does_not(create):
    """A failure is an answer."""
    sweep_id = create("fail", "finish")
    first = sweep.go_on(sweep_id)
    points = read_json(sweep._file(sweep_id))
    points[1]["row"]["status"] = "cancelled"
    sweep._file(sweep_id).write_text(json.dumps(points))
    second = sweep.go_on(sweep_id)
    assert second.points[0] == first.points[0]
    assert second.points[1].run != first.points[1].run
    assert second.points[1].status == "done"


@pytest.mark.usefixtures("slurm")
def test_on_slurm_a_sweep_is_one_array_job(create, tmp_path):
    """Tasks of one job number; a failing one does not end the rest."""
    cluster = Cluster("test", str(tmp_path / "shared"), nodes=2, cpus_per_node=2, partition="smoke")
    result = sweep.go_on(create("finish", "fail", "finish", cluster=cluster))
    assert statuses(result) == [("finish", "done"), ("fail", "failed"), ("finish", "done")]
    jobs = [read_json(Store().run_folder(row.run).slurm)["job"] for row in result.points]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1", "2"]
    assert len({job.partition("_")[0] for job in jobs}) == 1


@pytest.mark.usefixtures("slurm")
def test_one_task_of_an_array_can_be_cancelled(create, tmp_path):
    """The others go on."""
    cluster = Cluster("test", str(tmp_path / "shared"), nodes=2, cpus_per_node=2, partition="smoke")
    sweep_id = create("run", "finish", cluster=cluster)

    def cancel_first(result):
        if result.points[1].status == "done":
            smoke.cancel(result.points[0].run)

    result = sweep.go_on(sweep_id, cancel_first)
    assert statuses(result) == [("run", "cancelled"), ("finish", "done")]


def test_an_unknown_sweep_is_told_with_the_known_ones(create):
    """Also one that leads out of the folder."""
    known = create("finish")
    (Store().folder.parent / "outside.json").write_text("[]")
    for name in ("sweep-none", "../sweep-none", "../outside", "sweep-/../../outside", "/etc/passwd"):
        with pytest.raises(smoke.SmokeError, match=f"no sweep `{name}` in {Store().folder}; the newest here: {known}"):
            sweep.result(name)


def test_axes_are_read_with_lists_as_values():
    """A comma within brackets belongs to the value."""
    axes = axes_of(["model.cuda_graph_scope=[attn,moe_router],[attn]", "variant=overlap,overlap_delay_wgrad"])
    assert axes == {
        "model.cuda_graph_scope": ["[attn,moe_router]", "[attn]"],
        "variant": ["overlap", "overlap_delay_wgrad"],
    }
    assert len(sweep.combinations(axes)) == 4
    for wrong in (["model.x"], ["model.x="], ["model.num_layers=1", "model.num_layers=2"]):
        with pytest.raises(UsageError, match="give each path once"):
            axes_of(wrong)


def test_values_that_mean_the_same_are_one_point():
    """As they were written first."""
    axes = axes_of(["model.num_moe_experts=8,16,8,08", "variant=overlap,overlap", "model.bf16=true,True,false"])
    assert axes == {
        "model.num_moe_experts": ["8", "16"],
        "variant": ["overlap"],
        "model.bf16": ["true", "false"],
    }


@pytest.mark.parametrize(
    ("axis", "told"),
    [
        ("variant=overlap,foo", "--vary variant: `foo` is none of overlap, overlap_delay_wgrad"),
        ("model.foo=1,2", "--vary: `model.foo` is no known setting"),
        ("model.num_moe_experts=8,many", "--vary model.num_moe_experts: "),
    ],
)
def test_an_axis_that_no_point_can_have_is_bad_usage(axis, told, capsys, monkeypatch):
    """Before the environment is asked, in a dry run too; no sweep is written down."""
    monkeypatch.setattr("ep_overlap_mcp.verbs.plan_smoke_run", lambda *_: pytest.fail("it was planned"))
    assert main(["smoke", "sweep", str(EXAMPLE), "--dry-run", "--vary", axis]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ep-overlap-mcp: {told}")
    assert list(Store().folder.glob("sweep-*")) == []


def test_a_point_that_breaks_the_planner_is_a_row():
    """A fault of ours costs its own point only, and is told with its place."""

    def plan(settings):
        return plan_of(ranks=4 // int(settings["parts"]))

    found = sweep.result(sweep.create({"parts": ["0", "2"]}, plan, Refusal))
    assert [row.status for row in found.points] == ["refused", "waiting"]
    assert "it could not be planned, a fault here: ZeroDivisionError" in found.points[0].note
    assert "at test_sweep.py:" in found.points[0].note


def test_what_is_next_is_what_the_rows_allow(create):
    """Nobody is told to take points that are not there."""
    waiting = sweep.result(create("finish", "refuse"))
    refused = sweep.result(create("refuse"))
    failed = sweep.go_on(create("fail"))
    assert waiting.next == "wait for the points that have not ended: none has shown unchanged numerics yet"
    assert refused.next == "every point was refused: the note of each says why"
    assert failed.next.startswith("no point has shown overlap with unchanged numerics: take none")
    path = sweep._file(failed.id)
    (point,) = read_json(path)
    point["row"].update(status="done", overlap_ran="yes", numerics="unchanged")
    path.write_text(json.dumps([point]))
    assert sweep.result(failed.id).next.startswith("take the points whose numerics are unchanged")


@pytest.mark.parametrize("axes", [{}, {"a": [str(n) for n in range(33)]}])
def test_a_sweep_is_bounded(axes):
    """None, and more than are kept."""
    with pytest.raises(smoke.SmokeError, match="a sweep has 1 to 32 points"):
        sweep.combinations(axes)


def test_the_table_has_a_row_a_point():
    """Settings by their last name, answers, the run; why not, under its row."""
    done = SweepPoint(
        settings={"model.expert_model_parallel_size": "2"}, run="smoke-1", status="done", overlap_ran="yes",
        numerics="unchanged", speed="no_difference_shown", ratio=1.01, hidden_pct=40.0,
    )  # fmt: skip
    refused = SweepPoint(settings={"model.expert_model_parallel_size": "3"}, run=None, status="refused", note="EPO1")
    text = as_text([SweepResult(summary="S.", id="sweep-1", points=[done, refused], applies_to="CPU", next="n")])
    assert text.splitlines() == [
        "S.",
        "  expert_model_parallel_size  status   overlap  numerics   speed                      hidden  run    ",
        "  2                           done     yes      unchanged  no difference shown 1.010  40 %    smoke-1",
        "  3                           refused  unknown  unknown    not measured",
        "      EPO1",
        "  speeds hold for CPU",
        "  next: n",
    ]


@pytest.mark.skipif(not HAS_MEGATRON, reason="megatron-core is not installed in this Python")
@pytest.mark.megatron
def test_the_command_plans_every_point(capsys):
    """`--dry-run` starts nothing; a point that the rules refuse is a row."""
    words = ["smoke", "sweep", str(EXAMPLE), "--dry-run", "--format", "json"]
    axes = ["--vary", "model.moe_token_dispatcher_type=alltoall,allgather", "--vary", "variant=overlap"]
    legal = [f"model.recompute_{name}=null" for name in ("granularity", "method", "num_layers")]
    assert main([*words, *axes, *(word for setting in legal for word in ("--set", setting))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(point["settings"]["model.moe_token_dispatcher_type"], point["status"]) for point in found["points"]] == [
        ("alltoall", "waiting"),
        ("allgather", "refused"),
    ]
    assert "dispatcher-alltoall-or-flex" in found["points"][1]["note"]


def test_the_command_takes_files_or_a_sweep(capsys):
    """Both or none is bad usage."""
    assert main(["smoke", "sweep"]) == 2
    assert "a sweep takes configuration files and --vary, or --resume ID" in capsys.readouterr().err


def test_the_command_writes_a_page_also_when_it_goes_on(create, tmp_path, capsys):
    """Before the first run, with every point and at the end; `--dry-run` draws the plan."""
    page = tmp_path / "sweep.html"
    sweep_id = create("finish", "refuse")
    words = ["smoke", "sweep", "--resume", sweep_id, "--html", str(page)]
    assert main([*words, "--dry-run"]) == 0
    assert re.findall(r'<td class="open">(\w+)</td>', page.read_text("utf-8"))[0] == "waiting"
    assert main(words) == 1
    drawn = page.read_text("utf-8")
    assert re.findall(r'<td class="\w+">(done|waiting|refused)</td>', drawn) == ["done", "refused"]
    assert "the rules say no" in drawn
    page.unlink()
    assert main(words) == 1
    assert page.read_text("utf-8") == drawn
    capsys.readouterr()


def test_a_page_follows_the_points(create, tmp_path, monkeypatch):
    """Whoever interrupts a sweep has a page of what had ended."""
    page = tmp_path / "sweep.html"
    show = smoke_sweep._show_progress

    def interrupt(*found):
        show(*found)
        raise KeyboardInterrupt

    monkeypatch.setattr(smoke_sweep, "_show_progress", interrupt)
    assert main(["smoke", "sweep", "--resume", create("finish", "fail"), "--html", str(page)]) == 130
    assert re.findall(r'<td class="\w+">(done|waiting|failed)</td>', page.read_text("utf-8")) == ["done", "waiting"]


def test_a_page_that_cannot_be_written_starts_nothing(create, tmp_path, capsys):
    """Bad usage, with the way on."""
    sweep_id = create("finish")
    page = tmp_path / "nowhere" / "sweep.html"
    assert main(["smoke", "sweep", "--resume", sweep_id, "--html", str(page)]) == 2
    said = capsys.readouterr().err
    assert f"--html: {page} cannot be written" in said
    assert f"--resume {sweep_id}" in said
    assert statuses(sweep.result(sweep_id)) == [("finish", "waiting")]
    assert Store().all() == []
