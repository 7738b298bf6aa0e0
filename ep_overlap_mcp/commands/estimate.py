"""`estimate`: a ceiling and a band for the gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.commands.common import print_results

if TYPE_CHECKING:
    import argparse

    from ep_overlap_mcp.commands.common import Verbs


_ESTIMATE_NUMBERS = (
    ("tokens-per-rank", int, True, "tokens of one microbatch on one rank: sequence x micro batch / (TP x CP)"),
    ("hidden-size", int, True, ""),
    ("topk", int, True, "experts a token goes to"),
    ("expert-parallel", int, True, "EP"),
    ("moe-layers", float, True, "MoE layers of one rank"),
    ("microbatches", int, True, "of one step"),
    ("gpus-per-node", int, False, "GPUs that NVLink joins"),
    ("bandwidth-gb-s", float, False, "what the dispatcher reaches"),
    ("step-ms", float, False, "measured step with overlap off"),
    ("exposed-ms", float, False, "measured exposed communication a step"),
    ("pipeline-parallel", int, False, "PP"),
    ("virtual-pipeline", int, False, "VPP"),
)


def add(verbs: Verbs) -> None:
    """Add the verb."""
    estimate = verbs.add_parser("estimate", help="a ceiling and a band for the gain, before a run")
    for name, kind, required, text in _ESTIMATE_NUMBERS:
        estimate.add_argument(f"--{name}", type=kind, required=required, metavar="N", help=text)
    estimate.add_argument("--dispatcher", choices=("alltoall", "deepep", "hybridep"), default="alltoall")
    estimate.add_argument("--gpu", metavar="NAME")
    estimate.add_argument("--full-recompute", action="store_true")
    estimate.add_argument("--format", choices=("text", "json"), default="text")
    estimate.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    from ep_overlap_mcp.profiles import estimate

    names = [name.replace("-", "_") for name, *_ in _ESTIMATE_NUMBERS]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    print_results(
        [estimate(**given, dispatcher=options.dispatcher, gpu=options.gpu, full_recompute=options.full_recompute)],
        options.format,
    )
    return 0
