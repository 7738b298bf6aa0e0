#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=32
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 14 --hidden-size 1536 --num-attention-heads 12 \
  --seq-length 2048 --max-position-embeddings 2048 --disable-bias-linear --position-embedding-type rope \
  --num-experts 16 --moe-grouped-gemm --moe-router-dtype fp32 --moe-token-dispatcher-type alltoall \
  --expert-model-parallel-size 8 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --overlap-moe-expert-parallel-comm --bf16 --micro-batch-size 1 --global-batch-size 64
