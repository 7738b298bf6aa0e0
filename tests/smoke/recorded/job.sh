#!/bin/bash
#SBATCH --job-name=ep-overlap-smoke-1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=20
#SBATCH --partition=batch
#SBATCH --account=me
#SBATCH --qos=short
#SBATCH --output=/shared/smoke-1/log.txt
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --exclusive
set -u
out=/shared/smoke-1
cd "$out" || exit 1
. ./shape.sh
module load cuda
date +%s > "$out/slurm.started"
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then rm -f "$out"/rank* "$out"/result.json "$out"/progress.jsonl; fi
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
address=${address:-$first}
port=$((20000 + SLURM_JOB_ID % 20000))
local=(); case $address in 127.*) local=(--local-addr "$address") ;; esac
srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 '--container-image=nvcr.io#nvidia/nemo:25.09' --container-mounts=/data:/data numactl -l python3 -m torch.distributed.run --nnodes="$nodes" --nproc-per-node="$per_node" --rdzv-backend=c10d --rdzv-endpoint="$address:$port" --rdzv-id="$SLURM_JOB_ID" "${local[@]}" program/smoke_train.py --request "$out/request.json" --out "$out"
code=$?
echo "$code" > "$out/slurm.exit"
exit "$code"
