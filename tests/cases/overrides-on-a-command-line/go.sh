#!/bin/bash
NODES=${NODES:-2}
python -m torch.distributed.run --nproc_per_node=8 --nnodes=$NODES scripts/training/run_recipe.py \
    --recipe some_moe_pretrain_config -- \
    model.pipeline_model_parallel_size=2 model.virtual_pipeline_model_parallel_size=null \
    model.expert_model_parallel_size=8 model.moe_token_dispatcher_type=alltoall \
    "++model.recompute_modules=[moe,layernorm]" model.recompute_granularity=selective \
    comm_overlap.overlap_moe_expert_parallel_comm=true train.micro_batch_size=1
