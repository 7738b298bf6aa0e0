"""Situations that look alike: the same lines mean different things beside other lines."""

from __future__ import annotations

from ep_overlap_mcp.diagnosis import diagnose

DEEPEP_TIMEOUT = """\
[rank9]: Traceback (most recent call last):
[rank9]:   File "deep_ep/buffer.py", line 412, in internode_dispatch
[rank9]: RuntimeError: DeepEP error: timeout (dispatch CPU)
[rank2]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered
"""
HYBRIDEP_TIMEOUT = "[rank4] HYBRID-EP ALLGATHER TIMEOUT: expecting 16 got 15\n"


def ranked(text: str, **more: object) -> list[tuple[str, str]]:
    """Causes of a text with their confidence."""
    return [(c.cause, c.confidence) for c in diagnose(text=text, **more).causes]  # type: ignore[arg-type]


def ruled_out(text: str) -> set[str]:
    """Causes that a text rules out."""
    return {item.cause for item in diagnose(text=text).ruled_out}


def test_two_nvshmem_versions_explain_a_deepep_timeout() -> None:
    """Mixed versions confirm the mismatch; transport, memory and the later illegal access are out."""
    text = "deep_ep: device code built with NVSHMEM 3.4.5\nhost library: NVSHMEM v3.6.5\n" + DEEPEP_TIMEOUT
    assert ranked(text) == [("deepep-nvshmem-mismatch", "confirmed")]
    assert ruled_out(text) == {"deepep-transport-timeout", "illegal-access-expandable-segments"}


def test_one_old_nvshmem_version_leaves_the_transport() -> None:
    """A single version below 3.5.19 speaks against a mismatch."""
    text = "NVSHMEM v3.4.5\n" + DEEPEP_TIMEOUT
    assert ranked(text) == [("deepep-transport-timeout", "likely")]
    assert "deepep-nvshmem-mismatch" in ruled_out(text)


def test_the_callers_stack_stands_in_for_a_printed_version() -> None:
    """NVSHMEM 3.7.2 from the caller makes the mismatch likely, never confirmed."""
    assert ranked(DEEPEP_TIMEOUT, stack={"nvshmem": "3.7.2"})[0] == ("deepep-nvshmem-mismatch", "likely")


def test_a_deepep_timeout_on_gb200_is_the_gpu() -> None:
    """DeepEP's normal kernels assume eight GPUs a node."""
    assert ranked(DEEPEP_TIMEOUT, stack={"gpu": "NVIDIA GB200"})[0][0] == "deepep-unsupported-gpu"


def test_full_memory_turns_a_hybridep_timeout_into_a_consequence() -> None:
    """At 97 % and more memory is the cause and the late peer is ruled out."""
    text = HYBRIDEP_TIMEOUT + "GPU 3: 79012MiB / 81559MiB\n" + "GPU 4: 81010MiB / 81559MiB\n"
    assert ranked(text) == [("gpu-memory-exhausted-looks-like-hang", "confirmed")]
    assert "hybridep-peer-late" in ruled_out(text)


def test_half_empty_memory_leaves_the_late_peer() -> None:
    """The same time-out with a roomy device: memory is ruled out."""
    text = HYBRIDEP_TIMEOUT + "GPU 3: 40012MiB / 81559MiB\n"
    assert ranked(text)[0] == ("hybridep-peer-late", "likely")
    assert "gpu-memory-exhausted-looks-like-hang" in ruled_out(text)


def test_packed_sequences_make_unequal_token_counts_the_first_suspect() -> None:
    """With variable lengths and no padding the time-out is probably unequal counts; padding rules it out."""
    settings = "moe_flex_dispatcher_backend=hybridep variable_seq_lengths=True\n"
    padded = settings + "moe_hybridep_pad_uneven_dispatch_inputs=True\n"
    assert ranked(settings + HYBRIDEP_TIMEOUT)[0] == ("hybridep-unequal-token-counts", "likely")
    assert "hybridep-unequal-token-counts" in ruled_out(padded + HYBRIDEP_TIMEOUT)


def test_tokens_over_the_queue_depth() -> None:
    """HybridEP's assertion while it sets up queues; nothing about NVSHMEM."""
    text = "internode.cu:217: void setup_qp_init_attr(): Assertion `tx_depth > 0 && tx_depth < 65536' failed.\n"
    assert ranked(text) == [("hybridep-tokens-over-queue-depth", "confirmed")]


def test_nan_is_blamed_on_the_attention_graph_only_with_that_graph() -> None:
    """The report is open, so it stays likely; without a graph it is ruled out and the cause is unknown."""
    nan = "[rank6]: RuntimeError: found NaN in local grad norm for bucket #0 in backward pass\n"
    graph = "overlap_moe_expert_parallel_comm=True cuda_graph_impl={} cuda_graph_modules=['attn']\n"
    assert ranked(graph.format("transformer_engine") + nan) == [("attention-graph-nan", "likely")]
    assert ranked(graph.format("none") + nan) == [("unknown", "possible")]
    assert ruled_out(graph.format("none") + nan) == {"attention-graph-nan"}


EXPERTS = """\
  num_experts ..................................... {experts}
  expert_model_parallel_size ...................... 8
  moe_token_dispatcher_type ....................... alltoall
megatron-core {core}
[rank3]:   File "megatron/core/pipeline_parallel/combined_1f1b.py", line 331, in combined_forward_backward_step
[rank3]: RuntimeError: cublaslt_gemm.cu: Assertion failed: A.data.dptr != nullptr. Input to GEMM is empty
"""


def test_expert_input_is_freed_early_with_one_expert_a_rank_on_old_core() -> None:
    """Confirmed with alltoall, one expert and such a core, likely without the dispatcher; otherwise ruled out."""
    one = EXPERTS.format(experts=8, core="0.15.3")
    assert ranked(one) == [("expert-input-freed-early", "confirmed")]
    assert ranked(one.replace("alltoall", "")) == [("expert-input-freed-early", "likely")]
    assert "expert-input-freed-early" in ruled_out(EXPERTS.format(experts=16, core="0.15.3"))
    assert "expert-input-freed-early" in ruled_out(EXPERTS.format(experts=8, core="0.17.1"))


def test_a_missing_package_is_only_a_missing_package() -> None:
    """HybridEP asked for and not installed."""
    text = "moe_flex_dispatcher_backend=hybridep\n[rank0]: ImportError: HybridEP is not installed. Please install\n"
    assert ranked(text) == [("flex-package-not-importable", "confirmed")]


def test_the_fused_permutation_is_not_a_broken_rule() -> None:
    """A Triton compilation error under make_row_id_map, with overlap on but not because of it."""
    text = """\
  moe_permute_fusion .............................. True
  overlap_moe_expert_parallel_comm ................ True
[rank1]:   File "transformer_engine/pytorch/permutation.py", line 214, in forward
[rank1]: triton.compiler.errors.CompilationError: at 31:4: Cannot bitcast data-type of size 32
"""
    assert ranked(text) == [("triton-permute-fusion", "likely")]


def test_a_fallback_nobody_noticed() -> None:
    """One warning at the start, alltoall in the dump, and a run that does not fail."""
    text = """\
WARNING DeepEP is only applicable to Ampere, Hopper, and Blackwell (B200/B300) GPUs. Current GPU: NVIDIA GB200.
model:
  moe_token_dispatcher_type: alltoall
 iteration       10/     100 | elapsed time per iteration (ms): 14120.7 | lm loss: 9.120E+00
"""
    result = diagnose(text=text)
    assert [c.cause for c in result.causes] == ["deepep-fell-back-to-alltoall"]
    assert result.first_failure is None


def test_illegal_access_in_a_graphed_run_with_expandable_segments() -> None:
    """Without any failure before it the illegal access points to the missing NCCL_GRAPH_REGISTER=0."""
    settings = "cuda_graph_impl=transformer_engine PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    access = "[rank0]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    assert ranked(settings + access) == [("illegal-access-expandable-segments", "likely")]
    assert ranked(settings + "NCCL_GRAPH_REGISTER=0\n" + access) == [("unknown", "possible")]


def test_the_hang_without_overlap_is_the_network() -> None:
    """A watchdog time-out with overlap off and alltoall leaves the fabric."""
    text = (
        "overlap_moe_expert_parallel_comm=False moe_token_dispatcher_type=alltoall\n"
        "[rank2]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLTOALL_BASE)\n"
    )
    assert ranked(text) == [("network-not-overlap", "likely")]


def test_megatron_fsdp_with_overlap_on_old_core() -> None:
    """Parameters are not gathered before core 0.18; from there on the hooks run."""
    text = """\
use_megatron_fsdp=True overlap_moe_expert_parallel_comm=True
megatron-core {}
[rank0]:   File "megatron/core/models/gpt/fine_grained_callables.py", line 210, in submodule_attn_forward
[rank0]: RuntimeError: setStorage: sizes [4096], strides [1] are out of bounds for storage of size 0
"""
    assert ranked(text.format("0.17.1")) == [("fsdp-hooks-bypassed", "likely")]
    assert ranked(text.format("0.18.0")) == [("unknown", "possible")]


def test_a_refused_configuration_is_a_broken_rule_whatever_its_words() -> None:
    """An assertion raised in a configuration's validation names no rule the signatures know."""
    text = """\
[rank0]:   File "megatron/core/transformer/transformer_config.py", line 2222, in __post_init__
[rank0]: AssertionError: some new rule
"""
    assert ranked(text) == [("config-rule-violated", "likely")]


def test_silent_causes_are_read_from_what_a_healthy_run_prints() -> None:
    """One connection, too few micro-batches, a reset switch, a small NVLink domain, a dense last layer."""
    on = "  overlap_moe_expert_parallel_comm ................ True\n"
    off = "  overlap_moe_expert_parallel_comm ................ False\n"
    batch = "global_batch_size=64 micro_batch_size=1 data_parallel_size=8 pipeline_model_parallel_size=8\n"
    domain = "GPU: NVIDIA GB200\nNUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=4 expert_model_parallel_size=32\n"
    assert ranked("CUDA_DEVICE_MAX_CONNECTIONS=1\n" + on) == [("one-cuda-connection-serialises", "likely")]
    assert ranked(batch + on) == [("too-few-microbatches", "likely")]
    assert ranked("--overlap-moe-expert-parallel-comm\n" + off) == [("bridge-reset-the-flag", "confirmed")]
    assert ranked(domain) == [("hybridep-domain-size-wrong", "likely")]
    assert ranked("moe_layer_freq=[1, 1, 0]\n" + on) == [("last-layer-dense-drops-final-norm", "likely")]
