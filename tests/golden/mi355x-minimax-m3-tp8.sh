#!/bin/sh
# mi355x-minimax-m3-tp8: MiniMax-M3 MXFP8 on 8x MI355X, one replica, the cookbook's command; never run by this project
#
# recipe     --chunked-prefill-size 8192            sglang cookbook minimax-m3.jsx
# inferred   --cuda-graph-max-bs-decode 64
# recipe     --dtype bfloat16                       sglang cookbook minimax-m3.jsx
# inferred   --enable-cache-report
# inferred   --enable-metrics
# inferred   --max-running-requests 64
# recipe     --mem-fraction-static 0.8              sglang cookbook minimax-m3.jsx
# recipe     --quantization mxfp8                   sglang cookbook minimax-m3.jsx
# recipe     --reasoning-parser minimax-m3          sglang 0.5.23, srt/parser/template_detection.py:880
# recipe     --tool-call-parser minimax-m3          sglang 0.5.23, srt/parser/template_detection.py:880
# recipe     --trust-remote-code                    sglang 0.5.23, srt/parser/template_detection.py:880
# inferred   --watchdog-timeout 1800
# recipe     ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0  sgl-project/sglang#40084
# recipe     SAFETENSORS_FAST_GPU=1                 InferenceX glm5.1_fp4_mi355x.sh
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900          InferenceX
# recipe     SGLANG_USE_AITER=1                     sglang docker/rocm.Dockerfile
#
# warning graph-capture-race: graph capture may fail with `hipErrorStreamCaptureInvalidated`: a race of ROCm up to 7.2.0
#   (aiter #2941, #2857; sglang #23580, #29235; fixed in ROCm 7.2.1; `rocm720` images have 7.2.0)
# hint: start the server again; `rocm724` and `rocm10` images do not have it; `SGLANG_USE_AITER_AR=false` makes it rarer
#   and loses the fused all-reduce
set -eu
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SAFETENSORS_FAST_GPU=1
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
exec python3 -m sglang.launch_server \
  --model-path /models/minimax-m3-mxfp8 \
  --served-model-name minimax-m3 \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --chunked-prefill-size 8192 \
  --cuda-graph-max-bs-decode 64 \
  --dtype bfloat16 \
  --enable-cache-report \
  --enable-metrics \
  --max-running-requests 64 \
  --mem-fraction-static 0.8 \
  --quantization mxfp8 \
  --reasoning-parser minimax-m3 \
  --tool-call-parser minimax-m3 \
  --trust-remote-code \
  --watchdog-timeout 1800
