"""The libraries that this Python has to judge with."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.metadata
import sys
import types
from typing import Any

from .exceptions import told


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
    if not __debug__:
        why = "this Python runs with -O or PYTHONOPTIMIZE, which removes the assertions Megatron validates with"
        return Installed(versions=versions, missing=why)
    emulated: list[str] = []
    try:
        importlib.import_module("torch")
        try:
            module = transformer_config()
        except ModuleNotFoundError as problem:
            if (problem.name or "").partition(".")[0] != "triton":
                raise
            emulated = ["triton"]
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


def stand_in_for_triton() -> None:
    """Megatron-Core 0.18 and later import Triton for kernels that constructing a configuration never runs.

    torch has looked for Triton by now and does not look again, so it does not take the stand-in for real.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]
    for name in ("triton", "triton.language"):
        module = Unusable(name)
        module.__path__ = []
        vars(module)["__version__"] = "0.0.0"  # older than any version that a check asks for
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    sys.modules["triton"].language = sys.modules["triton.language"]  # type: ignore[attr-defined]


class Unusable(types.ModuleType):
    """A module whose every name is a decorator that returns what it decorates."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return decorator


def decorator(*arguments: Any, **options: Any) -> Any:
    """`@jit` and `@jit(...)` alike leave the function as it is."""
    return arguments[0] if len(arguments) == 1 and not options else decorator
