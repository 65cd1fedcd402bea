#!/bin/sh
# mi355x-deepseek-v4-flash-tp8: DeepSeek-V4-Flash on 8x MI355X, one replica, the cookbook's command; never run by this project
#
# recipe     --attention-backend dsv4                        sglang cookbook deepseek-v4.jsx
# recipe     --chunked-prefill-size 8192                     sglang cookbook deepseek-v4.jsx
# inferred   --cuda-graph-max-bs-decode 64
# recipe     --disable-shared-experts-fusion                 sglang cookbook deepseek-v4.jsx
# inferred   --enable-cache-report
# inferred   --enable-metrics
# recipe     --kv-cache-dtype fp8_e4m3                       sglang cookbook deepseek-v4.jsx
# inferred   --max-running-requests 64
# recipe     --mem-fraction-static 0.9                       sglang cookbook deepseek-v4.jsx
# recipe     --page-size 256                                 sglang cookbook deepseek-v4.jsx
# recipe     --reasoning-parser deepseek-v4                  sglang cookbook deepseek-v4.jsx
# recipe     --speculative-algorithm EAGLE                   sglang cookbook deepseek-v4.jsx
# recipe     --speculative-eagle-topk 1                      sglang cookbook deepseek-v4.jsx
# recipe     --speculative-num-draft-tokens 4                sglang cookbook deepseek-v4.jsx
# recipe     --speculative-num-steps 3                       sglang cookbook deepseek-v4.jsx
# recipe     --swa-full-tokens-ratio 0.15                    sglang cookbook deepseek-v4.jsx
# recipe     --tool-call-parser deepseekv4                   sglang cookbook deepseek-v4.jsx
# recipe     --trust-remote-code                             sglang cookbook deepseek-v4.jsx
# recipe     --watchdog-timeout 3600                         InferenceX dsv4_fp4_mi355x_sglang_mtp.sh
# recipe     AITER_BF16_FP8_MOE_BOUND=0                      sglang cookbook deepseek-v4.jsx
# recipe     ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0           sgl-project/sglang#40084
# recipe     SAFETENSORS_FAST_GPU=1                          InferenceX glm5.1_fp4_mi355x.sh
# recipe     SGLANG_HACK_FLASHMLA_BACKEND=unified_kv_triton  sglang cookbook deepseek-v4.jsx
# recipe     SGLANG_TIMEOUT_KEEP_ALIVE=900                   InferenceX
# recipe     SGLANG_USE_AITER=1                              sglang docker/rocm.Dockerfile
# recipe     SGLANG_USE_ROCM700A=0                           sglang cookbook deepseek-v4.jsx
#
# warning speculation-is-greedy: requests are decoded greedily during speculative decoding; `temperature` and `top_p`
#   are ignored (sglang #31214, #37134; wheels 0.5.10 to 0.5.20 (0.5.14: srt/speculative/eagle_utils.py, eagle_sample))
# hint: if sampling matters, use sglang 0.5.21 or newer, or disable speculative decoding
#
# warning draft-ranks-diverge: ranks may draft different tokens under load and hang without a log line; the request
#   count freezes (sglang #35079, open, one author: MI355X, GLM-5.2-MXFP4, TP4×DP2, EAGLE 5/1/6; no wheel up to 0.5.23
#   has its fix)
# hint: `deploy watch` restarts a server that stalls; `speculative-num-steps` 1 should avoid it, with one draft per step
#
# warning graph-capture-race: graph capture may fail with `hipErrorStreamCaptureInvalidated`: a race of ROCm up to 7.2.0
#   (aiter #2941, #2857; sglang #23580, #29235; fixed in ROCm 7.2.1; `rocm720` images have 7.2.0)
# hint: start the server again; `rocm724` and `rocm10` images do not have it; `SGLANG_USE_AITER_AR=false` makes it rarer
#   and loses the fused all-reduce
set -eu
export AITER_BF16_FP8_MOE_BOUND=0
export ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16=0
export SAFETENSORS_FAST_GPU=1
export SGLANG_HACK_FLASHMLA_BACKEND=unified_kv_triton
export SGLANG_TIMEOUT_KEEP_ALIVE=900
export SGLANG_USE_AITER=1
export SGLANG_USE_ROCM700A=0
exec python3 -m sglang.launch_server \
  --model-path /models/deepseek-v4-flash \
  --served-model-name deepseek-v4-flash \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --attention-backend dsv4 \
  --chunked-prefill-size 8192 \
  --cuda-graph-max-bs-decode 64 \
  --disable-shared-experts-fusion \
  --enable-cache-report \
  --enable-metrics \
  --kv-cache-dtype fp8_e4m3 \
  --max-running-requests 64 \
  --mem-fraction-static 0.9 \
  --page-size 256 \
  --reasoning-parser deepseek-v4 \
  --speculative-algorithm EAGLE \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 4 \
  --speculative-num-steps 3 \
  --swa-full-tokens-ratio 0.15 \
  --tool-call-parser deepseekv4 \
  --trust-remote-code \
  --watchdog-timeout 3600
