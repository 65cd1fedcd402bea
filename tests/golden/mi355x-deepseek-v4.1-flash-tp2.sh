#!/bin/sh
# mi355x-deepseek-v4.1-flash-tp2: DeepSeek-V4.1-Flash on 2 of 8x MI355X, the cookbook's verified command and image; never run by this project
#
# recipe     --cuda-graph-backend-prefill disabled           sglang cookbook deepseek-v4.1.jsx
# recipe     --cuda-graph-max-bs-decode 128                  sglang cookbook deepseek-v4.1.jsx
# inferred   --enable-cache-report
# recipe     --enable-decoder-swa-bounded-replay             sglang cookbook deepseek-v4.1.jsx
# inferred   --enable-metrics
# recipe     --enforce-shared-experts-fusion                 sglang cookbook deepseek-v4.1.jsx
# recipe     --fp8-gemm-backend aiter                        sglang cookbook deepseek-v4.1.jsx
# recipe     --max-running-requests 128                      sglang cookbook deepseek-v4.1.jsx
# recipe     --mem-fraction-static 0.85                      sglang cookbook deepseek-v4.1.jsx
# recipe     --reasoning-parser deepseek-v41                 sglang 0.5.23, srt/parser/reasoning_parser.py
# recipe     --speculative-algorithm DSPARK                  sglang cookbook deepseek-v4.1.jsx
# recipe     --speculative-dspark-block-size 5               sglang cookbook deepseek-v4.1.jsx
# recipe     --tool-call-parser deepseekv41                  sglang 0.5.23, srt/parser/reasoning_parser.py
# recipe     --trust-remote-code                             sglang 0.5.23, srt/parser/reasoning_parser.py
# inferred   --watchdog-timeout 1800
# recipe     AITER_BF16_FP8_MOE_BOUND=0                      sglang cookbook deepseek-v4.1.jsx
# recipe     ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0           sgl-project/sglang#40084
# recipe     SAFETENSORS_FAST_GPU=1                          InferenceX glm5.1_fp4_mi355x.sh
# recipe     SGLANG_DSV41_ENGRAM_HOST_TABLE_LAYOUT=per_rank  sglang cookbook deepseek-v4.1.jsx
# recipe     SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE=1         sglang cookbook deepseek-v4.1.jsx
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900                   InferenceX
# recipe     SGLANG_USE_AITER=1                              sglang docker/rocm.Dockerfile
# recipe     SGLANG_USE_ROCM700A=0                           sglang cookbook deepseek-v4.1.jsx
# recipe     TORCH_BLAS_PREFER_HIPBLASLT=1                   sglang cookbook deepseek-v4.1.jsx
#
# warning graph-capture-race: graph capture may fail with `hipErrorStreamCaptureInvalidated`: a race of ROCm up to 7.2.0
#   (aiter #2941, #2857; sglang #23580, #29235; fixed in ROCm 7.2.1; `rocm720` images have 7.2.0)
# hint: start the server again; `rocm724` and `rocm10` images do not have it; `SGLANG_USE_AITER_AR=false` makes it rarer
#   and loses the fused all-reduce
set -eu
export AITER_BF16_FP8_MOE_BOUND=0
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SAFETENSORS_FAST_GPU=1
export SGLANG_DSV41_ENGRAM_HOST_TABLE_LAYOUT=per_rank
export SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE=1
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
export SGLANG_USE_ROCM700A=0
export TORCH_BLAS_PREFER_HIPBLASLT=1
exec python3 -m sglang.launch_server \
  --model-path /models/deepseek-v4.1-flash \
  --served-model-name deepseek-v4.1-flash \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 2 \
  --cuda-graph-backend-prefill disabled \
  --cuda-graph-max-bs-decode 128 \
  --enable-cache-report \
  --enable-decoder-swa-bounded-replay \
  --enable-metrics \
  --enforce-shared-experts-fusion \
  --fp8-gemm-backend aiter \
  --max-running-requests 128 \
  --mem-fraction-static 0.85 \
  --reasoning-parser deepseek-v41 \
  --speculative-algorithm DSPARK \
  --speculative-dspark-block-size 5 \
  --tool-call-parser deepseekv41 \
  --trust-remote-code \
  --watchdog-timeout 1800
