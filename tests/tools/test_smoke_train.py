"""tools/smoke_train.py under a real torchrun, with the installed megatron-core, on gloo ranks on the CPU."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

pytestmark = [
    pytest.mark.megatron,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed in this Python"),
]

PROGRAM = Path(__file__).parents[2] / "tools" / "smoke_train.py"
MODEL = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128,
    "num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 128, "expert_model_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall", "moe_router_load_balancing_type": "none",
    "moe_router_dtype": "fp32", "add_bias_linear": False, "bf16": True,
}  # fmt: skip
TRAIN = {"micro_batch_size": 1, "num_microbatches": 2, "seq_length": 16, "vocab_size": 128}


def smoke_run(out, *, ranks=2, model=None, fault=None, **options):
    """Run the program; torchrun's exit status and result.json."""
    request = {
        "engine": "gloo-cpu",
        "seed": 7,
        "model": {**MODEL, **(model or {})},
        "train": TRAIN,
        "variants": ["baseline", "overlap"],
        "parity_steps": 1,
        "pairs": 0,
        "warmup": 0,
        "fault": fault and {"rank": 1, "step": 0, **fault},
        **options,
    }
    out.mkdir(exist_ok=True)
    (out / "request.json").write_text(json.dumps(request))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with (out / "log").open("w") as log:
        status = subprocess.run(
            [*torchrun, PROGRAM, "--request", out / "request.json", "--out", out],
            stdout=log, stderr=subprocess.STDOUT, timeout=240, check=False, env=os.environ,
        ).returncode  # fmt: skip
    result = out / "result.json"
    assert result.exists(), (out / "log").read_text()[-3000:]
    return status, json.loads(result.read_text())


@pytest.fixture(scope="module")
def three_variants(tmp_path_factory):
    """Baseline and both variants with shared experts, a dense layer and the distributed optimizer."""
    out = tmp_path_factory.mktemp("three")
    status, result = smoke_run(
        out,
        model={"moe_layer_freq": [0, 1], "moe_shared_expert_intermediate_size": 64, "hidden_dropout": 0.1},
        ddp={"use_distributed_optimizer": True, "overlap_grad_reduce": True},
        variants=["baseline", "overlap", "overlap_delay_wgrad"],
        parity_steps=2,
        pairs=2,
        warmup=1,
        profile=True,
    )
    return status, result, out


def test_combined_schedule_ran_as_often_as_expected(three_variants):
    """Nodes and delayed weight gradients of each variant equal the formula; the baseline has none."""
    _, result, _ = three_variants
    rows = {name: row["per_rank"] for name, row in result["schedule"].items()}
    # 2 microbatches x (2 pre + 3 post and loss + 2 x (4 nodes of the MoE layer + 2 of the dense one)); 2 layers x 2
    counts = {"baseline": (0, 0), "overlap": (34, 0), "overlap_delay_wgrad": (34, 8)}
    seen = {
        name: {(r["rank"], *r["executed"], *r["executed_wgrad"], r["as_expected"]) for r in ranks}
        for name, ranks in rows.items()
    }
    assert seen == {
        name: {(rank, nodes, nodes, wgrads, wgrads, True) for rank in (0, 1)}
        for name, (nodes, wgrads) in counts.items()
    }


def test_numbers_are_bitwise_equal_on_every_rank_and_step(three_variants):
    """Losses, gradients, gradient norm and parameters of both variants equal the baseline's bit for bit."""
    status, result, _ = three_variants
    assert (status, result["status"], result["tolerance"]) == (0, "completed", {"kind": "bitwise"})
    rows = {(r["variant"], r["rank"], r["step"]): r for r in result["steps"]}
    assert set(rows) == {(v, k, s) for v in ("overlap", "overlap_delay_wgrad") for k in (0, 1) for s in (0, 1)}
    for row in rows.values():
        assert row["equal"]
        assert row["finite"]
        assert len(row["loss"]["baseline"]) == TRAIN["num_microbatches"]
        assert row["grads"]["tensors"] == row["grads"]["nonzero"] == row["params"]["tensors"] > 20
        assert row["grad_norm"]["baseline"] == row["grad_norm"]["variant"] > 0


def test_timing_is_paired_and_alternates(three_variants):
    """Each pair holds both sides, the order alternates, warm-up is apart, and the slowest rank counts."""
    _, result, _ = three_variants
    timing = result["timing"]["overlap"]
    assert [p["order"] for p in timing["pairs"]] == [["overlap", "baseline"], ["baseline", "overlap"]]
    assert len(timing["warmup_pairs"]) == 1
    for pair in timing["pairs"]:
        assert pair["ms"] == {side: max(ranks) for side, ranks in pair["per_rank_ms"].items()}
        assert 0 < pair["forward_backward_ms"]["variant"] < pair["ms"]["variant"]


def test_communication_overlaps_compute_in_the_threads_mode(three_variants):
    """Some all-to-all time lies inside compute nodes, and never more than there is."""
    _, result, _ = three_variants
    assert result["overlap"]["baseline"] is None
    for row in result["overlap"]["overlap"]:
        # 2 microbatches x 1 MoE layer x (tokens, probabilities, combine) x (forward, backward)
        assert row["all_to_all_calls"] == 12
        assert 0 < row["hidden_ms"] <= min(row["comm_ms"], row["compute_ms"])
        assert 0 < row["all_to_all_hidden_ms"] <= row["all_to_all_ms"]


def test_each_variant_leaves_a_trace_with_all_its_collectives(three_variants):
    """The Kineto traces hold as many all-to-all events as were called, on the comm-stream thread too."""
    _, result, _ = three_variants
    for name in ("baseline", "overlap", "overlap_delay_wgrad"):
        for row in result["profile"][name]["traces"]:
            with gzip.open(row["file"]) as file:
                events = [e for e in json.load(file)["traceEvents"] if e.get("name") == "gloo:all_to_all"]
            assert len(events) == row["all_to_all_events"] == row["all_to_all_calls"] == 12


def test_the_result_says_what_ran_and_what_did_not(three_variants):
    """Versions with the import path, layout, emulations, forced settings and what was not tested."""
    _, result, out = three_variants
    assert result["versions"]["megatron_core"] == version("megatron-core")
    assert Path(result["versions"]["megatron_core_path"]).parts[-2:] == ("megatron", "core")
    assert result["parallel"] == {"tp": 1, "cp": 1, "pp": 1, "vpp": None, "ep": 2, "etp": 1, "dp": 2, "edp": 1}
    assert any("delayed weight gradients" in text for text in result["emulated"])
    assert "NCCL" in result["not_tested"]
    forced = {row["setting"]: (row["from"], row["to"]) for row in result["adjusted"]}
    assert forced["model.hidden_dropout"] == (0.1, 0.0)
    phases = [json.loads(line)["phase"] for line in (out / "progress.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(phases)) == ["import", "build", "parity", "timing", "profile", "gather", "done"]
    assert json.loads((out / "rank1.json").read_text())["status"] == "completed"


def test_pipeline_with_virtual_stages_and_a_loss_that_becomes_nan(tmp_path):
    """PP 2 x VPP 2 x EP 2, delayed weight gradients: step 0 is equal; NaN in both at step 1 is not."""
    status, result = smoke_run(
        tmp_path,
        ranks=4,
        model={"num_layers": 4, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
        variants=["baseline", "overlap_delay_wgrad"],
        parity_steps=2,
        fault={"kind": "nan_loss", "rank": 3, "step": 1},
    )
    assert (status, result["status"]) == (0, "completed")
    rows = result["schedule"]["overlap_delay_wgrad"]["per_rank"]
    # 2 microbatches x (2 chunks x 2 + 2 x 4 nodes x 2 layers), and 3 more on the last stage
    assert [(r["executed"], r["as_expected"]) for r in rows] == [([40] * 2, True)] * 2 + [([46] * 2, True)] * 2
    steps = {(r["rank"], r["step"]): r for r in result["steps"]}
    assert [(steps[k, 0]["equal"], len(steps[k, 0]["loss"]["variant"])) for k in range(4)] == [(True, 0)] * 2 + [
        (True, 2)
    ] * 2
    nan = steps[3, 1]
    assert nan["loss"]["baseline"] == nan["loss"]["variant"] == ["nan", "nan"]
    assert (nan["equal"], nan["within_rounding"], nan["finite"]) == (False, False, False)


def test_one_local_expert_crashes_before_0_17(tmp_path):
    """Overlap with alltoall and one local expert a rank frees tokens that backward needs; fixed in 0.17."""
    status, result = smoke_run(tmp_path, model={"num_moe_experts": 2}, mode="inline")
    if Version(version("megatron-core")) >= Version("0.17"):
        assert (status, all(row["equal"] for row in result["steps"])) == (0, True)
        return
    assert (status, result["status"]) == (1, "failed")
    failure = result["failure"]
    assert (failure["phase"], failure["variant"]) == ("parity", "overlap")
    assert "data is not allocated" in failure["error"]["message"]


def test_dense_last_layer_changes_the_loss_and_a_slow_rank_shows_in_its_own_time(tmp_path):
    """Overlap with a dense last layer skips the final norm (0.16.1 to 0.19.0): far beyond rounding, never equal."""
    slow = {"kind": "slow_rank", "seconds": 0.5}
    status, result = smoke_run(tmp_path, model={"moe_layer_freq": [1, 0]}, fault=slow, pairs=1, mode="inline")
    assert (status, result["status"]) == (0, "completed")
    for row in result["steps"]:
        assert (row["equal"], row["within_rounding"], row["finite"]) == (False, False, True)
        assert row["loss"]["max_abs_diff"] > 1e-3
        assert row["grads"]["different"] == row["grads"]["tensors"]
    for ranks in result["timing"]["overlap"]["own_ms"].values():
        assert ranks[1] > 500 > ranks[0]


@pytest.mark.parametrize("kind", ["drop_wgrad", "missing_wait"])
def test_a_planted_numeric_fault_is_seen_where_it_happened(kind, tmp_path):
    """A lost gradient or a stale receive buffer on rank 1 is a difference beyond rounding, on that rank."""
    status, result = smoke_run(tmp_path, fault={"kind": kind}, mode="inline")
    assert (status, result["fault"]["kind"]) == (0, kind)
    row = next(r for r in result["steps"] if r["rank"] == 1)
    assert (row["equal"], row["within_rounding"], row["finite"]) == (False, False, True)
    if kind == "drop_wgrad":
        assert row["grads"]["different"] == 1
        assert ".experts." in row["grads"]["first_different"]


def test_overlap_silently_off_is_seen(tmp_path):
    """Equal numbers do not hide that no node of the combined schedule ran."""
    status, result = smoke_run(tmp_path, fault={"kind": "overlap_silently_off"}, mode="inline")
    assert (status, [row["equal"] for row in result["steps"]]) == (0, [True, True])
    rows = result["schedule"]["overlap"]["per_rank"]
    assert [(r["expected"], r["executed"], r["as_expected"]) for r in rows] == [(42, [0], False)] * 2


def test_a_rank_that_dies_is_named(tmp_path):
    """The killed rank is the cause, even when it is rank 0; what its peer meets is only the sign."""
    status, result = smoke_run(tmp_path, fault={"kind": "die", "rank": 0}, mode="inline")
    failure = result["failure"]
    assert (status, result["status"], failure["rank"]) == (1, "failed", 0)
    assert failure["ranks"]["0"] == "no report"
    assert failure["ranks"]["1"] in (
        "failed",
        "terminated",
    )  # by the closed connection, or by torchrun, whichever is first
    assert (failure["phase"], failure["variant"], failure["step"]) == ("parity", "overlap", 0)


def test_a_rank_that_hangs_is_named_with_its_stacks(tmp_path):
    """The timeout of its peer names the hanging rank, the collective that waited, and where the rank sleeps."""
    status, result = smoke_run(tmp_path, fault={"kind": "hang"}, collective_timeout_s=6)
    failure = result["failure"]
    assert (status, result["status"], failure["rank"], failure["odd_ranks"]) == (1, "failed", 1, [1])
    assert "Timed out waiting" in failure["error"]["message"]
    assert failure["in_flight"]["0"][0]["done"] is False
    assert failure["last_collective"]["1"]["name"] == "barrier"
    assert "in at_step_start" in (tmp_path / "rank1.stacks.txt").read_text()
