#!/usr/bin/env bash
# The main job on a real-sized example: check it, propose the smallest change, run the changed combination for a moment.
set -uo pipefail
cd "$(dirname "$0")/.."
command="$(dirname "$(command -v python3)")/ep-overlap-mcp"
if [ -x .venv/bin/ep-overlap-mcp ]; then command=.venv/bin/ep-overlap-mcp; fi
stack=megatron-core==0.16.1,transformer-engine==2.9.0,torch==2.9.0
example=examples/qwen3_30b_a3b_16xh100.sh

echo "== check: can EP overlap be switched on in $example?"
"$command" check "$example" --stack "$stack" --gpu H100
echo
echo "== propose: the smallest change"
"$command" propose "$example" --stack "$stack" --gpu H100
echo
echo "== smoke: the changed combination, shrunk, really trained for a moment on what this machine has"
"$command" smoke run "$example" --stack "$stack" \
    --set model.recompute_granularity=null --set model.recompute_method=null --set model.recompute_num_layers=null
