"""The libraries that this Python has to judge with."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import sys
from typing import Any

from .exceptions import told
from .stand_ins import stand_in_for_triton, standing_in


@dataclasses.dataclass(frozen=True)
class Installed:
    """What this Python can judge with; `missing` says why it cannot."""

    plain: Any = None
    latent: Any = None  # the class for multi-latent attention
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    emulated: list[str] = dataclasses.field(default_factory=list)
    missing: str | None = None


@functools.cache
def installed() -> Installed:
    """Import Megatron-Core, once; with a stand-in for Triton where that alone is missing."""
    versions = installed_versions()
    version = standing_in()
    versions |= {"transformer-engine": version} if version else {}
    if not __debug__:
        why = "this Python runs with -O or PYTHONOPTIMIZE, which removes the assertions Megatron validates with"
        return Installed(versions=versions, missing=why)
    emulated = ["transformer_engine"] if version else []
    try:
        importlib.import_module("torch")
        try:
            module = transformer_config()
        except ModuleNotFoundError as problem:
            if (problem.name or "").partition(".")[0] != "triton":
                raise
            emulated.append("triton")
            stand_in_for_triton()
            module = transformer_config()
    except Exception as problem:  # noqa: BLE001, any failure of a foreign import is an answer
        why = f"{sys.executable} cannot import torch and megatron.core: {told(problem)}"
        return Installed(versions=versions, missing=why)
    versions["megatron-core"] = importlib.import_module("megatron.core").__version__
    return Installed(module.TransformerConfig, module.MLATransformerConfig, versions, emulated)


def transformer_config() -> Any:
    """Megatron-Core's configuration module, imported as training imports it: with the whole package."""
    importlib.import_module("megatron.core.transformer")
    return importlib.import_module("megatron.core.transformer.transformer_config")


def installed_versions() -> dict[str, str]:
    """Versions from package metadata, without importing anything."""
    names = {"torch": "torch", "transformer-engine": "transformer-engine", "megatron-bridge": "megatron-bridge"}
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name, distribution in names.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(distribution)
    return versions
