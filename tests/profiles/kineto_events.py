"""Events as Kineto writes them."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
OTHER = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
DISPATCH = "void deep_ep::internode::dispatch<false, 8, true, 8>(int4*)"
COMBINE = "void deep_ep::internode::combine<false, 8, __nv_bfloat16>(int4*)"
NOTIFY = "void deep_ep::internode::notify_dispatch<false, 8>(int const*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name: str, ts: float, dur: float, *, stream: int = 7, device: int = 0, **args: object) -> Event:
    """A kernel as Kineto writes it; microseconds."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": {"device": device, "stream": stream, **args},
    }


def annotation(name: str, ts: float, dur: float, *, cat: str = "user_annotation", tid: int = 1) -> Event:
    """A range on a host thread."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {}}
