"""The run of one rank, from engine to gathered result."""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from . import engine as engines
from . import schedule
from .faults import Planted
from .without_te import repair_megatron

if TYPE_CHECKING:
    from .collectives import Watch
    from .engine import Engine
    from .evidence import Report
    from .model import Variant
    from .request import Request
    from .steps import Trainer
    from .timing import Measured, Stopwatch


@dataclass
class Part:
    """What one rank contributes to the result."""

    schedule: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Measured] = field(default_factory=dict)
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory_mib: int = 0


@dataclass
class Run:
    """Runs the request on this rank; `facts` and `part` hold what is known so far, for a run that fails."""

    request: Request
    report: Report
    watch: Watch
    facts: dict[str, Any] = field(default_factory=dict)
    part: Part = field(default_factory=Part)

    def run(self) -> None:
        """Import, build, compare, time, profile, gather."""
        engine, nodes = self._start()
        variants, trainer = self._build(engine)
        self._compare(variants, trainer, nodes)
        self._time(variants, trainer, nodes)
        self._gather(engine)

    def _start(self) -> tuple[Engine, schedule.NodeLog]:
        self._phase("import", 0, 1)
        engine = engines.start_engine(self.request)
        self.watch.install()
        nodes = schedule.NodeLog(engine)
        nodes.install()
        if not engine.transformer_engine:
            repair_megatron()
        if not engine.on_gpu:
            from . import comm_threads, cpu_streams

            cpu_streams.repair_megatron()
            if engine.mode == "threads":
                comm_threads.install()
        engines.join_ranks(engine, self.request)
        self.facts = _facts(self.request, engine, self.report.world_size)
        self._phase("import", 1, 1)
        return engine, nodes

    def _build(self, engine: Engine) -> tuple[list[Variant], Trainer]:
        from . import config, model
        from .steps import Trainer

        request = self.request
        self._phase("build", 0, len(request.variants))
        planted = Planted(request.fault, self.report.rank, self.report.place, request.variants[1], self.watch)
        base = config.transformer_config(request, engine, "baseline", planted)
        self.facts["parallel"] = model.initialize_parallel(base, request.collective_timeout_s)
        self.facts["adjusted"] = _adjusted(config.adjustments(request, engine))
        variants: list[Variant] = []
        for name in request.variants:
            self.report.place.at("build", name)
            variants.append(model.build(request, engine, name, planted))
            model.copy_weights(variants[0], variants[-1])
            self._phase("build", len(variants), len(request.variants))
        gc.collect()
        gc.freeze()  # what stands now stays, so that collecting between steps is quick
        return variants, Trainer(request, engine, planted)

    def _compare(self, variants: list[Variant], trainer: Trainer, nodes: schedule.NodeLog) -> None:
        """Train every variant on the same data and compare with the baseline after each step."""
        from .compare import tolerance
        from .model import copy_weights

        self.facts["tolerance"] = tolerance(bitwise=trainer.engine.bitwise)
        self._expect_nodes(variants)
        for number in range(self.request.parity_steps):
            rows = self._compare_step(variants, trainer, nodes, number)
            self.part.steps += rows
            if trainer.any_rank(flag=not all(row["equal"] for row in rows)):  # each row compares one step
                for variant in variants[1:]:
                    copy_weights(variants[0], variant)
            self.report.progress("parity", number + 1, self.request.parity_steps)

    def _compare_step(
        self, variants: list[Variant], trainer: Trainer, nodes: schedule.NodeLog, number: int
    ) -> list[dict[str, Any]]:
        from .compare import Numbers, compare_gradients, compare_parameters, compare_step

        place, (baseline, *others) = self.report.place, variants
        losses, norms = [], []
        for variant in variants:
            place.at("parity", variant.name, number)
            nodes.take()
            self.watch.calls.clear()
            losses.append(trainer.forward_backward(variant, number))
            self._count_nodes(variant, nodes.take(), host_times=trainer.engine.host_times)
        grads = [compare_gradients(baseline, variant) for variant in others]
        for variant in variants:
            place.at("parity", variant.name, number)
            norms.append(trainer.update(variant))
        base, *numbers = map(Numbers, losses, norms)
        return [
            {
                "variant": variant.name,
                "rank": self.report.rank,
                "step": number,
                **compare_step(
                    base, given, grad, compare_parameters(baseline, variant), bitwise=trainer.engine.bitwise
                ),
            }
            for variant, given, grad in zip(others, numbers, grads, strict=True)
        ]

    def _expect_nodes(self, variants: list[Variant]) -> None:
        nodes_a_moe_layer = schedule.moe_nodes(self.facts["versions"]["megatron_core"])
        for variant in variants:
            expected = schedule.expected(
                variant.shapes, self.request.train.num_microbatches, nodes_a_moe_layer, delayed=variant.delayed
            )
            overlap = variant.name != "baseline"
            self.part.schedule[variant.name] = {
                "formula": expected.formula if overlap else "0: the baseline does not use the combined schedule",
                "expected": expected.nodes if overlap else 0,
                "executed": [],
                "expected_wgrad": expected.wgrads if overlap else 0,
                "executed_wgrad": [],
                "comm_ms": 0.0,
                "hidden_ms": 0.0,
            }

    def _count_nodes(self, variant: Variant, nodes: list[schedule.Node], *, host_times: bool) -> None:
        row = self.part.schedule[variant.name]
        executed, wgrads, row["by_node"] = schedule.count(nodes)
        calls = self.watch.calls[1:]  # the first is the barrier before the step
        times = schedule.overlap_times(nodes, calls, host_times=host_times)
        for name in ("comm_ms", "hidden_ms"):
            row[name] += times[name] or 0.0
        row["executed"].append(executed)
        row["executed_wgrad"].append(wgrads)
        row["as_expected"] = set(row["executed"]) == {row["expected"]} and set(row["executed_wgrad"]) == {
            row["expected_wgrad"]
        }

    def _time(self, variants: list[Variant], trainer: Trainer, nodes: schedule.NodeLog) -> None:
        from .timing import Stopwatch

        stopwatch = Stopwatch(trainer, nodes, self.watch, self.report.place)
        total = (self.request.pairs + self.request.warmup) * (len(variants) - 1)
        done = 0

        def progress() -> None:
            nonlocal done
            done += 1
            self.report.progress("timing", done, total)

        if self.request.pairs:
            for variant in variants[1:]:
                self.part.measured[variant.name] = stopwatch.measure(variants[0], variant, progress)
        if self.request.profile:
            self._profile(variants, stopwatch)

    def _profile(self, variants: list[Variant], stopwatch: Stopwatch) -> None:
        for index, variant in enumerate(variants):
            trace = self.report.out / f"trace-{variant.name}-rank{self.report.rank}.json.gz"
            self.part.traces[variant.name] = stopwatch.profile(variant, trace)
            self.report.progress("profile", index + 1, len(variants))

    def _gather(self, engine: Engine) -> None:
        """Collect the parts of all ranks on rank 0, write the files, leave the process groups."""
        import torch.distributed as dist

        from .result import assemble

        self._phase("gather", 0, 1)
        self.part.memory_mib = engine.peak_memory_mib()
        group = dist.new_group(backend="gloo") if engine.backend != "gloo" else None
        parts: list[Any] = [None] * self.report.world_size
        dist.all_gather_object(parts, self.part, group=group)
        dist.barrier()
        if not engine.on_gpu:
            from . import comm_threads

            comm_threads.close()
        dist.destroy_process_group()
        self.report.write_rank("completed", **self.watch.last_words(), error=None, memory_mib=self.part.memory_mib)
        if self.report.rank == 0:
            result = assemble(parts, host_times=engine.host_times)
            self.report.write_result("completed", failure=None, **self.facts, **result)
        self._phase("done", 1, 1)

    def _phase(self, phase: str, done: int, total: int) -> None:
        self.report.place.at(phase)
        self.report.progress(phase, done, total)
        self.watch.write_state()


def _facts(request: Request, engine: Engine, world_size: int) -> dict[str, Any]:
    return {
        "engine": engine.name,
        "mode": engine.mode,
        "device": engine.description(),
        "world_size": world_size,
        "seed": request.seed,
        "versions": engines.versions(),
        "layers": {"implementation": "transformer_engine" if engine.transformer_engine else "local"},
        "emulated": engine.emulated(request.variants),
        "not_tested": engine.not_tested(),
        "fault": asdict(request.fault) if request.fault else None,
    }


def _adjusted(changes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Only what the request had asked for, or what Megatron's own default would have been, as JSON."""
    return [{**change, "from": _json(change["from"]), "to": _json(change["to"])} for change in changes.values()]


def _json(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, list, type(None))) else str(value)
