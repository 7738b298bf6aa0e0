"""Where a constraint stands in public source: `repository@revision:path:lines`, at the releases that were read."""

from __future__ import annotations

_REVISIONS = {"main": "d98e8a64dd", "dev": "d48bd6be0a"}


def megatron(release: str, path: str, lines: str) -> str:
    """Lines of a file of NVIDIA/Megatron-LM at a core release, `main` or `dev`."""
    return f"NVIDIA/Megatron-LM@{_REVISIONS.get(release, f'core_v{release}')}:megatron/{path}:{lines}"


def core_config(release: str, lines: str) -> str:
    """Lines of `TransformerConfig`."""
    return megatron(release, "core/transformer/transformer_config.py", lines)


def arguments(release: str, lines: str) -> str:
    """Lines of Megatron-LM's argument validation."""
    return megatron(release, "training/arguments.py", lines)


def megatron_bridge(release: str, path: str, lines: str) -> str:
    """Lines of a file of NVIDIA-NeMo/Megatron-Bridge at a release or `main`."""
    revision = "067f987df" if release == "main" else f"v{release}"
    return f"NVIDIA-NeMo/Megatron-Bridge@{revision}:src/megatron/bridge/{path}:{lines}"


def transformer_engine(revision: str, path: str, lines: str) -> str:
    """Lines of a file of NVIDIA/TransformerEngine."""
    return f"NVIDIA/TransformerEngine@{revision}:transformer_engine/{path}:{lines}"


def bridge_setup(release: str, lines: str) -> str:
    """Lines of `CommOverlapConfig`."""
    return megatron_bridge(release, "training/comm_overlap.py", lines)
