#!/bin/sh
# h200x4-tp2dp2: GLM-4-MoE with MTP and random weights on 4x H200, two replicas of two GPUs
#
# inferred   --cuda-graph-max-bs-decode 64
# inferred   --enable-cache-report
# inferred   --enable-metrics
# inferred   --max-running-requests 64
# inferred   --mem-fraction-static 0.85
# inferred   --speculative-algorithm EAGLE
# inferred   --speculative-eagle-topk 1
# inferred   --speculative-num-draft-tokens 6
# inferred   --speculative-num-steps 5
# inferred   SGLANG_TIMEOUT_KEEP_ALIVE=900
set -eu
CDPATH= cd -- "${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}"
export PYTHONSAFEPATH=1  # nothing in that folder is imported
export SGLANG_TIMEOUT_KEEP_ALIVE=900
exec python3 -m sglang.launch_server \
  --model-path models/glm4-moe-random-large \
  --served-model-name glm4-moe-random-large \
  --host 127.0.0.1 \
  --port 30050 \
  --tp-size 2 \
  --dp-size 2 \
  --cuda-graph-max-bs-decode 64 \
  --enable-cache-report \
  --enable-metrics \
  --max-running-requests 64 \
  --mem-fraction-static 0.85 \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 6 \
  --speculative-num-steps 5
