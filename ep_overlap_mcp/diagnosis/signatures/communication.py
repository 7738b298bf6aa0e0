"""Signatures of DeepEP, HybridEP, their packages and the network."""

from __future__ import annotations

from ep_overlap_mcp.diagnosis.signatures.row import Signature, hints, says

_DEEPEP = "deepep-transport-timeout", "deepep-nvshmem-mismatch"

DEEPEP = (
    hints("timeout (dispatch CPU)", "NVIDIA-NeMo/Megatron-Bridge#1335", *_DEEPEP, waits=True),
    hints("timeout for dispatch CPU", "deepseek-ai/DeepEP csrc/deep_ep.cpp", *_DEEPEP, waits=True),
    hints("DeepEP error: CPU recv timeout", "deepseek-ai/DeepEP csrc/deep_ep.cpp", *_DEEPEP, waits=True),
    hints(
        "moe_recv_expert_counter",
        "NVIDIA-NeMo/Megatron-Bridge#3704",
        *_DEEPEP,
        pattern=r"moe_recv_expert_counter\[.{1,8}\]: -1",
        waits=True,
    ),
    hints("num_recv_tokens: -", "NVIDIA-NeMo/RL#4027", *_DEEPEP, waits=True),
    hints("DeepEP dispatch forwarder timeout", "deepseek-ai/DeepEP#158", "deepep-transport-timeout", waits=True),
    hints(
        "DeepEP dispatch NVL receiver timeout",
        "deepseek-ai/DeepEP#274",
        "deepep-transport-timeout",
        waits=True,
    ),
    hints(
        "DeepEP combine",
        "pytorch/torchtitan#3877",
        "deepep-transport-timeout",
        pattern=r"DeepEP combine.{0,60} timeout",
        waits=True,
    ),
    hints("DeepEP dispatch RDMA", "deepseek-ai/DeepEP#158", "deepep-transport-timeout", waits=True),
    hints("DeepEP timeout check failed", "deepseek-ai/DeepEP#570", "deepep-barrier-late-rank", waits=True),
    hints(
        "Unable to create ah",
        "NVIDIA-NeMo/Megatron-Bridge#3808",
        "deepep-transport-timeout",
        "network-not-overlap",
    ),
    hints("nvshmemi_init_thread", "deepseek-ai/DeepEP#150", "deepep-transport-timeout"),
    hints(
        "unspecified launch failure",
        "deepseek-ai/DeepEP#290",
        "deepep-transport-timeout",
        pattern=r"(?:DeepEP/csrc|internode\.cu|deep_ep\.cpp)",
    ),
    says(
        "NVSHMEM device library version does not match",
        "NVIDIA/nvshmem src/host/init/init.cu",
        "deepep-nvshmem-mismatch",
    ),
    hints("num_rc_per_pe", "deepseek-ai/DeepEP#226", "deepep-ibgda-queue-pairs"),
    hints("num_qps_per_rank", "deepseek-ai/DeepEP#134", "deepep-ibgda-queue-pairs", pattern=r"[Aa]ssert"),
    says(
        "DeepEP is supported for Ampere",
        "NVIDIA-NeMo/Megatron-Bridge flex_dispatcher_backend.py@067f987df:101",
        "deepep-unsupported-gpu",
    ),
    hints(
        "named symbol not found",
        "deepseek-ai/DeepEP#224",
        "deepep-unsupported-gpu",
        pattern=r"(?:DeepEP|internode|intranode|deep_ep)",
    ),
    hints(
        "no kernel image is available",
        "deepseek-ai/DeepEP#224",
        "deepep-unsupported-gpu",
        frame="deep_ep|fused_a2a",
    ),
    Signature(
        "DeepEP is only applicable to",
        "NVIDIA-NeMo/Megatron-Bridge#5992",
        ("deepep-fell-back-to-alltoall",),
        stops=False,
    ),
    Signature(
        "HybridEP is only applicable",
        "NVIDIA-NeMo/Megatron-Bridge flex_dispatcher_backend.py@067f987df:74",
        ("deepep-fell-back-to-alltoall",),
        stops=False,
    ),
    Signature(
        "Skipping flex dispatcher backend configuration",
        "NVIDIA-NeMo/Megatron-Bridge flex_dispatcher_backend.py@067f987df:81",
        ("deepep-fell-back-to-alltoall",),
        rules=("flex-helper-without-effect",),
        stops=False,
    ),
)

PACKAGES = (
    says(
        "DeepEP is not installed",
        "megatron/core token_dispatcher.py (0.16.1:1150)",
        "flex-package-not-importable",
    ),
    says(
        "HybridEP is not installed",
        "megatron/core token_dispatcher.py (0.16.1:998)",
        "flex-package-not-importable",
    ),
    says("No module named 'deep_ep", "NVIDIA-NeMo/Megatron-Bridge#3867", "flex-package-not-importable"),
    says(
        "deep_ep_cpp",
        "deepseek-ai/DeepEP#481",
        "flex-package-not-importable",
        pattern=r"(?:undefined symbol|cannot open shared object)",
    ),
    says(
        "cannot import name",
        "pytorch/torchtitan#3414",
        "flex-package-not-importable",
        pattern=r"'(?:EventHandle|EventOverlap|Buffer|HybridEPBuffer)' from '?deep_ep",
    ),
    says(
        "libnvshmem",
        "deepseek-ai/DeepEP README, NVSHMEM",
        "flex-package-not-importable",
        pattern=r"cannot open shared object",
    ),
    says(
        "NVSHMEM is disabled during compilation",
        "deepseek-ai/DeepEP csrc/deep_ep.cpp",
        "flex-package-not-importable",
    ),
    hints("check_nccl_so", "sgl-project/sglang#40671", "flex-package-not-importable"),
)

HYBRIDEP = (
    says("tx_depth >", "NVIDIA/Megatron-LM#3999", "hybridep-tokens-over-queue-depth", pattern=r"tx_depth <"),
    hints("hybrid_ep_ib_tx_depth", "NVIDIA/Megatron-LM#4846", "hybridep-tokens-over-queue-depth"),
    says(
        "MAX_NUM_OF_TOKENS_PER_RANK",
        "NVIDIA/Megatron-LM#4384",
        "hybridep-chunk-misaligned",
        pattern=r"NUM_OF_TOKENS_PER_CHUNK",
    ),
    hints("bytes_per_rank %", "NVIDIA-NeMo/Automodel#3641", "hybridep-unequal-token-counts"),
    hints(
        "allgather_routing_map",
        "deepseek-ai/DeepEP#604",
        "hybridep-unequal-token-counts",
        stops=False,
        waits=True,
    ),
    hints(
        "update_template_config",
        "deepseek-ai/DeepEP#604",
        "hybridep-unequal-token-counts",
        stops=False,
        waits=True,
    ),
    hints(
        "HYBRID-EP",
        "NVIDIA-NeMo/Megatron-Bridge#2012",
        "hybridep-peer-late",
        "hybridep-unequal-token-counts",
        pattern=r"TIMEOUT",
        waits=True,
    ),
    says(
        "ranks_per_nvlink_domain",
        "DeepEP hybrid-ep hybrid_ep_buffer.py@94a9f8f:63-76",
        "hybridep-domain-size-wrong",
        pattern=r"(?i)(?:assert|not divisible|must be|error)",
    ),
    hints(
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
        "deepseek-ai/DeepEP#596",
        "hybridep-domain-size-wrong",
        pattern=r"(?i)(?:mismatch|differs|does not match|detected)",
        stops=False,
    ),
    says(
        "divisible by the number of ranks per node",
        "deepseek-ai/DeepEP deep_ep/hybrid_ep_buffer.py@017a520:60",
        "hybridep-domain-size-wrong",
    ),
    says(
        "rank stride should be less than",
        "deepseek-ai/DeepEP deep_ep/hybrid_ep_buffer.py@017a520:53",
        "hybridep-domain-size-wrong",
    ),
    hints(
        "or equal to the max number of tokens per rank",
        "deepseek-ai/DeepEP deep_ep/hybrid_ep_buffer.py@017a520:266",
        "hybridep-unequal-token-counts",
    ),
    hints(
        "num_of_expert == config.num_of_experts_per_rank",
        "deepseek-ai/DeepEP#479",
        "hybridep-domain-size-wrong",
    ),
)

NETWORK = (
    hints(
        "Got completion from peer",
        "NVIDIA/nccl#1405, #1664, #1814",
        "network-not-overlap",
        pattern=r"status=(?:12|5|13)\b",
    ),
    hints("Got async event", "NVIDIA/nccl#1405", "network-not-overlap", pattern=r"port error|fatal", stops=False),
    hints("IBV_WC_RETRY_EXC_ERR", "NVIDIA/nccl#1814", "network-not-overlap"),
    hints(
        "socketStartConnect: Connect to",
        "NCCL src/misc/socket.cc",
        "network-not-overlap",
        pattern=r"failed : (?:No route to host|Connection refused|Connection timed out|Network is unreachable)",
    ),
)
