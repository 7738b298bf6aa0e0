#!/bin/bash
source "$(dirname "$0")/models/moe-14b.sh"
PERF=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8
      --overlap-moe-expert-parallel-comm)
python3 train.py "${MODEL_ARGS[@]}" "${PERF[@]}" --bf16 --micro-batch-size 1 --global-batch-size 256
