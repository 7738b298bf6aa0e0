"""What a rule sees: the effective settings of one request for one release, recording what was read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ep_overlap_mcp.hardware import find_gpu
from ep_overlap_mcp.rules.truth import FALSE, Truth, Value, VersionValue, derived, truth
from ep_overlap_mcp.settings.effective import Effective
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_DELAY, MODEL_SWITCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.settings.setting import Setting
    from ep_overlap_mcp.stack import Framework, Release

_GRAPH_MODULES = ("model.cuda_graph_modules", "model.cuda_graph_scope")


class View:
    """Reads go through `view[path]` (effective), `view.requested(path)` (as asked for) and the properties below.

    Every read is recorded in `reads`, so that a finding shows its settings and an undecided rule what it needs.
    """

    def __init__(self, request: Request, release: Release) -> None:
        self.request = request
        self.release = release
        self.effective = Effective(request, release)
        self.reads: dict[str, Setting] = {}
        self._seen: dict[str, tuple[Setting, Value]] = {}

    def __getitem__(self, path: str) -> Value:
        """The effective value of a canonical path."""
        seen = self._seen.get(path)
        if seen is None:
            setting = self.effective[path]
            seen = self._seen[path] = (setting, _value(setting))
        self.reads[path] = seen[0]
        return seen[1]

    def requested(self, path: str) -> Value:
        """The value as the text or the release's default has it, before any layer of the stack writes over it."""
        self.reads.setdefault(path, self.effective.requested(path))
        return _value(self.effective.requested(path))

    def written(self, path: str) -> Truth:
        """Whether the text or the caller states the setting at all."""
        setting = self.request.settings.get(path)
        if setting is not None:
            self.reads.setdefault(path, setting)
        return truth(setting is not None and setting.written)

    def tells(self, *paths: str) -> Truth:
        """Whether all of the settings are stated, or the text is complete, so that their defaults count."""
        return truth(self.request.complete or all(self.states((path,)) for path in paths))

    def states(self, paths: Iterable[str]) -> bool:
        """Whether the text, the caller or a proposal states one of the settings, be its value known or not."""
        return any(self.request.settings.get(path) is not None for path in paths)

    @property
    def framework(self) -> Framework:
        """megatron-core, megatron-lm or bridge."""
        return self.request.framework

    @property
    def overlap(self) -> Truth:
        """Whether EP overlap is effectively on."""
        return self[MODEL_SWITCH].on

    @property
    def delay(self) -> Truth:
        """Whether delayed weight gradients are effectively on."""
        return self[MODEL_DELAY].on

    @property
    def overlap_requested(self) -> Truth:
        """Whether anything asks for overlap: the model's flag or Bridge's."""
        return self._any_requested(MODEL_SWITCH, BRIDGE_SWITCH)

    @property
    def delay_requested(self) -> Truth:
        """Whether anything asks for delayed weight gradients."""
        return self._any_requested(MODEL_DELAY, BRIDGE_DELAY)

    @property
    def te(self) -> VersionValue:
        """The Transformer Engine version; absent is older than every release."""
        return self.version("transformer_engine")

    def version(self, component: str) -> VersionValue:
        """The version of `torch`, `transformer_engine`, `deep_ep` or `nvshmem`."""
        setting = self.effective[f"runtime.{component}"]
        self.reads[setting.path] = setting
        return VersionValue(setting.value, known=setting.known, needs=setting.needs, origin=setting.origin)

    @property
    def graph_modules(self) -> Value:
        """Modules inside the CUDA graph, under the name that the release and the text use."""
        for path in _GRAPH_MODULES:
            if self.effective[path].value is None:
                continue
            if path == _GRAPH_MODULES[0] and self.release.core.minor < (0, 18):
                continue
            return self[path]
        return Value([])

    def dispatches_by(self, dispatcher: str, backend: str | None = None) -> Truth:
        """Whether tokens go by this dispatcher, and for `flex` through this backend."""
        chosen = self["model.moe_token_dispatcher_type"] == dispatcher
        return chosen if backend is None else chosen & (self["model.moe_flex_dispatcher_backend"] == backend)

    @property
    def gpu_capability(self) -> Value:
        """(major, minor) of the GPU; unknown where the GPU is not given or not in the table."""
        return self._gpu("capability")

    @property
    def gpu_name(self) -> Value:
        """The GPU's name as torch prints it."""
        return self._gpu("name")

    @property
    def nvlink_domain(self) -> Value:
        """GPUs in one NVLink domain."""
        return self._gpu("nvlink_domain")

    @property
    def expert_group(self) -> Value:
        """Ranks that dispatch to each other: expert tensor parallel size x expert model parallel size."""
        return self["model.expert_tensor_parallel_size"] * self["model.expert_model_parallel_size"]

    @property
    def microbatches(self) -> Value:
        """Microbatches of a step: global batch / (micro batch x data parallel size)."""
        return derived(
            lambda gbs, mbs, dp: gbs // (mbs * dp) if mbs and dp else None,
            self["train.global_batch_size"],
            self["train.micro_batch_size"],
            self.data_parallel_size,
        )

    @property
    def data_parallel_size(self) -> Value:
        """World size / (TP x PP x CP); None where that is no whole number."""
        return derived(
            lambda world, *sizes: None if not all(sizes) or world % math.prod(sizes) else world // math.prod(sizes),
            self["hardware.world_size"],
            self["model.tensor_model_parallel_size"],
            self["model.pipeline_model_parallel_size"],
            self["model.context_parallel_size"],
        )

    @property
    def tokens_per_rank(self) -> Value:
        """Tokens a rank dispatches for one microbatch: sequence x micro batch / (CP x TP under sequence parallel)."""
        return derived(
            lambda seq, mbs, cp, tp, sp: seq * mbs // ((cp or 1) * ((tp or 1) if sp else 1)),
            self["model.seq_length"],
            self["train.micro_batch_size"],
            self["model.context_parallel_size"],
            self["model.tensor_model_parallel_size"],
            derived(int, self["model.sequence_parallel"]),
        )

    def _any_requested(self, *paths: str) -> Truth:
        outcome = FALSE
        for path in paths:
            outcome = outcome | self.requested(path).on
        return outcome

    def _gpu(self, attribute: str) -> Value:
        given = self["hardware.gpu"]
        if not given.known or given.raw is None:
            return Value(None, known=False, needs=frozenset(("hardware.gpu",)))
        gpu = find_gpu(str(given.raw))
        if gpu is None:
            return Value(None, known=False, needs=frozenset(("hardware.gpu",)))
        return Value(getattr(gpu, attribute))


def _value(setting: Setting) -> Value:
    return Value(
        setting.value if setting.known else None,
        known=setting.known,
        needs=setting.needs,
        origin=setting.origin,
    )
