#!/bin/sh
# b200-glm-5.3-flash-tp8: GLM-5.3-Flash FP8 on 8x B200, one replica, the cookbook's verified command and image; never run by this project
#
# inferred   --cuda-graph-max-bs-decode 64
# recipe     --dsa-decode-backend trtllm       sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# recipe     --dsa-prefill-backend trtllm      sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# inferred   --enable-cache-report
# inferred   --enable-metrics
# recipe     --kv-cache-dtype fp8_e4m3         sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# inferred   --max-running-requests 64
# recipe     --moe-runner-backend deep_gemm    sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# recipe     --reasoning-parser glm45          sglang #36608
# recipe     --speculative-adaptive            sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# recipe     --speculative-algorithm EAGLE     sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# recipe     --speculative-eagle-topk 1        sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# recipe     --speculative-num-draft-tokens 6  sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# recipe     --speculative-num-steps 5         sglang cookbook glm-5.3-flash.jsx, b200 low-latency cell
# recipe     --tool-call-parser glm47          sglang #36608
# recipe     --trust-remote-code               sglang #36608
# inferred   --watchdog-timeout 1800
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900     InferenceX
# recipe     TORCH_CUDA_ARCH_LIST=10.0         sglang cookbook GLM-5.2.mdx
set -eu
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export TORCH_CUDA_ARCH_LIST=10.0
exec python3 -m sglang.launch_server \
  --model-path /models/glm-5.3-flash-fp8 \
  --served-model-name glm-5.3-flash \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --ep-size 8 \
  --cuda-graph-max-bs-decode 64 \
  --dsa-decode-backend trtllm \
  --dsa-prefill-backend trtllm \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype fp8_e4m3 \
  --max-running-requests 64 \
  --moe-runner-backend deep_gemm \
  --reasoning-parser glm45 \
  --speculative-adaptive \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 6 \
  --speculative-num-steps 5 \
  --tool-call-parser glm47 \
  --trust-remote-code \
  --watchdog-timeout 1800
