"""Empty packages in the place of libraries that Megatron asks for and that building a configuration never runs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

# What Megatron looks for by name and not by version is in Transformer Engine since this release: fused permutation.
OLDEST_TRANSFORMER_ENGINE = (2, 1)


def stand_in_for_transformer_engine(version: str) -> None:
    """Let `import transformer_engine` find an empty package of this version, where none is installed.

    Megatron's configuration asks for the version, and whether the names of some kernels can be imported.
    """
    release = tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
    if release >= OLDEST_TRANSFORMER_ENGINE and importlib.util.find_spec("transformer_engine") is None:
        sys.meta_path.append(TransformerEngine(version))


def standing_in() -> str | None:
    """The version of Transformer Engine that is stood in for."""
    return next((finder.version for finder in sys.meta_path if isinstance(finder, TransformerEngine)), None)


class TransformerEngine(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of Transformer Engine, each an empty one of a stated version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """A package for each name below the library's."""
        known = name.partition(".")[0] == "transformer_engine"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty module."""
        module = Hollow(spec.name)
        vars(module)["__version__"] = self.version
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing stands in it."""


class Hollow(types.ModuleType):
    """A module whose submodules are there, whose other names are classes and, in lower case, functions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper() or name[1:2].isupper():
            return HollowType(name, (), {})
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{self.__name__}.{name}")
        return decorator


class HollowType(type):
    """A class whose every name is a function that does nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return decorator


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
