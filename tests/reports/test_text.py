"""Text for people: the worst first, with places, and colour only where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.text import as_text

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import CheckResult

WHOLE = """\
pretrain <moe> & more\x07: Judged as written. INVALID for megatron-core 0.16.1. 2 errors.
  error  EPO104 pipeline-needs-virtual-stages: PP is 4 without virtual stages
      at jobs/pretrain moe.sh:12
      fix: model.virtual_pipeline_model_parallel_size=2
      fix: model.pipeline_model_parallel_size=1 (gives up the pipeline)
  error  EPO105 no-full-recompute: granularity is full <- é
      at jobs/pretrain moe.sh:20, jobs/pretrain moe.sh:12, --set
  warning  EPO606 more-than-one-cuda-connection: one connection serialises
      at jobs/pretrain moe.sh:3
  info  EPO809 assumed-version-floor: torch taken as new enough
  undecided error  EPO602 deepep-needs-supported-gpu: hardware.gpu is not known
  noted, not decided: too-few-microbatches-to-overlap
  runs with: overlap on, delayed wgrad off, dispatcher alltoall (asked for flex)
  installed Megatron: rejects: ValueError at transformer_config.py:1857; agrees
97 rules checked; `ep-overlap-mcp explain NAME` tells more about one
"""


def test_every_category_in_text(everything: CheckResult) -> None:
    """Verdict, findings by severity with places and fixes, what is undecided, what will run, the judge."""
    assert as_text([everything]) == WHOLE


def test_a_disagreement_stands_first_and_is_named(contradicted: CheckResult) -> None:
    """A verdict that the installed Megatron contradicts is never quiet."""
    lines = as_text([contradicted]).splitlines()
    assert "DISAGREEMENT" in lines[0]
    assert "  installed Megatron: accepts; DISAGREES with the rules" in lines


def test_undecided_never_reads_as_a_pass(open_only: CheckResult) -> None:
    """Without a finding, the open error rule still stands under a verdict that is no pass."""
    text = as_text([open_only])
    assert "UNDETERMINED" in text.splitlines()[0]
    assert "  undecided error  EPO602 deepep-needs-supported-gpu: hardware.gpu is not known" in text.splitlines()
    assert "valid for" not in text.lower().replace("invalid", "")


def test_several_answers_are_set_apart(everything: CheckResult, open_only: CheckResult) -> None:
    """A blank line between two."""
    assert as_text([everything, open_only]) == WHOLE + "\n" + as_text([open_only])


def test_colour_changes_no_words(open_only: CheckResult) -> None:
    """On a terminal the same lines, with escapes around them."""
    colored = as_text([open_only], color=True)
    assert "\x1b[" in colored
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == as_text([open_only])


def test_overlap_that_will_not_be_on_is_shouted(everything: CheckResult) -> None:
    """Asked for and reset by the stack."""
    off = everything.overlap.model_copy(update={"effective": False})
    assert "overlap OFF, though asked for" in as_text([everything.model_copy(update={"overlap": off})])
