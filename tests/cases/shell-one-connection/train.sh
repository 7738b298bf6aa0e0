#!/bin/bash
CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 3 --nproc_per_node 8 pretrain_gpt.py --num-layers 30 \
  --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 \
  --disable-bias-linear --position-embedding-type rope --num-experts 48 --moe-grouped-gemm --moe-router-dtype fp32 \
  --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 --overlap-moe-expert-parallel-comm \
  --bf16 --micro-batch-size 1 --global-batch-size 24
