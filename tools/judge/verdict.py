"""One verdict: the layers of a framework in the order in which a run meets them."""

from __future__ import annotations

from typing import Any

from .arguments import Settings, note
from .bridge import with_bridge
from .core import with_core
from .exceptions import NotJudged, library_fault, place, told
from .installed import installed
from .megatron_lm import with_arguments

LAYERS = {with_core: "megatron-core", with_bridge: "megatron-bridge", with_arguments: "megatron-lm arguments"}


def judge(framework: str, settings: Settings, *, strict: bool) -> dict[str, Any]:
    """One verdict: the layers of the framework in the order in which a run meets them, first exception wins."""
    found = installed()
    result: dict[str, Any] = {
        "judged": False,
        "accepted": None,
        "exception": None,
        "at": None,
        "layers": [],
        "missing_layers": [],
        "cannot_judge": found.missing,
        "versions": found.versions,
        "unknown_fields": [],
        "left_out": [],
        "stand_ins": [],
        "emulated": found.emulated,
        "effective": {},
    }
    if found.missing:
        return result
    layers = {"megatron-lm": [with_arguments, with_core], "bridge": [with_bridge]}.get(framework, [with_core])
    for layer in layers:
        if not run(layer, settings, result, strict=strict):
            break
    return result


def run(layer: Any, settings: Settings, result: dict[str, Any], *, strict: bool) -> bool:
    """Run one layer and note its verdict; True when the next layer should be asked as well."""
    try:
        layer(settings, result, strict)
    except NotJudged as problem:
        return without(layer, str(problem), settings, result, strict=strict)
    except Exception as problem:
        fault = library_fault(problem)
        if fault and layer is not with_core:
            return without(layer, fault, settings, result, strict=strict)
        if not (fault or place(problem) or strict or isinstance(problem, KeyError)):
            raise  # this program's own; Megatron's validation, a strict constructor and an enumeration aside
        result["exception"], result["at"] = told(problem), place(problem)
        result["cannot_judge"] = fault
        result["judged"], result["accepted"] = not fault, None if fault else False
        result["layers"] += [] if fault else [LAYERS[layer]]
        return False
    result["judged"], result["accepted"] = True, True
    result["layers"].append(LAYERS[layer])
    return True


def without(layer: Any, why: str, settings: Settings, result: dict[str, Any], *, strict: bool) -> bool:
    """Note a layer that cannot judge here; what Bridge would have finalized is left to the core."""
    note(result, "missing_layers", {"layer": LAYERS[layer], "why": why})
    return layer is not with_bridge or run(with_core, settings, result, strict=strict)
