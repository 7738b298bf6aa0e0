"""Signatures of memory, the combined schedule, CUDA graphs and kernels."""

from __future__ import annotations

from ep_overlap_mcp.diagnosis.signatures.row import Signature, hints, says

_SCHEDULE = "combined_1f1b|model_chunk_schedule_plan|fine_grained_callables"
_DISPATCH = "token_dispatcher|moe_layer|fused_a2a|moe_utils"

MEMORY = (
    says("CUDA out of memory", "torch c10/cuda/CUDACachingAllocator.cpp", "out-of-memory"),
    says("HIP out of memory", "torch c10/hip", "out-of-memory"),
    says("OutOfMemoryError", "torch", "out-of-memory"),
    says("cudaErrorMemoryAllocation", "CUDA runtime API", "out-of-memory"),
    says("CUDA error: out of memory", "NVIDIA/TransformerEngine#2543", "out-of-memory"),
    hints("CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS", "out-of-memory"),
    hints(
        "Failed to CUDA",
        "public write-up on a paged stash; NCCL src/include/alloc.h",
        "gpu-memory-exhausted-looks-like-hang",
        pattern=r"Failed to CUDA (?:c?alloc|malloc|host alloc|call)",
    ),
    # memory when the device is full (a detector weighs it), else it follows another CUDA failure
    Signature("ncclUnhandledCudaError", "public write-up on a paged stash", follows=True),
    hints(
        "Cuda failure",
        "NCCL src/include/checks.h",
        "gpu-memory-exhausted-looks-like-hang",
        pattern=r"out of memory",
    ),
)

SCHEDULE = (
    hints("Input to GEMM is empty", "NVIDIA/Megatron-LM#1862", "expert-input-freed-early", frame=_SCHEDULE),
    hints(
        ".data.dptr != nullptr",
        "NVIDIA/TransformerEngine cublaslt_gemm.cu; NVIDIA/Megatron-LM#1862",
        "expert-input-freed-early",
        frame=_SCHEDULE,
    ),
    hints(
        "nput",
        "NVIDIA/Megatron-LM#1862",
        "expert-input-freed-early",
        pattern=r"(?i)gemm.{0,120}(?:empty|null|numel 0)|(?:empty|null) input",
        frame=_SCHEDULE,
    ),
    hints(
        "its data is not allocated yet",
        "NVIDIA/Megatron-LM#1862; NVIDIA/Megatron-LM#3797",
        "expert-input-freed-early",
        "fsdp-hooks-bypassed",
        frame=_SCHEDULE,
    ),
    hints(
        "for storage of size",
        "NVIDIA/Megatron-LM#3797",
        "fsdp-hooks-bypassed",
        frame="fine_grained_callables|megatron_fsdp|combined_1f1b",
    ),
    hints(
        "shapes cannot be multiplied",
        "NVIDIA/Megatron-LM#3797",
        "fsdp-hooks-bypassed",
        frame=_SCHEDULE,
    ),
    hints(
        "collectives on ranks",
        "torch ProcessGroupWrapper; NVIDIA/Megatron-LM#1810",
        "shared-event-orders-collectives",
        pattern=r"[Mm]ismatch",
    ),
    hints("_communicate_shapes", "NVIDIA/Megatron-LM#5100", "pipeline-shape-exchange-deadlock", stops=False),
    says("find attribute build_schedule_plan", "megatron/core/utils.py@d98e8a64dd:700", "no-schedule-plan"),
    says("no attribute 'build_schedule_plan'", "NVIDIA/Megatron-LM", "no-schedule-plan"),
    says("final unwrapped model must be a GPTModel", "combined_1f1b.py (0.16.1:339)", "no-schedule-plan"),
    says("AbstractSchedulePlan", "combined_1f1b.py@d98e8a64dd:384-389", "no-schedule-plan"),
    says(
        "unexpected keyword argument 'return_schedule_plan'",
        "combined_1f1b.py@d98e8a64dd:384; Bridge megatron_mimo_step",
        "no-schedule-plan",
    ),
    says(
        "contiguous micro-batches in a virtual pipeline stage",
        "NVIDIA-NeMo/Speech#14288",
        "too-few-microbatches-for-interleaving",
    ),
    says(
        "is not divisible by pipeline-model-parallel-size",
        "megatron/core/pipeline_parallel/schedules.py",
        "too-few-microbatches-for-interleaving",
    ),
    hints(
        "number of microbatches",
        "megatron/core/pipeline_parallel/schedules.py (other releases' words)",
        "too-few-microbatches-for-interleaving",
        pattern=r"interleav|pipeline",
    ),
    hints(
        "is invalid for input of size",
        "NVIDIA-NeMo/Megatron-Bridge#2321",
        "lora-adapter-shape",
        frame="lora_layers|peft|adapter",
    ),
    hints(
        "shapes cannot be multiplied",
        "NVIDIA-NeMo/Megatron-Bridge#2321",
        "lora-adapter-shape",
        frame="lora_layers|peft|adapter",
    ),
    hints(
        "must match the size of tensor b",
        "NVIDIA-NeMo/Speech#12960",
        "lora-adapter-shape",
        frame="lora_layers|peft|adapter",
    ),
    hints(
        "Tensor-likes are not close",
        "NVIDIA/TransformerEngine#3437",
        "delayed-wgrad-tied-weights",
        frame="backward_dw|delay_wgrad|tied",
    ),
    says(
        "'NoneType' object has no attribute 'to'",
        "NVIDIA/TransformerEngine#3400",
        "delayed-wgrad-fp8-bias-crash",
        frame="backward_dw",
    ),
    Signature(
        "or context parallelism with overlap_moe",
        "megatron/training/arguments.py@d98e8a64dd:1468",
        points_to=("one-cuda-connection-serialises",),
        stops=False,
    ),
    hints(
        "token_mult_prob_error",
        "NVIDIA-NeMo/RL nemo_rl/algorithms/grpo.py (healthy below 1.05); NVIDIA-NeMo/RL#4079",
        "hybridep-unequal-token-counts",
        pattern=r"token_mult_prob_error['\"]?[:= ]{1,4}(?:1\.[3-9]|[2-9]|\d\d)",
        stops=False,
    ),
    hints(
        "KL Error",
        "NVIDIA-NeMo/RL#4079",
        "hybridep-unequal-token-counts",
        pattern=r"KL Error: {1,8}(?:0\.[1-9]|[1-9])",
        stops=False,
    ),
)

GRAPHS = (
    says(
        "not permitted when stream is capturing",
        "NVIDIA/Megatron-LM#1598",
        "graph-capture-host-copy",
        frame=_DISPATCH + "|router|maybe_dtoh",
    ),
    hints("not permitted when stream is capturing", "NVIDIA/Megatron-LM#1598", "graph-capture-host-copy"),
    says(
        "cudaErrorCapturedEvent",
        "NVIDIA/Megatron-LM#6152",
        "graph-capture-host-copy",
        frame=_DISPATCH + "|maybe_dtoh",
    ),
    hints("cudaErrorCapturedEvent", "NVIDIA/Megatron-LM#6152", "graph-capture-host-copy"),
    hints("cudaErrorStreamCapture", "NVIDIA/Megatron-LM#1598", "graph-capture-host-copy"),
    *(
        hints(
            text, "CUDA runtime's texts of cudaErrorStreamCapture…; NVIDIA/Megatron-LM#1598", "graph-capture-host-copy"
        )
        for text in (
            "depend on a capturing",
            "previous error during capture",
            "last recorded in a capturing stream",
            "uncaptured work in another stream",
        )
    ),
    says(
        "between CPU and CUDA tensors during CUDA graph",
        "torch; NVIDIA/Megatron-LM#1598",
        "graph-capture-host-copy",
    ),
    says(
        "EP overlap must be",
        "megatron/core/transformer/transformer_layer.py@d98e8a64dd:1374",
        "whole-layer-graph-with-overlap",
    ),
    says(
        "to avoid illegal memory access when using",
        "NVIDIA/Megatron-LM#5474",
        "illegal-access-expandable-segments",
        pattern=r"NCCL_GRAPH_REGISTER",
    ),
    says("has no attribute 'is_moe_layer'", "NVIDIA-NeMo/Megatron-Bridge#4583", "module-lacks-is-moe-layer"),
    Signature("found NaN in local", "NVIDIA/Megatron-LM#5966", stops=True),
    Signature("found Inf in local", "alibaba/Pai-Megatron-Patch#604", stops=True),
)
