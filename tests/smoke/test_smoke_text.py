"""A smoke run as people read it."""

from __future__ import annotations

import json
from pathlib import Path

from stand_in_runs import plan_of

from ep_overlap_mcp.reports.text import as_text
from ep_overlap_mcp.results.smoke import Plan, Reduction
from ep_overlap_mcp.smoke.answering import beyond_plan, smoke_report, smoke_result
from ep_overlap_mcp.smoke.store import Store

RECORDED = Path(__file__).parent / "recorded"


def done(evidence, *, status="done", cause="ended by itself", planned="0.16.1"):
    """A run of two steps and eight pairs that left this evidence; the run and its folder."""
    shown = plan_of().shown.model_copy(update={"stack": {"megatron-core": planned}})
    reduced = [
        Reduction(setting="model.num_layers", before=48, to=2),
        Reduction(setting="model.num_query_groups", before=1, to=2),
        Reduction(setting="model.moe_expert_capacity_factor", before=None, to=-1),
    ]
    changes = {"kept": {"model.bf16": True}, "reduced": reduced, "steps": 2, "pairs": 8}
    shown = shown.model_copy(update={"plan": shown.plan.model_copy(update=changes)})
    store = Store()
    run = store.add("cpu", shown.model_dump(mode="json"), 20.0)
    folder = store.run_folder(run.id)
    folder.result.write_text((RECORDED / f"{evidence}.json").read_text())
    store.end(run.id, status, {"cause": cause})
    return store.get(run.id), folder


def text_of(run, folder):
    """The text with the run's own name and folder taken out."""
    return as_text([smoke_result(run, folder)]).replace(str(folder.path), "FOLDER").replace(run.id, "RUN")


def test_a_good_run():
    """Three answers with their evidence, then what was kept, reduced, emulated and not tested."""
    lines = text_of(*done("sound")).splitlines()
    assert lines[0].startswith("RUN done: Overlap ran: yes. Numerics: unchanged. Speed: no difference shown (1.053,")
    assert lines[1:3] == [
        "  overlap ran: yes",
        "      combined-1F1B nodes a step: rank 0 42 of 42, rank 1 42 of 42",
    ]
    assert "  numerics: unchanged" in lines
    assert "  kept: bf16=true" in lines
    assert "  reduced: num_layers 48 -> 2" in lines
    assert "  changed: num_query_groups 1 -> 2, moe_expert_capacity_factor null -> -1" in lines
    assert "  not tested: NCCL" in lines
    assert lines[-2:] == [
        "  logs: FOLDER",
        "  next: correctness holds for this reduced model; now the matched A/B on the real job decides whether it pays",
    ]


def test_another_release_than_the_planned_one_is_said_at_once():
    """A Python that finds another Megatron-Core once the ranks start proves nothing about the one it was asked for."""
    first = text_of(*done("sound", planned="0.19.0")).splitlines()[0]
    assert "ATTENTION: planned for megatron-core 0.19.0, but the ranks imported 0.16.1 (site-packages/" in first
    assert "ATTENTION" not in text_of(*done("sound", planned="0.16.1+cu128"))


def test_a_changed_loss_is_no_reason_to_go_on():
    """The worst answer decides what is next."""
    text = text_of(*done("dense_last"))
    assert "  numerics: changed\n" in text
    assert "next: do not enable overlap: read numerics.evidence" in text


def near(run, folder, *, core, **kept):
    """The result of a run of this core whose rows are all apart within rounding, and what it kept."""
    evidence = json.loads(folder.result.read_text())
    evidence["versions"]["megatron_core"] = core
    for row in evidence["steps"]:
        row["equal"], row["within_rounding"] = False, True
        row["grads"].update(equal=False, different=3, max_abs_diff=1e-5)
    folder.result.write_text(json.dumps(evidence))
    run.plan["plan"]["kept"] |= {f"model.{name}": value for name, value in kept.items()}
    return smoke_result(run, folder)


def test_a_difference_within_rounding_is_told_apart_and_is_no_pass():
    """Where it was seen without a defect, and what decides."""
    result = near(*done("sound", planned="0.15.3"), core="0.15.3", moe_shared_expert_intermediate_size=256)
    assert result.numerics.verdict == "changed"
    first, *_, seen, decides = result.numerics.evidence
    assert first.endswith("by no more than another order of bf16 sums explains")
    told = "seen without a defect with shared experts on megatron-core 0.15, as here"
    assert seen == f"within rounding, which is no pass: {told}"
    assert decides.startswith("what decides: more compared steps (`ep-overlap-mcp smoke run --steps 20`) and another")
    assert result.next.startswith("do not enable overlap on this evidence: the numbers differ within rounding")


def test_a_difference_within_rounding_elsewhere_is_not_excused():
    """The same on another release, or without shared experts, has not been seen without a defect."""
    for core, kept in (("0.16.1", {"moe_shared_expert_intermediate_size": 256}), ("0.15.3", {})):
        seen = near(*done("sound", planned=core), core=core, **kept).numerics.evidence[-2]
        assert "it was seen without a defect only with" in seen
        assert "this run has neither" in seen


def test_a_difference_beyond_rounding_is_told_nothing_of_rounding():
    """A lost contribution stays what it is."""
    result = smoke_result(*done("drop_wgrad"))
    assert result.numerics.verdict == "changed"
    assert [text for text in result.numerics.evidence if "within rounding" in text] == []
    assert result.next.startswith("do not enable overlap: read numerics.evidence")


def test_who_has_read_the_plan_reads_what_the_run_adds():
    """Nothing twice; what only the run knew stays."""
    run, folder = done("sound")
    result = smoke_result(run, folder)
    text = as_text([beyond_plan(result, Plan.model_validate(run.plan["plan"]))])
    assert "kept:" not in text
    assert "reduced:" not in text
    assert "  not tested: NCCL\n" in text
    whole = as_text([beyond_plan(result, result.plan)])
    assert "not tested:" not in whole
    assert "emulated:" not in whole
    assert "numerics: unchanged" in whole


def test_a_run_that_was_not_seen_to_end_well_proves_nothing_whatever_it_left():
    """The evidence of a cancelled or failed run is not that of a completed one."""
    for status in ("cancelled", "failed", "lost"):
        result = smoke_result(*done("sound", status=status, cause="something"))
        verdicts = result.overlap_ran.verdict, result.numerics.verdict, result.speed.verdict
        assert verdicts == ("unknown", "unknown", "not_measured")
        assert result.summary.endswith("It proves nothing.")


def test_a_failure_names_rank_and_place():
    """What the ranks wrote down, not what torchrun said about it."""
    result = smoke_result(*done("one_local_expert", status="failed", cause="torchrun ended with exit code 1"))
    assert result.failure.rank == 1
    assert result.failure.cause.startswith("rank 1 failed: RuntimeError: The tensor has a non-zero number of elements")
    assert result.failure.evidence[:2] == [
        "in parity overlap 0",
        "raised at site-packages/megatron/core/tensor_parallel/layers.py:614",
    ]


def test_the_report_shows_every_row_and_pair():
    """A line a rank and step, the ratios of all pairs, the files."""
    run, folder = done("sound")
    report = smoke_report(run, folder)
    assert len(report.steps) == 4
    assert report.steps[0].startswith("overlap rank 0 step 0: equal; 27 gradients, largest difference 0.0; loss [")
    assert len(report.pairs["overlap"]) == 8
    assert list(report.files) == ["result.json"]
    assert f"  files: result.json ({folder.result.stat().st_size})" in as_text([report])


def test_a_result_fits_an_agents_context():
    """The whole answer of two variants, before anything is cut."""
    run, folder = done("sound")
    assert len(json.dumps(smoke_result(run, folder).model_dump(mode="json"))) < 4000
