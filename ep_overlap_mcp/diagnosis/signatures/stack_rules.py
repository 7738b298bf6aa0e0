"""What the stack itself says when a rule or a version floor is broken."""

from __future__ import annotations

import re

from ep_overlap_mcp.diagnosis.signatures.row import Signature, breaks, hints, old_te, says

TRANSFORMER_ENGINE = (
    old_te(
        "supports delay_wgrad_compute now",
        "megatron/core/extensions/transformer_engine.py (0.16.1:529)",
        "delayed-wgrad-needs-te-2-3",
    ),
    old_te(
        "is required for overlap_grad_reduce when using",
        "Bridge comm_overlap.py@067f987df:521",
        "delayed-wgrad-with-grad-reduce-needs-te",
    ),
    old_te(
        "overlap_grad_reduce is only supported with TE >=",
        "megatron/training/arguments.py@d98e8a64dd:1908",
        "delayed-wgrad-with-grad-reduce-needs-te",
    ),
    old_te(
        "is required for gradient_accumulation_fusion when using",
        "Bridge comm_overlap.py@067f987df:527",
        "delayed-wgrad-fusion-needs-te",
    ),
    old_te(
        "disabling gradient_accumulation_fusion is only supported with TE",
        "megatron/training/arguments.py@d98e8a64dd:1931",
        "delayed-wgrad-fusion-needs-te",
    ),
    old_te(
        "is required for delay_wgrad_compute with",
        "megatron/core transformer_config.py (0.19.0:2755)",
        "te-graph-with-delayed-wgrad-needs-te-2-10",
    ),
    old_te(
        "CUDA graph with delay_wgrad_compute requires TE version",
        "Bridge comm_overlap.py@067f987df; NVIDIA-NeMo/Megatron-Bridge#2216",
        "graphed-wgrad-needs-te-2-12",
    ),
    old_te(
        "is required for overlap_dispatch_backward_with_experts_wgrad",
        "megatron/core transformer_config.py (0.19.0:2765)",
        "dispatch-backward-wgrad-excludes-overlap",
    ),
    Signature(
        "equires T",
        "Transformer Engine's floors in any words",
        points_to=("transformer-engine-too-old",),
        pattern=re.compile(r"[Rr]equires T(?:ransformer[ -]?Engine|E)\b.{0,20}>="),
    ),
    Signature(
        "NCCL EP is unavailable",
        "megatron/core token_dispatcher.py (0.19.0)",
        points_to=("transformer-engine-too-old", "flex-package-not-importable"),
        rules=("ncclep-needs-te-2-17",),
    ),
    old_te("fused permutation is not available", "megatron/core transformer_config.py", "permute-fusion-needs-te"),
    old_te(
        "unexpected keyword argument 'delay_wgrad_compute'",
        "NVIDIA/TransformerEngine#1653",
        "delayed-wgrad-needs-te-2-3",
    ),
    Signature(
        "param.grad being None is not safe when overlap_grad_reduce is True",
        "NVIDIA/TransformerEngine#2142",
        points_to=("transformer-engine-too-old",),
        rules=("delayed-wgrad-hooks-need-te-2-7",),
    ),
    says(
        "not supported between instances of 'NoneType' and",
        "megatron/core/utils.py (0.16.1:348)",
        "te-version-unknown-crash",
        frame="is_te_min_version",
    ),
    hints(
        "not supported between instances of 'NoneType' and",
        "megatron/core/utils.py (0.16.1:348)",
        "te-version-unknown-crash",
        pattern=r"'>=' not supported.{0,60}ersion",
    ),
    says(
        "triton",
        "NVIDIA/TransformerEngine#2286",
        "triton-permute-fusion",
        pattern=r"^(?:triton\.|.{0,40}Triton).{0,60}(?:Error|error)",
        frame="make_row_id_map|transformer_engine/pytorch/permutation.py|triton/permutation",
    ),
    hints(
        "CompilationError",
        "NVIDIA/TransformerEngine#2579",
        "triton-permute-fusion",
        frame="permut|row_id_map",
    ),
    hints("Cannot bitcast data-type", "NVIDIA/TransformerEngine#2579", "triton-permute-fusion"),
)

RULES = (
    breaks(
        "virtual_pipeline_model_parallel_size must be specified when",
        "megatron/core transformer_config.py",
        "pipeline-needs-virtual-stages",
    ),
    breaks(
        "If enabling EP A",
        "megatron/core transformer_config.py (0.16.1:1858)",
        "pipeline-needs-virtual-stages",
    ),
    breaks(
        "overlap_moe_expert_parallel_comm is only supported with expert model parallelism",
        "megatron/core transformer_config.py (0.16.1:1864)",
        "needs-expert-parallelism",
    ),
    breaks(
        "overlap_moe_expert_parallel_comm is only supported when expert_model_parallel_size",
        "Bridge comm_overlap.py@067f987df:479",
        "needs-expert-parallelism",
    ),
    breaks(
        "overlap_moe_expert_parallel_comm is only supported when num_moe_experts",
        "Bridge comm_overlap.py@067f987df:482",
        "needs-experts",
    ),
    breaks(
        "num_moe_experts must be non None to use expert-paral",
        "megatron/core transformer_config.py (0.16.1:1049)",
        "needs-experts",
    ),
    breaks(
        "is supported with alltoall/flex token dispatcher",
        "megatron/core transformer_config.py (0.16.1:1866)",
        "dispatcher-alltoall-or-flex",
    ),
    breaks(
        "is only supported when moe_token_dispatcher_type ==",
        "Bridge comm_overlap.py@067f987df:486",
        "dispatcher-alltoall-or-flex",
    ),
    breaks(
        "disable full recomputation when enabling overlap_moe",
        "megatron/core transformer_config.py (0.16.1:1872)",
        "no-full-recompute",
    ),
    breaks(
        "disable recomputation method when enabling overlap_moe",
        "megatron/core transformer_config.py (0.16.1:1875)",
        "no-recompute-method",
    ),
    breaks(
        "recompute_num_layers must be None when enabling overlap_moe",
        "megatron/core transformer_config.py (0.16.1:1878)",
        "no-recompute-num-layers",
    ),
    breaks(
        "disable moe in recompute_modules when enabling overlap_moe",
        "megatron/core transformer_config.py (0.19.0:2699); NVIDIA-NeMo/Megatron-Bridge#4971",
        "no-moe-in-recompute-modules",
    ),
    breaks(
        "is only supported with bf",
        "megatron/core transformer_config.py (0.16.1:1882)",
        "needs-half-precision",
    ),
    breaks("is only supported when using bf", "Bridge comm_overlap.py@067f987df:490", "needs-half-precision"),
    breaks(
        "disable moe_shared_expert_overlap when enabling overlap_moe",
        "megatron/core transformer_config.py (0.16.1:1886)",
        "no-shared-expert-overlap",
    ),
    breaks(
        "moe_shared_expert_overlap only works with alltoall t",
        "megatron/core transformer_config.py (0.16.1:1093)",
        "shared-expert-overlap-needs-dispatcher",
    ),
    breaks(
        "MTP layernum only supports",
        "megatron/core transformer_config.py (0.16.1:1890)",
        "mtp-at-most-one-layer",
    ),
    breaks(
        "MTP supports at most one layer when enabling overlap_moe",
        "megatron/core transformer_config.py (0.19.0:2713)",
        "mtp-at-most-one-layer",
    ),
    breaks(
        "Pipeline model parallel size must be larger than",
        "megatron/core transformer_config.py (0.16.1:1893)",
        "mtp-needs-pipeline",
    ),
    breaks(
        "CUDA graph scope on moe and mlp is not",
        "megatron/core transformer_config.py (0.16.1:1902)",
        "graph-leaves-experts-out",
        "graph-impl-te-only-with-overlap",
    ),
    breaks(
        "must be enabled when enabling delay_wgrad_compute",
        "megatron/core transformer_config.py (0.16.1:1910)",
        "delayed-wgrad-needs-overlap",
        "bridge-delay-needs-comm-overlap-flag",
    ),
    breaks(
        "overlap_moe_expert_parallel_comm is required for delay_wgrad_compute",
        "Bridge comm_overlap.py@067f987df:532",
        "delayed-wgrad-needs-overlap",
    ),
    breaks(
        "delay_wgrad_compute is not supported with legacy",
        "megatron/core transformer_config.py (0.16.1:1913)",
        "delayed-wgrad-excludes-legacy-grouped-gemm",
    ),
    breaks(
        "Delaying wgrad compute is only supported with transformer_engine",
        "megatron/training/arguments.py@d98e8a64dd:1905",
        "delayed-wgrad-needs-transformer-engine",
    ),
    breaks(
        "CUDA graph with delay_wgrad_compute requires gradient_accumulation_fusion",
        "Bridge comm_overlap.py@067f987df",
        "graphed-wgrad-needs-fusion",
    ),
    breaks(
        "CUDA graph with delay_wgrad_compute does",
        "megatron/training/arguments.py@d98e8a64dd:1927",
        "graphed-attention-wgrad-needs-no-bias",
    ),
    breaks(
        "must be disabled when enabling overlap_dispatch_backward",
        "megatron/core transformer_config.py (0.19.0:2760)",
        "dispatch-backward-wgrad-excludes-overlap",
    ),
    breaks(
        "Overlap encounters hang issue with torch version",
        "megatron/core transformer_config.py (0.16.1:1852)",
        "torch-at-least-2-6",
    ),
    breaks(
        "backend is only supported with flex token dis",
        "megatron/core transformer_config.py (0.16.1:1065)",
        "deepep-flag-needs-flex",
    ),
    breaks(
        "Only one backend is supported for flex token dispatc",
        "megatron/core transformer_config.py (0.16.1:1067)",
        "one-flex-backend",
    ),
    breaks(
        "Flex token dispatcher with deepep backend does not s",
        "megatron/core transformer_config.py (0.16.1:1078)",
        "deepep-excludes-pad-to-capacity",
    ),
    breaks(
        "Please set --moe-flex-dispatcher-backend",
        "megatron/core token_dispatcher.py (0.16.1:1366; other words in 0.19.0)",
        "flex-backend-must-be-known",
    ),
    breaks(
        "dispatcher requires TPxEP",
        "megatron/core token_dispatcher.py (0.16.1, 0.19.0)",
        "flex-needs-larger-expert-group",
    ),
    breaks(
        "Shared expert overlap is not supported in Flex",
        "megatron/core token_dispatcher.py (0.16.1)",
        "shared-expert-overlap-needs-dispatcher",
    ),
    breaks(
        "multi token prediction + sequence packing",
        "megatron/core fine_grained_callables.py (0.16.1:644)",
        "mtp-excludes-packed-sequences",
    ),
    breaks(
        "with FSDP is not supported for interleaved",
        "megatron/core combined_1f1b.py (0.19.0)",
        "fsdp-overlap-limits",
    ),
    breaks(
        "backend requires moe_expert_rank_capacity_factor",
        "megatron/core token_dispatcher.py (0.19.0)",
        "ncclep-needs-rank-capacity",
    ),
    breaks(
        "HybridEP is supported for GB",
        "Bridge flex_dispatcher_backend.py@067f987df:108",
        "hybridep-needs-supported-gpu",
    ),
    breaks("Unsupported number of EP ranks", "deepseek-ai/DeepEP v1.2.1 deep_ep/buffer.py", "deepep-group-size"),
    Signature(
        "NUM_MAX_NVL_PEERS",
        "deepseek-ai/DeepEP v1.2.1 csrc/deep_ep.cpp:29-32",
        points_to=("config-rule-violated",),
        pattern=re.compile(r"[Aa]ssert.{0,200}num_ranks"),
        rules=("deepep-group-size",),
    ),
    breaks("num_sms %", "deepseek-ai/DeepEP v1.2.1 csrc/config.hpp:51,80", "deepep-sms-even"),
    Signature(
        "num_topk <=",
        "deepseek-ai/DeepEP v1.2.1 csrc/kernels/intranode.cu:187, internode.cu:408",
        points_to=("config-rule-violated",),
        pattern=re.compile(r"[Aa]ssert"),
        rules=("deepep-topk-limit",),
    ),
    Signature(
        "object has no attribute",
        "megatron-core before a field came",
        points_to=("config-rule-violated",),
        pattern=re.compile(r"Config' object has no attribute '(?:overlap_|delay_wgrad|moe_|cuda_graph|ep_overlap)"),
        rules=("setting-unknown-to-version",),
    ),
    Signature(
        "got an unexpected keyword argument",
        "dataclasses of megatron-core and Megatron-Bridge",
        confirms=("config-rule-violated",),
        pattern=re.compile(r"\w{0,40}(?:Config|Provider)\w{0,20}\.__init__\(\) got an unexpected keyword"),
        rules=("setting-unknown-to-version",),
    ),
    Signature(
        "unrecognized arguments",
        "argparse, megatron/training/arguments.py",
        confirms=("config-rule-violated",),
        pattern=re.compile(
            r"unrecognized arguments:.{0,400}--(?:overlap-|delay-|moe-|expert-|cuda-graph|recompute-|high-|ep-)"
        ),
        rules=("setting-unknown-to-version",),
    ),
    breaks("Unsupported RDMA ranks", "deepseek-ai/DeepEP#255", "deepep-group-size"),
    breaks(
        "Cannot use sequence parallelism without tensor paral",
        "model_parallel_config.py",
        "sequence-parallel-needs-tp",
    ),
    breaks(
        "moe_preprocess cuda graph is only supported with",
        "transformer_config.py",
        "preprocess-graph-needs-router-graph",
    ),
    breaks(
        "moe cuda graph is only supported with drop-paddi",
        "transformer_config.py",
        "moe-graph-needs-drop-and-pad",
    ),
    breaks(
        "FSDP always requires CUDA_DEVICE_MAX_CONNECTIONS",
        "megatron/training/arguments.py",
        "fsdp-needs-more-cuda-connections",
    ),
    breaks(
        "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS",
        "megatron/training/arguments.py",
        "fsdp-needs-more-cuda-connections",
    ),
    breaks("NVTE_CPU_OFFLOAD_V", "megatron/training/arguments.py@d98e8a64dd:1940", "offloading-needs-v1-env"),
    breaks(
        "moe_router cuda graph is not supported with moe recompute",
        "NVIDIA/Megatron-LM#3000",
        "router-graph-excludes-moe-recompute",
    ),
    breaks(
        "full recompute is only supported with full iteration CUDA graph",
        "megatron/core transformer_config.py (0.16.1:1784)",
        "graph-excludes-full-recompute",
    ),
    breaks(
        "CUDA graphs not supported with CPU offloading",
        "megatron/core transformer_config.py (0.16.1:1723)",
        "graph-excludes-cpu-offloading",
    ),
    breaks(
        "enabled with use_te_rng_tracker", "Bridge models/gpt_provider.py@067f987df:235", "graph-needs-te-rng-tracker"
    ),
    breaks(
        "check_for_nan_in_loss must be disabled when using full_iteration",
        "Bridge training/config.py@067f987df:1511",
        "full-iteration-graph-excludes-nan-check",
    ),
    breaks(
        "must be enabled when enabling ep_overlap_early",
        "megatron/core transformer_config.py (0.16.1:1925)",
        "early-attention-release-needs-overlap",
    ),
    breaks(
        "moe_expert_capacity_factor only works with aux_loss",
        "megatron/core transformer_config.py (0.16.1:1117)",
        "capacity-needs-aux-loss",
    ),
    breaks(
        "moe_expert_capacity_factor must be set to use moe_pad",
        "megatron/core transformer_config.py (0.16.1:1134)",
        "capacity-needs-aux-loss",
    ),
    breaks(
        "is not supported with expert parallelism",
        "megatron/training/arguments.py@d98e8a64dd:1037",
        "torch-fsdp2-excludes-ep",
    ),
    breaks(
        "Fake process group is not supported with flex",
        "megatron/training/arguments.py@d98e8a64dd:1757",
        "fake-process-group-excludes-flex",
    ),
    breaks(
        "Multi-Token Prediction (MTP) is not supported with",
        "megatron/training/arguments.py@d98e8a64dd:884",
        "mtp-excludes-learned-positions",
    ),
    breaks(
        "sequence parallelism must be used",
        "megatron/core model_parallel_config.py (0.16.1:444)",
        "tensor-parallel-experts-need-sequence-parallel",
    ),
)
