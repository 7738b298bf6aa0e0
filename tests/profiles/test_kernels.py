"""The table of kernel names."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.profiles.kernels import (
    FAMILIES,
    UNCLASSIFIED,
    Kind,
    family_of,
    kind_of_collective,
    kind_of_copy,
)

NAMES = {
    Kind.DISPATCH: [
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
        "void deep_ep::internode::dispatch<false, 8, true, 8>(int4*)",
        "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)",
        "void deep_ep::legacy::intranode::dispatch<8, 768, 8192>(int4*)",
        "void deep_ep::elastic::dispatch_impl<1>(int)",
        "void deep_ep::elastic::hybrid_dispatch_impl<1>(int)",
        "void deep_ep::pcie::dispatch_pcie<1>(int)",
        "void primus_turbo::deep_ep::intranode::dispatch<8, 1024, 8192>(int4*)",
        "void dpsk::ep::internode::dispatch<false, 8, false, 8>(int4*, float*)",
        "void hybrid_ep::dispatch_kernel<hybrid_ep::tma>(hybrid_ep::param)",
        "nccl_ep_jit_ht_dispatch_kernel",
        "void nccl_ep::internode_ll::dispatch<1>(int)",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int const*)",
    ],
    Kind.COMBINE: [
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
        "void deep_ep::internode::combine<false, 8, __nv_bfloat16>(int4*)",
        "void deep_ep::internode_ll::combine_overlappable<1>()",
        "void deep_ep::legacy::internode::combine<false>(int4*)",
        "void deep_ep::elastic::combine_impl<1>()",
        "void deep_ep::elastic::hybrid_combine_impl<2>()",
        "void deep_ep::pcie::combine_pcie<1>()",
        "void hybrid_ep::combine_kernel<a>(b)",
        "nccl_ep_jit_ht_combine_kernel",
        "void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<__nv_bfloat16, 8>(int)",
    ],
    Kind.ALL_TO_ALL: [
        "flashinfer::trtllm_alltoall::moeAllToAllKernel(flashinfer::trtllm_alltoall::MoeEpWorldInfo)",
        "void tensorrt_llm::kernels::moeAllToAllKernel<8, false>(tensorrt_llm::kernels::FusedMoeCommKernelParam)",
        "c10d::nvshmem_extension::allToAllV(void*, void*, long*)",
        "c10d::nvshmem_extension::allToAllV_2d(void*, void*, long*)",
    ],
    Kind.CONTROL: [
        "void deep_ep::intranode::notify_dispatch<8>(int const*)",
        "void deep_ep::intranode::cached_notify_combine<8>(void**)",
        "void deep_ep::internode::cached_notify<false>(int)",
        "void deep_ep::pcie::cached_notify_pcie<1>(int)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)",
        "void deep_ep::intranode::barrier<8>(int**, int)",
        "void deep_ep::elastic::barrier_impl<1>()",
        "void deep_ep::elastic::dispatch_deterministic_prologue_impl<1>()",
        "void deep_ep::internode_ll::clean_low_latency_buffer<32>(int*, int)",
        "void deep_ep::internode_ll::query_mask_buffer<32>(int*, int)",
        "void hybrid_ep::scan<1>(x)",
        "hybrid_ep::device_sync_kernel(unsigned int*)",
        "hybrid_ep::rdma_sync_kernel(unsigned int*)",
        "nccl_ep_jit_ht_scan_kernel",
        "c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)",
    ],
    Kind.SENDRECV: [
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    ],
    Kind.COLLECTIVE: [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllGatherV_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)",
        "void ag_nvl_kernel<1>(int)",
        "void userbuffers_fp16_sum_inplace_gpu_rw<8>(int)",
        "kuserbuffers_pushrecv(int, int)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "rccl_main_kernel(ncclDevComm*, unsigned long, ncclWork*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void (anonymous namespace)::multimem_one_shot_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>(c10::BFloat16**)",
        "void c10d::intra_node_comm::twoShotAllReduceKernel<8u, true>(c10::BFloat16*)",
    ],
    Kind.P2P: ["void deep_ep::elastic::pp_send_impl<1>()", "void deep_ep::elastic::pp_recv_impl<1>()"],
    Kind.GEMM_ATTENTION: [
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8::GemmKernel>(dpsk::grouped_gemm::cuda::x)",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)",
        "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)",
        "void flash::flash_fwd_splitkv_combine_kernel<64>(Flash_fwd_params)",
        "void flash_mla_combine_kernel<float, 512>(Params)",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<1>(int)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<1>(int)",
    ],
    Kind.OTHER_COMPUTE: [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)",
        "void transformer_engine::permute_kernel<1>(int)",
        "triton_poi_fused_add_mul_0",
        "_permute_kernel",
        "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)",
        "void deep_ep::elastic::dispatch_copy_epilogue_impl<1>()",
        "void deep_ep::elastic::combine_reduce_epilogue_impl<1>()",
        "void hybrid_ep::permute_kernel<1>()",
        "void hybrid_ep::unpermute_kernel<1>()",
        "tensorrt_llm::kernels::moe_comm::moeA2APrepareDispatchKernel(int*, int*)",
        "triton_poi_fused__to_copy_all_gather_into_tensor_wait_tensor_3",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp<float>)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
        "void at::native::index_elementwise_kernel<128, 4>(long)",
        "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>>(float*)",
        "void cub::DeviceReduceSingleTileKernel<cub::Policy>(float*)",
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DispatchScan>(int)",
        "void small_gather_kernel<float>(float*)",
        "void segmented_scatter_reduce_kernel<float>(float*)",
        "void moe_permute_topK_kernel<__nv_bfloat16>(__nv_bfloat16*)",
        "_make_chunk_sort_map_kernel_scatter",
        "void layer_norm_kernel<at::cuda::sync_policy>(at::Tensor)",
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_a_kernel_is_recognised_by_its_demangled_name(kind: Kind, name: str):
    """Names of every known library of communication, old and new, and of the common libraries of computation."""
    family = family_of(name)
    assert (family.kind, family.known, family.fused) == (kind, True, False)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_names_its_source(family):
    """A row without a source cannot be checked against a newer release."""
    assert family.source


@pytest.mark.parametrize(
    "name",
    [
        "void uccl::v2_efa::v2_efa_combine<8>(int)",
        "void mori::EpDispatchIntraNodeKernel<bf16>(mori::Args)",
        "void pplx::all_to_all_send<1>(int)",
        "moe_combine_gather_kernel",
        "void acme::rdma_put(int)",
        "notify_peers",
        "void (anonymous namespace)::ep_combine<1>(int)",
        "device_sync",
        "my_reduce_scatter_kernel",
        "void acme::all_gather_kernel<at::BFloat16>(at::BFloat16*)",
        "acmeAllReduceKernel(float*)",
        "void fbgemm_gpu::one_shot_all_reduce<4>(int)",
        "void <unnamed>::acme_all_reduce_kernel<__nv_bfloat16, (int)16>(__nv_bfloat16 *)",
        "gemm_all_reduce_kernel",
        "triton_all_to_all_kernel",
        "triton_dispatch_kernel",
        "triton_combine_kernel",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(int)",
        "void flashinfer::moe_ep::combine<1>(int)",
        "flash_combine_tokens",
        "void acme::dispatch<8>(at::PhiloxCudaState)",
        "void a2a_send<1>(int)",
    ],
)
def test_a_name_that_speaks_of_communication_is_suspicious(name: str):
    """Such a kernel is in no row for communication, yet is not taken for computation by a generic word either."""
    assert family_of(name).suspicious


@pytest.mark.parametrize(
    "name",
    [
        "void acme::stage<cp_async>(int)",
        "cp_async_stage",
        "void acme::add<acme::dispatch_policy>(int)",
        "void acme::add(acme::rdma*)",
    ],
)
def test_only_the_function_itself_can_be_suspicious(name: str):
    """Asynchronous copies, template and call arguments say nothing about communication."""
    assert family_of(name) is UNCLASSIFIED


@pytest.mark.parametrize("name", ["sm100_fp8_mega_moe_impl", "void primus::MegaMoEKernel<1>(int)"])
def test_a_fused_kernel_is_known_as_fused(name: str):
    """It holds communication and computation, so no class would be true."""
    assert family_of(name).fused


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy PtoP (Device -> Device)", Kind.P2P),
        ("Memcpy DtoD (Device -> Device)", Kind.MEMORY),
        ("Memcpy HtoD (Pinned -> Device)", Kind.MEMORY),
    ],
)
def test_a_copy_between_devices_is_communication(name: str, kind: Kind):
    """NCCL's copy-engine collectives leave no kernels, only such copies."""
    assert kind_of_copy(name) is kind


@pytest.mark.parametrize(
    ("operation", "group", "kind"),
    [
        ("all_to_allv", "EXPERT_MODEL_PARALLEL_GROUP", Kind.ALL_TO_ALL),
        ("alltoall_base", "", Kind.ALL_TO_ALL),
        ("gloo:all_to_all", "", Kind.ALL_TO_ALL),
        ("all_to_all", "CONTEXT_PARALLEL_GROUP", Kind.COLLECTIVE),
        ("allreduce", "EXPERT_MODEL_PARALLEL_GROUP", Kind.COLLECTIVE),
        ("_allgather_base", "", Kind.COLLECTIVE),
        ("send", "", Kind.P2P),
        ("nccl:recv 0<-1", "", Kind.P2P),
        ("nccl:barrier", "", Kind.CONTROL),
        ("", "PIPELINE_MODEL_PARALLEL_GROUP", Kind.P2P),
        ("", "EXPERT_MODEL_PARALLEL_GROUP", Kind.ALL_TO_ALL),
        ("coalesced", "PIPELINE_MODEL_PARALLEL_GROUP", Kind.P2P),
        ("coalesced", "", None),
        ("", "", None),
    ],
)
def test_an_operation_decides_before_its_group(operation: str, group: str, kind: Kind | None):
    """What was called tells most; the process group tells the rest; otherwise nothing is claimed."""
    assert kind_of_collective(operation, group) is kind
