#!/bin/bash
TRAIN=(--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096
  --disable-bias-linear --position-embedding-type rope --num-experts 32 --moe-grouped-gemm --moe-router-dtype fp32
  --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 --overlap-moe-expert-parallel-comm
  --bf16 --micro-batch-size 1 --global-batch-size 256)
ROLLOUT=(--sglang-ep-size 2 --sglang-moe-a2a-backend deepep --sglang-enable-ep-moe)
python3 train.py "${TRAIN[@]}" "${ROLLOUT[@]}"
