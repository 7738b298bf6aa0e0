"""Smoke runs and profiles as evidence for causes and against them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ep_overlap_mcp.cli import main
from ep_overlap_mcp.diagnosis import diagnose
from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.results.profile import ByKind, DeviceProfile, ProfileResult, ScheduleEvidence
from ep_overlap_mcp.results.smoke import Failure, Numerics, OverlapRan, Plan, SmokeResult, Speed, Status
from ep_overlap_mcp.smoke.store import STATE_DIR, Store
from ep_overlap_mcp.verbs import Question, diagnose_run

TESTS = Path(__file__).parents[1]
SPEED = Speed(verdict="not_measured", ratio=None, ci95=None, pairs=0, applies_to="CPU ranks", evidence=[])
RAN = OverlapRan(verdict="yes", evidence=["combined-1F1B nodes a step: rank 0 42 of 42"])
OFF = OverlapRan(verdict="no", evidence=["a rank ran no node of the combined schedule: overlap was off"])
UNSEEN = OverlapRan(verdict="unknown", evidence=[])
UNCHANGED = Numerics(verdict="unchanged", loss_equal=True, max_abs_grad_diff=0.0, steps=2, evidence=[])
UNKNOWN = Numerics(verdict="unknown", loss_equal=None, max_abs_grad_diff=None, steps=0, evidence=[])


def smoke(**given: Any) -> SmokeResult:
    """A smoke run that ended well, but for what is given."""
    kept = given.pop("kept", {})
    plan = Plan(kept=kept, reduced=[], not_tested=[], emulated=[], variants=["overlap"], steps=2, pairs=0)
    rest = {
        "overlap_ran": RAN,
        "numerics": UNCHANGED,
        "status": "done",
        "failure": None,
        **given,
    }
    return SmokeResult(
        summary="",
        id="smoke-1",
        elapsed_s=1.0,
        eta_s=0.0,
        progress="done",
        plan=plan,
        engine="gloo-cpu",
        device="cpu",
        world_size=2,
        stack={},
        emulated=[],
        speed=SPEED,
        hidden=None,
        logs="",
        next="",
        **rest,
    )


def profile(hidden_ms: float, *, marked: str = "unknown", control_ms: float = 0.0) -> ProfileResult:
    """One device with 10 ms of communication."""
    device = DeviceProfile(
        device="GPU 0",
        rank=0,
        file="trace.json",
        window_ms=100.0,
        steps=3,
        compute_ms=80.0,
        comm_ms=10.0,
        control_ms=control_ms,
        idle_ms=5.0,
        hidden_ms=hidden_ms,
        exposed_ms=10.0 - hidden_ms,
        hidden_pct=10.0 * hidden_ms,
        hidden_pct_gemm_attention=None,
        by_kind=ByKind(),
        per_step=None,
        unclassified=[],
    )
    evidence = ScheduleEvidence(combined_1f1b=marked, ranges=0, example=None, why="")
    return ProfileResult(
        summary="", source=[], compat="none", devices=[device], schedule_evidence=evidence, compare=None, caveats=[]
    )


def causes(**given: Any) -> list[tuple[str, str]]:
    """Causes with their confidence."""
    return [(cause.cause, cause.confidence) for cause in diagnose(**given).causes]


def test_overlap_that_was_off_in_a_smoke_run_is_a_reset_switch() -> None:
    """No node of the combined schedule ran: the switch did not reach the model."""
    result = diagnose(smoke_runs=[smoke(overlap_ran=OFF, numerics=UNKNOWN)])
    assert [(c.cause, c.confidence) for c in result.causes] == [("bridge-reset-the-flag", "possible")]
    assert result.causes[0].evidence[0].file == "smoke run smoke-1"
    assert result.causes[0].evidence[0].line is None
    assert result.causes[0].evidence[0].text == f"overlap did not run: {OFF.evidence[0]}"


def test_changed_numerics_complete_what_the_check_had_said() -> None:
    """With the rule the cause is likely, without it every cause of other numbers is possible."""
    said = "the check had said: last-layer-must-be-moe: the last layer is dense"
    changed = Numerics(
        verdict="changed", loss_equal=False, max_abs_grad_diff=1.0, steps=2, evidence=["loss 9 is 8", said]
    )
    blank = changed.model_copy(update={"evidence": ["loss 9 is 8"]})
    assert causes(smoke_runs=[smoke(numerics=changed)])[0] == ("last-layer-dense-drops-final-norm", "likely")
    assert {confidence for _, confidence in causes(smoke_runs=[smoke(numerics=blank)])} == {"possible"}


def test_unchanged_numerics_clear_only_what_the_run_kept() -> None:
    """The pattern of MoE layers was kept: its cause is out; it was not: the cause stays a candidate."""
    kept, shrunk = smoke(kept={"model.moe_layer_freq": [1, 1]}), smoke()
    assert "last-layer-dense-drops-final-norm" not in dict(causes(smoke_runs=[kept], symptom="wrong loss"))
    assert "last-layer-dense-drops-final-norm" in dict(causes(smoke_runs=[shrunk], symptom="wrong loss"))


def test_the_failure_of_a_smoke_run_is_read_like_a_log() -> None:
    """Its evidence holds the exception."""
    failure = Failure(cause="rank 0 failed", rank=0, evidence=["[rank0]: ImportError: DeepEP is not installed. Please"])
    run = smoke(status="failed", overlap_ran=OFF.model_copy(update={"verdict": "unknown"}), failure=failure)
    first = diagnose(smoke_runs=[run]).causes[0]
    assert (first.cause, first.evidence[0].file) == ("flex-package-not-importable", "smoke run smoke-1")


@pytest.mark.parametrize(
    ("cause", "rank", "title"),
    [
        ("rank 1 was killed by SIGKILL; torchrun exited with 1", 1, "the system killed a process"),
        ("rank 1 was killed by SIGSEGV; torchrun exited with 1", 1, "a process crashed in native code"),
        ("its supervisor is gone: killed, or the machine was restarted", None, "what supervised the run is gone"),
        ("the limit of 60 s was reached in phase steps; raise limit_s", None, "the run reached its time limit"),
        (
            "the limit of 60 s was reached in phase steps. Rank 1 did not answer at the limit",
            1,
            "one rank keeps the others waiting",
        ),
    ],
)
def test_what_a_failed_smoke_run_knows_of_its_end_comes_first(cause: str, rank: int | None, title: str) -> None:
    """Its own cause, rank and evidence, though no signature knows them."""
    failure = Failure(cause=cause, rank=rank, evidence=["in steps overlap 2", "log: nothing new"])
    result = diagnose(smoke_runs=[smoke(status="failed", overlap_ran=UNSEEN, numerics=UNKNOWN, failure=failure)])
    assert [(c.cause, c.title) for c in result.causes] == [("unknown", title)]
    assert [line.text for line in result.causes[0].evidence] == [cause, *failure.evidence]
    assert (result.ended, result.first_failure and result.first_failure.rank) == ("failed", rank)
    assert cause[:100] in result.summary


def test_a_run_that_did_not_fail_tells_what_it_measured_and_what_is_next() -> None:
    """Nothing is wrong with it: its own words stand first."""
    run = smoke().model_copy(update={"summary": "Overlap ran: yes. Speed: slower.", "next": "the matched A/B"})
    result = diagnose(smoke_runs=[run])
    assert result.summary.startswith("smoke run smoke-1: Overlap ran: yes. Speed: slower. Next: the matched A/B. ")
    assert result.causes[0].title == "the smoke run did not fail"


def test_the_command_tells_why_a_lost_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`smoke status` sends the user here."""
    monkeypatch.setenv(STATE_DIR, str(tmp_path))
    run_id = finished("dense_last", "lost", {"cause": "its supervisor is gone: killed"})
    assert main(["diagnose", "--smoke-run", run_id]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"smoke run {run_id}: Smoke run LOST after ")
    assert "its supervisor is gone: killed" in said


def test_a_run_that_has_not_ended_shows_nothing() -> None:
    """Its answers are not in yet."""
    assert causes(smoke_runs=[smoke(status="running", overlap_ran=OFF)]) == [("unknown", "possible")]


def test_a_profile_without_hidden_communication() -> None:
    """With the schedule's marks streams wait for each other; without them overlap may be off as well."""
    assert causes(profiles=[profile(0.1, marked="yes")])[0] == ("one-cuda-connection-serialises", "likely")
    assert set(causes(profiles=[profile(0.1)])) == {
        ("bridge-reset-the-flag", "possible"),
        ("too-few-microbatches", "possible"),
        ("one-cuda-connection-serialises", "possible"),
    }


def test_hidden_communication_clears_the_causes_of_none() -> None:
    """Most of it is hidden: neither one connection nor too few micro-batches nor a reset switch."""
    result = diagnose(profiles=[profile(8.0)], symptom="no gain")
    assert {item.cause for item in result.ruled_out} == {
        "one-cuda-connection-serialises",
        "too-few-microbatches",
        "bridge-reset-the-flag",
    }
    assert result.ruled_out[0].why == "profile: 80.0 % of 10.000 ms communication is hidden (GPU 0)"


def test_kernels_that_wait_point_to_a_late_peer() -> None:
    """More than half of the communication is notify and barrier kernels."""
    assert ("hybridep-peer-late", "possible") in causes(profiles=[profile(3.0, control_ms=6.0)])


def finished(recorded: str, status: Status = "done", ending: dict[str, Any] | None = None) -> str:
    """The id of a run in the store that left this recorded evidence of a real one."""
    evidence = TESTS / "smoke" / "recorded" / f"{recorded}.json"
    plan = smoke().plan.model_copy(update={"variants": ["baseline", "overlap"], "steps": 2, "pairs": 8})
    row = {
        "plan": plan.model_dump(),
        "engine": "gloo-cpu",
        "device": "CPU",
        "world_size": 2,
        "stack": {},
        "findings": [],
    }
    store = Store()
    run = store.add("cpu", row, 60.0)
    shutil.copy(evidence, store.run_folder(run.id).result)
    store.end(run.id, status, ending or {})
    return run.id


def test_a_real_run_of_a_dense_last_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id and with the configuration: the rule and the changed gradients point to one cause."""
    monkeypatch.setenv(STATE_DIR, str(tmp_path))
    fields = {"num_layers": 2, "num_moe_experts": 4, "expert_model_parallel_size": 2, "moe_layer_freq": [1, 0]}
    fields |= {"moe_token_dispatcher_type": "alltoall", "bf16": True, "overlap_moe_expert_parallel_comm": True}
    after = Question(text=json.dumps(fields), stack="megatron-core==0.16.1")
    first = diagnose_run(after=after, symptom="wrong loss", smoke_runs=[finished("dense_last")]).causes[0]
    assert (first.cause, first.confidence) == ("last-layer-dense-drops-final-norm", "likely")
    assert any("24 of 24 gradients differ" in line.text for line in first.evidence)
    assert any(line.text.startswith("last-layer-must-be-moe: ") for line in first.evidence)


def test_a_real_run_in_which_overlap_was_silently_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence of the run says so."""
    monkeypatch.setenv(STATE_DIR, str(tmp_path))
    result = diagnose_run(smoke_runs=[finished("overlap_silently_off")])
    assert result.causes[0].cause == "bridge-reset-the-flag"
    assert any("overlap was off" in line.text for line in result.causes[0].evidence)


def test_an_unknown_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with the runs there are."""
    monkeypatch.setenv(STATE_DIR, str(tmp_path))
    with pytest.raises(Refusal, match="no smoke run `smoke-9`"):
        diagnose_run(smoke_runs=["smoke-9"])


def test_a_profile_by_its_path() -> None:
    """92.86 % of the communication is hidden: the causes of none are out."""
    path = TESTS / "evals" / "files" / "overlap_on.json"
    result = diagnose_run(profiles=[path], symptom="no gain", roots=[TESTS])
    assert "one-cuda-connection-serialises" in {item.cause for item in result.ruled_out}


def test_the_command_takes_profiles(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--profile FILE` on the command line."""
    monkeypatch.chdir(TESTS / "evals" / "files")
    code = main(["diagnose", "--profile", "overlap_off.json", "--symptom", "no gain", "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    shown = {Path(line["file"]).name for cause in answer["causes"] for line in cause["evidence"]}
    assert (code, shown) == (0, {"overlap_off.json"})
