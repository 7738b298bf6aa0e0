"""What a rule sees: the effective settings of one request for one release, recording what was read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, cast

from ep_overlap_mcp.hardware import find_gpu
from ep_overlap_mcp.rules.truth import FALSE, TRUE, Truth, Value, VersionValue, all_of, derived, truth
from ep_overlap_mcp.settings.effective import Effective
from ep_overlap_mcp.settings.request import BRIDGE_DELAY, BRIDGE_SWITCH, MODEL_DELAY, MODEL_SWITCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_overlap_mcp.settings.request import Request
    from ep_overlap_mcp.settings.setting import Setting
    from ep_overlap_mcp.stack import Framework, Release

# What a rule looked at: an effective setting by its path, or a path with how it was looked at. `aside` is an effective
# setting that a finding does not show, `told` whether it is stated or has its default.
Look = str | tuple[Literal["requested", "written", "told", "aside", "everything"], str]
Sights = tuple[tuple[Look, "Value | Truth"], ...]
EVERYTHING: Final[Look] = ("everything", "")
_GRAPH_MODULES = ("model.cuda_graph_modules", "model.cuda_graph_scope")


class View:
    """Reads go through `view[path]` (effective), `view.requested(path)` (as asked for) and the properties below.

    Every look is recorded, so that a finding shows its settings, an undecided rule what it needs, and a rule that was
    met is met again without running where it would see the same.
    """

    def __init__(self, request: Request, release: Release) -> None:
        self.framework: Framework = request.framework
        self.release = release
        self.looks: dict[Look, Value | Truth] = {}
        self._request = request
        self._effective = Effective(request, release)
        self._seen: dict[Look, Value | Truth] = {}

    def __getitem__(self, path: str) -> Value:
        """The effective value of a canonical path."""
        value = self._seen.get(path)
        if value is None:
            value = self._seen[path] = _value(self._effective[path])
        self.looks[path] = value
        return cast("Value", value)

    def requested(self, path: str) -> Value:
        """The value as the text or the release's default has it, before any layer of the stack writes over it."""
        return cast("Value", self._look(("requested", path)))

    def written(self, path: str) -> Truth:
        """Whether the text or the caller states the setting at all."""
        return cast("Truth", self._look(("written", path)))

    def tells(self, *paths: str) -> Truth:
        """Whether all of the settings are stated, or the text is complete, so that their defaults count."""
        return all_of(cast("Truth", self._look(("told", path))) for path in paths)

    @property
    def complete(self) -> Truth:
        """Whether what the text does not state has its default."""
        return cast("Truth", self._look(("told", "")))

    def states(self, paths: Iterable[str]) -> bool:
        """Whether the text, the caller or a proposal states one of the settings, be its value known or not."""
        settings = self._request.settings
        return any(path in settings for path in paths)

    @property
    def request(self) -> Request:
        """The whole request: a rule that looks at it is asked every time."""
        self.looks[EVERYTHING] = TRUE
        return self._request

    @property
    def effective(self) -> Effective:
        """All effective settings: a rule that looks at them is asked every time."""
        self.looks[EVERYTHING] = TRUE
        return self._effective

    def begin(self) -> None:
        """Forget what was looked at: the next rule looks."""
        self.looks = {}

    def shows_again(self, sights: Sights) -> bool:
        """Whether a rule that saw this would see the same here, and so come to the same outcome where it is met."""
        for look, before in sights:
            now = self._seen.get(look)
            if now is None:
                now = self._seen[look] = self._sight(look)
            if now is before:
                continue
            if not _same(now, before):
                return False
            self._seen[look] = before  # one object for what is the same: the next rule sees it at a glance
        return True

    @property
    def reads(self) -> dict[str, Setting]:
        """The settings behind what the rule looked at, in that order; where it saw both, the effective one."""
        shown: dict[str, Setting] = {}
        for look in self.looks:
            if isinstance(look, str):
                shown[look] = self._effective[look]
            elif look[0] == "requested":
                shown.setdefault(look[1], self._effective.requested(look[1]))
            elif look[0] == "written" and (stated := self._request.settings.get(look[1])) is not None:
                shown.setdefault(look[1], stated)
        return shown

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
        installed = self[f"runtime.{component}"]
        return VersionValue(installed.raw, known=installed.known, needs=installed.needs)

    @property
    def graph_modules(self) -> Value:
        """Modules inside the CUDA graph, under the name that the release and the text use."""
        for path in _GRAPH_MODULES:
            if cast("Value", self._look(("aside", path))).unset.value:
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

    def _look(self, look: Look) -> Value | Truth:
        found = self._seen.get(look)
        if found is None:
            found = self._seen[look] = self._sight(look)
        self.looks[look] = found
        return found

    def _sight(self, look: Look) -> Value | Truth:
        if isinstance(look, str):
            return _value(self._effective[look])
        kind, path = look
        if kind == "requested":
            return _value(self._effective.requested(path))
        if kind == "aside":
            return _value(self._effective[path])
        if kind == "told":
            return truth(self._request.complete or path in self._request.settings)
        stated = self._request.settings.get(path)
        return truth(stated is not None and stated.written)

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


def path_of(look: Look) -> str:
    """The path that was looked at; that of EVERYTHING is empty."""
    return look if isinstance(look, str) else look[1]


def _value(setting: Setting) -> Value:
    known = setting.known
    return Value(setting.value if known else None, known=known, needs=setting.needs)


def _same(now: Value | Truth, before: Value | Truth) -> bool:
    """Whether no rule can tell two sights apart."""
    if isinstance(now, Truth) or isinstance(before, Truth):
        return now is before
    if now.known is not before.known or now.needs != before.needs or type(now.raw) is not type(before.raw):
        return False
    if isinstance(now.raw, (list, dict)):
        return repr(now.raw) == repr(before.raw)  # as `[1] == [True]`
    return bool(now.raw == before.raw)
