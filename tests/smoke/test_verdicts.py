"""The three answers: sound evidence gives each, and nothing less does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from sound_evidence import ASKED, given, paths, sound, without

from ep_overlap_mcp.smoke.nodes import hidden, overlap_ran
from ep_overlap_mcp.smoke.numerics import numerics
from ep_overlap_mcp.smoke.speed import bootstrap_interval, speed

GOOD = ("yes", "unchanged", "faster")
ROW = ("steps", 2)


def verdicts(evidence, asked=ASKED, variant="overlap"):
    """The three words."""
    three = (overlap_ran, numerics, speed)
    return tuple(answer(evidence, asked, variant).verdict for answer in three)


def test_sound_evidence_gives_all_three_answers():
    """All nodes on all ranks, equal rows for every rank and step, eight pairs a quarter faster."""
    assert verdicts(sound()) == GOOD
    ran, equal, fast = (answer(sound(), ASKED, "overlap") for answer in (overlap_ran, numerics, speed))
    assert ran.evidence == [
        "combined-1F1B nodes a step: rank 0 42 of 42, rank 1 42 of 42",
        "communication under compute: rank 0 12.0 of 30.0 ms, rank 1 12.0 of 30.0 ms",
    ]
    assert (equal.loss_equal, equal.max_abs_grad_diff, equal.steps) == (True, 0.0, 2)
    assert (fast.ratio, fast.ci95, fast.pairs) == (1.25, (1.25, 1.25), 8)
    assert "no forecast for GPUs" in fast.applies_to
    assert hidden(sound(), ASKED, "overlap").hidden_pct == 40.0


def test_delayed_weight_gradients_must_have_run():
    """A variant that delays them is asked for their count; one that does not must have none."""
    asked = replace(ASKED, variants=("overlap_delay_wgrad",))
    assert verdicts(sound("overlap_delay_wgrad"), asked, "overlap_delay_wgrad") == GOOD
    none = given(
        sound("overlap_delay_wgrad"), [0, 0], "schedule", "overlap_delay_wgrad", "per_rank", 0, "executed_wgrad"
    )
    assert verdicts(none, asked, "overlap_delay_wgrad") == ("unknown", "unknown", "not_measured")


NEEDED = [path for path in paths(sound()) if path[0] in ("status", "schedule", "steps", "timing", "overlap")]
NOT_NEEDED = {
    "formula",
    "as_expected",
    "by_node",
    "within_rounding",
    "within_tolerance",
    "max_abs_diff",
    "max_rel_l2",
    "first_different",
    "own_ms",
}
COMPARED_TIMES = {("schedule", side, "per_rank", rank, name) for side in ("baseline", "overlap") for rank in (0, 1)
                  for name in ("comm_ms", "hidden_ms")}  # fmt: skip


@pytest.mark.parametrize("path", NEEDED, ids=lambda path: ".".join(map(str, path)))
def test_whatever_is_missing_some_answer_is_no_longer_good(path):
    """Each part of the evidence carries some answer; those that only explain may go."""
    rest = verdicts(without(sound(), *path))
    explains = (
        NOT_NEEDED & set(map(str, path))
        or path in COMPARED_TIMES
        or path[-2:] in (("params", "nonzero"), ("overlap", "baseline"))
    )
    assert (rest == GOOD) == bool(explains)


JUNK = [None, "nan", [], {}, float("nan"), [None], "text", -1, True]


@settings(max_examples=200, deadline=None)
@drawn(st.data())
def test_removing_evidence_never_makes_a_bad_run_good(data):
    """From a run with a fault, any removal of any evidence leaves the answer that the fault is about not good."""
    name = data.draw(st.sampled_from(sorted(FAULTS)))
    evidence, question = FAULTS[name]
    for _ in range(data.draw(st.integers(0, 6))):
        remaining = list(paths(evidence))
        evidence = without(evidence, *data.draw(st.sampled_from(remaining)))
    assert verdicts(evidence)[question] != GOOD[question]


@settings(max_examples=200, deadline=None)
@drawn(st.data())
def test_no_value_that_is_not_json_as_described_makes_a_bad_run_good(data):
    """Nor does a part of another type: it is no evidence, and never an exception."""
    evidence, question = FAULTS[data.draw(st.sampled_from(sorted(FAULTS)))]
    path = data.draw(st.sampled_from(list(paths(evidence))))
    junk = data.draw(st.sampled_from(JUNK))
    assert verdicts(given(evidence, junk, *path))[question] != GOOD[question]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_a_part_of_another_type_is_never_an_exception(junk):
    """Each single part of sound evidence in turn; what it carried is then not shown, or the answer stands."""
    for path in paths(sound()):
        assert all(isinstance(word, str) for word in verdicts(given(sound(), junk, *path))), path


def _both(evidence, value, part, word):
    """A difference on rank 1 step 0 said by the part and by the row."""
    return no(no(given(evidence, value, *ROW, part, word), part, "equal"), "equal")


def no(evidence, *path):
    """A word of that row said no."""
    return given(evidence, False, *ROW, *path)  # noqa: FBT003


OFF = given(given(sound(), [0, 0], "schedule", "overlap", "per_rank", 0, "executed"), [0, 0],
            "schedule", "overlap", "per_rank", 1, "executed")  # fmt: skip
NAN = no(no(given(sound(), ["nan", 5.4], *ROW, "loss", "variant"), "loss", "finite"), "finite")
# evidence and the question it must not pass: 0 overlap, 1 numerics, 2 speed
FAULTS = {
    "overlap off": (OFF, 0),
    "overlap off, equal numbers": (OFF, 1),
    "overlap off, some speed": (OFF, 2),
    "loss differs": (_both(sound(), [5.6, 5.4], "loss", "variant"), 1),
    "gradient differs": (_both(sound(), 1, "grads", "different"), 1),
    "weight differs": (_both(sound(), 1, "params", "different"), 1),
    "loss is nan": (NAN, 1),
    "run failed": (given(sound(), "failed", "status"), 1),
    "run failed, overlap": (given(sound(), "failed", "status"), 0),
    "run failed, speed": (given(sound(), "failed", "status"), 2),
    "rank missing": (without(sound(), "steps", 3), 1),
    "pair missing": (without(sound(), "timing", "overlap", "pairs", 3), 2),
}


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param(None, ("unknown", "unknown", "not_measured"), id="no result.json"),
        pytest.param({}, ("unknown", "unknown", "not_measured"), id="empty"),
        pytest.param(OFF, ("no", "unknown", "not_measured"), id="overlap silently off"),
        pytest.param(NAN, ("yes", "changed", "faster"), id="NaN in the variant only"),
        pytest.param(
            given(NAN, ["nan", 5.4], *ROW, "loss", "baseline"), ("yes", "unknown", "faster"), id="NaN in both"
        ),
        pytest.param(FAULTS["loss differs"][0], ("yes", "changed", "faster"), id="one loss differs"),
        pytest.param(FAULTS["weight differs"][0], ("yes", "changed", "faster"), id="one weight differs"),
        pytest.param(given(sound(), 1, *ROW, "grads", "different"), ("yes", "changed", "faster"), id="words disagree"),
        pytest.param(
            given(sound(), 0, *ROW, "grads", "nonzero"), ("yes", "unknown", "faster"), id="all gradients zero"
        ),
        pytest.param(given(sound(), 0, *ROW, "rank"), ("yes", "unknown", "faster"), id="a rank twice"),
        pytest.param(
            given(sound(), [42, 41], "schedule", "overlap", "per_rank", 1, "executed"),
            ("unknown", "unknown", "not_measured"),
            id="a node missing in one step",
        ),
        pytest.param(
            given(sound(), [42, 42], "schedule", "baseline", "per_rank", 0, "executed"),
            ("unknown", "unknown", "not_measured"),
            id="the baseline overlapped too",
        ),
        pytest.param(
            given(sound(), [{"rank": r, "comm_ms": 30.0, "hidden_ms": 0.0} for r in (0, 1)], "overlap", "overlap"),
            ("no", "unchanged", "faster"),
            id="the schedule ran and nothing was hidden",
        ),
        pytest.param(
            given(sound(), {"baseline": [50.0, 650.0], "variant": [50.0, 650.0]}, "timing", "overlap", "own_ms"),
            ("yes", "unchanged", "not_measured"),
            id="a slow rank",
        ),
    ],
)
def test_faults(evidence, expected):
    """What each fault does to the three answers."""
    assert verdicts(evidence) == expected


def test_a_rank_that_is_slow_in_the_variant_only_is_named_with_the_speed():
    """The pairs count, and the rank that explains them is said."""
    own = given(sound(), {"baseline": [50.0, 52.0], "variant": [650.0, 52.0]}, "timing", "overlap", "own_ms")
    assert speed(own, ASKED, "overlap").evidence == [
        "rank 0 is slow in overlap: 650 ms of its own a step, the others 52 ms"
    ]


UNTIMED = without(without(sound(), "timing"), "overlap")  # of a run that was asked for no pairs
HIDDEN = [("schedule", "overlap", "per_rank", rank, "hidden_ms") for rank in (0, 1)]


def test_without_timed_pairs_the_compared_steps_show_whether_streams_worked_at_once():
    """The nodes of the compared steps have times too; without any cover among them overlap did not run."""
    asked = replace(ASKED, pairs=0)
    assert verdicts(UNTIMED, asked) == ("yes", "unchanged", "not_measured")
    assert overlap_ran(UNTIMED, asked, "overlap").evidence[-1] == (
        "communication under compute in the compared steps: rank 0 24.0 of 60.0 ms, rank 1 24.0 of 60.0 ms"
    )
    one_after_the_other = given(given(UNTIMED, 0.0, *HIDDEN[0]), 0.0, *HIDDEN[1])
    assert verdicts(one_after_the_other, asked)[0] == "no"


@pytest.mark.parametrize("path", HIDDEN, ids=str)
def test_without_any_times_the_count_of_nodes_alone_is_no_yes(path):
    """A schedule whose streams wait for each other runs the same nodes; what would decide is said."""
    asked = replace(ASKED, pairs=0)
    ran = overlap_ran(without(UNTIMED, *path), asked, "overlap")
    assert ran.verdict == "unknown"
    assert "timed pairs (--pairs 8) would show it" in ran.evidence[-1]


@pytest.mark.parametrize("pairs", [0, 8])
def test_one_microbatch_overlaps_nothing(pairs):
    """All nodes run, and the only forward and backward pass run alone, whatever the clock says."""
    asked = replace(ASKED, pairs=pairs, microbatches=1)
    ran = overlap_ran(sound(), asked, "overlap")
    assert ran.verdict == "no"
    assert ran.evidence[-1].startswith("one microbatch a step: the first forward and the last backward pass run alone")


def test_one_gpu_shows_no_speed():
    """Ranks that share a GPU and send through host memory are timed for nothing."""
    asked = replace(ASKED, engine="gloo-gpu")
    assert verdicts(sound(), asked) == ("yes", "unchanged", "not_measured")


def test_nccl_is_held_to_its_tolerance():
    """Where the order of sums is free, the row's own tolerance decides."""
    asked = replace(ASKED, engine="nccl-gpu")
    rounded = FAULTS["gradient differs"][0]
    assert verdicts(rounded, asked)[1] == "unchanged"
    assert verdicts(no(rounded, "within_tolerance"), asked)[1] == "changed"
    assert verdicts(without(rounded, *ROW, "within_tolerance"), asked)[1] == "unknown"


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.1, 1.2, 1.15, 1.12, 1.18, 1.2, 1.11, 1.13], "faster"),
        ([0.9, 0.8, 0.85, 0.88, 0.82, 0.8, 0.89, 0.87], "slower"),
        ([1.1, 0.9, 1.05, 0.95, 1.2, 0.8, 1.0, 1.02], "no_difference_shown"),
        ([1.5, 1.4, 0.99, 0.98, 0.97, 0.96, 0.95, 1.3], "no_difference_shown"),
    ],
)
def test_speed_is_decided_by_the_interval(ratios, expected):
    """Faster only when the whole interval is above 1."""
    pairs = [
        {"order": ["baseline", "overlap"], "ms": {"baseline": 100.0 * ratio, "variant": 100.0},
         "per_rank_ms": {"baseline": [100.0 * ratio, 90.0], "variant": [100.0, 90.0]}}
        for ratio in ratios
    ]  # fmt: skip
    assert speed(given(sound(), pairs, "timing", "overlap", "pairs"), ASKED, "overlap").verdict == expected


@settings(max_examples=30, deadline=None)
@drawn(st.lists(st.floats(0.2, 5.0), min_size=8, max_size=16))
def test_the_bootstrap_interval_lies_within_the_values_and_is_repeatable(values):
    """It holds the median's neighbourhood, and the same values give the same interval."""
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= high <= max(values)
    assert bootstrap_interval(values) == (low, high)


def test_the_bootstrap_interval_covers_the_median_about_as_often_as_it_says():
    """Of 200 samples of eight pairs from a known distribution, at least nine in ten intervals hold its median."""
    from random import Random

    draw = Random(5)
    samples = [[draw.lognormvariate(0.0, 0.1) for _ in range(8)] for _ in range(200)]
    intervals = [bootstrap_interval(sample) for sample in samples]
    assert sum(low <= 1.0 <= high for low, high in intervals) >= 180
