#!/bin/bash
# torchrun pretrain_gpt.py --expert-model-parallel-size 1 --recompute-granularity full
OPTIONS="--num-layers 18 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048"
OPTIONS="$OPTIONS --disable-bias-linear --position-embedding-type rope --num-experts 18 --moe-grouped-gemm"
#OPTIONS="$OPTIONS --moe-shared-expert-overlap"
OPTIONS="$OPTIONS --moe-token-dispatcher-type allgather --moe-router-dtype fp32"
OPTIONS="$OPTIONS --moe-token-dispatcher-type alltoall --expert-model-parallel-size 9"   # wins
OPTIONS="$OPTIONS --overlap-moe-expert-parallel-comm --bf16 --micro-batch-size 1 --global-batch-size 144"
torchrun --nproc_per_node 9 pretrain_gpt.py $OPTIONS
