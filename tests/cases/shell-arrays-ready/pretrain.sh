#!/usr/bin/env bash
export CUDA_DEVICE_MAX_CONNECTIONS=24
ARCH=(--num-layers 36 --hidden-size 2560 --num-attention-heads 20 --seq-length 4096)
ARCH+=(--max-position-embeddings 4096 --disable-bias-linear --position-embedding-type rope --swiglu)
EXPERTS=(
    --num-experts 48            # twelve a rank
    --moe-router-topk 3
    --moe-grouped-gemm
    --moe-router-dtype fp32
    --moe-token-dispatcher-type alltoall
)
SPLIT=(--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3 --expert-model-parallel-size 4)
EXPERTS+=(--overlap-moe-expert-parallel-comm)
torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py \
    "${ARCH[@]}" "${EXPERTS[@]}" "${SPLIT[@]}" --bf16 --micro-batch-size 2 --global-batch-size 768
