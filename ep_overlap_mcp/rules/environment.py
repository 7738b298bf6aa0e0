"""EPO601-608, 612-615, 617: GPU, packages and environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_overlap_mcp.rules.engine import (
    ERROR,
    MET,
    NOTED,
    WARNING,
    bridge,
    core,
    evidence,
    megatron_lm,
    put,
    put_paths,
    rule,
    run_time,
    violated,
)
from ep_overlap_mcp.rules.remedies import hybridep_where_it_runs
from ep_overlap_mcp.rules.sources import arguments, bridge_setup, core_config, megatron_bridge
from ep_overlap_mcp.rules.truth import Truth, truth
from ep_overlap_mcp.settings.bridge_writes import flex_backend_allowed

if TYPE_CHECKING:
    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View
    from ep_overlap_mcp.stack import Framework

CONNECTIONS = "env.CUDA_DEVICE_MAX_CONNECTIONS"
HELPER = "bridge.apply_flex_dispatcher_backend"

_BACKEND_FILE = "training/flex_dispatcher_backend.py"
_NOT_BRIDGE: tuple[Framework, ...] = ("megatron-core", "megatron-lm")


@rule(
    "EPO601",
    "torch-at-least-2-6",
    ERROR,
    enforced=[core(), bridge()],
    source=[core_config("0.16.1", "1852-1856"), bridge_setup("main", "493")],
    unknown=MET,
)
def torch_at_least_2_6(view: View) -> Check:
    """What it checks: EP overlap with torch older than 2.6.

    Why: the overlap hangs there; Megatron-Core asserts the version.

    Example: `--stack torch==2.5.1`

    Fix: torch 2.6 or newer.
    """
    torch = view.version("torch")
    return violated(
        view.overlap & torch.below("2.6.0"),
        f"torch is {torch}; EP overlap hangs before 2.6",
        expected="torch >= 2.6",
    )


@rule(
    "EPO602",
    "deepep-needs-supported-gpu",
    ERROR,
    enforced=[bridge(), evidence(on=_NOT_BRIDGE)],
    source=[
        megatron_bridge("main", _BACKEND_FILE, "96-104"),
        megatron_bridge("0.3.1", _BACKEND_FILE, "74-78"),
        "https://github.com/deepseek-ai/DeepEP/issues/579",
    ],
    fixes=[
        hybridep_where_it_runs(),
        put(moe_token_dispatcher_type="alltoall", gives_up="a fused dispatcher"),
    ],
)
def deepep_needs_supported_gpu(view: View) -> Check:
    """What it checks: DeepEP carries the tokens on a GPU where it does not run: anything but Ampere, Ada, Hopper, B200
    and B300.

    Why: DeepEP's kernels assume nodes of eight GPUs; Bridge raises ValueError on GB200, GB300 and others, and reports
    from other frameworks show failing kernels. `flex` with no backend named means DeepEP.

    Example: `--moe-token-dispatcher-type flex` on GB200

    Fix: `moe_flex_dispatcher_backend=hybridep`, or `alltoall`.
    """
    return violated(
        view.dispatches_by("flex", "deepep") & _refused(view, "deepep"),
        f"DeepEP does not run on {view.gpu_name}; it needs Ampere, Ada, Hopper, B200 or B300",
        expected="moe_flex_dispatcher_backend = hybridep",
    )


@rule(
    "EPO603",
    "hybridep-needs-supported-gpu",
    ERROR,
    enforced=[bridge(), evidence(">=0.16.0rc0", on=_NOT_BRIDGE)],
    source=[megatron_bridge("main", _BACKEND_FILE, "105-109"), megatron_bridge("0.2.0", _BACKEND_FILE, "79-81")],
    fixes=[put(moe_token_dispatcher_type="alltoall", gives_up="a fused dispatcher")],
)
def hybridep_needs_supported_gpu(view: View) -> Check:
    """What it checks: HybridEP carries the tokens on a GPU that is no data-centre GPU from Ampere to Blackwell.

    Why: Bridge raises ValueError (Bridge 0.2 on all but GB200 and GB300), and the kernels are not built for others.

    Example: `moe_flex_dispatcher_backend=hybridep` on V100

    Fix: `moe_token_dispatcher_type=alltoall`.
    """
    return violated(
        view.dispatches_by("flex", "hybridep") & _refused(view, "hybridep"),
        f"HybridEP does not run on {view.gpu_name}",
        expected="moe_token_dispatcher_type = alltoall",
    )


@rule(
    "EPO604",
    "ncclep-needs-hopper",
    ERROR,
    enforced=[run_time(">=0.19")],
    source="NVIDIA/TransformerEngine@00145f7c1:transformer_engine/common/ep/ep_backend.cpp:97-103",
    fixes=[put(moe_token_dispatcher_type="alltoall", gives_up="a fused dispatcher")],
)
def ncclep_needs_hopper(view: View) -> Check:
    """What it checks: NCCL EP carries the tokens on a GPU older than Hopper.

    Why: Transformer Engine's NCCL EP checks for compute capability 9.0.

    Example: `moe_flex_dispatcher_backend=ncclep` on A100

    Fix: `moe_token_dispatcher_type=alltoall`.
    """
    return violated(
        view.dispatches_by("flex", "ncclep") & view.gpu_capability.test(lambda cc: cc < (9, 0)),
        f"NCCL EP needs Hopper or newer; the GPU is {view.gpu_name}",
        expected="moe_token_dispatcher_type = alltoall",
    )


@rule(
    "EPO605",
    "hybridep-on-ampere-unproven",
    WARNING,
    enforced=[evidence(">=0.16.0rc0")],
    source=megatron_bridge("main", _BACKEND_FILE, "105-109"),
    unknown=NOTED,
)
def hybridep_on_ampere_unproven(view: View) -> Check:
    """What it checks: HybridEP on a GPU of compute capability 8.

    Why: Bridge admits it, but HybridEP's kernels use bulk copies that came with Hopper; no run on Ampere is known.

    Example: `moe_flex_dispatcher_backend=hybridep` on A100

    Fix: try `deepep` or `alltoall` first.
    """
    return violated(
        view.dispatches_by("flex", "hybridep") & view.gpu_capability.test(lambda cc: cc[0] == 8),
        f"HybridEP on {view.gpu_name} is admitted but unproven; its kernels use features of Hopper",
    )


@rule(
    "EPO606",
    "more-than-one-cuda-connection",
    WARNING,
    enforced=[megatron_lm(">=0.14"), evidence(">=0.14")],
    source=[arguments("0.16.1", "924-950"), "https://github.com/NVIDIA/Megatron-LM/issues/2180"],
    unknown=NOTED,
    fixes=[put_paths({CONNECTIONS: 32})],
)
def more_than_one_cuda_connection(view: View) -> Check:
    """What it checks: EP overlap with `CUDA_DEVICE_MAX_CONNECTIONS=1`.

    Why: one connection lines up all streams in one queue, so communication waits behind computation and the overlap
    is mostly lost, without any error. Megatron-LM only warns, and only with tensor or context parallelism.

    Example: `export CUDA_DEVICE_MAX_CONNECTIONS=1`

    Fix: 32 (8 serves `alltoall`); with tensor parallelism weigh it against that overlap.
    """
    return violated(
        view.overlap & (view[CONNECTIONS] == 1),
        "CUDA_DEVICE_MAX_CONNECTIONS is 1; EP overlap needs several connections to run side by side",
        expected="CUDA_DEVICE_MAX_CONNECTIONS = 32",
    )


@rule(
    "EPO607",
    "one-cuda-connection-without-overlap",
    ERROR,
    enforced=[megatron_lm(">=0.14")],
    source=arguments("0.16.1", "924-953"),
    unknown=NOTED,
    fixes=[put_paths({CONNECTIONS: 1})],
)
def one_cuda_connection_without_overlap(view: View) -> Check:
    """What it checks: tensor or context parallelism without EP overlap, on a GPU before Blackwell, with
    `CUDA_DEVICE_MAX_CONNECTIONS` other than 1.

    Why: Megatron-LM asserts 1 there, so a script made for EP overlap fails when the overlap is switched off. Sharded
    data parallelism is exempt.

    Example: `CUDA_DEVICE_MAX_CONNECTIONS=32` with TP 2 and no overlap on H100

    Fix: `CUDA_DEVICE_MAX_CONNECTIONS=1` for the run without overlap.
    """
    connections = view[CONNECTIONS]
    older = view.gpu_capability.test(lambda cc: cc < (10, 0))
    return violated(
        ~view.overlap & view.written(CONNECTIONS) & (connections != 1) & splits_layers(view) & ~_sharded(view) & older,
        f"CUDA_DEVICE_MAX_CONNECTIONS is {connections}; without EP overlap Megatron-LM asserts 1 on {view.gpu_name}",
        expected="CUDA_DEVICE_MAX_CONNECTIONS = 1",
    )


@rule(
    "EPO608",
    "fsdp-needs-more-cuda-connections",
    ERROR,
    enforced=[megatron_lm(">=0.14"), bridge(">=0.5")],
    source=[
        arguments("0.16.1", "622-623"),
        arguments("0.16.1", "687-688"),
        megatron_bridge("main", "training/config.py", "1110-1112"),
    ],
    unknown=NOTED,
    fixes=[put_paths({CONNECTIONS: 8})],
)
def fsdp_needs_more_cuda_connections(view: View) -> Check:
    """What it checks: sharded data parallelism with `CUDA_DEVICE_MAX_CONNECTIONS=1`.

    Why: its gathers could never run beside computation; Megatron-LM and Bridge assert another value.

    Example: `CUDA_DEVICE_MAX_CONNECTIONS=1` with `--use-megatron-fsdp`

    Fix: 8, or leave it unset.
    """
    return violated(
        _sharded(view) & view.written(CONNECTIONS) & (view[CONNECTIONS] == 1),
        "CUDA_DEVICE_MAX_CONNECTIONS is 1 with sharded data parallelism",
        expected="CUDA_DEVICE_MAX_CONNECTIONS > 1",
    )


@rule(
    "EPO612",
    "grouped-gemm-needs-ampere",
    ERROR,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "852-854"),
    unknown=NOTED,
    fixes=[put(moe_grouped_gemm=False, gives_up="grouped GEMM")],
)
def grouped_gemm_needs_ampere(view: View) -> Check:
    """What it checks: grouped GEMM on a GPU before Ampere.

    Why: Megatron-LM asserts compute capability 8.

    Example: `--moe-grouped-gemm` on V100

    Fix: leave grouped GEMM off.
    """
    return violated(
        view["model.moe_grouped_gemm"].on & view.gpu_capability.test(lambda cc: cc < (8, 0)),
        f"`moe_grouped_gemm` needs Ampere or newer; the GPU is {view.gpu_name}",
        expected="moe_grouped_gemm = false",
    )


@rule(
    "EPO614",
    "deepep-nvshmem-match",
    WARNING,
    enforced=[evidence()],
    source=["https://github.com/NVIDIA-NeMo/RL/issues/4027", "https://github.com/NVIDIA-NeMo/Automodel/pull/2614"],
    unknown=NOTED,
    fixes=[put(moe_token_dispatcher_type="alltoall", gives_up="DeepEP")],
)
def deepep_nvshmem_match(view: View) -> Check:
    """What it checks: DeepEP between nodes with NVSHMEM 3.5.19 or newer.

    Why: timeouts in the first dispatch between nodes have been reported from that version on, most often where
    `deep_ep` was built against another one.

    Example: `nvshmem==3.5.19` with a group of 16 ranks

    Fix: rebuild DeepEP against the NVSHMEM in use, or use an older one; `alltoall` meanwhile.
    """
    nvshmem = view.version("nvshmem")
    return violated(
        view.dispatches_by("flex", "deepep") & (view.expert_group > 8) & nvshmem.at_least("3.5.19"),
        f"NVSHMEM is {nvshmem}; DeepEP between nodes is reported to time out from 3.5.19 on",
        expected="NVSHMEM below 3.5.19, or DeepEP rebuilt against it",
    )


@rule(
    "EPO615",
    "bridge-gpu-fallback",
    WARNING,
    enforced=[bridge(">=0.2,<0.6", falls_back=False), bridge(">=0.6", falls_back=True)],
    source=[megatron_bridge("main", _BACKEND_FILE, "27-85"), megatron_bridge("0.5.1", _BACKEND_FILE, "27-70")],
    fixes=[put_paths({HELPER: "hybridep"})],
)
def bridge_gpu_fallback(view: View, *, falls_back: bool) -> Check:
    """What it checks: `apply_flex_dispatcher_backend` asks for a backend that Bridge refuses on this GPU.

    Why: it logs one warning on rank 0 and training runs without the backend: from 0.6 through `alltoall`, before with
    whatever dispatcher was set.

    Example: `apply_flex_dispatcher_backend(cfg.model, "deepep")` on GB200

    Fix: `hybridep` on such a GPU, or accept the other dispatcher.
    """
    backend, dispatcher = view[HELPER], view["model.moe_token_dispatcher_type"]
    refused = (backend == "deepep") & _refused(view, "deepep") | (backend == "hybridep") & _refused(view, "hybridep")
    instead = "falls back to alltoall" if falls_back else f"leaves the dispatcher as it was ({dispatcher})"
    return violated(
        refused,
        f"`apply_flex_dispatcher_backend` asks for {backend} on {view.gpu_name}, where Bridge {instead}",
        expected="a backend that the GPU supports",
    )


@rule(
    "EPO617",
    "fake-process-group-excludes-flex",
    ERROR,
    enforced=[megatron_lm(">=0.16")],
    source=arguments("0.16.1", "1106-1107"),
    fixes=[put(moe_token_dispatcher_type="alltoall")],
)
def fake_process_group_excludes_flex(view: View) -> Check:
    """What it checks: a fake process group with the flex dispatcher.

    Why: flex backends talk to real ranks; Megatron-LM asserts another dispatcher.

    Example: `--fake-process-group --moe-token-dispatcher-type flex`

    Fix: `moe_token_dispatcher_type=alltoall`.
    """
    return violated(
        view["dist.fake_process_group"].on & view.dispatches_by("flex"),
        "the flex dispatcher cannot run on a fake process group",
        expected="moe_token_dispatcher_type = alltoall",
    )


def splits_layers(view: View) -> Truth:
    """Whether tensor or context parallelism splits layers: Megatron-LM then wants one CUDA connection."""
    return (view["model.tensor_model_parallel_size"] > 1) | (view["model.context_parallel_size"] > 1)


def _sharded(view: View) -> Truth:
    return view["ddp.use_megatron_fsdp"].on | view["dist.use_torch_fsdp2"].on


def _refused(view: View, backend: str) -> Truth:
    """Whether the backend does not run on the GPU; unknown without a GPU that is in the table."""
    gpu = view["hardware.gpu"]
    allowed = flex_backend_allowed(backend, str(gpu.raw), view.effective) if gpu.known and gpu.raw else None
    return Truth(None, frozenset(("hardware.gpu",))) if allowed is None else truth(not allowed)
