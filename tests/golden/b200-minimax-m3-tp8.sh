#!/bin/sh
# b200-minimax-m3-tp8: MiniMax-M3 MXFP8 on 8x B200, one replica, the backends of the cookbook; never run by this project
#
# recipe     --attention-backend fa4         sglang cookbook minimax-m3.jsx
# recipe     --chunked-prefill-size 8192     sglang cookbook minimax-m3.jsx
# inferred   --cuda-graph-max-bs-decode 64
# recipe     --dtype bfloat16                sglang cookbook minimax-m3.jsx
# inferred   --enable-cache-report
# inferred   --enable-metrics
# inferred   --max-running-requests 64
# recipe     --mem-fraction-static 0.65      sglang cookbook minimax-m3.jsx
# recipe     --moe-runner-backend deep_gemm  sglang cookbook minimax-m3.jsx
# recipe     --quantization mxfp8            sglang cookbook minimax-m3.jsx
# recipe     --reasoning-parser minimax-m3   sglang 0.5.23, srt/parser/template_detection.py:880
# recipe     --tool-call-parser minimax-m3   sglang 0.5.23, srt/parser/template_detection.py:880
# recipe     --trust-remote-code             sglang 0.5.23, srt/parser/template_detection.py:880
# inferred   --watchdog-timeout 1800
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900   InferenceX
# recipe     TORCH_CUDA_ARCH_LIST=10.0       sglang cookbook GLM-5.2.mdx
set -eu
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export TORCH_CUDA_ARCH_LIST=10.0
exec python3 -m sglang.launch_server \
  --model-path /models/minimax-m3-mxfp8 \
  --served-model-name minimax-m3 \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --attention-backend fa4 \
  --chunked-prefill-size 8192 \
  --cuda-graph-max-bs-decode 64 \
  --dtype bfloat16 \
  --enable-cache-report \
  --enable-metrics \
  --max-running-requests 64 \
  --mem-fraction-static 0.65 \
  --moe-runner-backend deep_gemm \
  --quantization mxfp8 \
  --reasoning-parser minimax-m3 \
  --tool-call-parser minimax-m3 \
  --trust-remote-code \
  --watchdog-timeout 1800
