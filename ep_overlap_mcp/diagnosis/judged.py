"""What the rules say of the configurations: causes that a finding points to, and causes that settings exclude."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.diagnosis.causes import CAUSES
from ep_overlap_mcp.diagnosis.configuration import stops_at_start
from ep_overlap_mcp.diagnosis.evidence import Line
from ep_overlap_mcp.diagnosis.findings import BROKEN, LIKELY, POSSIBLE, Against, Support
from ep_overlap_mcp.diagnosis.symptoms import fitting, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ep_overlap_mcp.diagnosis.configuration import Configuration
    from ep_overlap_mcp.results.check import Finding

    Findings = Iterator[Support | Against]
    Settings = Mapping[str, object]

_CONTRADICTED = 1.5  # possible, before candidates that nothing but the symptom names
_WHILE_IT_TRAINS = {"slower", "no gain", "nan", "wrong numbers"}
_OTHERWISE = "; a run that trains has passed this check, so its settings or versions are others"
AFTER_ANY_LOG = 1 << 40  # order of lines that are no log's
_OVERLAP = "model.overlap_moe_expert_parallel_comm"
_DISPATCHER = "model.moe_token_dispatcher_type"
_BACKEND = "model.moe_flex_dispatcher_backend"
_HELPER = "bridge.apply_flex_dispatcher_backend"
_CONNECTIONS = "env.CUDA_DEVICE_MAX_CONNECTIONS"


def judged(after: Configuration, before: Configuration | None, symptom: str) -> Findings:
    """Causes for the configuration that is not fine, against the one that is.

    An error that `before` has as well, or a warning about something else than the symptom, is weak evidence at most.
    """
    known = {finding.name for finding in before.findings} if before else set()
    for finding in after.findings:
        new = finding.name not in known
        for cause in _causes(finding):
            told = new and (not fitting(symptom) or cause in fitting(symptom))
            yield _support(cause, finding, (BROKEN if finding.severity == "error" else LIKELY) if told else POSSIBLE)
        if finding.severity == "error" and new:
            trains = stops_at_start(finding) and bool(_WHILE_IT_TRAINS & set(named(symptom)))
            yield _support("config-rule-violated", finding, _CONTRADICTED if trains else BROKEN, trains=trains)
    yield from excluded(after)


def excluded(after: Configuration) -> Iterator[Against]:
    """Causes that cannot be, because a setting they need is known to be otherwise, or their rule holds."""
    for causes, why in _EXCLUSIONS:
        if reason := why(after.effective):
            yield from (Against(cause, reason) for cause in _all_of(causes))
    overlaps = after.effective.get(_OVERLAP) is True
    for cause, rule, why_not in _RULES_THAT_EXCLUDE:
        if overlaps and rule in after.holds:
            yield Against(cause, why_not)
    asked, runs = after.requested.get(_DISPATCHER), after.effective.get(_DISPATCHER)
    if after.requested and runs and asked in (None, runs) and _HELPER not in after.requested:
        yield Against("deepep-fell-back-to-alltoall", f"{runs} runs, and no other dispatcher was asked for")
    if overlaps:
        yield Against("bridge-reset-the-flag", "the overlap flag is on after all that the stack writes")


def _causes(finding: Finding) -> list[str]:
    """Causes of their own that the rule is about; what is only worth knowing points nowhere."""
    return [] if finding.severity == "info" else [row.name for row in CAUSES.values() if finding.name in row.rules]


def _support(cause: str, finding: Finding, strength: float, *, trains: bool = False) -> Support:
    fix = "; or ".join(", ".join(f"{path}={_shown(to)}" for path, to in f.set.items()) for f in finding.fix[:2])
    return Support(cause, strength, (_line(finding, trains=trains),), (finding.name,), fix=fix)


def _line(finding: Finding, *, trains: bool) -> Line:
    """What the rule says, at the place of a setting: one that a fix changes rather than one that was only read."""
    mended = {path for fix in finding.fix for path in fix.set}
    settings = sorted(finding.settings, key=lambda setting: setting.path not in mended)
    places = [setting.origin for setting in settings if setting.origin.file]
    file, number = (str(places[0].file), places[0].line) if places else ("configuration", None)
    text = f"{finding.name}: {finding.message}" + (_OTHERWISE if trains else "")
    return Line(file, number, text, order=AFTER_ANY_LOG)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _all_of(causes: tuple[str, ...]) -> Iterator[str]:
    """Causes by their whole names, or all that begin with a name that ends in a hyphen."""
    return (name for name in CAUSES if any(name == c or (c.endswith("-") and name.startswith(c)) for c in causes))


def _connections(settings: Settings) -> str:
    count = settings.get(_CONNECTIONS)
    return f"{_CONNECTIONS} is {count}" if isinstance(count, int) and count > 1 else ""


def _is(path: str, value: object) -> Callable[[Settings], str]:
    """A check that a setting is known to have this value; the reason is that it has."""

    def reason(settings: Settings) -> str:
        return f"{path} is {_shown(value)}" if path in settings and settings[path] == value else ""

    return reason


def _other_backend(own: str) -> Callable[[Settings], str]:
    def reason(settings: Settings) -> str:
        dispatcher, backend = settings.get(_DISPATCHER), settings.get(_BACKEND)
        if dispatcher in ("alltoall", "allgather"):
            return f"{_DISPATCHER} is {dispatcher}"
        other = dispatcher == "flex" and isinstance(backend, str) and backend != own
        return f"{_BACKEND} is {backend}" if other else ""

    return reason


_EXCLUSIONS: tuple[tuple[tuple[str, ...], Callable[[Settings], str]], ...] = (
    (("one-cuda-connection-serialises",), _connections),
    (("hybridep-",), _other_backend("hybridep")),
    (
        ("deepep-nvshmem-mismatch", "deepep-transport-timeout", "deepep-barrier-late-rank", "deepep-ibgda-queue-pairs"),
        _other_backend("deepep"),
    ),
    (("delayed-wgrad-",), _is("model.delay_wgrad_compute", value=False)),
    (("delayed-wgrad-tied-weights",), _is("model.gradient_accumulation_fusion", value=True)),
    (
        (
            "attention-graph-nan",
            "graph-capture-host-copy",
            "whole-layer-graph-with-overlap",
            "illegal-access-expandable-segments",
        ),
        _is("model.cuda_graph_impl", value="none"),
    ),
    (("illegal-access-expandable-segments",), _is("env.NCCL_GRAPH_REGISTER", value=0)),
    (("fsdp-hooks-bypassed",), _is("ddp.use_megatron_fsdp", value=False)),
    (("triton-permute-fusion",), _is("model.moe_permute_fusion", value=False)),
    (("pipeline-shape-exchange-deadlock",), _is("model.variable_seq_lengths", value=False)),
    (("pipeline-shape-exchange-deadlock",), _is("model.pipeline_model_parallel_size", value=1)),
    (
        ("shared-event-orders-collectives", "last-layer-dense-drops-final-norm", "expert-input-freed-early"),
        _is(_OVERLAP, value=False),
    ),
    (("harness-false-ignored",), _is(_OVERLAP, value=False)),
    (("harness-false-ignored",), _is("bridge.moe_a2a_overlap", value=True)),
)
_RULES_THAT_EXCLUDE = (
    ("last-layer-dense-drops-final-norm", "last-layer-must-be-moe", "the last decoder layer is no trap here"),
    (
        "expert-input-freed-early",
        "alltoall-needs-two-local-experts",
        "this core keeps it, or there are two experts a rank",
    ),
    ("too-few-microbatches", "too-few-microbatches-to-overlap", "every rank has micro-batches that overlap"),
    ("too-few-microbatches-for-interleaving", "microbatches-cover-pipeline", "the micro-batches cover the pipeline"),
)
