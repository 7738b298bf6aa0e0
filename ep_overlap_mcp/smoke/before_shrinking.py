"""What shrinking would hide: the configuration as it is, judged by the installed Megatron."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ep_overlap_mcp.stack import Component

if TYPE_CHECKING:
    from ep_overlap_mcp.results.check import CheckResult
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.training_env import TrainingEnvironment

SHOWN_TO_MEGATRON = "2.10.0"  # Transformer Engine where none is installed: what needs it is stood in for, and said


def rejected_by_megatron(request: Request, result: CheckResult, environment: TrainingEnvironment) -> dict[str, str]:
    """Why the installed Megatron rejects the request, as `check --python` asks it; nothing where it cannot be asked.

    Only a local Megatron is asked: another would have to be started behind the prefix or in the cluster's queue.
    """
    if environment.prefix or environment.cluster:
        return {}
    from ep_overlap_mcp.training_env.judging import judge_request

    if request.stack.version("transformer-engine") is None:
        shown = {**request.stack.components, "transformer-engine": Component(SHOWN_TO_MEGATRON, "given")}
        request = replace(request, stack=replace(request.stack, components=shown))
    said = judge_request(request, result, environment)
    if said.accepted is not False:
        return {}
    place = f" at {said.at}" if said.at else ""
    return {"installed megatron-core": f"the installed megatron-core rejects it: {said.exception}{place}"}
