#!/usr/bin/env bash
# Qwen3-30B-A3B class pre-training on 16 H100 (two nodes of eight): 48 layers, 128 experts, 8 active a token.
# A run as teams have it before they turn EP overlap on. Try:
#   ep-overlap-mcp check   examples/qwen3_30b_a3b_16xh100.sh --stack megatron-core==0.16.1,transformer-engine==2.9.0 --gpu H100
#   ep-overlap-mcp propose examples/qwen3_30b_a3b_16xh100.sh --stack megatron-core==0.16.1,transformer-engine==2.9.0 --gpu H100
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FLASH_ATTN=1

TP=${TP:-1}
PP=${PP:-1}
EP=${EP:-16}
MBS=${MBS:-1}
GBS=${GBS:-1024}

LAUNCH=(--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "${MASTER_ADDR:-localhost}:29500")

MODEL=(
    --num-layers 48
    --hidden-size 2048
    --ffn-hidden-size 6144
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 4
    --kv-channels 128
    --qk-layernorm
    --seq-length 4096
    --max-position-embeddings 40960
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
)

EXPERTS=(
    --num-experts 128
    --moe-router-topk 8
    --moe-ffn-hidden-size 768
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-3
    --moe-router-dtype fp32
    --moe-grouped-gemm
    --moe-permute-fusion
    --moe-token-dispatcher-type alltoall
)

PARALLEL=(
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size "$PP"
    --expert-model-parallel-size "$EP"
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

# What was left over from a smaller machine: it costs time, and EP overlap does not go with it.
MEMORY=(
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
)

TRAINING=(
    --bf16
    --micro-batch-size "$MBS"
    --global-batch-size "$GBS"
    --train-iters 50
    --lr 3e-4
    --min-lr 3e-5
    --lr-decay-style cosine
    --weight-decay 0.1
    --clip-grad 1.0
    --tokenizer-type NullTokenizer
    --vocab-size 151936
    --mock-data
)

torchrun "${LAUNCH[@]}" pretrain_gpt.py \
    "${MODEL[@]}" "${EXPERTS[@]}" "${PARALLEL[@]}" "${MEMORY[@]}" "${TRAINING[@]}"
