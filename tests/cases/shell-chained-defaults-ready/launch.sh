#!/bin/bash
CLUSTER_EP=6
EP=${EP:-${CLUSTER_EP:-2}}
EXPERTS=$((EP * 4))
: "${MICRO:=2}"
torchrun --nproc_per_node 6 pretrain_gpt.py --num-layers 20 --hidden-size 1536 --num-attention-heads 12 \
  --seq-length 2048 --max-position-embeddings 2048 --disable-bias-linear --position-embedding-type rope \
  --num-experts ${EXPERTS} --expert-model-parallel-size ${EP} --moe-token-dispatcher-type alltoall \
  --moe-grouped-gemm --moe-router-dtype fp32 --overlap-moe-expert-parallel-comm \
  --bf16 --micro-batch-size ${MICRO} --global-batch-size $((MICRO * 96))
