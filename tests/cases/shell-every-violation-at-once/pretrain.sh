#!/usr/bin/env bash
set -eu
STAGES=${STAGES:-8}
NET=(
    --num-layers 56 --hidden-size 3072 --num-attention-heads 24 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192 --swiglu --disable-bias-linear --position-embedding-type rope
)
MOE=(
    --num-experts 96 --moe-router-topk 6 --moe-ffn-hidden-size 1280 --moe-grouped-gemm --moe-router-dtype fp32
    --moe-token-dispatcher-type alltoall
    --moe-shared-expert-intermediate-size 2560 --moe-shared-expert-overlap
)
SAVE_MEMORY=(--recompute-granularity full --recompute-method block --recompute-num-layers 3)
torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py "${NET[@]}" "${MOE[@]}" "${SAVE_MEMORY[@]}" \
    --pipeline-model-parallel-size "$STAGES" --expert-model-parallel-size 8 \
    --micro-batch-size 1 --global-batch-size 512 --bf16
