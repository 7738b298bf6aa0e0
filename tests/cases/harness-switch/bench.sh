#!/bin/bash
python scripts/performance/setup_experiment.py --account lab --partition big --model_family_name some \
    --model_recipe_name some_moe --gpu h100 --num_gpus 32 --compute_dtype bf16 --moe_a2a_overlap true
