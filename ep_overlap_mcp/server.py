"""What an agent sees: tools, resources and prompts. Each tool is a few lines; the work is in `verbs`."""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence  # noqa: TC003 - the SDK reads the annotations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp.server.mcpserver import MCPServer
from pydantic import Field

from ep_overlap_mcp import __version__, access, verbs
from ep_overlap_mcp.mcp_tool import Kind, as_tool
from ep_overlap_mcp.results.base import Result  # noqa: TC001 - the SDK reads the annotations
from ep_overlap_mcp.settings.request import Assume

if TYPE_CHECKING:
    from mcp.server.auth.settings import AuthSettings

    from ep_overlap_mcp.training_env import TrainingEnvironment

INSTRUCTIONS = """\
Machine-checked answers about expert-parallel (EP) communication overlap in Megatron-LM, Megatron-Core and
Megatron-Bridge: overlap_moe_expert_parallel_comm, delay_wgrad_compute, MoE token dispatchers (alltoall, flex with
DeepEP or HybridEP), CUDA graphs, Transformer Engine. Give check_overlap_config the configuration as the user has it
and the versions the user runs. Undecided is not a pass: tell the user what would decide it."""

Config = Annotated[
    str | dict[str, Any] | None,
    Field(description="Text in any dialect, or an object of settings"),
]
Files = Annotated[list[str] | None, Field(description="Files to read instead; later ones win")]
Settings = Annotated[
    dict[str, Any] | None,
    Field(description='On top, by path: {"model.expert_model_parallel_size": 8}'),
]
AssumeArgument = Annotated[
    Assume | None, Field(description="What-if; default: as_written when overlap is on, else overlap")
]
StackArgument = Annotated[
    str,
    Field(description="Versions: megatron-core==0.16.1,transformer-engine==2.9.0; ==none is absent"),
]
Gpu = Annotated[str | None, Field(description="Such as H100 or GB200")]
Count = Annotated[int | None, Field(ge=1)]
Select = Annotated[str | None, Field(description="One of several recipes in a file")]
Detail = Literal["short", "full"]


_OFFERED: list[tuple[Callable[..., Sequence[Result]], Kind]] = []


def tool(kind: Kind) -> Callable[[Callable[..., Sequence[Result]]], Callable[..., Sequence[Result]]]:
    """Offer a function as a tool: kind gives the annotations, signature the schema, docstring the description."""

    def register(function: Callable[..., Sequence[Result]]) -> Callable[..., Sequence[Result]]:
        _OFFERED.append((function, kind))
        return function

    return register


@tool(kind="read_only")
def check_overlap_config(
    config: Config = None,
    files: Files = None,
    settings: Settings = None,
    assume: AssumeArgument = None,
    stack: StackArgument = "",
    gpu: Gpu = None,
    nodes: Count = None,
    gpus_per_node: Count = None,
    select: Select = None,
    detail: Detail = "short",
) -> Sequence[Result]:
    """Verdict (valid, invalid, undetermined), every violation at once, undecided rules and effective settings.

    Use it first, for "can I enable EP overlap here?" and before any launch. Takes Megatron-LM arguments, shell
    scripts, YAML, Hydra overrides, Bridge recipes and saved configurations. Runs nothing.
    """
    question = _question(config, files, settings, assume, stack, gpu, nodes, gpus_per_node, select)
    return verbs.check_configuration(question, environment=_training_environment(), everything=detail == "full")


@tool(kind="read_only")
def propose_overlap_config(
    config: Config = None,
    files: Files = None,
    settings: Settings = None,
    assume: AssumeArgument = None,
    stack: StackArgument = "",
    gpu: Gpu = None,
    nodes: Count = None,
    gpus_per_node: Count = None,
    select: Select = None,
    detail: Detail = "short",
) -> Sequence[Result]:
    """The smallest change that makes EP overlap legal, as a patch of the user's file, and what it gives up.

    Use it after check_overlap_config said invalid, or to turn overlap on. Also ranks the dispatchers for the GPU and
    gives the order of A/Bs. Writes no file.
    """
    question = _question(config, files, settings, assume, stack, gpu, nodes, gpus_per_node, select)
    del detail  # taken by the answer
    return verbs.propose_configuration(question, environment=_training_environment())


@tool(kind="read_only")
def detect_wgrad_conflicts(
    config: Config = None,
    files: Files = None,
    settings: Settings = None,
    stack: StackArgument = "",
    gpu: Gpu = None,
    select: Select = None,
    detail: Detail = "short",
) -> Sequence[Result]:
    """delay_wgrad_compute against Transformer Engine version, CUDA-graph scope, fusion, bias and gradient reduction.

    Use it before turning delayed weight gradients on. Returns the conflicts here, the matrix of graph scope against
    Transformer Engine for this stack, and the ways out by what they keep.
    """
    question = _question(config, files, settings, "overlap_delay_wgrad", stack, gpu, None, None, select)
    del detail  # taken by the answer
    return verbs.wgrad_conflicts(question, environment=_training_environment())


@tool(kind="starts_jobs")
def start_smoke_run(
    config: Config = None,
    files: Files = None,
    settings: Settings = None,
    assume: AssumeArgument = None,
    stack: StackArgument = "",
    select: Select = None,
    variants: Annotated[
        list[Literal["overlap", "overlap_delay_wgrad"]] | None, Field(description="Against the baseline")
    ] = None,
    engine: Annotated[
        Literal["gloo-cpu", "gloo-gpu", "nccl-gpu"] | None, Field(description="Default: the best one here")
    ] = None,
    pairs: Annotated[int, Field(description="Timed pairs, 8 to 64; 0: no timing")] = 8,
    limit_s: Annotated[float, Field(description="Wall-clock limit, at most 900")] = 300,
    dry_run: Annotated[bool, Field(description="Show the plan, start nothing")] = False,
    force: Annotated[bool, Field(description="Run what the rules reject, to see Megatron fail")] = False,
    python: Annotated[str | None, Field(description="Training environment: its Python, or @NAME")] = None,
    detail: Detail = "short",
) -> Sequence[Result]:
    """Starts a short real training run of the shrunk configuration, overlap off and on, on the GPUs or CPU ranks here.

    Use it after check_overlap_config said valid, to see whether overlap ran, changed the numerics, and paid. Returns an
    id at once, for get_smoke_run. One at a time, at most limit_s.
    """
    from ep_overlap_mcp import smoke
    from ep_overlap_mcp.smoke.options import SmokeOptions

    del detail  # taken by the answer
    question = _question(config, files, settings, assume, stack, None, None, None, select)
    options = SmokeOptions(
        variants=tuple(variants) if variants else None, engine=engine, pairs=pairs, limit_s=limit_s, force=force
    )
    plan = verbs.plan_smoke_run(
        question, options, _environment_of(access.python_of(python) or _python() or sys.executable)
    )
    return [plan.shown if dry_run else smoke.start(plan, user=access.user(), most=access.runs_per_user())]


@tool(kind="read_only")
def get_smoke_run(
    id: Annotated[str, Field(description="From start_smoke_run")],  # noqa: A002 - the word of the result
    wait_s: Annotated[float, Field(ge=0, le=25, description="Wait for the end so long")] = 20,
    detail: Detail = "short",
) -> Sequence[Result]:
    """Where a smoke run stands: progress while it runs, then the three answers with their evidence.

    Call it again, with wait_s, until status is done, failed, cancelled or lost; `next` says what to do then.
    """
    from ep_overlap_mcp import smoke

    del detail  # taken by the answer
    return [smoke.get(id, wait_s)]


@tool(kind="starts_jobs")
def cancel_smoke_run(
    id: Annotated[str, Field(description="From start_smoke_run")],  # noqa: A002 - the word of the result
    detail: Detail = "short",
) -> Sequence[Result]:
    """Stops a smoke run and every process of it; what has ended already stays as it is."""
    from ep_overlap_mcp import smoke

    del detail  # taken by the answer
    return [smoke.cancel(id, user=access.user())]


@tool(kind="read_only")
def diagnose_run(
    logs: Annotated[list[str] | None, Field(description="Log files, one or one a rank")] = None,
    text: Annotated[str | None, Field(description="An error text")] = None,
    symptom: Annotated[str | None, Field(description="In words: slower after delay_wgrad_compute, hang, nan")] = None,
    before: Annotated[list[str] | None, Field(description="Configuration files that were fine")] = None,
    after: Annotated[list[str] | None, Field(description="Configuration files that are not")] = None,
    stack: StackArgument = "",
    smoke_runs: Annotated[list[str] | None, Field(description="Ids")] = None,
    profiles: list[str] | None = None,
    detail: Detail = "short",
) -> Sequence[Result]:
    """Causes of a failed, hung, wrong or slower run, ranked, each with its evidence, test and fix.

    Use it with any of logs, an error text, a symptom, a configuration (after) or two, smoke runs and profiles. A
    candidate is not a finding: run the test it names before telling the user the cause.
    """
    del detail  # taken by the answer
    return [
        verbs.diagnose_run(
            [Path(name) for name in logs or ()],
            text=text,
            symptom=symptom,
            before=_configuration(before, stack),
            after=_configuration(after, stack),
            stack=stack,
            smoke_runs=smoke_runs or (),
            profiles=[Path(name) for name in profiles or ()],
            roots=allowed_roots(),
        )
    ]


@tool(kind="read_only")
def analyze_overlap_profile(
    profiles: Annotated[list[str], Field(description="Kineto JSON or nsys SQLite files, or a folder of ranks")],
    before: Annotated[str | None, Field(description="Profile to compare with")] = None,
    compat: Annotated[Literal["none", "hta"], Field(description="hta: HolisticTraceAnalysis's definition")] = "none",
    detail: Detail = "short",
) -> Sequence[Result]:
    """Exposed and hidden communication from a profile, per device and step, DeepEP and HybridEP kernels included.

    Use it to prove that overlap happens. The hidden share is not the gain: only unprofiled step times show that.
    """
    del detail  # taken by the answer
    paths = [Path(name) for name in profiles]
    other = Path(before) if before else None
    return [verbs.analyze_profile(paths, before=other, compat=compat, roots=allowed_roots())]


@tool(kind="read_only")
def estimate_overlap_gain(
    tokens_per_rank: Annotated[int, Field(ge=1, description="Of one microbatch: sequence x micro batch / (TP x CP)")],
    hidden_size: Annotated[int, Field(ge=1)],
    topk: Annotated[int, Field(ge=1)],
    expert_parallel: Annotated[int, Field(ge=1, description="EP")],
    moe_layers: Annotated[float, Field(gt=0, description="MoE layers of one rank")],
    microbatches: Annotated[int, Field(ge=1, description="Of one step")],
    dispatcher: Literal["alltoall", "deepep", "hybridep"] = "alltoall",
    gpu: Gpu = None,
    gpus_per_node: Count = None,
    bandwidth_gb_s: float | None = None,
    step_ms: Annotated[float | None, Field(description="Measured step, overlap off")] = None,
    exposed_ms: Annotated[float | None, Field(description="Measured exposed communication a step")] = None,
    detail: Detail = "short",
) -> Sequence[Result]:
    """A ceiling and a band for the speedup of EP overlap, or "not worth it"; never a point forecast.

    Use it before a run, to decide whether an A/B is worth it. Every assumption is listed with its origin.
    """
    from ep_overlap_mcp.profiles import estimate

    del detail  # taken by the answer
    return [
        estimate(
            tokens_per_rank=tokens_per_rank,
            hidden_size=hidden_size,
            topk=topk,
            expert_parallel=expert_parallel,
            moe_layers=moe_layers,
            microbatches=microbatches,
            dispatcher=dispatcher,
            gpu=gpu,
            gpus_per_node=gpus_per_node,
            bandwidth_gb_s=bandwidth_gb_s,
            step_ms=step_ms,
            exposed_ms=exposed_ms,
        )
    ]


@tool(kind="read_only")
def explain_rule(
    rule: Annotated[str, Field(description="Code or name: EPO104 or pipeline-needs-virtual-stages")],
) -> Sequence[Result]:
    """One rule's page: what it checks, why, an example, the fix, who enforces it in which versions, its source."""
    from ep_overlap_mcp.rules.explain import explain_rule as explained

    return [explained(rule)]


@tool(kind="read_only")
def check_environment(
    python: Annotated[str | None, Field(description="Training environment: its Python, or @NAME")] = None,
    detail: Detail = "short",
) -> Sequence[Result]:
    """GPUs, NVLink, torch, NCCL, Megatron, Transformer Engine, DeepEP: installed, importable, usable here.

    Use it to learn the versions for `stack`, and before a smoke run. Starts a short-lived Python, no training.
    """
    from contextlib import closing

    from ep_overlap_mcp.training_env import open_environment

    del detail  # taken by the answer
    with closing(open_environment(access.python_of(python) or _python() or sys.executable)) as environment:
        return [environment.describe()]


def build_server(tokens: access.Tokens | None = None, auth: AuthSettings | None = None) -> MCPServer[Any]:
    """The server with all tools, resources and prompts; over HTTP only for users with a token where there are any."""
    from ep_overlap_mcp.completion import add_completion
    from ep_overlap_mcp.prompt_files import load_prompts
    from ep_overlap_mcp.resources import add_resources

    logging.basicConfig(stream=sys.stderr, level="WARNING", format="%(levelname)s %(name)s: %(message)s")
    server: MCPServer[Any] = MCPServer(
        "ep-overlap",
        title="EP overlap for Megatron",
        version=__version__,
        instructions=INSTRUCTIONS,
        tools=[as_tool(function, kind) for function, kind in _OFFERED],
        log_level="WARNING",
        auth=auth,
        token_verifier=tokens,
    )
    add_resources(server)
    add_completion(server, allowed_roots)
    for prompt in load_prompts():
        server.add_prompt(prompt)
    return server


def serve(*, http: bool, host: str, port: int, names: Sequence[str] = ()) -> int:
    """Serve until the client leaves; signals end jobs and the process at once."""
    _end_on_signals()
    if not http:
        build_server().run("stdio")
        return 0
    tokens = access.tokens()
    os.environ.pop(access.TOKEN, None)  # not for the programs that this one starts
    security = access.security(host, names, tokens)
    access.refuse_unusable(host, port)
    server = build_server(tokens, access.auth_settings(host, port) if tokens else None)
    server.run("streamable-http", host=host, port=port, transport_security=security)
    return 0


def _question(
    config: str | dict[str, Any] | None,
    files: list[str] | None,
    settings: dict[str, Any] | None,
    assume: Assume | None,
    stack: str,
    gpu: str | None,
    nodes: int | None,
    gpus_per_node: int | None,
    select: str | None,
) -> verbs.Question:
    return verbs.Question(
        files=tuple(Path(name) for name in files or ()),
        text=json.dumps(config, indent=1) if isinstance(config, dict) else config,
        overrides=verbs.as_overrides(settings or {}),
        overrides_are="settings",
        assume=assume,
        stack=stack,
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        select=select,
        roots=allowed_roots(),
    )


def _configuration(files: list[str] | None, stack: str) -> verbs.Question | None:
    return verbs.Question(files=tuple(map(Path, files)), stack=stack, roots=allowed_roots()) if files else None


def allowed_roots() -> tuple[Path, ...]:
    """Folders that files may be read from: those of EP_OVERLAP_ROOTS, or the working directory."""
    named = os.environ.get("EP_OVERLAP_ROOTS", "")
    return tuple(Path(root) for root in named.split(os.pathsep) if root) or (Path.cwd(),)


def _python() -> str | None:
    return os.environ.get("EP_OVERLAP_PYTHON") or None


@functools.lru_cache(maxsize=1)
def _environment_of(python: str) -> TrainingEnvironment:
    from ep_overlap_mcp.training_env import open_environment

    return open_environment(python)


def _training_environment() -> TrainingEnvironment | None:
    """The environment named by EP_OVERLAP_PYTHON, with its worker kept warm; without one the rules alone judge."""
    python = _python()
    return _environment_of(python) if python else None


def _end_on_signals() -> None:
    """SIGTERM and SIGINT end the process at once: the SDK's stdin reader would hold it until the client leaves."""

    def end(number: int, _frame: object) -> None:
        if "ep_overlap_mcp.smoke" in sys.modules:
            from ep_overlap_mcp import smoke

            smoke.end_all_jobs()
        if _environment_of.cache_info().currsize:
            environment = _training_environment()
            if environment is not None:
                environment.close()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
