"""Situations in words that no signature holds as they stand: small logs made against the signatures."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.diagnosis import diagnose

LOGS = {
    "one local expert, told by flags, failing with another message": (
        "expert-input-freed-early",
        """\
launch: pretrain_gpt.py --num-experts 32 --expert-model-parallel-size 32 --overlap-moe-expert-parallel-comm
+ MOE_ARGS: --moe-token-dispatcher-type alltoall
Megatron-Core version: 0.16.1
[rank17]:   File "/opt/megatron/core/models/gpt/fine_grained_callables.py", line 118, in backward
[rank17]: RuntimeError: The expanded size of the tensor (0) must match the existing size (4096) at dimension 0
""",
    ),
    "one connection, from a shell's trace": (
        "one-cuda-connection-serialises",
        """\
+ export CUDA_DEVICE_MAX_CONNECTIONS=1
+ torchrun pretrain_gpt.py --overlap-moe-expert-parallel-comm --moe-token-dispatcher-type alltoall
 iteration       50/    1000 | elapsed time per iteration (ms): 10233.1 | lm loss: 7.1E+00 |
""",
    ),
    "slow from the first step, the device nearly full": (
        "gpu-memory-exhausted-looks-like-hang",
        """\
  overlap_moe_expert_parallel_comm ................ True
 iteration       50/    1000 | elapsed time per iteration (ms): 66233.1 | lm loss: 7.1E+00 |
| 0  NVIDIA H100 80GB HBM3  On | 79702MiB / 81559MiB |  100%  Default |
""",
    ),
    "a stack dump inside HybridEP's exchange of routing maps": (
        "hybridep-unequal-token-counts",
        """\
moe_token_dispatcher_type='flex' moe_flex_dispatcher_backend='hybridep' padding_free=True packing=False
    allgather_routing_map (deep_ep/hybrid_ep_buffer.py:402)
[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType=_ALLGATHER_BASE)
""",
    ),
    "a probability error of NeMo-RL with packing": (
        "hybridep-unequal-token-counts",
        """\
policy.sequence_packing.enabled=True policy.megatron_cfg.moe_flex_dispatcher_backend=hybridep
 step 1: token_mult_prob_error 12.7
""",
    ),
    "DeepEP's own assertion on GB200": (
        "deepep-unsupported-gpu",
        """\
GPU name: NVIDIA GB200
RuntimeError: Failed: Assertion error /DeepEP/csrc/deep_ep.cpp:178 'num_nvl_ranks == NUM_MAX_NVL_PEERS'
""",
    ),
    "DeepEP's assertion on an odd SM count": (
        "config-rule-violated",
        "[rank0]: RuntimeError: Failed: Assertion error /deep_ep/csrc/config.hpp:80 'num_sms % 2 == 0'\n",
    ),
    "mixed NVSHMEM and a receiver inside the node": (
        "deepep-nvshmem-mismatch",
        """\
deep_ep 1.2.1 built against NVSHMEM 3.3.9
NVSHMEM version: 3.6.5
[rank8]: DeepEP dispatch NVL receiver timeout, channel: 2, RDMA: 0, nvl: 3, num_tokens_to_recv: 12
""",
    ),
    "micro-batches in another release's words": (
        "too-few-microbatches-for-interleaving",
        "AssertionError: number of microbatches (4) is less than pipeline stages (8) with the interleaved schedule\n",
    ),
    "a capture error of the CUDA runtime": (
        "graph-capture-host-copy",
        "RuntimeError: CUDA error: operation would make the legacy stream depend on a capturing blocking stream\n",
    ),
    "a refusal that names a setting": (
        "config-rule-violated",
        "AssertionError: overlap_moe_expert_parallel_comm is only supported when recompute_granularity != 'full'\n",
    ),
    "a release without the flag": (
        "config-rule-violated",
        "pretrain_gpt.py: error: unrecognized arguments: --overlap-moe-expert-parallel-comm\n",
    ),
    "a release without the field": (
        "config-rule-violated",
        "TypeError: TransformerConfig.__init__() got an unexpected keyword argument 'moe_flex_dispatcher_backend'\n",
    ),
    "a LoRA matrix of another shape": (
        "lora-adapter-shape",
        """\
  File "megatron/bridge/peft/lora_layers.py", line 200, in forward
RuntimeError: mat1 and mat2 shapes cannot be multiplied (8192x2048 and 1024x16)
""",
    ),
    "a missing file, and one connection that has nothing to do with it": (
        "unknown",
        """\
CUDA_DEVICE_MAX_CONNECTIONS=1
  overlap_moe_expert_parallel_comm ................ True
[rank3]: FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'
""",
    ),
}


@pytest.mark.parametrize("situation", LOGS)
def test_the_first_cause_in_other_words(situation: str) -> None:
    """The cause comes first, or nothing is guessed."""
    cause, log = LOGS[situation]
    assert diagnose(text=log).causes[0].cause == cause
