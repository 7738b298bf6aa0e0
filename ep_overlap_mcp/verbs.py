"""What agents and people can ask: each function does a tool's whole work, and knows no transport."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ep_overlap_mcp.hardware import named_gpu
from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.settings.request import Assume, Request, build_request
from ep_overlap_mcp.stack import Component, Stack, StackError, parse_stack
from ep_overlap_mcp.surface import argument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ep_overlap_mcp.results.check import CheckResult, MegatronJudgement
    from ep_overlap_mcp.results.conflicts import ConflictsResult
    from ep_overlap_mcp.results.diagnose import DiagnoseResult
    from ep_overlap_mcp.results.profile import ProfileResult
    from ep_overlap_mcp.results.propose import ProposeResult
    from ep_overlap_mcp.results.smoke import SmokeResult
    from ep_overlap_mcp.smoke.options import SmokeOptions
    from ep_overlap_mcp.smoke.planning import SmokePlan
    from ep_overlap_mcp.sources.reading import Assignment, Reading
    from ep_overlap_mcp.training_env import TrainingEnvironment

INLINE = "configuration"  # the name of a configuration that is given inline


class UsageError(Refusal):
    """An argument that makes no sense; the text names it and says what is allowed. Exit code 2."""


@dataclass(frozen=True)
class Question:
    """A configuration and what is known around it, as a caller gives it.

    `files` are read in order, later ones winning; `text` is a configuration given inline, in any dialect;
    `overrides` are `path=value` statements on top, `overrides_are` what the caller knows them as; `select` picks one of
    several configurations in a file.
    """

    files: tuple[Path, ...] = ()
    text: str | None = None
    overrides: tuple[str, ...] = ()
    overrides_are: str = "--set"
    assume: Assume | None = None
    stack: str = ""
    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    select: str | None = None
    roots: tuple[Path, ...] = field(default_factory=lambda: (Path.cwd(),))


def check_configuration(
    question: Question, *, environment: TrainingEnvironment | None = None, everything: bool = False
) -> list[CheckResult]:
    """Judge every configuration that the question holds: one, or one for each recipe function of a Python file.

    With a training environment, its versions fill what the stack leaves open, and its Megatron judges as well.
    Raises UsageError, StackError or sources.UnreadableError.
    """
    from ep_overlap_mcp.rules.checking import check, with_judgement

    results = []
    for request in requests(question, environment):
        result = check(request, everything=everything)
        if environment is not None:
            result = with_judgement(result, judgement(request, result, environment))
        results.append(result)
    return results


def propose_configuration(question: Question, *, environment: TrainingEnvironment | None = None) -> list[ProposeResult]:
    """The smallest change that makes each configuration legal, as a patch of its file, with dispatcher candidates.

    With a training environment, its Megatron judges the changed configuration: what it rejects is `invalid`.
    """
    from ep_overlap_mcp.proposals import mended, proposal
    from ep_overlap_mcp.sources import read_text

    texts = _texts(question)

    def reread(edited: Mapping[str, str]) -> list[list[Reading]]:
        return _by_configuration([read_text(text, name, select=question.select) for name, text in edited.items()])

    asked = requests(question, environment)
    cases = [mended(asked, index, texts, reread) for index in range(len(asked))]
    found = [proposal(case, texts=texts, reread=reread) for case in cases]
    if environment is None:
        return found
    return [_judged(case.request, result, environment) for case, result in zip(cases, found, strict=True)]


def _judged(request: Request, result: ProposeResult, environment: TrainingEnvironment) -> ProposeResult:
    """A proposal with the installed Megatron's word on it."""
    from ep_overlap_mcp.proposals.search import as_changed
    from ep_overlap_mcp.rules.checking import check

    if result.blocked_by:
        return result
    changed = as_changed(request, {change.path: change.to for change in result.changes})
    word = judgement(changed, check(changed), environment)
    judged = result.model_copy(update={"megatron": word})
    if word.accepted is not False:
        return judged
    summary = f"The installed Megatron REJECTS the changed configuration ({word.exception} at {word.at})"
    again = {"verdict_after": "invalid", "summary": f"{summary}. By the rules alone: {result.summary}"}
    return judged.model_copy(update=again)


def wgrad_conflicts(question: Question, *, environment: TrainingEnvironment | None = None) -> list[ConflictsResult]:
    """Delayed weight gradients against the stack, for each configuration."""
    from ep_overlap_mcp.proposals import conflicts

    asked = replace(question, assume=question.assume or "overlap_delay_wgrad")
    return [conflicts(request) for request in requests(asked, environment)]


def diagnose_run(
    logs: Sequence[Path] = (),
    *,
    text: str | None = None,
    symptom: str | None = None,
    before: Question | None = None,
    after: Question | None = None,
    stack: str = "",
    smoke_runs: Sequence[str] = (),
    profiles: Sequence[Path] = (),
    roots: Sequence[Path] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> DiagnoseResult:
    """Causes for logs, an error text, a symptom, configurations, smoke runs by id and profiles.

    `after` is the configuration that is not fine, `before` one that was. Raises Refusal for what cannot be read.
    """
    from ep_overlap_mcp.diagnosis import diagnose, of_request
    from ep_overlap_mcp.sources.files import allowed

    versions = {name: c.version or "none" for name, c in parse_stack(stack).components.items()}
    return diagnose(
        [allowed(path, roots) for path in logs],
        text=text,
        symptom=symptom,
        before=of_request(_one_request(before)) if before else None,
        after=of_request(_one_request(after)) if after else None,
        stack=versions,
        smoke_runs=_smoke_results(smoke_runs),
        profiles=[analyze_profile([path], roots=roots) for path in profiles],
        on_progress=on_progress,
    )


def analyze_profile(
    paths: Sequence[Path],
    *,
    before: Path | None = None,
    compat: Literal["none", "hta"] = "none",
    page: Path | None = None,
    roots: Sequence[Path] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> ProfileResult:
    """Exposed and hidden communication of profiles, alone or against `before`; `page` is written as HTML.

    A page that cannot be written is refused before the files are read.
    """
    from ep_overlap_mcp.profiles import analyze, draw
    from ep_overlap_mcp.sources.files import allowed

    read = [allowed(path, roots) for path in paths]
    other = allowed(before, roots) if before else None
    if page is not None:
        refuse_unwritable_page(page)
    result = analyze(read, compat=compat, before=other, on_progress=on_progress)
    if page is not None:
        from ep_overlap_mcp.reports.profile_page import profile_page

        write_page(page, profile_page(result, draw(read, before=other)))
    return result


def refuse_unwritable_page(page: Path) -> None:
    """Raise UsageError where a page could not be written later, or would replace what is no page of ours.

    A page that is there stays as it is.
    """
    if not page.parent.is_dir():
        raise UsageError(f"--html: {page} cannot be written: there is no folder {page.parent}")
    try:
        _refuse_to_replace(page)
        new = not page.exists()
        page.open("ab").close()  # only the file system knows: of rights, of a full or a read-only disk, of long names
        if new:
            page.unlink()
    except OSError as problem:
        raise _no_page(page, problem) from problem


def _refuse_to_replace(page: Path) -> None:
    """An empty file or an older page may be replaced; never a profile, a script or a device."""
    from ep_overlap_mcp.reports.html_page import is_ours

    if not page.exists() or page.is_dir():  # a folder refuses by itself
        return
    if page.is_file():
        with page.open("rb") as file:
            start = file.read(1024)
        if not start or is_ours(start):
            return
    raise UsageError(
        f"--html: {page} is there and is no page of ep-overlap-mcp, so it is left as it is; name a new file, or move"
        " that one away first"
    )


def write_page(page: Path, html: str) -> None:
    """Write a page of HTML; raises UsageError where it cannot be written."""
    try:
        page.write_text(html, encoding="utf-8")
    except OSError as problem:
        raise _no_page(page, problem) from problem


def _no_page(page: Path, problem: OSError) -> UsageError:
    remedy = "name a file in a folder that you may write to"
    return UsageError(f"--html: {page} cannot be written: {problem.strerror}; {remedy}")


def plan_smoke_run(question: Question, options: SmokeOptions, environment: TrainingEnvironment) -> SmokePlan:
    """What a smoke run of the one configuration would do; an invalid one is refused with its findings."""
    from ep_overlap_mcp import smoke

    asked = requests(question, environment)
    if len(asked) != 1:
        names = ", ".join(request.name or "?" for request in asked)
        raise UsageError(f"the file holds several configurations ({names}); pick one with {argument('select')}")
    return smoke.plan(asked[0], environment, options)


def _one_request(question: Question) -> Request:
    """The one configuration that a question holds, as written."""
    asked = requests(replace(question, assume="as_written"))
    if len(asked) != 1:
        raise UsageError(f"a comparison takes one configuration on each side; pick one with {argument('select')}")
    return asked[0]


def _smoke_results(ids: Sequence[str]) -> list[SmokeResult]:
    if not ids:
        return []
    from ep_overlap_mcp import smoke

    return [smoke.get(run_id) for run_id in ids]


def requests(question: Question, environment: TrainingEnvironment | None = None) -> list[Request]:
    """The requests that a question makes, one for each configuration found."""
    overrides = _overrides(question)
    _check_hardware(question, overrides)
    stack = parse_stack(question.stack)
    if environment is not None:
        stack = with_installed(stack, environment)
    return [
        build_request(
            readings,
            overrides=overrides,
            stack=stack,
            assume=question.assume,
            gpu=question.gpu,
            nodes=question.nodes,
            gpus_per_node=question.gpus_per_node,
        )
        for readings in _readings(question)
    ]


def with_installed(stack: Stack, environment: TrainingEnvironment) -> Stack:
    """The stack with what is installed in the training environment where the caller gave nothing."""
    installed = environment.describe(fast=True).components
    found = {
        name: Component(component.version, "installed")
        for name, component in installed.items()
        if name in ("megatron-core", "megatron-bridge", "transformer-engine", "torch", "deep_ep")
        and name not in stack.components
        and (component.version is not None or name == "transformer-engine")
    }
    if "megatron-lm" in stack.components:
        found.pop("megatron-core", None)
    if "megatron-bridge" not in stack.components:
        found.pop("megatron-bridge", None)
    return replace(stack, components={**found, **stack.components})


def judgement(request: Request, result: CheckResult, environment: TrainingEnvironment) -> MegatronJudgement:
    """The installed Megatron's verdict on the effective settings, and whether the rules agree with it."""
    from ep_overlap_mcp.training_env.judging import judge_request

    return judge_request(request, result, environment)


def _readings(question: Question) -> list[list[Reading]]:
    """The readings of each configuration: files in order; a file of several recipes makes several configurations."""
    from ep_overlap_mcp.sources import read, read_text

    parts = [read(path, roots=question.roots, select=question.select) for path in question.files]
    if question.text is not None:
        parts.append(read_text(question.text, INLINE, select=question.select))
    if not parts:
        raise UsageError("no configuration given; name a file, or give the configuration itself")
    return _by_configuration(parts)


def _by_configuration(parts: list[list[Reading]]) -> list[list[Reading]]:
    """The readings of each file, as the readings of each configuration."""
    from ep_overlap_mcp.sources.together import together

    several = [part for part in parts if len(part) > 1]
    if len(several) > 1:
        raise UsageError(f"more than one file holds several configurations; pick one of each with {argument('select')}")
    chosen = several[0] if several else parts[0]
    return [together([reading for part in parts for reading in ([one] if part is chosen else part)]) for one in chosen]


def _texts(question: Question) -> dict[str, str]:
    """The files and the inline text of a question by the name that origins use, in the order of reading."""
    from ep_overlap_mcp.sources.files import open_text

    texts = {str(path): open_text(path, question.roots) for path in question.files}
    return texts if question.text is None else {**texts, INLINE: question.text}


def _overrides(question: Question) -> list[Assignment]:
    from ep_overlap_mcp.sources import parse_set

    return [parse_set(statement, question.overrides_are) for statement in question.overrides]


def _check_hardware(question: Question, overrides: Sequence[Assignment]) -> None:
    for gpu in (question.gpu, *(setting.value for setting in overrides if setting.path == "hardware.gpu")):
        if isinstance(gpu, str):
            named_gpu(gpu)
    for name, value in (("nodes", question.nodes), ("gpus_per_node", question.gpus_per_node)):
        if value is not None and not 1 <= value <= 1_000_000:
            raise UsageError(f"{argument(name)} is {value}; it takes a positive number")


def as_overrides(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """`path=value` statements of a mapping, as tools take them."""
    import json

    return tuple(f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in settings.items())


__all__ = ["Question", "StackError", "UsageError", "check_configuration", "requests"]
