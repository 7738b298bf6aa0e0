"""Requested -> effective: what the stack really runs with, for one release.

A setting that the text does not state has the release's default, or is unknown where the text is partial. Then each
layer writes over it as the real one does: Megatron-LM's argument handling, Bridge's setup, core's `__post_init__`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.bridge_writes import bridge_writes
from ep_overlap_mcp.settings.core_writes import core_writes
from ep_overlap_mcp.settings.fields import field_table
from ep_overlap_mcp.settings.megatron_lm_writes import megatron_lm_writes
from ep_overlap_mcp.settings.setting import Origin, Setting, unknown

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.stack import Release

_UNKNOWN_WHEN_PARTIAL = frozenset(
    ("model", "comm_overlap", "ddp", "optimizer", "train", "dist", "rng", "rerun_state_machine", "args")
)
_NEVER_DEFAULTED = frozenset(("env", "runtime", "hardware"))
_LAYERS = {"megatron-lm": (megatron_lm_writes,), "bridge": (bridge_writes,), "megatron-core": ()}


class Effective:
    """The effective settings of a request for one release, and how they differ from the requested ones."""

    def __init__(self, request: Request, release: Release) -> None:
        self.request = request
        self.release = release
        self._written: dict[str, Setting] = {}
        self._defaults: dict[str, Setting] = {}
        for layer in (_single_values, *_LAYERS[request.framework]):
            layer(self)
        self._before_core = dict(self._written)
        core_writes(self)

    def core_receives(self) -> dict[str, Setting]:
        """What megatron-core's configuration class is built from: stated settings after the outer layers' writes."""
        stated = {path: s for path, s in self.request.settings.items() if path.startswith("model.")}
        written = {path: s for path, s in self._before_core.items() if path.startswith("model.")}
        return {**stated, **written}

    def __getitem__(self, path: str) -> Setting:
        """The setting as the stack will run with it."""
        return self._written.get(path) or self.requested(path)

    def requested(self, path: str) -> Setting:
        """The setting as the text, the caller or the release's defaults ask for it."""
        found = self.request.settings.get(path) or self._defaults.get(path)
        if found is None:
            found = self._defaults[path] = self._unstated(path)
        return found

    def write(self, path: str, value: Any, why: str, *needs: str) -> None:
        """Overwrite a setting as a layer of the stack does; with `needs`, the value hangs on unknown settings."""
        if needs:
            self._written[path] = unknown(path, why, frozenset(needs))
            return
        before = self[path]
        if before.known and before.value == value and type(before.value) is type(value):
            return
        earlier = (*before.earlier, Setting(path, before.value, before.origin))
        origin = Origin("derived", note=why, order=before.origin.order)
        self._written[path] = Setting(path, value, origin, earlier=earlier)

    def value(self, path: str) -> Any:
        """The effective value, or UNKNOWN."""
        return self[path].value

    @property
    def writes(self) -> dict[str, Setting]:
        """All settings a layer has written, by path."""
        return dict(self._written)

    @property
    def seen(self) -> tuple[str, ...]:
        """Every path that was asked for and that no one stated."""
        return tuple(self._defaults)

    def _unstated(self, path: str) -> Setting:
        command_line = self.request.framework == "megatron-lm"
        return _unstated(path, self.release, command_line=command_line, partial=bool(self.request.partial))


def _single_values(settings: Effective) -> None:
    """Readers make a list of what may be several; Megatron-LM hands core the item of a list of one, as others write it.

    Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:1243-1246.
    """
    for path in ("model.moe_router_load_balancing_type", "model.moe_aux_loss_coeff"):
        stated = settings.request.settings.get(path)
        if stated is not None and isinstance(stated.value, list) and len(stated.value) == 1:
            settings.write(path, stated.value[0], "a list of one is its item")


@lru_cache(maxsize=32768)
def _unstated(path: str, release: Release, *, command_line: bool, partial: bool) -> Setting:
    """A setting that no one stated: the release's default, or unknown."""
    field, core = field_table().get(path), release.core
    if field is None:
        raise KeyError(f"{path} is no setting of the field table")
    if not field.known_to(release):
        return _default(path, None, f"not in {core.label}")
    top = path.partition(".")[0]
    if top in _NEVER_DEFAULTED or (partial and top in _UNKNOWN_WHEN_PARTIAL):
        return unknown(path)
    if field.bridge_defaults and release.bridge_minor is not None:
        default = field.bridge_default(release.bridge_minor)
        return unknown(path) if partial else _default(path, default, f"default of megatron-bridge {release.bridge}")
    if not field.defaults:
        return unknown(path) if top in ("model", "train") and field.optional else _default(path, None, "unset")
    return _default(path, field.default(core, command_line=command_line), f"default of {core.label}")


def _default(path: str, value: Any, note: str) -> Setting:
    return Setting(path, value, Origin("default", note=note))
