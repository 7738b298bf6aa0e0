#!/usr/bin/env bash
# Pre-training with EP overlap on two nodes of eight GPUs.
export CUDA_DEVICE_MAX_CONNECTIONS=32

torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --seq-length 4096 --max-position-embeddings 4096 --disable-bias-linear \
    --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1024 --moe-grouped-gemm \
    --moe-router-dtype fp32 --moe-token-dispatcher-type alltoall \
    --expert-model-parallel-size 16 \
    --overlap-moe-expert-parallel-comm --delay-wgrad-compute \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --bf16 --micro-batch-size 1 --global-batch-size 256 \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 50000
