# ruff: noqa: E501 - log lines are as long as launchers print them
"""Every cause of the registry by the signature the registry gives it, as a launcher prints it."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.diagnosis import CAUSES, diagnose

LOGS = {
    "deepep-nvshmem-mismatch": """\
deep_ep device code built with NVSHMEM 3.4.5
host NVSHMEM v3.6.5
[rank9]: RuntimeError: DeepEP error: timeout (dispatch CPU)
""",
    "deepep-transport-timeout": """\
[start] NVSHMEM v3.4.5 (device NVSHMEM 3.4.5)
[rank1]: RuntimeError: DeepEP error: timeout (dispatch CPU)
""",
    "deepep-barrier-late-rank": """\
[start] context_parallel_size=2 backend deepep
DeepEP timeout check failed: rank = 6, thread = 5, value = 1024)
""",
    "deepep-ibgda-queue-pairs": """\
[rank1]: internode.cu:372, condition: ibgda_get_state()->num_rc_per_pe >= num_sms
[rank1]: RuntimeError: CUDA error: unspecified launch failure
""",
    "deepep-unsupported-gpu": """\
[start] moe_token_dispatcher_type=flex moe_flex_dispatcher_backend=deepep
[rank0]: ValueError: DeepEP is supported for Ampere, Hopper, and Blackwell (B200/B300) GPUs. Current GPU: NVIDIA GB300
""",
    "stale-flex-backend-metadata": """\
[start] moe_token_dispatcher_type=alltoall moe_flex_dispatcher_backend=deepep
[rank0]: ValueError: DeepEP is supported for Ampere, Hopper, and Blackwell (B200/B300) GPUs. Current GPU: NVIDIA GB200
""",
    "deepep-fell-back-to-alltoall": """\
moe_token_dispatcher_type=flex moe_flex_dispatcher_backend=hybridep
HybridEP is only applicable for GB200, GB300 with NVL72 and for Ampere, Hopper, B200 and B300 GPUs. Falling back to alltoall.
""",
    "flex-package-not-importable": """\
[rank0]: ImportError: DeepEP is not installed. Please install DeepEP package
""",
    "hybridep-unequal-token-counts": """\
[start] moe_flex_dispatcher_backend=hybridep packing=True overlap_moe_expert_parallel_comm=True
[rank3] last collective: ALLREDUCE (token count) seq 812
[rank5] last collective: ALLGATHER (expert parameters) seq 812
[rank3]: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds
[rank5]: [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds
""",
    "hybridep-tokens-over-queue-depth": """\
internode.cu:217: Assertion `tx_depth > 0 && tx_depth < 65536' failed.
""",
    "hybridep-chunk-misaligned": """\
static_assert failed: MAX_NUM_OF_TOKENS_PER_RANK % NUM_OF_TOKENS_PER_CHUNK == 0
""",
    "hybridep-domain-size-wrong": """\
[start] NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=12 expert_model_parallel_size=32
[rank0]: AssertionError: group size 32 is not divisible by num_of_hybrid_ep_ranks_per_nvlink_domain 12
""",
    "hybridep-peer-late": """\
[rank4] HYBRID-EP ALLGATHER TIMEOUT: expecting 16 got 15
GPU 0: 40000MiB / 81559MiB
""",
    "gpu-memory-exhausted-looks-like-hang": """\
 iteration 1/ 50 | elapsed time per iteration (ms): 9000.0 | lm loss: 9.0E+00
 iteration 2/ 50 | elapsed time per iteration (ms): 9010.0 | lm loss: 9.0E+00
 iteration 3/ 50 | elapsed time per iteration (ms): 54010.0 | lm loss: 9.0E+00
[node0] nvidia-smi: GPU 0 80990MiB / 81559MiB util 100 %
""",
    "out-of-memory": """\
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 GiB of which 1.02 GiB is free.
[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
""",
    "expert-input-freed-early": """\
[start] megatron-core=0.16.0 num_experts=8 expert_model_parallel_size=8 moe_token_dispatcher_type=alltoall overlap_moe_expert_parallel_comm=True
[rank1]:   File "megatron/core/pipeline_parallel/combined_1f1b.py", line 331, in combined_forward_backward_step
[rank1]:   File "transformer_engine/pytorch/module/grouped_linear.py", line 301, in backward
[rank1]: RuntimeError: grouped GEMM got a null input pointer
""",
    "shared-event-orders-collectives": """\
[start] overlap_moe_expert_parallel_comm=True megatron-core=0.14.0 nodes=128
[rank3] last collective: dispatch seq 812
[rank5] last collective: combine seq 812
""",
    "pipeline-shape-exchange-deadlock": """\
variable_seq_lengths=True batch_p2p_comm=True pipeline_model_parallel_size=4
[rank0] stack: megatron/core/pipeline_parallel/p2p_communication.py:241 _communicate_shapes
[rank1] stack: megatron/core/pipeline_parallel/p2p_communication.py:241 _communicate_shapes
""",
    "fsdp-hooks-bypassed": """\
[start] use_megatron_fsdp=True overlap_moe_expert_parallel_comm=True megatron-core=0.16.1
[rank0]:   File "megatron/core/models/gpt/fine_grained_callables.py", line 310, in forward
[rank0]:   File "transformer_engine/pytorch/module/layernorm_linear.py", line 100, in forward
[rank0]: RuntimeError: shape '[4096, 4096]' is invalid for input of size 0
""",
    "attention-graph-nan": """\
overlap_moe_expert_parallel_comm=True cuda_graph_impl=transformer_engine cuda_graph_scope=['attn']
 iteration 90/ 100 | lm loss: NaN | grad norm: nan |
""",
    "graph-capture-host-copy": """\
[rank0]:   File "megatron/core/transformer/moe/router.py", line 300, in apply_z_loss
[rank0]: RuntimeError: CUDA error: operation not permitted when stream is capturing
""",
    "whole-layer-graph-with-overlap": """\
[rank0]: AssertionError: EP overlap must be                 disabled when CUDA graph captures the whole layer
""",
    "illegal-access-expandable-segments": """\
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True cuda_graph_impl=transformer_engine
[rank0]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered
""",
    "config-rule-violated": """\
AssertionError: If enabling EP A2A overlap, virtual_pipeline_model_parallel_size must be specified when pipeline_model_parallel_size > 1
""",
    "transformer-engine-too-old": """\
[rank0]: RuntimeError: Only TE with version >=2.3.0 supports delay_wgrad_compute now.
""",
    "te-version-unknown-crash": """\
[rank0]:   File "megatron/core/utils.py", line 348, in is_te_min_version
[rank0]: TypeError: '>=' not supported between instances of 'NoneType' and 'Version'
""",
    "delayed-wgrad-tied-weights": """\
  delay_wgrad_compute ............................. True
  gradient_accumulation_fusion .................... False
  untie_embeddings_and_output_weights ............. False
 iteration 10/ 100 | elapsed time per iteration (ms): 100.0 | lm loss: 9.0E+00
gradient check: shared embedding weight ratio 0.61
""",
    "delayed-wgrad-fp8-bias-crash": """\
[rank0]:   File "transformer_engine/pytorch/module/base.py", line 1402, in backward_dw
[rank0]: AttributeError: 'NoneType' object has no attribute 'to'
""",
    "triton-permute-fusion": """\
[rank1]:   File "transformer_engine/pytorch/triton/permutation.py", line 90, in make_row_id_map
[rank1]: triton.compiler.errors.CompilationError: at 31:4: type mismatch
""",
    "one-cuda-connection-serialises": """\
env: {'CUDA_DEVICE_MAX_CONNECTIONS': '1', 'NCCL_DEBUG': 'WARN'}
  overlap_moe_expert_parallel_comm ................ True
 iteration 10/ 100 | elapsed time per iteration (ms): 100.0 | lm loss: 9.0E+00
""",
    "too-few-microbatches": """\
[start] overlap_moe_expert_parallel_comm=True pipeline_model_parallel_size=1
[start] micro_batch_size=4 global_batch_size=256 data_parallel_size=64 -> 1 micro-batches
 iteration 10/ 100 | elapsed time per iteration (ms): 100.0 | lm loss: 9.0E+00
""",
    "bridge-reset-the-flag": """\
[start] recipe: cfg.model.overlap_moe_expert_parallel_comm = True
config after setup:
model:
  expert_model_parallel_size: 8
  overlap_moe_expert_parallel_comm: false
comm_overlap:
  overlap_moe_expert_parallel_comm: null
 iteration 10/ 100 | elapsed time per iteration (ms): 100.0 | lm loss: 9.0E+00
""",
    "harness-false-ignored": """\
[start] setup_experiment.py --moe_a2a_overlap false
comm_overlap:
  overlap_moe_expert_parallel_comm: true
""",
    "no-schedule-plan": """\
[rank0]: RuntimeError: _get_attr_wrapped_model couldn't find attribute build_schedule_plan
""",
    "last-layer-dense-drops-final-norm": """\
  moe_layer_freq .................................. [1, 1, 1, 0]
  overlap_moe_expert_parallel_comm ................ True
[start] megatron-core=0.17.1
 iteration 1/ 100 | elapsed time per iteration (ms): 100.0 | lm loss: 3.0E+01
""",
    "too-few-microbatches-for-interleaving": """\
ValueError: The number of contiguous micro-batches in a virtual pipeline stageshould range in [PP=8 , M=4]
""",
    "module-lacks-is-moe-layer": """\
AttributeError: 'TransformerLayer' object has no attribute 'is_moe_layer'
""",
    "lora-adapter-shape": """\
[rank0]:   File "megatron/bridge/peft/utils.py", line 10, in forward
[rank0]: RuntimeError: The size of tensor a (1024) must match the size of tensor b (2048) at non-singleton dimension 0
""",
    "network-not-overlap": """\
[start] overlap_moe_expert_parallel_comm=False moe_token_dispatcher_type=alltoall
[rank9]: [Rank 9] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLTOALL_BASE, Timeout(ms)=600000) ran for 600021 milliseconds
""",
    "unknown": """\
[rank7]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)
[rank1]: Connection closed by peer
""",
}


@pytest.mark.parametrize("cause", LOGS)
def test_a_cause_is_recognised_by_its_signature(cause: str) -> None:
    """The cause comes first, as sure as its basis allows at most, with the lines that point to it."""
    first = diagnose(text=LOGS[cause]).causes[0]
    order = ["possible", "likely", "confirmed"]
    assert first.cause == cause
    assert order.index(first.confidence) <= order.index(CAUSES[cause].ceiling)
    assert first.evidence
    assert first.evidence[0].text in LOGS[cause]


def test_every_cause_has_its_log() -> None:
    """A new cause needs one here."""
    assert set(LOGS) == set(CAUSES)
