"""What a device activity is, told by its demangled name: the one table of kernel names.

Streams do not tell communication from computation (DeepSeek's DualPipe trace runs cast kernels on its
communication stream), short names do not either (DeepEP's is plainly `dispatch`), so the whole demangled
name decides. The first row of `FAMILIES` that matches wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache


class Kind(IntFlag):
    """The classes that are accounted for; one bit each, so that a set of them is one integer."""

    DISPATCH = 1
    COMBINE = 2
    ALL_TO_ALL = 4  # an all-to-all whose direction (dispatch or combine) the profile does not tell
    COLLECTIVE = 8
    P2P = 16
    SENDRECV = 32  # NCCL's SendRecv before it is known to be an all-to-all or pipeline traffic
    CONTROL = 64  # notify, layout, barrier, size exchange: waiting, not transfer
    GEMM_ATTENTION = 128
    OTHER_COMPUTE = 256
    MEMORY = 512  # copies and memsets on one device


COMMUNICATION = int(
    Kind.DISPATCH | Kind.COMBINE | Kind.ALL_TO_ALL | Kind.COLLECTIVE | Kind.P2P | Kind.SENDRECV | Kind.CONTROL
)
COMPUTE = int(Kind.GEMM_ATTENTION | Kind.OTHER_COMPUTE)


@dataclass(frozen=True)
class Family:
    """Kernels that share a kind: how they are recognised and where their names were read."""

    name: str
    kind: Kind
    pattern: re.Pattern[str]
    source: str
    fused: bool = False  # communication and computation inside one kernel
    known: bool = True
    suspicious: bool = False  # what it is, is not known; its name says communication


def _family(name: str, kind: Kind, pattern: str, source: str, *, fused: bool = False) -> Family:
    return Family(name, kind, re.compile(pattern), source, fused)


_EP = r"\b(?:deep_ep|dpsk::ep|hybrid_ep|nccl_ep)\b[\w:]*?::"
_DEEPEP = r"\b(?:deep_ep|dpsk::ep)\b[\w:]*?::"
_DEEPEP_SOURCE = "deepseek-ai/DeepEP @ dd758ca (legacy and elastic), @ 94a9f8f (hybrid-ep branch: pcie)"
_DPSK_SOURCE = "deepseek-ai/profile-data @ 4496024 : train.json"
_HYBRIDEP_SOURCE = "deepseek-ai/DeepEP @ 94a9f8f (hybrid-ep branch)"
_NCCL_SOURCE = "NVIDIA/nccl @ 5067397 : src/device"
_KINETO_SOURCE = "kernels seen in public PyTorch profiles"
_SYMMETRIC_SOURCE = "pytorch/pytorch @ fd6c4b6 : torch/csrc/distributed/c10d/symm_mem"
_MOE_A2A_SOURCE = (
    "NVIDIA/TensorRT-LLM : cpp/tensorrt_llm/kernels/communicationKernels/moeAlltoAllKernels.cu,"
    " fusedMoeCommKernels.cu; flashinfer-ai/flashinfer : include/flashinfer/comm/trtllm_alltoall.cuh"
)

# a kernel's own name: what stands before its template arguments and its parameters; `<unnamed>` is Nsight's word
_OWN = r"^(?:\(anonymous namespace\)|<unnamed>|[^<(])*"
# names that the compiler of PyTorch makes from the operators whose pointwise work a kernel does, collectives too
_INDUCTOR = r"\btriton_[a-z]{3}_fused"
_COMPUTES = (
    rf"(?:\bat::|\bat_cuda_detail|\bat_native|{_INDUCTOR}|\btransformer_engine::|\bfbgemm|\bcub::|\bthrust::"
    r"|\b(?:cudnn|miopen|apex)|multi_tensor_apply)"
)
# small_gather and call_reduce are no collectives
_COLLECTIVES = r"(?<!sm)(?<![bc])all_?(?:reduce|gather|to_?all)|reduce_?scatter|all2all|(?<![0-9a-z])a2a_|rdma"
_TOKENS = r"(?:moe|expert|token|\bep_)"  # attention combines, too: its splits


def _suspicious(name: str, pattern: str) -> Family:
    source = "no row matched, yet its own name (not its arguments) speaks of communication"
    return Family(name, Kind.OTHER_COMPUTE, re.compile(pattern), source, known=False, suspicious=True)


UNCLASSIFIED = Family("unclassified", Kind.OTHER_COMPUTE, re.compile(""), "no row matched", known=False)

FAMILIES: tuple[Family, ...] = (
    _family("fused MoE mega-kernel", Kind.OTHER_COMPUTE, r"(?i)mega_?moe", "DeepGEMM, Primus", fused=True),
    _family("DeepEP notify", Kind.CONTROL, _DEEPEP + r"(?:cached_)?notify\w*", _DEEPEP_SOURCE),
    _family("DeepEP layout", Kind.CONTROL, _DEEPEP + r"get_dispatch_layout\b", _DEEPEP_SOURCE),
    _family("DeepEP barrier", Kind.CONTROL, _DEEPEP + r"barrier\w*", _DEEPEP_SOURCE),
    _family(
        "DeepEP buffers",
        Kind.CONTROL,
        _DEEPEP + r"(?:clean_low_latency_buffer|(?:query|update|clean)_mask_buffer)\b",
        _DEEPEP_SOURCE,
    ),
    _family("DeepEP prologue", Kind.CONTROL, r"\bdispatch_deterministic_prologue_impl\b", _DEEPEP_SOURCE),
    _family(
        "HybridEP control",
        Kind.CONTROL,
        r"\bhybrid_ep::(?:scan|device_sync_kernel|rdma_sync_kernel|update_expected_value_kernel)\b",
        _HYBRIDEP_SOURCE,
    ),
    _family("NCCL-EP scan", Kind.CONTROL, r"\bnccl_ep_jit\w*_scan_kernel\b", _NCCL_SOURCE),
    _family(
        "DeepEP local epilogue",
        Kind.OTHER_COMPUTE,
        r"\b(?:dispatch_copy_epilogue_impl|combine_reduce_epilogue_impl)\b",
        _DEEPEP_SOURCE,
    ),
    _family(
        "HybridEP local permutation",
        Kind.OTHER_COMPUTE,
        r"\bhybrid_ep::(?:un)?permute_kernel\b|\bpad_tokens_per_expert_kernel\b",
        _HYBRIDEP_SOURCE,
    ),
    _family(
        "expert-parallel dispatch",
        Kind.DISPATCH,
        _EP + r"(?:hybrid_)?dispatch(?:_kernel|_impl|_pcie)?\b|\bnccl_ep_jit\w*_dispatch_kernel\b",
        f"{_DEEPEP_SOURCE}; {_HYBRIDEP_SOURCE}; {_DPSK_SOURCE}; {_NCCL_SOURCE}",
    ),
    _family(
        "expert-parallel combine",
        Kind.COMBINE,
        _EP
        + r"(?:hybrid_)?combine(?:_overlappable)?(?:_kernel|_impl|_pcie)?\b"
        + r"|\bnccl_ep_jit\w*_combine_kernel\b",
        f"{_DEEPEP_SOURCE}; {_HYBRIDEP_SOURCE}; {_DPSK_SOURCE}; {_NCCL_SOURCE}",
    ),
    _family("DeepEP pipeline", Kind.P2P, r"\bdeep_ep::[\w:]*\bpp_(?:send|recv)_impl\b", _DEEPEP_SOURCE),
    _family("HybridEP all-gather", Kind.COLLECTIVE, r"\bag_nvl_kernel\b", _HYBRIDEP_SOURCE),
    _family("NCCL SendRecv", Kind.SENDRECV, r"\bnccl(?:Dev)?Kernel_SendRecv", _NCCL_SOURCE),
    _family("NCCL all-to-all", Kind.ALL_TO_ALL, r"(?i)\bnccl(?:Symk?)?(?:Dev)?Kernel_AllToAll", _NCCL_SOURCE),
    _family(
        "NCCL and RCCL collectives",
        Kind.COLLECTIVE,
        r"\b(?:nccl|rccl)(?:Symk?)?(?:Dev)?Kernel|\b(?:rccl|nccl)GenericKernel|\brccl_main_kernel|\bmscclKernel_",
        f"{_NCCL_SOURCE}; ROCm/rccl : src/device (msccl_kernel_impl.h; rccl_main_kernel in ROCm 6)",
    ),
    _family(
        "PyTorch symmetric memory",
        Kind.COLLECTIVE,
        r"\b(?:multimem(?:_one_shot)?|one_shot|two_shot)_(?:all_reduce|reduce|all_gather)\w*_kernel"
        r"|\b(?:oneShot|twoShot|hybridCubeMesh)AllReduceKernel",
        f"{_SYMMETRIC_SOURCE}/CUDASymmetricMemoryOps.cu, intra_node_comm.cu",
    ),
    _family(
        "PyTorch symmetric memory, tokens",
        Kind.ALL_TO_ALL,
        r"\ballToAllV(?:_2d)?\b",
        f"{_SYMMETRIC_SOURCE}/nvshmem_extension.cu",
    ),
    _family(
        "PyTorch symmetric memory, sizes",
        Kind.CONTROL,
        r"\bexchangeSplitAndOffset",
        f"{_SYMMETRIC_SOURCE}/nvshmem_extension.cu",
    ),
    _family("TensorRT-LLM local preparation", Kind.OTHER_COMPUTE, r"\bmoeA2A(?:Prepare|Sanitize)", _MOE_A2A_SOURCE),
    _family("TensorRT-LLM dispatch", Kind.DISPATCH, r"\bmoeA2ADispatchKernel\b", _MOE_A2A_SOURCE),
    _family("TensorRT-LLM combine", Kind.COMBINE, r"\bmoeA2ACombineKernel\b", _MOE_A2A_SOURCE),
    _family("TensorRT-LLM all-to-all", Kind.ALL_TO_ALL, r"\bmoeAllToAllKernel\b", _MOE_A2A_SOURCE),
    _family("custom all-reduce", Kind.COLLECTIVE, r"\bcross_device_reduce", "vllm-project/vllm"),
    _family(
        "Transformer Engine userbuffers",
        Kind.COLLECTIVE,
        r"\bk?userbuffers_\w+",
        "NVIDIA/TransformerEngine @ d0067d0 : transformer_engine/common/comm_gemm_overlap",
    ),
    _family("NVSHMEM barrier", Kind.CONTROL, r"\b(?:nvshmem|rocshmem)\w*(?:barrier|sync)", "NVIDIA/nvshmem"),
    _family("NVSHMEM transfer", Kind.P2P, r"\b(?:nvshmem|rocshmem)", "NVIDIA/nvshmem"),
    # above attention (flashinfer communicates, too), multiplications and the generic words (all_reduce_kernel)
    _suspicious("suspicious collective", rf"(?i)(?!{_OWN}(?:\bat::|{_INDUCTOR})){_OWN}(?:{_COLLECTIVES})"),
    _suspicious(
        "suspicious dispatch",
        rf"(?i)(?!{_OWN}{_COMPUTES}){_OWN}(?:dispatch|{_TOKENS}[\w:]*combine|combine\w*{_TOKENS})",
    ),
    _family(
        "attention",
        Kind.GEMM_ATTENTION,
        r"(?i)flash|fmha|attention|cudnn\w*sdpa|\bmha_",
        f"NVIDIA/TransformerEngine @ d0067d0; {_KINETO_SOURCE}",
    ),
    _family(
        "matrix multiplication",
        Kind.GEMM_ATTENTION,
        # fbgemm is a library of embedding kernels; only its own GEMMs multiply matrices
        r"(?i)(?<!fb)gem[mv]|\bnvjet|\bcutlass(?:_\d|::Kernel|::device_kernel)|xmma_(?!new|fprop|dgrad|wgrad)"
        r"|\bCijk_|splitKreduce",
        f"{_DPSK_SOURCE}; NVIDIA/TransformerEngine @ d0067d0; {_KINETO_SOURCE}",
    ),
    _family("libraries of computation", Kind.OTHER_COMPUTE, _OWN + _COMPUTES, _KINETO_SOURCE),
    # below the known namespaces, so that no generic word takes such a name for computation
    _suspicious("suspicious word", r"(?i)" + _OWN + r"(?:combine|notify|(?<!a)sync)"),
    _family("computation with a library's types", Kind.OTHER_COMPUTE, _COMPUTES + r"|\btriton_", _KINETO_SOURCE),
    _family(
        "other computation",
        Kind.OTHER_COMPUTE,
        r"(?i)elementwise|reduce_kernel|softmax|layer_?norm|rms_?norm|batch_?norm|rotary|rope"
        r"|permute|router|topk|swiglu|cast|quant|transpose|embedding|\bfill|conv|_grad|dropout|epilogue::impl"
        r"|index|scatter|gather|copy|bias|adam|convert|Op\w*Kernel|TensorOp",
        _KINETO_SOURCE,
    ),
)


@lru_cache(maxsize=65536)
def family_of(name: str) -> Family:
    """The family a demangled kernel name belongs to; `UNCLASSIFIED` (counted as compute) when none does."""
    return next((family for family in FAMILIES if family.pattern.search(name)), UNCLASSIFIED)


def kind_of_copy(name: str) -> Kind:
    """The kind of a memory copy: between two devices it is communication (NCCL's copy-engine collectives).

    Name as Kineto writes it, `Memcpy PtoP (Device -> Device)`; source: NVIDIA/nccl @ 5067397 : src/ce_coll.cc.
    """
    return Kind.P2P if re.match(r"Memcpy (?:PtoP|P2P)", name) else Kind.MEMORY


def kind_of_collective(operation: str, group: str = "") -> Kind | None:
    """The kind of a torch.distributed operation; where its name does not tell, by its process group.

    Names are those of `Collective name` in kernel arguments and of annotations `nccl:…` and `gloo:…`. Megatron
    describes its groups (`EXPERT_MODEL_PARALLEL_GROUP`, `PIPELINE_MODEL_PARALLEL_GROUP`: NVIDIA/Megatron-LM @
    d98e8a6 : megatron/core/parallel_state.py). None when neither tells.
    """
    operation, group = operation.lower(), group.upper()
    if re.search(r"all_?to_?all", operation):
        # context parallelism sends by all-to-all, too
        return Kind.COLLECTIVE if "CONTEXT" in group else Kind.ALL_TO_ALL
    for pattern, kind in _OPERATIONS:
        if re.search(pattern, operation):
            return kind
    return next((kind for word, kind in _GROUPS if word in group), None)


_OPERATIONS = (
    (r"barrier", Kind.CONTROL),
    (r"reduce|gather|broadcast|scatter", Kind.COLLECTIVE),
    (r"(?:^|[:_])i?(?:send|recv)(?![a-z])", Kind.P2P),
)
_GROUPS = (
    ("PIPELINE", Kind.P2P),
    ("CONTEXT", Kind.COLLECTIVE),
    ("EXPERT_MODEL", Kind.ALL_TO_ALL),
    ("EXPERT_TENSOR", Kind.COLLECTIVE),
)
