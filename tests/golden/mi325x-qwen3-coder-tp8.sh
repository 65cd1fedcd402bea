#!/bin/sh
# mi325x-qwen3-coder-tp8: Qwen3-Coder-480B FP8 on 8x MI325X, one replica, the cookbook's command; never run by this project
#
# inferred   --cuda-graph-max-bs-decode 64
# inferred   --enable-cache-report
# inferred   --enable-metrics
# inferred   --max-running-requests 64
# recipe     --page-size 32                         sglang cookbook, qwen3-coder-deployment.jsx
# recipe     --tool-call-parser qwen3_coder         sglang cookbook, qwen3-coder-deployment.jsx
# recipe     --trust-remote-code                    sglang cookbook, qwen3-coder-deployment.jsx
# inferred   --watchdog-timeout 1800
# inferred   ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900          InferenceX
# recipe     SGLANG_USE_AITER=0                     sglang cookbook, qwen3-coder-deployment.jsx
#
# warning graph-capture-race: graph capture may fail with `hipErrorStreamCaptureInvalidated`: a race of ROCm up to 7.2.0
#   (aiter #2941, #2857; sglang #23580, #29235; fixed in ROCm 7.2.1; `rocm720` images have 7.2.0)
# hint: start the server again; `rocm724` and `rocm10` images do not have it; `SGLANG_USE_AITER_AR=false` makes it rarer
#   and loses the fused all-reduce
set -eu
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=0
exec python3 -m sglang.launch_server \
  --model-path /models/qwen3-coder-480b-fp8 \
  --served-model-name qwen3-coder \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --ep-size 2 \
  --cuda-graph-max-bs-decode 64 \
  --enable-cache-report \
  --enable-metrics \
  --max-running-requests 64 \
  --page-size 32 \
  --tool-call-parser qwen3_coder \
  --trust-remote-code \
  --watchdog-timeout 1800
