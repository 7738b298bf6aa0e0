#!/bin/bash
torchrun --nproc_per_node 4 --nnodes 4 pretrain_gpt.py --num-layers 12 --hidden-size 2048 --num-attention-heads 16 \
  --seq-length 4096 --max-position-embeddings 4096 --disable-bias-linear --position-embedding-type rope \
  --num-experts 64 --moe-router-topk 4 --moe-grouped-gemm --moe-router-dtype fp32 \
  --moe-token-dispatcher-type flex --expert-model-parallel-size 16 --overlap-moe-expert-parallel-comm \
  --bf16 --micro-batch-size 1 --global-batch-size 256
