"""A failure that a run went on after is told as such; words of errors in scripts and sentences are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ep_overlap_mcp.diagnosis import diagnose

if TYPE_CHECKING:
    from ep_overlap_mcp.results.diagnose import DiagnoseResult


def steps(first: int, last: int) -> str:
    """Steps as Megatron-LM logs them."""
    return "".join(
        f" [2026-11-30 12:{n:02d}:00] iteration {n}/ 60 | elapsed time per iteration (ms): 1000.0 | lm loss: 5.0E+0 |\n"
        for n in range(first, last)
    )


CAUGHT = """\
WARNING: could not import deep_ep, falling back
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    import deep_ep
ModuleNotFoundError: No module named 'deep_ep'
"""
OUT_OF_MEMORY = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
AGAIN = "Restarting worker group; 2/3 attempts left\n"
DONE = "[after training is done] datetime: 2026-11-30 13:00:00\n"
SAVED = "  successfully saved checkpoint from iteration      40 to /ckpt [ t 1/2, p 1/2 ]\n"


def first(result: DiagnoseResult) -> tuple[str, str]:
    """The first cause with its confidence."""
    return result.causes[0].cause, result.causes[0].confidence


@pytest.mark.parametrize(
    ("log", "ended", "cause"),
    [
        (CAUGHT + steps(0, 60) + DONE, "completed", "flex-package-not-importable"),
        (CAUGHT + DONE, "completed", "flex-package-not-importable"),
        (OUT_OF_MEMORY + AGAIN + steps(0, 60) + DONE, "completed", "out-of-memory"),
        (OUT_OF_MEMORY + AGAIN + steps(0, 1), "went on", "out-of-memory"),
        (CAUGHT + steps(0, 5), "went on", "flex-package-not-importable"),
        (CAUGHT + steps(0, 1) + SAVED, "went on", "flex-package-not-importable"),
    ],
)
def test_what_a_run_went_on_after_is_told_and_ended_nothing(log: str, ended: str, cause: str) -> None:
    """Steps, a checkpoint, another attempt or the end of the training follow it: the cause is possible at most."""
    result = diagnose(text=log)
    assert (result.ended, result.first_failure, *first(result)) == (ended, None, cause, "possible")
    assert result.seen[0].line == log[: log.index("Error: ")].count("\n") + 1
    went_on = "an attempt ended with this, and a later one went on" if AGAIN in log else "the run went on after this"
    assert result.seen[0].text.startswith(went_on)
    assert f"It recovered from {cause}" in result.summary
    assert "onfirmed" not in result.summary


@pytest.mark.parametrize("log", [OUT_OF_MEMORY + steps(0, 4), steps(0, 60) + OUT_OF_MEMORY, DONE + OUT_OF_MEMORY])
def test_a_few_steps_may_be_lines_that_another_rank_had_buffered(log: str) -> None:
    """Without a word of a launcher only steps that no job makes without a rank show that it went on."""
    assert (diagnose(text=log).ended, *first(diagnose(text=log))) == ("failed", "out-of-memory", "confirmed")


def test_a_failure_that_ended_the_run_counts_before_what_it_went_on_after() -> None:
    """The import was caught, sixty steps later memory ran out."""
    result = diagnose(text=CAUGHT + steps(0, 60) + OUT_OF_MEMORY)
    assert [(c.cause, c.confidence) for c in result.causes] == [("out-of-memory", "confirmed")]
    assert "ModuleNotFoundError" in result.seen[0].text


def test_steps_made_before_a_failure_but_printed_after_it_show_nothing() -> None:
    """Their time says so."""
    late = "2026-11-30 13:00:00 [rank3]: torch.OutOfMemoryError: CUDA out of memory.\n"
    assert first(diagnose(text=late + steps(0, 60))) == ("out-of-memory", "confirmed")


REFUSED = "AssertionError: disable full recomputation when enabling overlap_moe_expert_parallel_comm"


@pytest.mark.parametrize(
    "line",
    [
        f"# fixes '{REFUSED}' seen last week",
        f"+ echo 'grep for {REFUSED}'",
        "We had no CUDA out of memory",
        "There was no CUDA out of memory and no NCCL timeout.",
        "It ran all night without CUDA out of memory",
        "all ranks: no CUDA out of memory",
        f"We had no CUDA out of memory. All good; {REFUSED} is NOT what we saw.",
    ],
)
def test_words_of_an_error_in_a_script_or_a_sentence_are_no_failure(line: str) -> None:
    """Nothing failed where a comment, a traced command or a sentence speaks of an error."""
    result = diagnose(text=line + "\n")
    assert (result.ended, result.first_failure, *first(result)) == ("not said", None, "unknown", "possible")


def test_a_sentence_that_names_a_symptom_gives_its_candidates() -> None:
    """What it denies is not among them."""
    result = diagnose(text="We get NaN since overlap is on, but no CUDA out of memory.")
    assert first(result) == ("attention-graph-nan", "possible")
    assert "out-of-memory" not in {cause.cause for cause in result.causes}


def test_no_gain_is_a_symptom_and_no_denial() -> None:
    """The word that denies is part of its name."""
    assert first(diagnose(text="We see no gain from overlap."))[0] == "one-cuda-connection-serialises"
