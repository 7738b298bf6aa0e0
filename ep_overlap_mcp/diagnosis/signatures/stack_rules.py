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
        "being None is not safe when overlap_grad_reduce",
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
        "selected index k out of range",
        "torch.topk; megatron/core/transformer/moe/moe_utils.py (0.16.1:697)",
        confirms=("config-rule-violated",),
        frame="moe_utils|router",
        rules=("topk-at-most-experts",),
    ),
    Signature(
        "ZeroDivisionError",
        "megatron/training/arguments.py (0.16.1:317); megatron/core/parallel_state.py (0.16.1:740)",
        confirms=("config-rule-violated",),
        frame="megatron/training/arguments.py|megatron/core/parallel_state.py",
        rules=("sizes-positive",),
    ),
    Signature(
        "name 'TE",
        "megatron/core/models/gpt/gpt_layer_specs.py (0.16.1:222) without Transformer Engine",
        confirms=("config-rule-violated",),
        pattern=re.compile(r"name 'TE\w{1,40}' is not defined"),
        rules=("transformer-engine-layers-need-te",),
    ),
    breaks("Unsupported RDMA ranks", "deepseek-ai/DeepEP#255", "deepep-group-size"),
    breaks(
        "moe_router cuda graph is not supported with moe recompute",
        "NVIDIA/Megatron-LM#3000",
        "router-graph-excludes-moe-recompute",
    ),
)
