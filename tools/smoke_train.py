"""Train a small MoE model with real Megatron-Core, EP overlap off and on, and report what happened.

Run in the training environment, one process a rank:

    torchrun --standalone --nproc-per-node N smoke_train.py --request REQUEST.json --out DIR

The program reports evidence, never a verdict: whoever reads `result.json` decides. It needs the folder
`smoke/` beside it, torch and megatron-core (0.15.3 or later), and nothing of the server.

Request (JSON object; what is not marked optional must be there; unknown keys are refused)

    engine      "gloo-cpu"   no GPU: torch.cuda's stream and event surface is mapped to the CPU
                "gloo-gpu"   real CUDA streams, gloo collectives: ranks may share one GPU; correctness only
                "nccl-gpu"   one GPU a rank, Transformer Engine layers where it is installed
    seed        integer; weights and data follow from it
    model       fields of TransformerConfig (MLATransformerConfig when multi_latent_attention is true),
                spelled as the installed Megatron spells them, already shrunk to fit. dtypes are strings
                ("bfloat16"), activation_func is "silu", "gelu", ... The overlap switches are set by the
                variant, not here. What the engine has to change it changes and lists under `adjusted`:
                dropout to 0 everywhere; fusions, grouped GEMM, CUDA graphs, FP8 off without GPU or
                Transformer Engine. Refused: the flex dispatcher on gloo-cpu, multi_latent_attention without
                Transformer Engine.
    ddp         fields of DistributedDataParallelConfig              (optional, {})
    optimizer   fields of OptimizerConfig                            (optional, {"optimizer": "adam"})
    train       {"micro_batch_size", "num_microbatches", "seq_length", "vocab_size",
                 "position_embedding_type": "rope" (optional)}
    variants    ["baseline", "overlap", "overlap_delay_wgrad"]: baseline first, then one or both of the others
    parity_steps  training steps whose numbers are compared          (optional, 3)
    pairs       timed pairs (baseline, variant) a variant            (optional, 8)
    warmup      pairs before them that do not count                  (optional, 2)
    mode        gloo-cpu only: "threads" (comm-stream nodes run on a thread of their own: real overlap) or
                "inline" (program order: the control)                (optional, "threads")
    profile     true: one more step a variant under torch.profiler   (optional, false)
    fault       null, or a planted fault (below)                     (optional, null)
    wall_limit_s  the program ends itself after this many seconds    (optional, 300)
    collective_timeout_s  timeout of every process group             (optional, 60)

Planted faults: {"kind", "rank": 0, "step": 1, "variant": null, "seconds": 0.2}. `step` counts parity steps;
`variant` null means the first one after baseline, for slow_rank and nan_loss every variant.

    drop_wgrad            one expert's weight gradient is lost before gradients are finalised
    missing_wait          the result of one all-to-all arrives after its first use
    overlap_silently_off  the variant is built with the overlap switch off
    slow_rank             the rank sleeps `seconds` in every step (parity and timed)
    die                   the rank kills itself with SIGKILL
    hang                  the rank sleeps for ever
    nan_loss              the loss becomes NaN

Files in DIR

    progress.jsonl       rank 0 appends {"t", "phase", "done", "total"}; phases in order: import, build, parity,
                         timing, profile (when asked), gather, done
    rank<k>.state.json   where the rank is now, rewritten in place (a fixed size, padded with spaces; retry when
                         a read does not parse): {"rank", "pid", "t", "phase", "variant", "step", "last":
                         {"name", "seq", "group", "bytes", "thread", "t", "done"}, "in_flight": [the same, not done]}
    rank<k>.json         the rank's part at its end: {"rank", "status": completed|failed|terminated|timed_out,
                         "t", "phase", "variant", "step", "last_collective", "in_flight", "error": {"type",
                         "message", "at", "traceback"} | null, "memory_mib"}
    rank<k>.stacks.txt   stacks of all threads, appended on SIGUSR1, when another rank of the host fails and
                         when the wall limit strikes
    trace-<variant>-rank<k>.json.gz   Kineto trace (with profile)
    result.json          written once, by rank 0 or, when rank 0 was killed, by a rank that noticed; absent when
                         nobody could: then read the rank files

Exit status of a rank: 0 when it ran to its end, whatever the numbers say; 1 when it failed; 124 when the wall
limit struck. torchrun answers 0 or 1. A run without result.json, or whose status is not "completed", is never
a pass.

result.json

    schema       1
    status       completed | failed | timed_out
    failure      null | {"rank", "phase", "variant", "step", "error", "odd_ranks": [..], "last_collective":
                 {rank: ..}, "in_flight": {rank: [..]}, "ranks": {rank: status | "no report"}}
                 `rank` failed first; when all errors blame a peer (closed connection, timeout), it is the odd
                 rank: the one in no collective while others waited. Ranks that torchrun closed afterwards are
                 `terminated`, never the cause. A failed result has only what was known by then.
    engine, mode, device, world_size, seed, elapsed_s
    versions     {"python", "torch", "megatron_core", "megatron_core_path", "transformer_engine", "deep_ep",
                  "triton", "cuda", "nccl"}; null: not installed
    parallel     {"tp", "cp", "pp", "vpp", "ep", "etp", "dp", "edp"}
    layers       {"implementation": "local" | "transformer_engine"}
    adjusted     [{"setting", "from", "to", "why"}] what the engine had to change in the request
    emulated     [text] what stood in for the real thing
    not_tested   [text] what this engine cannot show
    fault        the planted fault, or null
    schedule     {variant: {"formula", "per_rank": [{"rank", "expected", "executed": [per parity step],
                 "expected_wgrad", "executed_wgrad": [..], "as_expected": bool, "by_node": {name: n},
                 "comm_ms", "hidden_ms"}]}}
                 combined-1F1B nodes a step; baseline expects 0. `by_node` is the last parity step. comm_ms and
                 hidden_ms are as in `overlap`, summed over the parity steps: there without timed pairs as well.
    tolerance    {"kind": "bitwise"} | {"kind": "rounding", "loss": x, "grads_l2": x} what the engine is held to
    steps        [{"variant", "rank", "step", "equal", "within_rounding", "within_tolerance", "finite",
                   "loss": {"baseline": [..], "variant": [..], "equal", "finite", "max_abs_diff"},
                   "grads", "params": {"tensors", "nonzero", "different", "max_abs_diff", "max_rel_l2",
                   "first_different": name | null, "finite"},
                   "grad_norm": {"baseline", "variant", "equal", "finite", "max_abs_diff"}}]
                 One row a variant, rank and parity step; `grads` are main_grad after
                 finalize_model_grads, `params` the weights and the buffers that a checkpoint holds (the
                 router's expert bias) after optimizer.step(). loss is [] on ranks that are not the last pipeline
                 stage. `equal` is bitwise and false when anything is not finite.
                 `within_rounding`: losses, gradient norm and gradients are apart by no more than another order of
                 bf16 sums explains (relative 1e-3 and 2**-6); a lost or stale contribution is not. Seen without a
                 defect: MTP on one stage (the embedding's gradient), shared experts on megatron-core 0.15.
                 `within_tolerance` is `equal` under a bitwise tolerance, else `within_rounding`. After a step in
                 which any rank differed all variants start from the baseline's weights again, so that each row
                 compares one step from equal weights.
    timing       {variant: {"pairs": [{"order": [first, second], "ms": {"baseline", "variant"}, "forward_backward_ms":
                 {..}, "per_rank_ms": {"baseline": [..], "variant": [..]}}], "warmup_pairs": [the same],
                 "own_ms": {"baseline": [per rank], "variant": [per rank]}}}
                 ms is the slowest rank's full step (forward, backward, gradient reduction, optimizer).
                 own_ms is the rank's median step time without the waits in collectives that no compute node
                 covered (null on GPUs): a slow rank stands out there, not in ms.
    overlap      {variant: [{"rank", "comm_ms", "compute_ms", "hidden_ms", "all_to_all_ms", "all_to_all_hidden_ms",
                 "all_to_all_calls", "all_to_all_bytes"}]}
                 medians over the timed steps: unions of the intervals in which nodes ran on the comm and on the
                 compute stream (less the collectives that compute nodes wait in), and their intersection. On
                 GPUs the intervals are CUDA events, and the all_to_all times are null. null for baseline, which
                 has no nodes.
    profile      {variant: {"traces": [{"rank", "file", "all_to_all_events", "all_to_all_calls"}]}} | null
                 Fewer events than calls: the trace misses communication, do not analyse it.
    memory_mib   {rank: peak resident set (CPU) or peak allocated (GPU)}

Engines gloo-gpu and nccl-gpu follow Megatron's sources and have never run on hardware.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smoke.collectives import StateFile, Watch
from smoke.engine import prepare_environment
from smoke.evidence import Report
from smoke.lifeline import Terminated, dump_stacks_to, end_after, raise_on_sigterm, tie_to_launcher
from smoke.request import read_request
from smoke.run import Run


def main() -> int:
    """Run the request on this rank; its exit status."""
    arguments = _arguments()
    tie_to_launcher()
    raise_on_sigterm()
    rank = int(os.environ["RANK"])
    report = Report(arguments.out, rank, int(os.environ["WORLD_SIZE"]))
    stacks = arguments.out / f"rank{rank}.stacks.txt"
    dump_stacks_to(stacks)
    watch = Watch(rank, report.place, StateFile(arguments.out / f"rank{rank}.state.json"))
    watch.write_state()
    ending = Ending(report, watch)
    try:
        request = read_request(arguments.request)
        end_after(request.wall_limit_s, stacks, lambda: ending.write("timed_out"))
        prepare_environment(request.engine)
        ending.run = Run(request, report, watch)
        _recorded(ending.run)
    except Terminated:
        ending.write("terminated")
        return 1
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is written down
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun closes us while we write
        traceback.print_exc()
        ending.write("failed", error)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A short real training run with EP overlap off and on.")
    parser.add_argument("--request", type=Path, required=True, help="JSON file; see the top of this program")
    parser.add_argument("--out", type=Path, required=True, help="folder for the evidence")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def _recorded(run: Run) -> None:
    """Run it; torchrun's error file gets the exception."""
    from torch.distributed.elastic.multiprocessing.errors import record

    record(run.run)()


@dataclass
class Ending:
    """Writes down how this rank ended when it did not reach its end; once, whoever comes first."""

    report: Report
    watch: Watch
    run: Run | None = None
    _once: threading.Lock = field(default_factory=threading.Lock)

    def write(self, status: str, error: BaseException | None = None) -> None:
        """rank<k>.json; and result.json with the failure explained, by rank 0 while there is one."""
        if not self._once.acquire(blocking=False):
            threading.Event().wait()  # the one who writes ends the process
        self.report.write_rank(status, **self.watch.last_words(), error=_described(error), memory_mib=_memory_mib())
        if status != "terminated":
            self.report.ask_for_stacks()
        if self.report.rank == 0 or not self.report.alive(0):
            facts = self.run.facts if self.run else {}
            steps = self.run.part.steps if self.run else []
            overall = "timed_out" if status == "timed_out" else "failed"
            self.report.write_result(overall, failure=self.report.failure(), **facts, steps=steps)


def _described(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "at": f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None,
        "traceback": "".join(traceback.format_exception(error))[-8000:],
    }


def _memory_mib() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # At exit, gloo's and the interpreter's threads are torn down in no fixed order, and once in some forty
    # runs that aborted a finished process; all files are written, so leave at once
    os._exit(status)
