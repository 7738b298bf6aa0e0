"""Regression triage: what changed between two configurations, and the A/Bs that find which change did it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ep_overlap_mcp.diagnosis.findings import LIKELY, POSSIBLE, Support

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Change:
    """One setting that differs; None stands for not set."""

    path: str
    before: object
    after: object


@dataclass(frozen=True)
class Group:
    """Changes that come and go together; `why` says how a confounder came in, empty for the intended one.

    `forced`: overlap is not legal without it, or the stack itself wrote it, so it cannot be taken back.
    """

    changes: tuple[Change, ...]
    intended: bool
    why: str
    causes: tuple[str, ...]
    rules: tuple[str, ...]
    kind: str = ""
    forced: bool = False

    def __str__(self) -> str:
        return " + ".join(f"{c.path}={_shown(c.after)}" for c in self.changes)


@dataclass(frozen=True)
class Experiment:
    """One A/B: the `base` configuration with these settings, and what either outcome means.

    On `after` they take changes back; on `before` they bring in what a rule forces on `after`.
    """

    base: Literal["before", "after"]
    settings: dict[str, object]
    if_it_matters: str
    otherwise: str

    def __str__(self) -> str:
        gone = "goes away" if self.base == "after" else "appears"
        stays = "stays" if self.base == "after" else "does not appear"
        return f"the difference {gone}: {self.if_it_matters}; it {stays}: {self.otherwise}"


@dataclass(frozen=True)
class Triage:
    """Everything that changed, sorted into the intended change and its confounders, and the A/Bs to run.

    `overwritten` was asked for anew, yet runs as before: `before` is what runs, `after` what was asked for.
    """

    changes: tuple[Change, ...]
    groups: tuple[Group, ...]
    experiments: tuple[Experiment, ...]
    after: Mapping[str, object]
    overwritten: tuple[Change, ...] = ()

    @property
    def intended(self) -> Group | None:
        """The change the comparison is about; None when it cannot be told."""
        return next((group for group in self.groups if group.intended), None)

    @property
    def confounders(self) -> tuple[Group, ...]:
        """Everything else that changed."""
        return tuple(group for group in self.groups if not group.intended)


@dataclass(frozen=True)
class _Kind:
    """How settings of one kind come to change, and what that can cause; the first kind that fits counts."""

    name: str
    paths: re.Pattern[str]
    why: str
    causes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    forced: bool = False


def _kind(name: str, paths: str, why: str, *causes: str, rules: tuple[str, ...] = (), forced: bool = False) -> _Kind:
    return _Kind(name, re.compile(rf"^(?:{paths})$"), why, causes, rules, forced)


_KINDS = (
    _kind(
        "connections",
        r"env\.CUDA_DEVICE_MAX_CONNECTIONS",
        "the launcher picks it from the overlap switch and the layout, not from what is effective",
        "one-cuda-connection-serialises",
        rules=("more-than-one-cuda-connection", "harness-false-sets-one-connection"),
    ),
    _kind(
        "dispatcher",
        r"model\.(?:moe_token_dispatcher_type|moe_flex_dispatcher_backend|moe_enable_deepep)",
        "the dispatcher changed, by request or by a fallback",
        "deepep-fell-back-to-alltoall",
        rules=("bridge-gpu-fallback", "flex-backend-ignored"),
    ),
    _kind(
        "graph",
        r"model\.(?:cuda_graph_\w+|enable_cuda_graph|external_cuda_graph)",
        "the CUDA graph's scope decides what is captured, also weight gradients",
        rules=("graphed-wgrad-needs-te-2-12",),
    ),
    _kind(
        "delayed wgrad",
        r"(?:model|comm_overlap|ddp)\.delay_wgrad_compute",
        "`--moe_a2a_overlap true` sets it together with overlap",
        rules=("harness-flag-brings-delayed-wgrad",),
    ),
    _kind(
        "overlap",
        r"(?:model|comm_overlap)\.overlap_moe_expert_parallel_comm|bridge\.moe_a2a_overlap",
        "the switch itself changed as well",
    ),
    _kind(
        "shared experts",
        r"model\.moe_shared_expert_overlap",
        "`--moe_a2a_overlap true` and the flex helper switch it off",
        rules=("harness-flag-brings-delayed-wgrad", "no-shared-expert-overlap"),
        forced=True,
    ),
    _kind(
        "HybridEP domain",
        r"env\.(?:NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN|USE_MNNVL|NVLINK_DOMAIN_SIZE)",
        "the launcher derives it from the GPU and the expert group",
        "hybridep-domain-size-wrong",
        rules=("hybridep-domain-below-hardware",),
    ),
    _kind(
        "micro-batches",
        r"train\.(?:micro_batch_size|global_batch_size)|hardware\.world_size",
        "the number of micro-batches decides how much can overlap",
        "too-few-microbatches",
        rules=("too-few-microbatches-to-overlap",),
    ),
    _kind(
        "recompute",
        r"model\.recompute_\w+",
        "recompute is dropped to make overlap legal: less compute, more memory",
        "gpu-memory-exhausted-looks-like-hang",
        forced=True,
    ),
    _kind("environment", r"env\..+", "the launcher or the shell changed it"),
    _kind("stack", r"(?:runtime|hardware)\..+", "another stack or machine: repeat the baseline there first"),
    _kind(
        "pipeline layout",
        r"model\.(?:pipeline_model_parallel_layout|virtual_pipeline_model_parallel_size|num_layers_per_\w+)",
        "overlap needs virtual stages when PP > 1",
        "too-few-microbatches",
        forced=True,
    ),
    _kind(
        "workload",
        r"model\.(?:\w+_parallel_size|seq_length|num_layers|hidden_size|num_moe_experts)",
        "another workload",
    ),
)
_INTENT = ("overlap", "delayed wgrad", "dispatcher", "graph", "connections")


def triage(
    before: Mapping[str, object],
    after: Mapping[str, object],
    *,
    requested_before: Mapping[str, object] | None = None,
    requested_after: Mapping[str, object] | None = None,
    intent: str | None = None,
) -> Triage:
    """What differs between two effective configurations `{canonical path: value}`, and how to isolate it.

    `requested_…` is what the texts ask for: a change there is intended, one only in the effective settings is a
    confounder. `intent` (a symptom such as `slower after delay_wgrad_compute`) names the intended setting.
    """
    changes = tuple(differences(before, after))
    asked = tuple(differences(requested_before or {}, requested_after or {}))
    groups = _grouped(changes)
    main = _intended(groups, {c.path for c in asked}, intent or "")
    told = tuple(
        _explained(name, found, requested_after or {}, intended=name == main, overlaps="overlap" in groups)
        for name, found in groups.items()
    )
    ordered = tuple(sorted(told, key=lambda group: (not group.intended, not group.causes)))
    ran = {change.path for change in changes}
    kept = tuple(
        Change(c.path, after[c.path], c.after)
        for c in asked
        if c.path not in ran and c.path in after and c.after not in (None, after[c.path])
    )
    return Triage(changes, ordered, _experiments(ordered), after, kept)


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[Change]:
    """Settings whose values differ, by path."""
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            yield Change(path, before.get(path), after.get(path))


def supports(found: Triage) -> Iterator[Support]:
    """Causes the changes make probable: likely where the new value completes the signature, else possible."""
    for group in found.groups:
        for cause in group.causes:
            complete = _SIGNATURES[cause](group, found.after) if cause in _SIGNATURES else None
            if complete is not False:
                yield Support(cause, LIKELY if complete else POSSIBLE, rules=group.rules)


def _grouped(changes: tuple[Change, ...]) -> dict[str, list[Change]]:
    groups: dict[str, list[Change]] = {}
    for change in changes:
        kind = next((kind.name for kind in _KINDS if kind.paths.match(change.path)), change.path)
        groups.setdefault(kind, []).append(change)
    return groups


def _intended(groups: Mapping[str, list[Change]], asked: set[str], intent: str) -> str | None:
    """The group that holds what was asked for: named in words, changed in the request, else by custom."""
    named = [name for name, found in groups.items() if any(c.path.split(".")[-1] in intent for c in found)]
    requested = [name for name in _by_custom(groups) if any(c.path in asked for c in groups[name])]
    return next(iter([*named, *requested, *([] if asked else _by_custom(groups))]), None)


def _by_custom(groups: Mapping[str, list[Change]]) -> list[str]:
    known = [name for name in _INTENT if name in groups]
    return [*known, *(name for name in groups if name not in known)] if known or len(groups) == 1 else []


def _explained(
    name: str, changes: list[Change], requested: Mapping[str, object], *, intended: bool, overlaps: bool
) -> Group:
    if intended:
        kind = next((kind for kind in _KINDS if kind.name == name), _kind(name, "", ""))
        return Group(tuple(changes), intended, "", kind.causes, kind.rules, kind.name)
    kind = next((kind for kind in _KINDS if kind.name == name), _kind(name, "", "changed along with the rest"))
    written = [c for c in changes if requested.get(c.path) not in (None, c.after)]
    why = kind.why
    if written:
        asked = ", ".join(_shown(requested[change.path]) for change in written)
        why = f"asked for {asked}, the stack runs {', '.join(_shown(change.after) for change in written)}"
    forced = bool(written) or (kind.forced and overlaps)
    return Group(tuple(changes), intended, why, kind.causes, kind.rules, kind.name, forced=forced)


def _experiments(groups: tuple[Group, ...]) -> tuple[Experiment, ...]:
    """Suspects one at a time, the rest by halves: the fewest runs when one change is to blame."""
    plan = [_on_before(group) for group in groups if group.forced]
    left = [group for group in groups if not group.forced]
    left.sort(key=lambda group: (group.intended, not group.causes))
    while len(left) > 1:
        size = 1 if left[0].causes else len(left) // 2
        taken, left = left[:size], left[size:]
        plan.append(_on_after(taken, left, groups))
    return tuple(plan)


def _on_before(group: Group) -> Experiment:
    settings = {change.path: change.after for change in group.changes}
    return Experiment("before", settings, f"it is {group}", "it is not that")


def _on_after(taken: list[Group], left: list[Group], groups: tuple[Group, ...]) -> Experiment:
    back = list(taken)
    if any(group.kind == "overlap" for group in taken):  # delayed wgrad is not legal without overlap
        back += [group for group in groups if group.kind == "delayed wgrad" and group not in taken]
    settings = {change.path: change.before for group in back for change in group.changes}
    return Experiment("after", settings, _blame(taken), _blame(left))


def _blame(groups: list[Group]) -> str:
    told = "; ".join(map(str, groups))
    return f"it is {told}" if len(groups) == 1 else f"it is among {told}"


def _one_connection(group: Group, after: Mapping[str, object]) -> bool:
    overlapping = any(
        after.get(f"{owner}.overlap_moe_expert_parallel_comm") is True for owner in ("model", "comm_overlap")
    )
    return overlapping and any(str(change.after) == "1" for change in group.changes)


def _fell_back(group: Group, _after: Mapping[str, object]) -> bool:
    return any(
        c.path.endswith("dispatcher_type") and (c.before, c.after) == ("flex", "alltoall") for c in group.changes
    )


# causes that only some values bring about: whether these do
_SIGNATURES = {"one-cuda-connection-serialises": _one_connection, "deepep-fell-back-to-alltoall": _fell_back}


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)
