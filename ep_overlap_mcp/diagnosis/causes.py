"""The registry of causes: what each is, the test that confirms it, the fix, the rules it concerns.

`ceiling` is the most a log alone may claim: a cause that public threads only inferred stays `likely`.
`framework` is the only one whose code can bring the cause about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ep_overlap_mcp.results.diagnose import Confidence
    from ep_overlap_mcp.stack import Framework


@dataclass(frozen=True)
class CauseRow:
    """One cause; `rules` are rule names, `basis` says where the cause was established and how well."""

    name: str
    title: str
    test: str
    fix: str
    rules: tuple[str, ...]
    basis: str
    ceiling: Confidence = "confirmed"
    framework: Framework | None = None


_ROWS = (
    CauseRow(
        "deepep-nvshmem-mismatch",
        "DeepEP was built for another NVSHMEM than the one it runs with",
        "print the NVSHMEM host version (`nvshmem-info -a`) and the one deep_ep was built with, then run "
        "DeepEP's tests/test_internode.py on two nodes",
        "rebuild DeepEP against the NVSHMEM in use (with deepseek-ai/DeepEP#564 for 3.5.19 and later), or pin "
        "NVSHMEM below 3.5.19; meanwhile moe_token_dispatcher_type=alltoall",
        ("deepep-nvshmem-match",),
        "controlled rebuild in NVIDIA-NeMo/Automodel#3967; deepseek-ai/DeepEP#707",
    ),
    CauseRow(
        "deepep-transport-timeout",
        "DeepEP's cross-node transport did not deliver within its 100 s limit",
        "DeepEP's tests/test_internode.py on the same two nodes, then the same job with alltoall",
        "moe_token_dispatcher_type=alltoall, or backend hybridep; collect NVSHMEM and driver versions",
        ("deepep-nvshmem-match",),
        "symptom only: no thread establishes it (NVIDIA-NeMo/Megatron-Bridge#1335, #2166, #5067)",
        "likely",
    ),
    CauseRow(
        "deepep-barrier-late-rank",
        "a rank did not reach DeepEP's barrier",
        "the last step each rank logged and a `py-spy dump` of the silent rank; with CP > 1 the same job at CP 1",
        "find what holds the late rank; do not fold context parallelism into the expert group",
        ("deepep-with-context-folded-experts",),
        "reporter's reading of the kernel (deepseek-ai/DeepEP#570)",
        "likely",
    ),
    CauseRow(
        "deepep-ibgda-queue-pairs",
        "DeepEP has fewer NVSHMEM queue pairs per peer than channels or SMs",
        "compare moe_deepep_num_sms with the queue pairs per peer (num_qps_per_rank, NVSHMEM_IBGDA_NUM_RC_PER_PE)",
        "lower moe_deepep_num_sms, or raise the queue pairs to at least the SM count",
        ("deepep-sms-even",),
        "inferred from the assertion (deepseek-ai/DeepEP#226), maintainer's remedy in #134",
        "likely",
    ),
    CauseRow(
        "deepep-unsupported-gpu",
        "DeepEP does not support this GPU",
        "the GPU's name and compute capability against the allowed ones; deep_ep's TORCH_CUDA_ARCH_LIST",
        "moe_flex_dispatcher_backend=hybridep; or moe_token_dispatcher_type=alltoall with the backend cleared",
        ("deepep-needs-supported-gpu",),
        "NVIDIA-NeMo/Megatron-Bridge flex_dispatcher_backend.py@067f987df:101; deepseek-ai/DeepEP#579",
    ),
    CauseRow(
        "stale-flex-backend-metadata",
        "a flex backend left in the configuration turned alltoall back into flex",
        "dump moe_token_dispatcher_type and moe_flex_dispatcher_backend after the fallback",
        "set model.moe_flex_dispatcher_backend to null together with alltoall",
        ("flex-backend-ignored",),
        "regression shown in NVIDIA-NeMo/Megatron-Bridge#5207",
        framework="bridge",
    ),
    CauseRow(
        "deepep-fell-back-to-alltoall",
        "the requested flex backend was not applied; the run uses another dispatcher",
        "compare the requested dispatcher with moe_token_dispatcher_type in the dump after setup",
        "hybridep where the GPU supports it, or accept alltoall and compare against alltoall numbers",
        ("bridge-gpu-fallback", "flex-helper-without-effect"),
        "NVIDIA-NeMo/Megatron-Bridge#5992",
        framework="bridge",
    ),
    CauseRow(
        "flex-package-not-importable",
        "the flex backend's package does not import in the training environment",
        '`python -c "from deep_ep.utils import EventOverlap; from deep_ep import Buffer"` (HybridEPBuffer for '
        "hybridep) in the worker's environment; read the real ImportError",
        "install the right branch (v1.2.1, or hybrid-ep) for this torch; put libnvshmem on the loader's path; "
        "DeepEP 2 is not importable by Megatron",
        ("flex-package-must-import", "deepep-2-not-importable", "hybridep-needs-hybrid-branch"),
        "megatron/core/transformer/moe/token_dispatcher.py (0.16.1:998,1150); NVIDIA-NeMo/Megatron-Bridge#3867",
    ),
    CauseRow(
        "hybridep-unequal-token-counts",
        "expert-parallel ranks dispatch different token counts through HybridEP",
        "log the token count of every rank of the expert group at dispatch; the same job with fixed lengths",
        "model.moe_hybridep_pad_uneven_dispatch_inputs=true (core 0.19), or pad packed inputs before the model",
        ("hybridep-needs-equal-token-counts",),
        "NVIDIA-NeMo/RL#4079 (validated), #2964; deepseek-ai/DeepEP#604; NVIDIA-NeMo/Automodel#3641",
    ),
    CauseRow(
        "hybridep-tokens-over-queue-depth",
        "more tokens per rank than HybridEP's RDMA queues can hold",
        "seq_length * micro_batch_size / (CP * TP with sequence parallel) against 21844",
        "smaller micro batch, or more CP or TP with sequence parallelism",
        ("hybridep-tokens-per-rank-limit",),
        "NVIDIA/Megatron-LM#3999; DeepEP hybrid-ep csrc/hybrid_ep/config.cuh@94a9f8f:20-47",
    ),
    CauseRow(
        "hybridep-chunk-misaligned",
        "tokens per rank are no multiple of HybridEP's chunk",
        "tokens per rank modulo NUM_OF_TOKENS_PER_CHUNK_COMBINE_API (default 64)",
        "pad to the chunk, set the NUM_OF_TOKENS_PER_CHUNK_* variables, or use DeepEP hybrid-ep with #638",
        ("hybridep-tokens-multiple-of-chunk",),
        "NVIDIA/Megatron-LM#4384; NVIDIA-NeMo/Automodel#2678",
    ),
    CauseRow(
        "hybridep-domain-size-wrong",
        "HybridEP was told a wrong number of ranks per NVLink domain",
        "unset NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN and compare",
        "leave autodetection, or set the real domain (8 on HGX nodes, the expert group up to 72 on NVL72)",
        ("hybridep-domain-divides-group", "hybridep-domain-below-hardware", "hybridep-domain-at-most-72"),
        "DeepEP hybrid-ep deep_ep/hybrid_ep_buffer.py@94a9f8f:63-76; maintainer in deepseek-ai/DeepEP#596",
    ),
    CauseRow(
        "hybridep-peer-late",
        "a HybridEP peer is late or stuck; the log does not say why",
        "the last collective of every rank (flight recorder) and a stack dump of the rank that is missing",
        "treat the late rank: its first error, its data, its node",
        ("hybridep-needs-equal-token-counts",),
        "triage comment in NVIDIA-NeMo/Megatron-Bridge#2012",
        "likely",
    ),
    CauseRow(
        "gpu-memory-exhausted-looks-like-hang",
        "the device is full: allocations stall or fail and look like a communication hang",
        "nvidia-smi occupancy at the stall; the same run with two micro-batches, or without the stash or graph",
        "free memory: smaller micro batch, recompute, no stash, fewer graphs",
        ("overlap-holds-one-more-microbatch",),
        "public write-up with A/B evidence on a paged stash; NVIDIA/Megatron-LM#6429 for the slow case",
    ),
    CauseRow(
        "out-of-memory",
        "the device ran out of memory",
        "peak memory with overlap, the dispatcher or the graphs as they were before",
        "overlap keeps one more micro-batch in flight: recompute, a smaller micro batch, or fewer graphs",
        ("overlap-holds-one-more-microbatch", "hybridep-on-eight-gpu-nodes"),
        "torch's own error; schedules.py@d98e8a64dd:966-970; NVIDIA-NeMo/Megatron-Bridge#1731",
    ),
    CauseRow(
        "expert-input-freed-early",
        "the schedule freed the expert input before its backward needed it",
        "the same run with EP halved (two experts per rank), or on core 0.17 or later, passes",
        "upgrade megatron-core to 0.17 or later, or give every rank two experts",
        ("alltoall-needs-two-local-experts",),
        "two-rank runs on megatron-core 0.15.3 and 0.16.1 crash, on 0.17.1 they do not (NVIDIA/Megatron-LM#1862)",
    ),
    CauseRow(
        "shared-event-orders-collectives",
        "ranks launch dispatch and combine in different orders",
        "flight recorder: the last collective of every rank in the expert group; even layer counts per stage",
        "a newer core; the same number of layers in every virtual stage",
        ("uneven-virtual-chunks",),
        "reporter's analysis (NVIDIA/Megatron-LM#1810, #1852)",
        "likely",
    ),
    CauseRow(
        "pipeline-shape-exchange-deadlock",
        "pipeline stages wait for each other while they exchange tensor shapes",
        "the same job without overlap still hangs; stacks of all ranks stand in _communicate_shapes",
        "fixed sequence lengths, or batch_p2p_comm off",
        ("variable-length-with-batched-p2p",),
        "reporter's analysis, disputed in NVIDIA/Megatron-LM#5271 (NVIDIA/Megatron-LM#5100)",
        "likely",
    ),
    CauseRow(
        "fsdp-hooks-bypassed",
        "the overlap schedule bypasses Megatron-FSDP's hooks, so parameters are not gathered",
        "the same run with overlap off passes",
        "megatron-core 0.18 or later, or overlap off",
        ("fsdp-overlap-needs-0-18",),
        "NVIDIA/Megatron-LM#3797 (the author's analysis; the exact failure was not shown)",
        "likely",
    ),
    CauseRow(
        "attention-graph-nan",
        "gradients explode with a CUDA graph on attention and EP overlap",
        "the same run without the CUDA graph",
        "cuda_graph_impl none, or modules without attn",
        ("attention-graph-nan-report",),
        "open report, cause not established (NVIDIA/Megatron-LM#5966)",
        "likely",
    ),
    CauseRow(
        "graph-capture-host-copy",
        "the captured region copies to the host",
        "the same run with cuda_graph_modules attn only",
        "capture attn (and moe_router) only; a newer core for the router's z-loss",
        ("moe-graph-needs-drop-and-pad", "preprocess-graph-excludes-host-copies", "router-graph-with-z-loss"),
        "maintainer's answer in NVIDIA/Megatron-LM#1598",
    ),
    CauseRow(
        "whole-layer-graph-with-overlap",
        "the graph covers the whole layer, which replay refuses with EP overlap",
        "name the modules (cuda_graph_modules attn) and run again",
        "model.cuda_graph_modules=[attn]",
        ("graph-modules-must-be-named",),
        "megatron/core/transformer/transformer_layer.py@d98e8a64dd:1374",
    ),
    CauseRow(
        "illegal-access-expandable-segments",
        "a CUDA graph with expandable segments needs NCCL_GRAPH_REGISTER=0",
        "the same run with NCCL_GRAPH_REGISTER=0",
        "env.NCCL_GRAPH_REGISTER=0",
        ("graph-with-expandable-segments-needs-register-off",),
        "megatron/core/transformer/cuda_graphs.py (0.16.1:1418); NVIDIA/Megatron-LM#5474",
    ),
    CauseRow(
        "config-rule-violated",
        "the configuration breaks a rule of the stack",
        "{check_overlap_config} on the configuration",
        "the rule's fix ({explain_rule}, {propose_overlap_config})",
        (),
        "the stack's own assertion",
    ),
    CauseRow(
        "transformer-engine-too-old",
        "Transformer Engine is too old for this combination",
        "print transformer_engine.__version__ in the training environment",
        "upgrade Transformer Engine, or model.delay_wgrad_compute=false",
        (
            "delayed-wgrad-needs-te-2-3",
            "delayed-wgrad-with-grad-reduce-needs-te",
            "delayed-wgrad-fusion-needs-te",
            "te-graph-with-delayed-wgrad-needs-te-2-10",
            "graphed-wgrad-needs-te-2-12",
            "delayed-wgrad-hooks-need-te-2-7",
        ),
        "the stack's own assertion",
    ),
    CauseRow(
        "te-version-unknown-crash",
        "the version of Transformer Engine is unknown (not importable), and core compares it",
        '`python -c "import transformer_engine"` in the training environment',
        "install Transformer Engine, or use megatron-core 0.17 or later, which reports it properly",
        ("delayed-wgrad-needs-te-2-3",),
        "reproduced on megatron-core 0.14.0 to 0.16.1 without Transformer Engine (utils.py:348)",
    ),
    CauseRow(
        "delayed-wgrad-tied-weights",
        "delayed weight gradients of a shared weight overwrite each other",
        "the gradient of the shared weight with delay_wgrad_compute off",
        "gradient_accumulation_fusion=true, or Transformer Engine with the fix, or the delay off",
        ("delayed-wgrad-drops-unfused-grads",),
        "reporter and fix author (NVIDIA/TransformerEngine#3437)",
        "likely",
    ),
    CauseRow(
        "delayed-wgrad-fp8-bias-crash",
        "delayed weight gradients with FP8 and a bias meet an empty bias gradient",
        "the same run with bf16, or without the bias, passes",
        "Transformer Engine with #3400, or delay_wgrad_compute off",
        ("delayed-wgrad-with-fp8-bias",),
        "root cause and fix in NVIDIA/TransformerEngine#3400",
    ),
    CauseRow(
        "triton-permute-fusion",
        "Transformer Engine's fused permutation does not compile with this Triton",
        "the same run with moe_permute_fusion=false passes",
        "match Transformer Engine and Triton (NVIDIA/TransformerEngine#2286 for Triton 3.5), or "
        "moe_permute_fusion=false",
        ("permute-fusion-needs-te",),
        "NVIDIA/TransformerEngine#2579, its link to #2286 is inferred",
        "likely",
    ),
    CauseRow(
        "one-cuda-connection-serialises",
        "CUDA_DEVICE_MAX_CONNECTIONS=1 puts communication and compute into one queue",
        "the same run with CUDA_DEVICE_MAX_CONNECTIONS=32, or a timeline",
        "env.CUDA_DEVICE_MAX_CONNECTIONS=32 (8 with alltoall)",
        ("more-than-one-cuda-connection", "harness-false-sets-one-connection"),
        "quoted maintainer answer (NVIDIA/Megatron-LM#2719, #2730 on #2180)",
        "likely",
    ),
    CauseRow(
        "too-few-microbatches",
        "there are too few micro-batches for a forward to overlap a backward",
        "the overlapped pairs per rank: M - 1 at PP 1; max(0, M*V - (2*(PP-1-rank) + (V-1)*PP + 1)) otherwise",
        "more micro-batches per step (a larger global batch, or less data parallelism)",
        ("too-few-microbatches-to-overlap",),
        "megatron/core/pipeline_parallel/schedules.py@d98e8a64dd:949-979, run",
        "likely",
    ),
    CauseRow(
        "bridge-reset-the-flag",
        "Bridge wrote False over the model's overlap flag",
        "read overlap_moe_expert_parallel_comm in the dump after setup",
        "comm_overlap.overlap_moe_expert_parallel_comm=true",
        ("bridge-needs-comm-overlap-flag", "bridge-delay-needs-comm-overlap-flag"),
        "reproduced with CommOverlapConfig.setup of Bridge 0.3.0 to main (comm_overlap.py:405-643)",
        framework="bridge",
    ),
    CauseRow(
        "harness-false-ignored",
        "`--moe_a2a_overlap false` does not switch off what the recipe switched on",
        "read overlap_moe_expert_parallel_comm in the dump",
        "comm_overlap.overlap_moe_expert_parallel_comm=false as an override",
        ("harness-false-does-not-disable",),
        "reproduced (scripts/performance/utils/overrides.py:189-199); NVIDIA-NeMo/Megatron-Bridge#6006",
        framework="bridge",
    ),
    CauseRow(
        "no-schedule-plan",
        "this model or forward step has no schedule plan for the overlap schedule",
        "the model class and the forward step: GPTModel and a step that returns a schedule plan",
        "a GPT model with gpt_step, or overlap off",
        ("only-gpt-models-overlap", "forward-step-must-return-plan"),
        "megatron/core/utils.py@d98e8a64dd:700; combined_1f1b.py:384-389",
    ),
    CauseRow(
        "last-layer-dense-drops-final-norm",
        "the last decoder layer is dense, so the overlap schedule skips the final norm",
        "the loss of the first steps with overlap off",
        "end the model with an MoE layer, or overlap off",
        ("last-layer-must-be-moe",),
        "two-rank runs on megatron-core 0.16.1 to 0.19.0",
    ),
    CauseRow(
        "too-few-microbatches-for-interleaving",
        "there are fewer micro-batches than interleaved pipelining needs",
        "micro-batches per step against PP and microbatch_group_size_per_vp_stage",
        "a larger global batch, a smaller micro batch, or fewer pipeline stages",
        ("microbatches-cover-pipeline",),
        "megatron/core/pipeline_parallel/schedules.py@d98e8a64dd:1160-1180",
    ),
    CauseRow(
        "module-lacks-is-moe-layer",
        "local CUDA graphs read is_moe_layer before it exists",
        "the same run with cuda_graph_impl transformer_engine passes",
        "a core with NVIDIA/Megatron-LM#6167, or cuda_graph_impl transformer_engine",
        ("bridge-local-graph-is-full-iteration",),
        "NVIDIA-NeMo/Megatron-Bridge#4583, fixed by NVIDIA/Megatron-LM#6167",
    ),
    CauseRow(
        "lora-adapter-shape",
        "LoRA adapters on experts do not follow the experts' parallel state",
        "the same run with moe_shared_expert_overlap=false",
        "model.moe_shared_expert_overlap=false; expert_tensor_parallel_size 1",
        ("lora-with-shared-expert-overlap", "lora-with-overlap-unproven"),
        "reporters (NVIDIA-NeMo/Megatron-Bridge#2321, #5634), fix open",
        "likely",
    ),
    CauseRow(
        "network-not-overlap",
        "the network fails; overlap only shows it",
        "the same job with overlap off and alltoall; nccl-tests on the same nodes",
        "leave overlap alone, look at the fabric (port errors, cables, GID index, timeouts)",
        (),
        "inferred from NCCL's completion errors (NVIDIA/nccl#1405, #1664, #1814)",
        "likely",
    ),
    CauseRow(
        "unknown",
        "no known signature",
        "collect: TORCH_FR_BUFFER_SIZE=2000 with TORCH_NCCL_DUMP_ON_TIMEOUT=1 (flight recorder: the last "
        "collective of every rank), `py-spy dump` of every rank, versions of torch, NCCL, megatron-core, "
        "transformer-engine, deep_ep and NVSHMEM, and the first exception of every rank",
        "none until the cause is known; an A/B with overlap off and alltoall tells whether overlap is involved",
        (),
        "-",
        "possible",
    ),
)

CAUSES = {row.name: row for row in _ROWS}
