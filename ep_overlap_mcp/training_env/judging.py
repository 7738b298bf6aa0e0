"""The installed Megatron's word on a request, held against the rules' verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.check import MegatronJudgement
from ep_overlap_mcp.settings.effective import Effective
from ep_overlap_mcp.training_env.pipe import TrainingEnvironmentError

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.stack import Release
    from ep_overlap_mcp.training_env.environment import TrainingEnvironment
    from ep_overlap_mcp.training_env.judgement import Judgement

_JUDGED_OBJECTS = ("model", "comm_overlap", "ddp", "optimizer", "train")


def judge_request(request: Request, result: CheckResult, environment: TrainingEnvironment) -> MegatronJudgement:
    """Ask the installed Megatron, and say whether the rules that the same layers enforce agree with it.

    Only asked where the installed release is the one judged against and every setting of the model is known. A
    Transformer Engine that the request names and nobody installed there is stood in for, and the answer says so.
    """
    releases = request.releases()
    settings = judged_settings(request, releases[0])
    why = _why_not(request, releases, settings)
    if why is not None:
        return _not_judged(why)
    asked = {
        "megatron-core": releases[0].core.label,
        "transformer-engine": request.stack.version("transformer-engine"),
    }
    try:
        said = environment.judge(request.framework, settings, transformer_engine=asked["transformer-engine"])
    except TrainingEnvironmentError as problem:
        return _not_judged(str(problem))
    known = ["megatron-core", *(["transformer-engine"] if "transformer-engine" in request.stack.components else [])]
    for name in known:
        if not _same(said.versions.get(name), asked[name]):
            there = said.versions.get(name) or "none"
            return _not_judged(f"{name} {there} is installed there, {asked[name] or 'none'} is asked about")
    return _compared(said, result)


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


def _why_not(request: Request, releases: tuple[Release, ...], settings: dict[str, Any]) -> str | None:
    if len(releases) > 1:
        return "the release is not known; give --stack megatron-core==…"
    if request.partial:
        return f"the text is partial: {request.partial[0]}"
    unknown = [p for p, s in request.settings.items() if p.startswith("model.") and not s.known]
    if unknown:
        return f"not known: {', '.join(unknown[:4])}"
    return None if settings else "nothing of the model is stated"


def _compared(said: Judgement, result: CheckResult) -> MegatronJudgement:
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
        stand_ins=[*said.emulated, *said.stand_ins],
    )


def _not_judged(why: str) -> MegatronJudgement:
    return MegatronJudgement(judged=False, accepted=None, why=why)
