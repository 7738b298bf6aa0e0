#!/bin/bash
EP=$1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 1024 --num-attention-heads 8 \
  --seq-length 2048 --max-position-embeddings 2048 --disable-bias-linear --position-embedding-type rope \
  --num-experts 16 --moe-grouped-gemm --moe-router-dtype fp32 --moe-token-dispatcher-type alltoall \
  --expert-model-parallel-size $EP --overlap-moe-expert-parallel-comm --bf16 \
  --micro-batch-size 1 --global-batch-size 64
