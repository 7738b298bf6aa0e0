"""The installed Megatron's word on a request, held against the rules' verdict."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.check import MegatronJudgement
from ep_overlap_mcp.settings.effective import Effective
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.surface import given
from ep_overlap_mcp.training_env.pipe import TrainingEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.stack import Release
    from ep_overlap_mcp.training_env.environment import TrainingEnvironment
    from ep_overlap_mcp.training_env.judgement import Judgement

# Sizes that the rules in question do not hang on, when the verdict stands without them: the judge takes its own.
_SIZES = frozenset(
    f"model.{name}"
    for name in (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "moe_ffn_hidden_size",
        "num_attention_heads",
        "kv_channels",
        "seq_length",
        "max_position_embeddings",
    )
)
_MOST_OPEN_SWITCHES = 3
_JUDGED_OBJECTS = ("model", "comm_overlap", "ddp", "optimizer", "train")


def judge_request(request: Request, result: CheckResult, environment: TrainingEnvironment) -> MegatronJudgement:
    """Ask the installed Megatron, and say whether the rules that the same layers enforce agree with it.

    Only asked where the installed release is the one judged against and the settings of the model are known. Where the
    verdict stands without some: a switch is judged both ways, a size is the judge's own. A Transformer Engine that the
    request names and nobody installed there is stood in for. What is not the request's is named in the answer.
    """
    releases = request.releases()
    settings = judged_settings(request, releases[0])
    unknown = sorted(p for p, s in request.settings.items() if p.startswith("model.") and not s.known)
    why = _why_not(request, result, settings, unknown)
    if why is not None:
        return _not_judged(why)
    switches = [path for path in unknown if path not in _SIZES]
    asked = {
        "megatron-core": releases[0].core.label,
        "transformer-engine": request.stack.version("transformer-engine"),
    }
    try:
        answers = environment.judge_all(
            request.framework, _both_ways(settings, switches), transformer_engine=asked["transformer-engine"]
        )
    except TrainingEnvironmentError as problem:
        return _not_judged(str(problem))
    said = answers[0]
    if any(other.accepted is not said.accepted for other in answers):
        return _not_judged(f"accepted or rejected as {', '.join(switches)} is, which is not known")
    known = ["megatron-core", *(["transformer-engine"] if "transformer-engine" in request.stack.components else [])]
    for name in known:
        if not _same(said.versions.get(name), asked[name]):
            there = said.versions.get(name) or "none"
            return _not_judged(f"{name} {there} is installed there, {asked[name] or 'none'} is asked about")
    return _compared(said, result, unknown)


def _both_ways(settings: Mapping[str, Any], switches: Sequence[str]) -> list[dict[str, Any]]:
    """The settings with every combination of the switches; themselves where there are none."""
    ways = product((True, False), repeat=len(switches))
    return [{**settings, **dict(zip(switches, values, strict=True))} for values in ways]


def _same(installed: str | None, asked: str | None) -> bool:
    """Whether two versions are one release; a build's own suffix, as in 2.9.0+c1f2, is none of its name."""
    return (installed or "").partition("+")[0] == (asked or "").partition("+")[0]


def judged_settings(request: Request, release: Release) -> dict[str, Any]:
    """What is given to the judge: the stated settings after the writes of layers that are not there to make them."""
    received = Effective(request, release).core_receives()
    stated = {
        path: setting
        for path, setting in request.settings.items()
        if path.partition(".")[0] in _JUDGED_OBJECTS and not path.startswith("model.") and setting.written
    }
    return {path: s.value for path, s in {**stated, **received}.items() if s.known}


def _why_not(request: Request, result: CheckResult, settings: Mapping[str, Any], unknown: Sequence[str]) -> str | None:
    if len(request.releases()) > 1:
        return f"the release is not known; give {given('stack', 'megatron-core==RELEASE')}"
    if request.partial:
        return f"the text is partial: {request.partial[0]}"
    switches = [path for path in unknown if path not in _SIZES and field_table()[path].type == "bool"]
    open_settings = [path for path in unknown if path not in _SIZES and path not in switches]
    if open_settings or len(switches) > _MOST_OPEN_SWITCHES or (unknown and result.verdict == "undetermined"):
        return f"not known: {', '.join((open_settings or unknown)[:4])}"
    return None if settings else "nothing of the model is stated"


def _compared(said: Judgement, result: CheckResult, unknown: Sequence[str]) -> MegatronJudgement:
    if not said.judged or said.accepted is None:
        return _not_judged(said.cannot_judge or "the library failed for a reason that is not the configuration's")
    against = [f for f in result.findings if f.severity == "error" and set(f.enforced_by) & set(said.layers)]
    return MegatronJudgement(
        judged=True,
        accepted=said.accepted,
        exception=said.exception,
        at=said.at,
        agrees=said.accepted is not bool(against),
        versions=dict(said.versions),
        stand_ins=list(dict.fromkeys((*said.emulated, *said.stand_ins, *unknown))),
    )


def _not_judged(why: str) -> MegatronJudgement:
    return MegatronJudgement(judged=False, accepted=None, why=why)
