"""Every proposal for a folder of configurations, applied as a user would and put before the real `TransformerConfig`.

python benchmarks/proposals_accepted.py PLACE [--python PATH] [--megatron FOLDER] [--stack NAME==VERSION,...]

PLACE is a folder, every file of which is a configuration, or a JSON list of questions about files beside it:
`[{"files": ["models/moe.sh", "run.sh"], "stack": "...", "gpu": "H100", "nodes": 2, "set": ["model.num_layers=48"]}]`.

For each configuration: propose, apply the patch to copies (`patch -p1` for a diff, else the changes are laid over the
file), read the copies again as written, check them, and let the installed Megatron judge them. A line of JSON each,
then the counts by class; exit 1 when a proposal that is said `valid` is not so after application, or is rejected.
`--megatron` is a folder with another unpacked release of megatron-core to judge with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.rules.checking import check, with_judgement
from ep_overlap_mcp.training_env import TrainingEnvironment
from ep_overlap_mcp.verbs import Question, as_overrides, judgement, propose_configuration, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.results.propose import ProposeResult
    from ep_overlap_mcp.settings.request import Assume, Request

DEFECTS = ("not applied", "not valid once applied", "rejected", "disagreement")
APPLY_LIMIT_S = 60.0


def main() -> int:
    """Print a line a configuration and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the training environment's Python")
    parser.add_argument("--megatron", type=Path, help="a folder that holds another release's package `megatron`")
    parser.add_argument("--stack", default="", help="as for `propose`; what it leaves open is what is installed")
    parser.add_argument("--assume", default="overlap", choices=("overlap", "overlap_delay_wgrad"))
    options = parser.parse_args()
    classes: Counter[str] = Counter()
    variables = {"PYTHONPATH": str(options.megatron)} if options.megatron else {}
    with TrainingEnvironment(options.python, variables=variables) as environment:
        stack = f"{installed_core(environment)},{options.stack}"
        asked = list(questions(options.place, stack, options.assume))
        for question in asked:
            for line in tried(question, environment):
                classes[line["class"]] += 1
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
    sys.stdout.write(json.dumps({"questions": len(asked), "classes": dict(classes.most_common())}, indent=2) + "\n")
    return int(any(classes[name] for name in DEFECTS))


def installed_core(environment: TrainingEnvironment) -> str:
    """The release that judges, as a stack names it; a stack given later wins."""
    return f"megatron-core=={environment.describe(fast=True).components['megatron-core'].version}"


def questions(place: Path, stack: str, assume: Assume) -> Iterator[Question]:
    """A question for each file of a folder, or for each entry of a list."""
    common = Question(roots=(Path("/"),), assume=assume, stack=stack)
    if place.is_dir():
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            yield replace(common, files=(path.resolve(),))
        return
    for entry in json.loads(place.read_text(encoding="utf-8")):
        yield replace(
            common,
            files=tuple((place.parent / name).resolve() for name in entry["files"]),
            stack=entry.get("stack", stack),
            overrides=tuple(entry.get("set", ())),
            gpu=entry.get("gpu"),
            nodes=entry.get("nodes"),
            gpus_per_node=entry.get("gpus_per_node"),
        )


def tried(question: Question, environment: TrainingEnvironment) -> Iterator[dict[str, Any]]:
    """What became of each configuration of a question."""
    files = [str(path) for path in question.files]
    try:
        found = requests(question)
    except Refusal as why:
        yield {"files": files, "class": "not a configuration", "why": str(why)}
        return
    proposed = propose_configuration(question)
    for number, (request, proposal) in enumerate(zip(found, proposed, strict=True)):
        line = {
            "files": files,
            "configuration": request.name,
            "framework": request.framework,
            "dialect": request.readings[-1].dialect,
            "verdict_before": proposal.verdict_before,
            "verdict_after": proposal.verdict_after,
            "changes": {change.path: change.to for change in proposal.changes},
            "patch": proposal.patch and proposal.patch.format,
        }
        yield line | judged(question, number, proposal, environment)


def judged(
    question: Question, number: int, proposal: ProposeResult, environment: TrainingEnvironment
) -> dict[str, Any]:
    """The class of the proposal for one of a question's configurations, and what shows it."""
    if proposal.blocked_by:
        return {"class": "blocked", "blocked_by": proposal.blocked_by}
    if proposal.mends and proposal.patch is not None and proposal.patch.format != "diff":
        return {"class": "to mend by hand", "mends": [mend.before for mend in proposal.mends]}
    try:
        request = applied(question, proposal)[number]
    except (Refusal, RuntimeError) as why:
        return {"class": "not applied", "why": str(why)}
    result = check(request)
    result = with_judgement(result, judgement(request, result, environment))
    megatron = result.megatron
    assert megatron is not None  # noqa: S101 - an environment was given
    said = {
        "verdict_applied": result.verdict,
        "overlap_applied": result.overlap.effective,
        "errors": [f"{f.name}: {f.message}" for f in result.findings if f.severity == "error"],
        "undecided": {u.name: u.needs for u in result.undecided if u.severity == "error"},
        "megatron": megatron.model_dump(exclude_none=True, exclude={"versions"}),
    }
    return {"class": class_of(proposal, result), **said}


def class_of(proposal: ProposeResult, result: CheckResult) -> str:
    """One word for what came out."""
    megatron = result.megatron
    if megatron.accepted is False:
        return "rejected" if proposal.verdict_after == "valid" else "rejected, not said valid"
    if megatron.agrees is False:
        return "disagreement"
    if proposal.verdict_after != "valid":
        return "undetermined, accepted" if megatron.accepted else "undetermined"
    if result.verdict != "valid" or not result.overlap.effective:
        return "not valid once applied"
    return "accepted" if megatron.accepted else "valid, not judged"


def applied(question: Question, proposal: ProposeResult) -> list[Request]:
    """What copies of the files with the patch in them ask for, as written."""
    plain = replace(question, assume="as_written")
    patch = proposal.patch
    if patch is None:
        return requests(plain)
    if patch.format != "diff":
        changes = {change.path: change.to for change in proposal.changes}
        laid_over = replace(plain, overrides=(*plain.overrides, *as_overrides(changes)))
        return requests(laid_over)
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, str(path).lstrip("/")) for path in question.files]
        for original, copy in zip(question.files, copies, strict=True):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(original.read_bytes())
        command = ["patch", "-p1", "--batch", "--fuzz=0", "-d", folder]
        done = subprocess.run(
            command, input=patch.text.encode(), capture_output=True, timeout=APPLY_LIMIT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"patch: {(done.stdout + done.stderr).decode(errors='replace').strip()}")
        return requests(replace(plain, files=tuple(copies)))


if __name__ == "__main__":
    sys.exit(main())
